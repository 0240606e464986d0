"""Sums of products under a mask are products of matrices: the mask is behind the sum, or on both factors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.loop_patterns import normal

X, Y, W = normal(0, 330, 110), normal(1, 240, 110), normal(2, 110, 160)
M, ROWS, PAIRS = normal(3, 110) > 0, normal(4, 330) > 0, normal(5, 330, 240) > 0


def similar(x: Any, y: Any, m: Any) -> Any:
    """Products of all rows over the features that a mask keeps."""
    return jax.vmap(lambda a: jax.vmap(lambda b: jnp.sum(jnp.where(m, a * b, 0.0)))(y))(x)


# fmt: off
MULTIPLIED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "features": (similar, (X, Y, M)),
    "features that are dropped": (lambda x, y, m: jnp.sum(jnp.where(m, 0, x[:, None] * y), -1), (X, Y, M)),
    "by `where=`": (lambda x, y, m: jnp.sum(x[:, None] * y, -1, where=m), (X, Y, M)),
    "a mean": (lambda x, y, m: jnp.mean(x[:, None] * y[None], axis=-1, where=m), (X, Y, M)),
    "rows": (lambda x, w, m: jnp.where(m[:, None, None], x[:, :, None] * w, 0).sum(1), (X, W, ROWS)),
    "pairs": (lambda x, y, m: jnp.where(m[:, :, None], x[:, None] * y, 0).sum(-1), (X, Y, PAIRS)),
    "turned": (lambda x, y, m: jnp.where(m[:, None, None], y.T[:, :, None] * x.T[:, None], 0).sum(0), (X, Y, M)),
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a mask of one factor": (lambda x, w, m: jnp.where(m[:, :, None], x[:, :, None] * w, 0).sum(1), (X, W, X > 0)),
    "another number": (lambda x, y, m: jnp.sum(jnp.where(m, x[:, None] * y, 1.0), -1), (X, Y, M)),
    "no product": (lambda x, y, m: jnp.sum(jnp.where(m, x[:, None] - y, 0.0), -1), (X, Y, M)),
    "few": (lambda x, y, m: jnp.sum(jnp.where(m[:3], x[:4, None, :3] * y[:4, :3], 0.0), -1), (X, Y, M)),
}
# fmt: on


def alone(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(ContractionOrder(),), **options)


def largest(f: Callable[..., Any], *args: Any) -> int:
    """The entries of the largest array of floats that a program makes; what is converted XLA makes where it is read."""
    program = jax.make_jaxpr(jax.jit(f, inline=True))(*args)
    made = (v.aval for eqn in program.jaxpr.eqns if eqn.primitive.name != "convert_element_type" for v in eqn.outvars)
    return max(aval.size for aval in made if jnp.issubdtype(aval.dtype, jnp.floating))


def with_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function and the gradient of its squares."""
    return jax.value_and_grad(lambda *args: jnp.sum(f(*args) ** 2), (0, 1))


@pytest.mark.parametrize("form", MULTIPLIED)
def test_a_masked_sum_is_a_product(form: str) -> None:
    """Nothing of three dimensions is left, in gradients neither; doubles agree with JAX's."""
    f, args = MULTIPLIED[form]
    for g in (f, with_gradient(f)):
        assert largest(g, *args) > 330 * 240
        assert largest(alone(g), *args) <= 330 * 240
        with jax.enable_x64(True):
            wide = [jnp.asarray(np.asarray(x, np.float64 if x.dtype != bool else bool)) for x in args]
            got, want = jax.jit(alone(g))(*wide), jax.jit(g)(*wide)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), got, want)


@pytest.mark.parametrize("form", LEFT)
def test_others_are_left(form: str) -> None:
    """A mask in one factor would let an infinity of the other one meet a zero."""
    f, args = LEFT[form]
    assert str(jax.make_jaxpr(alone(f))(*args)) == str(jax.make_jaxpr(f)(*args))


@pytest.mark.parametrize("form", MULTIPLIED)
def test_what_is_masked_is_never_read(form: str) -> None:
    """Nan and infinities where no mask lets them through, in either factor."""
    f, (a, b, m) = MULTIPLIED[form]
    if form in ("rows", "pairs"):
        a = jnp.where(m[:, None], a, jnp.nan) if form == "rows" else a
    else:
        off = m if "dropped" in form else ~m
        a, b = jnp.where(off, jnp.nan, a), jnp.where(off, jnp.inf, b)
    got, want = jax.jit(alone(f))(a, b, m), jax.jit(f)(a, b, m)
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_types_and_transformations(dtype: Any) -> None:
    """Of fewer bits, under `vmap`, in a loop, and of no rows."""
    x, y = X.astype(dtype), Y.astype(dtype)
    tolerance = 4e-2 if dtype == jnp.bfloat16 else 1e-5
    for g in (
        lambda x: similar(x, y, M),
        lambda x: jax.vmap(lambda y: similar(x, y, M))(jnp.stack([y, -y])),
        lambda x: jax.lax.scan(
            lambda c, m: (c + similar(x, y, m), None), jnp.zeros((330, 240), dtype), jnp.stack([M, ~M])
        )[0],
        lambda x: similar(x[:0], y, M),
    ):
        got, want = (np.asarray(jax.jit(h)(x), np.float64) for h in (alone(g), g))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 10)
