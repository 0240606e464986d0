"""Scalar arithmetic on literals is done, and only where every backend gives the same bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import evaluate
from aerogel.compiler.normalize import normalize
from compiler.programs_of import bits, traced

FLOATS = ("float16", "bfloat16", "float32", "float64")
OPERATIONS = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "neg": lambda x, _: lax.neg(x), "gt": lax.gt}
NUMBERS = (0.0, -0.0, 1.0, -3.0, 1 / 3, 1e-3, 60000.0, 3e38, 1e-39, 5e-8, np.inf, np.nan)


def is_normal(x: Any) -> bool:
    """Whether x is a number that is as it is on all backends."""
    if x.dtype == bool:
        return True
    return bool(np.isfinite(x) and (x == 0 or abs(x) >= jnp.finfo(x.dtype).tiny))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_folded_literals_are_what_is_computed(name: str, dtype: str) -> None:
    """The same bits, signs of zeros included; what is or becomes no normal number stays an equation."""
    operation = OPERATIONS[name]
    with jax.enable_x64(True), np.errstate(all="ignore"):
        for a in NUMBERS:
            for b in NUMBERS:
                x, y = (np.asarray(v).astype(jnp.dtype(dtype))[()] for v in (a, b))
                program = traced(lambda x=x, y=y: operation(x, y))
                assert program.jaxpr.eqns
                normal = normalize(program)[0]
                want = evaluate(program, [])
                assert bits(evaluate(normal, [])) == bits(want)
                read = (x,) if name == "neg" else (x, y)
                assert bool(normal.jaxpr.eqns) != all(map(is_normal, (*read, np.asarray(want[0]))))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_what_is_out_of_range_is_not_converted(dtype: str) -> None:
    """Backends differ there."""
    program = traced(lambda: lax.convert_element_type(lax.add(np.float32(3e9), np.float32(0)), dtype))
    assert len(normalize(program)[0].jaxpr.eqns) == 1
    narrowed = traced(lambda: lax.convert_element_type(lax.mul(np.float32(1e5), np.float32(1)), "float16"))
    assert normalize(narrowed)[0].jaxpr.eqns
    rounded = traced(lambda: lax.convert_element_type(lax.mul(np.float32(1 / 3), np.float32(1)), "float16"))
    assert not normalize(rounded)[0].jaxpr.eqns
    assert bits(evaluate(normalize(rounded)[0], [])) == bits(evaluate(rounded, []))


@pytest.mark.parametrize("ddof", [0, 1, 0.5])
def test_a_variance_asks_nothing_at_run_time(ddof: float) -> None:
    """`jnp.var` divides by `n - ddof` where that is above zero, which is known."""

    def f(x: Any) -> Any:
        return jnp.sin(jnp.var(x, 1, ddof=ddof))

    x = jnp.asarray(np.random.default_rng(0).standard_normal((300, 400)), "float32")
    assert "cond" not in str(jax.make_jaxpr(ag.optimize(f))(x))
    assert not any(d.rule == "branch-guard" for d in ag.explain(f)(x).decisions)
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(x), f(x), rtol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint32"])
def test_a_product_with_ones_is_the_other_factor(dtype: str) -> None:
    """In either order, bit for bit; the derivative of a sum is such a product."""
    with jax.enable_x64(True):
        x = jnp.asarray([[1, 0, 3], [2, 5, 9]], dtype)
        for f in (lambda x: x * jnp.ones_like(x), lambda x: jnp.ones_like(x) * x):
            assert not normalize(traced(f, x))[0].jaxpr.eqns
            assert bits([jax.jit(ag.optimize(f))(x)]) == bits([x])
    program = normalize(traced(jax.grad(lambda x, y: (x * y).sum()), jnp.ones(3), jnp.ones(3)))[0]
    assert not [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "mul"]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * jnp.ones((3, 1)),
        lambda x: x.astype(complex) * jnp.ones(3, complex),
        lambda x: x * jnp.full(3, 1.5),
        lambda x: lax.mul(lax.convert_element_type(x, "int32"), jnp.full(3, 2)),
        lambda x: x * x,
    ],
)
def test_a_product_that_does_something_stays(f: Any) -> None:
    """It stretches, changes the type, or has another factor; of complex numbers an infinite part becomes no number."""
    assert any(eqn.primitive.name == "mul" for eqn in normalize(traced(f, jnp.ones(3)))[0].jaxpr.eqns)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_a_selection_that_is_one_everywhere_is_its_case(one: bool, dtype: str) -> None:
    """Bit for bit, nan included: as what tells which of NumPy's indices are below zero."""
    with jax.enable_x64(True):
        x = jnp.asarray([[1, 0, 3], [2, 5, 9]], dtype)
        x = x * np.nan if jnp.issubdtype(x.dtype, jnp.floating) else x
        program = normalize(traced(lambda x: lax.select(jnp.full(x.shape, one), x, jnp.ones_like(x)), x))[0]
        assert not [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "select_n"]
        assert bits(evaluate(program, [x])) == bits([x if one else jnp.ones_like(x)])


@pytest.mark.parametrize(
    "which",
    [lambda x: x > 0, lambda x: jnp.arange(3) > 1, lambda x: jnp.broadcast_to(x[0] > 0, (3,))],
)
def test_a_selection_that_is_not_known_stays(which: Any) -> None:
    """From data, from counters, or one number of the data for all."""
    program = normalize(traced(lambda x: lax.select(which(x), x, 2 * x), jnp.ones(3)))[0]
    assert [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "select_n"]


def test_what_is_joined_with_nothing_is_itself() -> None:
    """`jnp.roll` by no place, along one axis or several; what is joined with itself is another value."""
    x = jnp.arange(12.0).reshape(3, 4)
    for f in (
        lambda x: jnp.roll(x, 0, 1),
        lambda x: jnp.roll(x, (0, 4), (0, 1)),
        lambda x: jnp.concatenate([x[:0], x]),
    ):
        program = normalize(traced(f, x))[0]
        assert program.jaxpr.outvars == program.jaxpr.invars
    for f in (lambda x: jnp.concatenate([x, x]), lambda x: jnp.concatenate([x[:0], x, x[:1]])):
        program = traced(f, x)
        assert bits(evaluate(normalize(program)[0], [x])) == bits(evaluate(program, [x]))
    empty = x[:0]
    assert bits([jax.jit(ag.optimize(lambda x: jnp.concatenate([x, x])))(empty)]) == bits([empty])
