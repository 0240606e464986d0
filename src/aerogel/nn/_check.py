"""What layers ask of their inputs, when they are traced."""

from typing import Any

import jax
import jax.numpy as jnp

from aerogel.module import Module
from aerogel.module._display import show_type

from ._errors import InputError, MissingKeyError
from ._position import position_of


def check_last_axes(layer: Module, x: Any, *sizes: int | str, name: str = "input", to_fix: str | None = None) -> None:
    """Nothing, if the last axes of `x` have these sizes; a name stands for an axis of any size.

    Raises:
        InputError: they have not; names the place of the layer in the model.
    """
    shape = jnp.shape(x)
    last = shape[len(shape) - len(sizes) :] if len(shape) >= len(sizes) else ()
    if len(last) == len(sizes) and all(
        isinstance(size, str) or size == got for size, got in zip(sizes, last, strict=True)
    ):
        return
    raise InputError(
        what=f"the {name} has another shape than the layer takes.",
        place=position_of(layer),
        got=shown(x),
        wanted=show_type(str(jnp.result_type(x)), ("...", *sizes)),  # type: ignore[arg-type]
        to_fix=to_fix,
    )


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
