"""Inputs that a step reads in pieces are read piece by piece: what is found, what is left, and the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import JaxprEqn, jaxprs_in_params
from aerogel.compiler.loop import Loop
from aerogel.compiler.passes.loop_pieces import LoopPieces
from compiler.loop_patterns import normal

T, B, H = 6, 3, 8
Step = Callable[[Any, Any, Any], Any]  # state, entry, weights -> next state


def alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with this pass alone."""
    return ag.optimize(f, passes=(LoopPieces(),))


def scanned(step: Step, **options: Any) -> Callable[..., Any]:
    """A loop of `step` over the second argument."""

    def body(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
        h = step(h, x, w)
        return h, h

    return lambda h, xs, w: lax.scan(lambda h, x: body(w, h, x), h, xs, **options)


def loops(f: Callable[..., Any], *args: Any) -> list[JaxprEqn]:
    """All loops of a function's program."""

    def walk(jaxpr: Any) -> list[JaxprEqn]:
        found = []
        for eqn in jaxpr.eqns:
            found += [eqn] if eqn.primitive.name == "scan" else []
            found += [one for inner in jaxprs_in_params(eqn.params) for one in walk(getattr(inner, "jaxpr", inner))]
        return found

    return walk(jax.make_jaxpr(f)(*args).jaxpr)


def body_of(f: Callable[..., Any], *args: Any) -> Any:
    """The body of the only loop of a program."""
    (loop,) = loops(f, *args)
    return loop.params["jaxpr"].jaxpr


def whole(f: Callable[..., Any], *args: Any) -> int:
    """How often the steps of the only loop of a program compute on the entry of their largest input."""
    body = body_of(f, *args)
    entry = max(body.invars[-2:], key=lambda x: x.aval.size)
    return sum(entry in eqn.invars for eqn in body.eqns if eqn.primitive.name != "custom_jvp_call")


def reads(f: Callable[..., Any], *args: Any) -> int:
    """How many pieces the steps of the only loop read from what holds all steps."""
    return sum(eqn.primitive.name == "custom_jvp_call" for eqn in body_of(f, *args).eqns)


def four(z: Any) -> list[Any]:
    """The gates."""
    return jnp.split(z, 4, -1)


def gated(h: Any, z: Any) -> Any:
    """A cell of four gates."""
    i, f, o, u = four(z)
    return jax.nn.sigmoid(f) * h + jax.nn.sigmoid(i) * jnp.tanh(u) * o


STEPS: dict[str, Step] = {
    "direct": lambda h, x, w: gated(h, x),
    "with the state's product": lambda h, x, w: gated(h, x + h @ w),
    "with a bias": lambda h, x, w: gated(h, x + h @ w + w[0]),
    "scaled": lambda h, x, w: gated(h, 2.0 * x - 1.0),
    "a function of it": lambda h, x, w: gated(h, jnp.tanh(jnp.maximum(x, h @ w))),
    "widened": lambda h, x, w: gated(h, (x.astype(jnp.float16).astype(jnp.float32))),
    "chosen": lambda h, x, w: gated(h, jnp.where(h[:1, :1] > 0, x, h @ w)),
    "two uses": lambda h, x, w: gated(h, x) + gated(h, x * 0.5),
    "one axis more": lambda h, x, w: gated(h, (x[None] + w[0, None, None])[0]),
    "rows and columns": lambda h, x, w: h + x[:2, :H].sum(0) * x[2:, H : 2 * H],
    "some of it": lambda h, x, w: h * x[:, :H],
}


def arguments() -> tuple[Any, Any, Any]:
    """A state, inputs for four gates, weights."""
    return normal(0, B, H), normal(1, T, B, 4 * H), normal(2, H, 4 * H) / H


@pytest.mark.parametrize("name", STEPS)
def test_pieces_are_read_one_by_one(name: str) -> None:
    """No step's entry is read as a whole any more, and not a bit changes."""
    f, args = scanned(STEPS[name], reverse=len(name) % 2 == 1), arguments()
    assert whole(f, *args) > 0
    assert whole(alone(f), *args) == 0
    assert reads(alone(f), *args) == {"rows and columns": 2, "some of it": 1}.get(name, 4)
    for got, want in zip(jax.jit(alone(f))(*args), jax.jit(f)(*args), strict=True):
        np.testing.assert_array_equal(got, want)


LEFT: dict[str, Step] = {
    "read whole too": lambda h, x, w: gated(h, x) + x.sum(),
    "summed up": lambda h, x, w: h + x.reshape(B, 4, H).sum(1),
    "every other": lambda h, x, w: h * x[:, : 2 * H : 2],
    "overlapping": lambda h, x, w: h * x[:, : 3 * H].sum() + x[:, H:].sum(),
    "a product": lambda h, x, w: gated(h, x @ jnp.ones((4 * H, 4 * H))),
    "repeated": lambda h, x, w: h + (x[:, 1:H, None] * w[1:, :H]).sum() + (x[:, H + 1 :, None] * w[:1, :3]).sum(),
    "rolled": lambda h, x, w: h + jnp.roll(x, 1, 1).reshape(B, 4, H).sum(1),
    "repeated and cut": lambda h, x, w: h + ((x[:, None] * w)[..., 1:] ** 2).sum(),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_inputs_are_left(name: str) -> None:
    """What is read as a whole, or would be computed twice, stays as it is: the same program."""
    f, args = scanned(LEFT[name]), arguments()
    before, after = jax.make_jaxpr(f)(*args), jax.make_jaxpr(alone(f))(*args)
    assert reads(alone(f), *args) == 0, f"{before}\n{after}"


def test_outputs_of_whole_entries_are_left() -> None:
    """An entry that the step also hands on is there as a whole anyway."""
    args = arguments()

    def f(h: Any, xs: Any, w: Any) -> Any:
        return lax.scan(lambda h, x: (lambda z: (gated(h, z), z))(x + h @ w), h, xs)

    assert reads(alone(f), *args) == 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, bool, jnp.complex64])
def test_types_are_kept(dtype: Any) -> None:
    """Entries of any type are cut."""
    xs = (normal(1, T, 32) > 0).astype(dtype)

    def f(xs: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.where(x[:16] == x[16:], c, x[16:]), x[:16]), xs[0, :16], xs)

    assert reads(alone(f), xs) == 2
    for got, want in zip(jax.jit(alone(f))(xs), jax.jit(f)(xs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def surrounded(h: Any, xs: Any, w: Any) -> Any:
    """The loop in a branch in a loop."""
    f = scanned(STEPS["with the state's product"])
    taken = lax.cond(h[0, 0] > 9.0, lambda: h, lambda: f(h, xs, w)[0])
    return lax.map(lambda a: f(taken * a, xs, w)[0], jnp.arange(3.0))


def loss(h: Any, xs: Any, w: Any) -> Any:
    """A number to differentiate."""
    return (scanned(STEPS["with the state's product"])(h, xs, w)[1] ** 2).sum()


SURROUNDINGS: dict[str, Callable[..., Any]] = {
    "grad": jax.grad(loss, (0, 1, 2)),
    "vmap": jax.vmap(loss, (None, 1, None)),
    "cond and map": surrounded,
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_in_its_surroundings(name: str) -> None:
    """In a gradient, under `vmap`, in a branch and in another loop pieces are found, and the results are the same."""
    f, (h, xs, w) = SURROUNDINGS[name], arguments()
    args = (h, xs[:, None].repeat(2, 1) if name == "vmap" else xs, w)
    bodies = [eqn.params["jaxpr"].jaxpr.eqns for eqn in loops(alone(f), *args)]
    assert sum(eqn.primitive.name == "custom_jvp_call" for eqns in bodies for eqn in eqns) >= 4
    for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*args)) for g in (alone(f), f)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_projection_moves_out_and_its_gates_are_read_one_by_one() -> None:
    """By default the input projection of a batch of 16 leaves the loop, and what is stacked is read gate by gate."""
    width = 128
    xs, wi, wh = jnp.ones((100, 16, width)), jnp.ones((width, 4 * width)), jnp.ones((width, 4 * width))

    def f(xs: Any, wi: Any, wh: Any) -> Any:
        return lax.scan(lambda h, x: (gated(h, x @ wi + h @ wh),) * 2, xs[0], xs)[1]

    assert whole(ag.optimize(f), xs, wi, wh) == 0
    assert reads(ag.optimize(f), xs, wi, wh) == 4
    assert [d.rule for d in ag.explain(f)(xs, wi, wh).fired] == ["loop-hoist", "loop-pieces"]


def test_a_gradient_of_the_optimised_function_adds_no_array_of_all_steps_in_a_step() -> None:
    """Whoever differentiates what ran before (JAX keeps that trace) gets the same gradient, in as little memory."""
    args = arguments()
    compiled = jax.jit(loss), jax.jit(alone(loss))
    for g in compiled:
        g(*args)
    plain, optimised = (jax.grad(g, (0, 1, 2)) for g in compiled)
    for got, want in zip(optimised(*args), plain(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for eqn in loops(optimised, *args):
        carries = eqn.outvars[: len(Loop(eqn).init)]
        assert all(v.aval.size < args[1].size for v in carries), eqn
    tangents = jax.tree.map(jnp.ones_like, args)
    got, want = (jax.jit(lambda *a, g=g: jax.jvp(g, a, tangents))(*args) for g in (optimised, plain))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
