"""What layers ask of their inputs, when they are traced."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel.module import Module
from aerogel.module._display import show_type

from ._errors import InputError, MissingKeyError
from ._position import position_of


def check_last_axes(layer: Module, x: Any, *sizes: int | str, name: str = "input", to_fix: str | None = None) -> None:
    """Nothing, if the last axes of `x` have these sizes; a name stands for an axis of any size.

    Raises:
        InputError: they have not; names the place of the layer in the model.
    """
    check_axes(layer, x, "...", *sizes, name=name, to_fix=to_fix)


def check_axes(layer: Module, x: Any, *sizes: int | str, name: str = "input", to_fix: str | None = None) -> None:
    """Nothing, if `x` is an array with these axes; a name stands for an axis of any size, "..." for any axes.

    Raises:
        InputError: it is not; names the place of the layer in the model.
    """
    check_is_array(layer, x, name)
    shape = jnp.shape(x)
    any_at = sizes.index("...") if "..." in sizes else len(sizes)
    before, after = sizes[:any_at], sizes[any_at + 1 :]
    fits = len(shape) >= len(before) + len(after) if "..." in sizes else len(shape) == len(sizes)
    got = (*shape[: len(before)], *shape[len(shape) - len(after) :])
    if fits and all(isinstance(a, str) or a == b for a, b in zip((*before, *after), got, strict=True)):
        return
    raise InputError(
        what=f"the {name} has another shape than the layer takes.",
        place=position_of(layer),
        got=shown(x),
        wanted=show_type(str(jnp.result_type(x)), sizes),
        to_fix=to_fix,
    )


def check_broadcasts(
    layer: Module, x: Any, shape: tuple[int, ...], kept: int, name: str, to_fix: str | None = None
) -> None:
    """Nothing, if `x` broadcasts against an array of this shape, and makes none of its last `kept` axes longer.

    Raises:
        InputError: it does not.
    """
    check_is_array(layer, x, name)
    last = shape[len(shape) - kept :]
    try:
        joined = jnp.broadcast_shapes(jnp.shape(x), shape)
        fits = joined[len(joined) - kept :] == last
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            what=f"the {name} does not broadcast to what it is for.",
            place=position_of(layer),
            got=shown(x),
            wanted=show_type(str(jnp.result_type(x)), shape),
            to_fix=to_fix,
        )


def check_windows(layer: Module, x: Any, reach: Sequence[int], pads: Sequence[tuple[int, int]]) -> None:
    """Nothing, if windows that reach so far fit into the last axes of `x`, padded: else there would be no result.

    Raises:
        InputError: they do not.
    """
    shape = jnp.shape(x)
    least = [max(each - low - high, 1) for each, (low, high) in zip(reach, pads, strict=True)]
    before, space = shape[: len(shape) - len(least)], shape[len(shape) - len(least) :]
    # A size that is a symbol (`jax.export`) is looked at by nobody.
    if any(isinstance(size, int) and size < each for size, each in zip(space, least, strict=True)):
        raise InputError(
            what="windows are larger than the input with its padding.",
            place=position_of(layer),
            got=shown(x),
            wanted=show_type(str(jnp.result_type(x)), (*before, *(f"{each} or more" for each in least))),
            to_fix="pad more, use smaller windows, or fewer layers that make space smaller",
        )


def check_is_array(layer: Module, x: Any, name: str = "input") -> None:
    """Nothing, unless `x` is a tuple, or another tree, of arrays.

    Raises:
        InputError: it is.
    """
    arrays = [each for each in jax.tree.leaves(x) if hasattr(each, "shape")]
    if not isinstance(x, tuple | list | dict) or not arrays:
        return
    raise InputError(
        what=f"the {name} must be one array.",
        place=position_of(layer),
        got=f"a {type(x).__name__} of {', '.join(map(shown, arrays))}",
        wanted="an array",
        to_fix="choose one of them: recurrent layers return (results, state)",
    )


def types_of(tree: Any) -> Any:
    """The structure of a tree, and shapes and dtypes of its leaves: to compare."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def check_channels(layer: Module, x: Any, channels: int, num_spatial_dims: int) -> None:
    """Nothing, if `x` is [..., channels, *space].

    Raises:
        InputError: it is not.
    """
    fix = "channels come before space; say how many axes of space there are: num_spatial_dims="
    check_last_axes(layer, x, channels, *["space"] * num_spatial_dims, to_fix=fix)


def check_integers(layer: Module, x: Any, name: str = "input") -> None:
    """Nothing, if `x` holds integers.

    Raises:
        InputError: it does not.
    """
    if not jnp.issubdtype(jnp.result_type(x), jnp.integer):
        raise InputError(
            what=f"the {name} must be integers.",
            place=position_of(layer),
            got=shown(x),
            wanted="integers",
            to_fix="convert it: x.astype(int)",
        )


def needed_key(layer: Module, key: jax.Array | None) -> jax.Array:
    """The key.

    Raises:
        MissingKeyError: there is none.
    """
    if key is None:
        raise MissingKeyError(place=position_of(layer))
    return key


def shown(x: Any) -> str:
    """`f32[8,5]`."""
    return show_type(str(jnp.result_type(x)), jnp.shape(x))
