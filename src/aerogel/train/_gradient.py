"""Value and gradient of a loss by the trained arrays, with updates of variables, whole or by microbatches."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module import combine
from aerogel.module._frozen import state_mask
from aerogel.module._paths import show_path
from aerogel.transform import scan, stateful, value_and_grad
from aerogel.transform._static import is_static

_jax.exclude_from_tracebacks(__file__)


def gradient(
    loss: Callable[..., Any], has_aux: bool, scale: Any, params: Any, model: Any, args: Any, kwargs: Any
) -> tuple[Any, Any, Any]:
    """What `loss` returns, the model with its updates, and the gradient by `params` of `scale` times the loss."""

    def scaled(params: Any) -> Any:
        whole = combine(params, model)
        if any(state_mask(whole)):
            out, new = stateful(loss)(whole, *args, **kwargs)
        else:
            out, new = loss(whole, *args, **kwargs), whole
        if has_aux and not (isinstance(out, tuple) and len(out) == 2):
            wanted = "a function that returns a pair, as has_aux=True says"
            raise UsageError(argument="loss", got=out, wanted=wanted, function="Optimizer.step")
        value = out[0] if has_aux else out
        return value if scale is None else wide(value) * scale, (out, new)

    (_, (out, new)), grads = value_and_grad(scaled, has_aux=True)(params)
    return out, new, grads


def accumulated(
    loss: Callable[..., Any], has_aux: bool, count: int, scale: Any, params: Any, model: Any, args: Any, kwargs: Any
) -> tuple[Any, Any, Any]:
    """As `gradient`, for a batch in `count` parts, one after the other; sums are in float32 at least."""
    if not args:
        wanted = "a step that is given its batch by position, after the model"
        raise UsageError(argument="microbatches", got=count, wanted=wanted, function="Optimizer.step")

    def body(carry: Any, part: Any) -> Any:
        (model, total), (i, batch) = carry, part
        batch, rest, named = _with_own_keys((batch, args[1:], kwargs), i)
        out, model, grads = gradient(loss, has_aux, scale, params, model, (batch, *rest), named)
        return (model, jax.tree.map(jnp.add, total, grads)), out

    zeros = jax.tree.map(lambda p: jnp.zeros_like(wide(p)), params)
    parts = jax.tree_util.tree_map_with_path(lambda path, x: _cut(path, x, count), args[0])
    (model, total), outs = scan(body, (model, zeros), (jnp.arange(count), parts))
    grads = jax.tree.map(lambda g, p: (g / count).astype(p.dtype), total, params)
    return (outs[0].mean(), outs[1]) if has_aux else outs.mean(), model, grads


def wide(x: Any) -> jax.Array:
    """The array in float32, or in what it is if that holds more."""
    return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def _cut(path: Any, x: Any, count: int) -> Any:
    """An array of [batch, ...] as [count, batch / count, ...].

    A part takes every so many-th entry, so that a batch that lies on several devices stays where it is.
    """
    if is_static(x) or _is_key(x):
        return x if is_static(x) else jnp.broadcast_to(x, (count,))
    shape = jnp.shape(x)
    if not shape or shape[0] % count:
        raise UsageError(
            argument="microbatches",
            got=count,
            wanted=f"a divisor of the leading axis of {show_path(path, 'batch')}, of shape {shape}",
            function="Optimizer.step",
        )
    return jnp.swapaxes(jnp.reshape(x, (shape[0] // count, count, *shape[1:])), 0, 1)


def _with_own_keys(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: jax.random.fold_in(x, i) if _is_key(x) else x, tree)


def _is_key(x: Any) -> bool:
    """Whether a leaf is one key of random numbers."""
    return isinstance(x, jax.Array) and x.shape == () and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
