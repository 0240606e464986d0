"""The place of a maximum is looked for in few steps only, and is the one that `argmax` gives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from compiler.loop_patterns import normal

T, SIZE = 12, 1024


def values(kind: str) -> np.ndarray:
    """Outputs of the steps."""
    x = normal(0, T, SIZE)
    flat = x.reshape(-1)
    if kind == "integers":
        return (x * 3).astype(np.int32)
    if kind == "ties":
        return np.round(x)
    if kind == "equal":
        return np.full_like(x, -np.inf)
    if kind == "lowest integers":
        return np.full(x.shape, np.iinfo(np.int32).min)
    if kind == "infinite":
        flat[[700, 5000, 9000]] = np.inf, -np.inf, np.inf
    if kind == "nan":
        flat[[700, 5000, 9000]] = np.inf, np.nan, np.nan
    return x.astype(jnp.bfloat16) if kind == "bfloat16" else x


KINDS = ("drawn", "integers", "ties", "equal", "lowest integers", "infinite", "nan", "bfloat16")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_best(kind: str, name: str, reverse: bool) -> None:
    """The index is `jnp.argmax`'s: nan first, then the first of equal values; also where only some steps count."""
    xs = values(kind)
    xs = -xs if name == "argmin" and kind not in ("lowest integers",) else xs
    find = getattr(jnp, name)

    def f(xs: Any) -> Any:
        # the state is zero: nothing rounds
        ys = lax.scan(lambda c, x: (3 * c, x + c), jnp.zeros((), xs.dtype), xs, reverse=reverse)[1]
        return find(ys), find(ys[2:9:3])

    optimised = ag.optimize(f)
    assert str(jax.make_jaxpr(optimised)(xs)).count("cond[") >= 1
    for got, want in zip(jax.jit(optimised)(xs), jax.jit(f)(xs), strict=True):
        assert got == want
        assert got.dtype == want.dtype


def test_under_vmap_and_grad() -> None:
    """Batched, every step looks; a gradient passes by an index."""

    def f(x: Any) -> Any:
        ys = lax.scan(lambda c, _: (0.9 * c, c), x, None, length=T)[1]
        return jnp.argmax(ys), ys.sum()

    x = normal(1, 4, SIZE)
    for g in (jax.vmap(f), jax.vmap(jax.grad(lambda x: f(x)[1] * f(x)[0]))):
        ag.verify(g)(x)
        for got, want in zip(
            jax.tree.leaves(jax.vmap(ag.optimize(f))(x)), jax.tree.leaves(jax.vmap(f)(x)), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(("size", "stays"), [(8192, False), (1024, True)])
def test_a_place_within_each_step_is_looked_for_there_where_that_is_vector_code(size: int, stays: bool) -> None:
    """The outputs of all steps then never exist; a small step is scalar code, and all of them are shared by cores."""

    def f(x: Any) -> Any:
        return jnp.argmax(lax.scan(lambda c, _: (c - 0.05 * c * c, c), x, None, length=2 * T)[1], 1)

    x = normal(2, size)
    loops = ("scan", "one_kernel")
    (scan,) = (eqn for eqn in jax.make_jaxpr(ag.optimize(f))(x).eqns if eqn.primitive.name in loops)
    assert any(v.aval.shape == (2 * T, size) for v in scan.outvars) == stays
    np.testing.assert_array_equal(jax.jit(ag.optimize(f))(x), jax.jit(f)(x))
