"""`check_grads`: right derivatives pass, and a wrong one is told by argument, entry, order and mode."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel.transform.numeric import Flat, Numeric

X = jnp.array([1.0, 2.0])


@ag.custom_jvp
def cube(x: jax.Array) -> jax.Array:
    """A function with a wrong derivative."""
    return x**3


@cube.defjvp
def _(primals, tangents):
    return cube(*primals), 2 * primals[0] ** 2 * tangents[0]


@jax.custom_vjp
def apply(w: jax.Array, x: jax.Array) -> jax.Array:
    """A product whose gradient is wrong by one entry of `w`, and by all of `x`."""
    return w @ x


apply.defvjp(lambda w, x: (w @ x, (w, x)), lambda kept, g: (jnp.outer(g, kept[1]).at[1, 2].mul(3), 0 * kept[1]))


@jax.custom_jvp
def flat_slope(x: jax.Array) -> jax.Array:
    """A square whose derivative is right, but is no function of `x` to JAX."""
    return x**2


@flat_slope.defjvp
def _(primals, tangents):
    return flat_slope(*primals), jax.lax.stop_gradient(2 * primals[0]) * tangents[0]


class Gated(ag.Module):
    weight: jax.Array
    steps: jax.Array
    key: jax.Array
    activation: Any

    def __call__(self, x: jax.Array) -> dict[str, Any]:
        noise = jax.random.uniform(self.key, x.shape)
        return {"y": self.activation(self.weight * x) * noise, "steps": self.steps, "how": "gated"}


GATED = Gated(X, jnp.array(3), jax.random.key(0), jnp.tanh)
RIGHT = {
    "elementary": (lambda x: jnp.sin(x) * jnp.exp(x), (X,)),
    "not analytic": (lambda x: jax.nn.relu(x) + jnp.abs(x), (X - 1.5,)),
    "a module, a key, integers": (lambda model, x: model(x), (GATED, X)),
    "a part of a complex number": (lambda z: jnp.imag(z) ** 2 + jnp.real(z), (X + 1j,)),
    "float32 inside": (lambda x: (x.astype(jnp.float32) ** 3).sum(), (X.astype(jnp.float16),)),
    "bfloat16 inside": (lambda x: (x.astype(jnp.bfloat16) ** 2).sum(), (X,)),
    "values decide": (lambda x: x**2 if x[0] > 0 else x, (X,)),
    "no entries": (lambda x, y: 2 * x + y.sum(), (jnp.zeros((0, 2)), X)),
    "mapped and compiled": (ag.jit(jax.vmap(lambda x: jnp.cumsum(x) ** 2)), (jnp.ones((2, 2)),)),
    "None beside it": (lambda tree: tree["x"] ** 2, ({"x": X, "none": None, "name": "a"},)),
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_derivatives_pass(case: str) -> None:
    """First order, both modes, for whatever may stand in arguments and results."""
    ag.check_grads(*RIGHT[case], order=1)


def test_derivatives_of_derivatives_pass() -> None:
    """All four pairs of modes, where the complex step goes through the derivative itself."""
    ag.check_grads(lambda x: jnp.sum(x**3), (X,))


def wrong(*args: Any, **kwargs: Any) -> ag.DerivativeError:
    """What `check_grads` raises for these."""
    with pytest.raises(ag.DerivativeError) as caught:
        ag.check_grads(*args, **kwargs)
    return caught.value


def test_a_wrong_derivative_is_told_by_entry() -> None:
    """Each mode names the entry, what it got and what it wanted."""
    for mode, place in (("fwd", "`cube`, forward mode"), ("rev", "`cube`, reverse mode")):
        error = wrong(cube, (jnp.array(2.0),), modes=mode)
        assert error.place == place
        assert error.got == "result by x  8, wanted 12 by a complex step"
    assert wrong(cube, (X,), modes="fwd").got == "result[1] by x[1]  8, wanted 12 by a complex step"


def test_each_argument_that_is_wrong_has_a_line() -> None:
    """The one entry of a matrix that is wrong is found, beside an argument that is wrong altogether."""
    model = {"w": jnp.ones((3, 4)), "n": 3}
    error = wrong(lambda model, x: apply(model["w"], x).sum(), (model, jnp.arange(1.0, 5.0)), modes=("rev",))
    matrix, vector = error.got.splitlines()
    assert matrix == "result by model['w'][1, 2]  9, wanted 3 by a complex step"
    assert vector.startswith("result by x[")
    assert vector.endswith("  0, wanted 3 by a complex step")
    many = wrong(apply, (jnp.ones((3, 4)), jnp.ones(4)), modes=("rev",)).got
    assert many.startswith("a random combination of the results by w[1, 2]  ")


def test_a_wrong_second_derivative_is_told_as_such() -> None:
    """The first order passes, and the second says over which mode it is taken."""
    ag.check_grads(flat_slope, (X,), order=1)
    error = wrong(flat_slope, (jnp.array(2.0),))
    assert error.place == "`flat_slope`, forward mode over forward mode"
    assert error.got.endswith("by a complex step")  # which goes through the first derivative
    assert error.what == "a derivative of the derivative of `flat_slope` is not that of its values."
    assert wrong(flat_slope, (jnp.array(2.0),), modes="rev").place == "`flat_slope`, reverse mode over reverse mode"


def test_where_values_are_no_numbers_a_derivative_is_wrong() -> None:
    """At the edge of its domain a function has no derivative that its values show."""
    assert "wanted nan" in wrong(jnp.log, (jnp.zeros(()),), order=1).got


def test_small_faults_are_found() -> None:
    """In float64 a hundred-thousandth is; where the program rounds to float32 it is not, but a tenth is."""

    def nearly(by: float, dtype: Any) -> Any:
        square = jax.custom_jvp(lambda x: (x.astype(dtype) ** 2).sum())
        square.defjvp(lambda p, t: (square(*p), jnp.sum(2 * (1 + by) * p[0] * t[0]).astype(dtype)))
        return square

    wrong(nearly(1e-5, jnp.float64), (X,), order=1)
    ag.check_grads(nearly(1e-5, jnp.float32), (X,), order=1, modes="fwd")
    wrong(nearly(0.1, jnp.float32), (X,), order=1)
    ag.check_grads(nearly(0.1, jnp.float32), (X,), order=1, modes="fwd", rtol=0.2)


def test_the_complex_step_is_exact() -> None:
    """It keeps the digits that a difference loses, and gives way where the function is not analytic."""
    with jax.enable_x64(True):
        for f, how, error in (
            (lambda x: [jnp.exp(x)], "a complex step", 1e-15),
            (lambda x: [jnp.abs(x)], "a central difference", 1e-9),
            (lambda x: [jnp.real(jnp.exp(x))], "a central difference", 1e-9),
        ):
            flat = Flat(f, (jnp.float64(1.5),), ["x"], ["result"])
            found = Numeric.of(flat, None, None).along(flat, 0, jnp.float64(1))
            assert found.how == how
            np.testing.assert_allclose(found.arrays[0], jax.grad(lambda x: f(x)[0])(1.5), rtol=error)  # noqa: B023


def test_what_cannot_be_checked_is_said() -> None:
    """Nothing to differentiate by, another mode, no order."""
    with pytest.raises(ag.GradientError, match="nothing in the arguments has a gradient"):
        ag.check_grads(lambda n: 2 * n, (3, "name"))
    with pytest.raises(ag.UsageError, match="'forward' is not a value that `modes` takes"):
        ag.check_grads(jnp.sin, (X,), modes=("forward",))
    with pytest.raises(ag.UsageError, match="`order`"):
        ag.check_grads(jnp.sin, (X,), order=0)
