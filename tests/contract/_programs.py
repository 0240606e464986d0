"""Programs in which a rewrite is known to fire, a look into programs, and the comparison that the tests share.

Most promises are easy to keep for a program that is left alone. `assert_same` therefore checks each of them twice: the
user's function by itself, and beside a scan whose stacked outputs are only summed, where loop fusion must have fired.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag

LENGTH, WIDTH = 64, 16384
STACKED = (LENGTH, WIDTH)  # 4 MB of float32: large enough for every profit threshold


def start(dtype: Any = jnp.float32) -> jax.Array:
    """A first carry, `[WIDTH]`. All positive: a sum over it and its sines has no cancellation."""
    return jnp.linspace(0.1, 1.0, WIDTH, dtype=dtype)


def stacked_sum(x: jax.Array) -> jax.Array:
    """The scalar sum of a scan's stacked outputs `[LENGTH, *x.shape]`, which nobody else reads."""
    return lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=LENGTH)[1].sum()


def left_alone(x: jax.Array) -> jax.Array:
    """A program of three equations in which there is nothing to improve. Result: `x`'s shape."""
    return jnp.tanh(x) * jnp.exp(-x)


def equations(program: Any) -> Iterator[Any]:
    """Every equation of a (closed) jaxpr, those of nested programs included."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation
        yield from _nested(list(equation.params.values()))


def _nested(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield from equations(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _nested(item)


def primitives(program: Any) -> Counter[str]:
    """How often each primitive occurs, at any depth."""
    return Counter(equation.primitive.name for equation in equations(program))


def result_shapes(program: Any) -> Counter[tuple[int, ...]]:
    """How often each shape occurs among the results of equations, at any depth."""
    return Counter(getattr(v.aval, "shape", None) for equation in equations(program) for v in equation.outvars)


def assert_fires(f: Callable, *args: Any, gone: tuple[int, ...] = STACKED, **kwargs: Any) -> None:
    """An array of shape `gone` exists in the program of `f(*args)` and not in the optimised one: a rewrite fired."""
    before = jax.make_jaxpr(f)(*args, **kwargs)
    after = jax.make_jaxpr(ag.optimize(f))(*args, **kwargs)
    assert result_shapes(before)[gone] > 0, f"nothing to remove: no {gone} in\n{before}"
    assert result_shapes(after)[gone] == 0, f"no rewrite fired, {gone} is still in\n{after}"


def beside_rewrite(f: Callable) -> Callable:
    """`(x, *args) -> (stacked_sum(x), f(*args))`: `f` in one program with a scan that is rewritten."""

    def both(x: jax.Array, *args: Any, **kwargs: Any) -> tuple[jax.Array, Any]:
        return stacked_sum(x), f(*args, **kwargs)

    return both


def assert_equal_trees(got: Any, want: Any) -> None:
    """Same structure and types (weak types, memory kinds and devices included), same integers, nearly the same floats.

    Floats may differ by a few units in the last place; nan, infinities and the signs of zeros may not.
    """
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for path_and_leaf, other in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        path, leaf = path_and_leaf
        where = jax.tree_util.keystr(path)
        assert type(leaf) is type(other), where
        assert _description(leaf) == _description(other), where
        _assert_equal_values(_values(leaf), _values(other), where)


def _description(leaf: Any) -> tuple:
    if not isinstance(leaf, jax.Array):
        return ()
    return (jax.typeof(leaf), leaf.sharding.memory_kind, leaf.sharding.device_set)


def _values(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _assert_equal_values(got: np.ndarray, want: np.ndarray, where: str) -> None:
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        np.testing.assert_array_equal(got, want, err_msg=where)
        return
    for part in (np.real, np.imag) if np.iscomplexobj(got) else (np.asarray,):
        precision = float(jnp.finfo(got.dtype).eps)
        a, b = part(got).astype(np.float64), part(want).astype(np.float64)
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=where)
        np.testing.assert_allclose(a, b, rtol=32 * precision, atol=32 * precision, err_msg=where)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[a == 0]), err_msg=where)


def assert_same(f: Callable, *args: Any, **kwargs: Any) -> None:
    """`jit(optimize(f))` gives what `jit(f)` gives, alone and in one program with a rewrite that fires."""
    want = jax.jit(f)(*args, **kwargs)
    assert_equal_trees(jax.jit(ag.optimize(f))(*args, **kwargs), want)
    together = beside_rewrite(f)
    x = start()
    total, got = jax.jit(ag.optimize(together))(x, *args, **kwargs)
    assert_equal_trees(got, want)
    np.testing.assert_allclose(total, jax.jit(stacked_sum)(x), rtol=1e-5)
    assert_fires(together, x, *args, **kwargs)


def lowered_text(f: Callable, *args: Any, **options: Any) -> str:
    """StableHLO of `jit(f, **options)` at `args`."""
    return jax.jit(f, **options).lower(*args).as_text()


def assert_lowers_alike(f: Callable, *args: Any, **options: Any) -> None:
    """Where nothing fires, `jit(optimize(f))` is the same StableHLO as `jit(f)`, to the letter."""
    assert lowered_text(ag.optimize(f), *args, **options) == lowered_text(f, *args, **options)
