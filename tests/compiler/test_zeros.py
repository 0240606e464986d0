"""What is left of a body whose inputs are zero, against running it with zeros."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aerogel._jax import ClosedJaxpr, Literal, evaluate
from aerogel.compiler.normalize import normalize
from aerogel.compiler.program import Builder, is_var, substitute, with_equations
from aerogel.compiler.zeros import without_zeros, zero_outputs
from compiler.programs_of import traced

X, Y = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3), np.linspace(1, 3, 6, dtype=np.float32).reshape(2, 3)

BODIES = {
    "arithmetic": lambda x, y: (x * y, x + y, y + x, y - x, x - y, x / y, -x),
    "shapes": lambda x, y: (x.T @ y, x.reshape(6), x[0], jnp.concatenate([x, x]), jnp.concatenate([x, y]), x[::-1]),
    "sums": lambda x, y: (x.sum(0), jnp.cumsum(x, 0), x.max(0), lax.pad(x, jnp.float32(0), [(1, 0, 0)] * 2)),
    "padded with ones": lambda x, y: lax.pad(x, jnp.float32(1), [(1, 0, 0)] * 2),
    "chosen": lambda x, y: (jnp.where(y > 2, x, 0 * x), jnp.where(y > 2, x, y), jnp.where(x > 0, y, x)),
    "not linear": lambda x, y: (jnp.cos(x), jnp.exp(x), jnp.cos(x) * y, y**x),
    "types": lambda x, y: (x.astype(jnp.int32) + 1, x.astype(jnp.bfloat16), (x * 2).astype(jnp.int8) * 3),
    "broadcast sums": lambda x, y: (x[0] + y, y + x[0], y[0] + x),
    "entries": lambda x, y: (x.at[0].add(x[1]), x.at[0].set(y[0]), x.at[1].set(2 * x[0]), y.at[0].set(x[0])),
    "solves": lambda x, y: (jnp.linalg.solve(y @ y.T, x), lax.linalg.triangular_solve(y @ y.T, x, left_side=True)),
    "windows": lambda x, y: (jnp.convolve(x[0], y[0]), jnp.convolve(y[1], x[1]), jnp.fft.rfft(x), jnp.fft.fft(x + y)),
    "loops": lambda x, y: (
        lax.scan(lambda c, v: (c * v[0], c + v[1]), x[0], (y, x)),
        lax.scan(lambda c, v: (c + v, c), x[0], y),
        lax.scan(lambda c, v: ((c[1], v), c[0]), (x[0], y[0]), x),
        lax.fori_loop(0, 3, lambda i, c: (c[0] * jnp.cos(c[1]), c[1] + i), (x, y)),
        lax.scan(lambda c, v: (x[0], v), y[0], x),
    ),
    "gradient step": lambda x, y: (0.9 * (y + x) - 0.3 * jnp.sin(y) * (y + x), x),
}


@pytest.mark.parametrize("name", BODIES)
def test_the_rest_of_a_body_gives_its_results(name: str) -> None:
    """Without what is zero the body gives, up to the sign of zero, what it gives for zeros; nothing reads x."""
    program = normalize(traced(BODIES[name], X, Y))[0]
    body = program.jaxpr
    x = body.invars[0]
    builder = Builder(body.eqns[0])
    left = without_zeros(body, [x], builder)
    rest = with_equations(body, builder.eqns, [substitute(v, left) for v in body.outvars])
    assert all(v is not x for eqn in rest.eqns for v in eqn.invars if is_var(v))
    zeros = np.zeros_like(X)
    wanted = evaluate(program, [zeros, Y])
    # The rest does not depend on what stands for x.
    for other in (zeros, np.full_like(X, np.nan)):
        for a, b in zip(evaluate(ClosedJaxpr(rest, ()), [other, Y]), wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", BODIES)
def test_what_is_called_zero_is(name: str) -> None:
    """Every variable that is known to be zero is, when the input is."""
    program = normalize(traced(BODIES[name], X, Y))[0]
    body = program.jaxpr
    known = [v for v in zero_outputs(body, [body.invars[0]]) if v is not body.invars[0]]
    probe = with_equations(body, body.eqns, known)
    for value in evaluate(ClosedJaxpr(probe, ()), [np.zeros_like(X), Y]):
        assert not np.any(np.asarray(value))


@pytest.mark.parametrize(
    ("f", "zero"),
    [
        (lambda x, y: lax.scan(lambda c, v: (c * v[0], c + v[1]), x[0], (y, x)), [True, True]),
        (lambda x, y: lax.scan(lambda c, v: (c + v, c), x[0], y), [False, False]),
        (lambda x, y: lax.scan(lambda c, v: ((c[1] * v, v * x[0]), c[0]), (x[0], x[1]), y), [True, True, True]),
        (lambda x, y: lax.scan(lambda c, v: (c[::-1], c * v), (x[0] + 1), x), [False, True]),
        (lambda x, y: lax.scan(lambda c, v: ((c[1], c[1] * 0.5 + v), c[1]), (x[0], x[1]), y), [False] * 3),
        (lambda x, y: jnp.linalg.solve(y @ y.T, x), [True]),
        (lambda x, y: jnp.linalg.solve(x @ y.T, y), [False]),
        (lambda x, y: jnp.convolve(x[0], y[0]), [True]),
        (lambda x, y: x.at[0].add(y[1]), [False]),
    ],
)
def test_what_of_loops_and_solves_is_zero(f: Any, zero: list[bool]) -> None:
    """A carry has to start as zero and to stay so; a solve is zero where all its right-hand sides are."""
    body = normalize(traced(f, X, Y))[0].jaxpr
    known = zero_outputs(body, [body.invars[0]])
    assert [v in known for v in body.outvars] == zero


def test_something_is_left_out() -> None:
    """Of a linear body nothing is computed but zeros."""
    body = traced(lambda x, y: (x * y).sum() + x[0, 0], X, Y).jaxpr
    builder = Builder(body.eqns[0])
    without_zeros(body, [body.invars[0]], builder)
    assert [eqn.primitive.name for eqn in builder.eqns] == ["broadcast_in_dim"] or all(
        isinstance(v, Literal) for eqn in builder.eqns for v in eqn.invars
    )
    assert len(builder.eqns) < len(body.eqns)


def test_effects_are_no_zeros() -> None:
    """A callback on zeros is still called, its result is not known."""
    import jax

    def f(x: Any) -> Any:
        return jax.pure_callback(lambda v: v + 1, x, x)

    body = traced(f, X).jaxpr
    assert zero_outputs(body, body.invars) == set(body.invars)
