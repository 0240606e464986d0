"""Residual choice: a gradient stores the smallest set of values from which the backward steps get the others."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import scan_counts
from aerogel.compiler.passes.residual_choice import ResidualChoice
from compiler.loop_patterns import normal, stacked

T, STATE = 64, (8, 2048)
SIZE = T * STATE[0] * STATE[1]

Step = Callable[[Any, Any], tuple[Any, Any]]


def logistic_map(c: Any, x: Any) -> tuple[Any, Any]:
    """Stores `c`, `0.05 c` and the next state in plain JAX; `c` is enough."""
    c = c - 0.05 * c * c
    return c, jnp.square(c)


def gated(c: Any, x: Any) -> tuple[Any, Any]:
    """A gate and a candidate: of `g`, `1 - g`, `h`, `1 - h * h` and the state two are functions of the others."""
    g, h = jax.nn.sigmoid(c + x), jnp.tanh(c - x)
    c = g * c + (1 - g) * h
    return c, c


def of_inputs(c: Any, x: Any) -> tuple[Any, Any]:
    """A function of the loop's own inputs is not stored at all."""
    return 0.9 * c * (1 + 0.1 * x * x), c


def forgetting(c: Any, x: Any) -> tuple[Any, Any]:
    """An exponential of an input takes less time than to store it and read it back."""
    c = jnp.exp(-x * x) * c + x
    return c, c


def squared(c: Any, _: Any) -> tuple[Any, Any]:
    """A gradient asks for the state before a step, and for twice the state after it."""
    c = c - 0.05 * jnp.roll(c, 1, -1) - 0.05 * c * c
    return c, c**2


def two_carries(state: Any, x: Any) -> tuple[Any, Any]:
    """Leapfrog: position and momentum."""
    q, p = state
    p = p - 0.1 * q * q
    q = q + 0.1 * p
    return (q, p), q * p


def narrow(c: Any, x: Any) -> tuple[Any, Any]:
    """Casts inside a step, weak types, a mask."""
    low = (c * x).astype(jnp.bfloat16)
    c = jnp.where(c > 0, c * 0.9 + low.astype(jnp.float32) * 2, c**3 * 0.1)
    return c, c.astype(jnp.bfloat16)


STEPS: dict[str, tuple[Step, bool, int]] = {
    "logistic map": (logistic_map, False, 1),
    "squared": (squared, False, 1),
    "gated": (gated, True, 3),
    "of inputs": (of_inputs, True, 1),
    "forgetting": (forgetting, True, 1),
    "two carries": (two_carries, False, 2),
    "narrow": (narrow, True, 2),
}


def loss(name: str, reverse: bool) -> Callable[[Any, Any], Any]:
    """The value of a loop and its gradient by the first state and the inputs."""
    step, with_xs, _ = STEPS[name]

    def f(c: Any, xs: Any) -> Any:
        init = (c, 0.1 * c) if name == "two carries" else c
        _, ys = lax.scan(step, init, xs if with_xs else None, length=T, reverse=reverse)
        return jnp.sum(jnp.mean(ys.astype(jnp.float32), 0))

    return jax.value_and_grad(f, argnums=(0, 1) if with_xs else 0)


def arguments(state: tuple[int, ...] = STATE) -> tuple[Any, Any]:
    """A state and inputs of the steps, of order one."""
    return 0.5 * normal(0, *state), normal(1, T, *state)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_what_is_stored(name: str, reverse: bool) -> None:
    """No more arrays over all steps are stacked than stated (the gradient by the inputs is one), fewer than before."""
    f, args = loss(name, reverse), arguments()
    _, with_xs, most = STEPS[name]
    natural = stacked(jax.make_jaxpr(f)(*args).jaxpr, SIZE)
    optimised = stacked(jax.make_jaxpr(ag.optimize(f))(*args).jaxpr, SIZE)
    assert len(optimised) <= most + with_xs
    assert len(optimised) < len(natural)


WRAPS = ("vmap", "cond", "outer scan", "jit", "strict")


@pytest.mark.parametrize(("name", "wrap"), [(name, "plain") for name in STEPS] + [("gated", wrap) for wrap in WRAPS])
def test_same_numbers(name: str, wrap: str) -> None:
    """Values and gradients agree with float64 as well as plain JAX's do, wherever the loop stands."""
    f, (c, xs) = loss(name, False), arguments()
    surroundings: dict[str, Callable[..., Any]] = {
        "vmap": jax.vmap(f, in_axes=(0, 1)),
        "cond": lambda c, xs: lax.cond(c[0, 0] > 9, lambda: jax.tree.map(jnp.zeros_like, f(c, xs)), lambda: f(c, xs)),
        "outer scan": lambda c, xs: lax.scan(lambda s, _: (s, f(s, xs)), c, None, length=2)[1],
        "jit": jax.jit(f),
    }
    g = surroundings.get(wrap, f)
    numerics = "strict" if wrap == "strict" else "fast"
    assert [d for d in ag.explain(g, numerics=numerics)(c, xs).fired if d.rule == "residual-choice"]
    ag.verify(g, numerics=numerics)(c, xs)


def test_a_returned_trajectory_is_not_stored_twice() -> None:
    """What is returned anyway is read by the backward loop, from the step before: nothing is stored besides."""

    def f(c: Any) -> Any:
        return lax.scan(lambda c, _: (c - 0.05 * c * c,) * 2, c, None, length=T)[1]

    def g(c: Any) -> Any:
        ys, back = jax.vjp(f, c)
        return ys, back(jnp.ones_like(ys))

    c, _ = arguments()
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(c).jaxpr, SIZE)) == 1
    ag.verify(g)(c)


def test_stacks_that_leave_the_caches_together() -> None:
    """Many small stacks are in the caches no longer: exponentials are not stored though each stack would fit there."""
    state = (8, 256)

    def f(c: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> tuple[Any, Any]:
            for k in range(1, 5):
                c = jnp.exp(-k * x * x) * c + x
            return c, c

        return jnp.sum(lax.scan(step, c, xs)[1])

    g, (c, xs) = jax.value_and_grad(f, (0, 1)), arguments(state)
    size = T * state[0] * state[1]
    assert 4 * size < 2**20
    assert len(stacked(jax.make_jaxpr(g)(c, xs).jaxpr, size)) > 8
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(c, xs).jaxpr, size)) == 2  # the states, and the gradient
    ag.verify(g)(c, xs)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_the_backward_step_makes_anyway_is_not_stored(reverse: bool) -> None:
    """Of gates that are made of all inputs before the loop, the backward loop reads the inputs: `1 - gate` is free."""

    def f(c: Any, a: Any, b: Any) -> Any:
        gates = jax.nn.sigmoid(a)

        def step(c: Any, x: Any) -> tuple[Any, Any]:
            gate, new = x
            c = (1 - gate) * c + gate * new
            return c, c

        return jnp.mean(lax.scan(step, c, (gates, b), reverse=reverse)[1] ** 2)

    c, a = arguments()
    args = (c, a, normal(2, T, *STATE))
    g = jax.value_and_grad(f, (0, 1, 2))
    assert len(stacked(jax.make_jaxpr(g)(*args).jaxpr, SIZE)) > 3
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(*args).jaxpr, SIZE)) == 3  # the states, and two gradients
    ag.verify(g)(*args)


def test_weights_of_layers_are_not_stored() -> None:
    """A layer's product reads its weight transposed, and so does the way back: from the weights, not from a copy."""
    size = 256

    def f(x: Any, weights: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w.T), None), x, weights)[0])

    g, args = jax.value_and_grad(f, (0, 1)), (normal(0, 4, size), normal(1, 8, size, size))
    gradients = 1
    assert len(stacked(jax.make_jaxpr(g)(*args).jaxpr, 8 * size * size)) == gradients + 1
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(*args).jaxpr, 8 * size * size)) == gradients
    ag.verify(g)(*args)


def test_dear_values_are_stored() -> None:
    """A cosine costs more than its store: it is not computed again."""

    def f(c: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.sin(c), c), c, None, length=T)[1].sum()

    jaxpr = jax.make_jaxpr(ag.optimize(jax.value_and_grad(f)))(arguments()[0])
    *_, backward = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert "cos" not in str(backward.params["jaxpr"])


@pytest.mark.parametrize(("last", "kept"), [(2, True), (3, True), (8, False), (32, False)])
def test_what_a_library_would_compute_row_by_row_is_stored(last: int, kept: bool) -> None:
    """A gradient sums vectors of 3 over all rays: the library that sums them is not given products and differences.

    Computed again, they took 1.15 of the time of plain JAX; stored, 0.75.
    """
    rays = normal(2, 96, 128, last)

    def f(centre: Any) -> Any:
        def step(t: Any, _: Any) -> Any:
            return t + 0.2 * (jnp.linalg.norm(rays * t[..., None] - 2 * centre, axis=-1) - 0.6), None

        return jnp.mean(lax.scan(step, jnp.zeros((96, 128)), None, length=24)[0])

    g, centre = jax.value_and_grad(f), normal(0, last)
    size = 24 * rays.size
    assert len(stacked(jax.make_jaxpr(g)(centre).jaxpr, size)) == 1
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(centre).jaxpr, size)) == kept
    ag.verify(g)(centre)


def burgers(u: Any, _: Any) -> Any:
    """By its first and second difference."""
    before, after = jnp.roll(u, 1), jnp.roll(u, -1)
    return u + 0.01 * (0.1 * (before - 2 * u + after) - u * (after - before) / 2)


def wave(u: Any, _: Any) -> Any:
    """Between walls, slower where the state is large."""
    p = jnp.pad(u, 1)
    around = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u
    return u + 0.1 * around * jnp.exp(-u * u)


def upwind(u: Any, speed: Any) -> Any:
    """A difference to the side that the wind comes from."""
    return u - 0.1 * speed * u * jnp.where(u > 0, u - jnp.roll(u, 1), jnp.roll(u, -1) - u)


def inflow(u: Any, _: Any) -> Any:
    """Joined with what stands at the boundary."""
    return u - 0.1 * u * (u - jnp.concatenate([jnp.ones(1), u[:-1]]))


def mirrored(u: Any, _: Any) -> Any:
    """With the entry at the other end."""
    return u - 0.01 * u * u[::-1]


def floats(f: Callable[..., Any], size: int, *args: Any) -> int:
    """How many arrays of floats of at least so many entries its loops stack."""
    loops = [eqn for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns if eqn.primitive.name == "scan"]
    stacks = [v.aval for eqn in loops for v in eqn.outvars[scan_counts(eqn.params)[1] :]]
    return sum(aval.size >= size and aval.dtype == jnp.float32 for aval in stacks)


MOVED = {
    "burgers": (burgers, (4096,)),
    "wave": (wave, (64, 64)),
    "upwind": (upwind, (8192,)),
    "inflow": (inflow, (6000,)),
    "mirrored": (mirrored, (6000,)),
}


@pytest.mark.parametrize("name", MOVED)
def test_of_a_stencil_the_state_is_stored(name: str) -> None:
    """What a step reads at neighbouring places is made of the state again, not stored: one array."""
    step, shape = MOVED[name]

    def f(u: Any, speed: Any) -> Any:
        return jnp.mean(lax.scan(lambda u, _: (step(u, speed), None), u, None, length=100)[0] ** 2)

    g, args = jax.value_and_grad(f), (0.1 * normal(0, *shape), jnp.float32(0.5))
    size = 100 * math.prod(shape) // 2  # an interior has fewer entries
    assert len(stacked(jax.make_jaxpr(g)(*args).jaxpr, size)) > 1
    assert len(stacked(jax.make_jaxpr(ag.optimize(g))(*args).jaxpr, size)) == 1
    ag.verify(g)(*args)
    ag.verify(jax.vmap(g, (0, None)))(0.1 * normal(1, 2, *shape), args[1])


@pytest.mark.parametrize(("width", "again"), [(48, False), (100, True)])
def test_what_is_dear_is_stored_beside_seams_in_short_rows(width: int, again: bool) -> None:
    """The gradient of rolls adds paddings: where these stay, what is computed beside them is no vector code."""

    def step(u: Any, _: Any) -> tuple[Any, None]:
        before, after = jnp.roll(u, 1, 1), jnp.roll(u, -1, 1)
        return u - 0.01 * u * (before - after) + 0.1 * jnp.exp(-u * u), None

    g, u = jax.grad(lambda u: jnp.sum(lax.scan(step, u, None, length=50)[0] ** 2)), normal(0, width, width)
    *_, backward = [eqn for eqn in jax.make_jaxpr(ag.optimize(g))(u).jaxpr.eqns if eqn.primitive.name == "scan"]
    assert (" exp " in str(backward.params["jaxpr"])) == again
    ag.verify(g)(u)


@pytest.mark.parametrize("inner", [False, True])
def test_what_is_dear_in_an_interior_is_stored(inner: bool) -> None:
    """Its cotangent is padded: computed again it took a gradient 1.3 to 1.7 of plain JAX's time, stored 0.8 to 1."""

    def step(u: Any, _: Any) -> tuple[Any, None]:
        v = u[:, 1:-1] if inner else u
        change = -0.1 * v * jnp.exp(-v * v)
        return (u.at[:, 1:-1].add(change) if inner else u + change), None

    g, u = jax.grad(lambda u: jnp.sum(lax.scan(step, u, None, length=50)[0] ** 2)), normal(0, 100, 100)
    *_, backward = [eqn for eqn in jax.make_jaxpr(ag.optimize(g))(u).jaxpr.eqns if eqn.primitive.name == "scan"]
    assert (" exp " in str(backward.params["jaxpr"])) != inner
    ag.verify(g)(u)


def shallow_water(s: Any, rolled: Callable[..., Any]) -> Any:
    """Heights and two velocities, in both directions."""
    h, u, v = s
    dx, dy = (lambda a, axis=axis: (rolled(a, -1, axis) - rolled(a, 1, axis)) / 2 for axis in (1, 0))
    return (
        h - 0.01 * (dx(h * u) + dy(h * v)),
        u - 0.01 * (u * dx(u) + v * dy(u) + 9.8 * dx(h)),
        v - 0.01 * (u * dx(v) + v * dy(v) + 9.8 * dy(h)),
    )


@pytest.mark.parametrize(
    "rolled",
    [
        # twelve seams inside of rows: 1.18 of the time
        pytest.param(jnp.roll, id="many seams"),
        # what is joined is computed
        pytest.param(lambda a, by, axis: jnp.roll(jnp.sin(a), by, axis), id="of computed values"),
    ],
)
def test_seams_that_cost_more_than_a_store_are_stored(rolled: Callable[..., Any]) -> None:
    """Joined rows of a plane are scalar code: where many are read, the differences are stored as JAX stores them."""

    def f(s: Any) -> Any:
        s = lax.scan(lambda s, _: (shallow_water(s, rolled), None), s, None, length=80)[0]
        return sum(jnp.sum(x**2) for x in s)

    g, s = jax.value_and_grad(f), tuple(0.1 * normal(k, 64, 64) + (k == 0) for k in range(3))
    assert floats(ag.optimize(g), 80 * 64 * 64, s) > 3
    ag.verify(g)(s)


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_of_a_maximum_two_masks_are_stored(shift: int) -> None:
    """A step of a binomial tree: the halves of its maximum's derivative are chosen by two comparisons, no quotients."""

    def f(price: Any, strike: Any) -> Any:
        def step(v: Any, x: Any) -> Any:
            v = 0.49 * v + 0.5 * (jnp.roll(v, -shift, -1) if shift else v)
            return jnp.maximum(v, strike[:, None] - 0.01 * x), None

        return lax.scan(step, price, jnp.arange(100.0))[0].sum()

    g, args = jax.value_and_grad(f, argnums=1), (normal(0, 128, 128), normal(1, 128))
    assert floats(g, 100 * 128 * 128, *args) == 2
    assert floats(ag.optimize(g), 100 * 128 * 128, *args) == 0
    backward = [eqn for eqn in jax.make_jaxpr(ag.optimize(g))(*args).jaxpr.eqns if eqn.primitive.name == "scan"][-1]
    assert "div" not in {eqn.primitive.name for eqn in backward.params["jaxpr"].jaxpr.eqns}
    ag.verify(g)(*args)


def test_gates_of_one_array_are_stored_together() -> None:
    """A GRU that cuts its gates out of one array of sigmoids: neither of the gates is stored besides, nor a slope."""

    def loss(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            z, r = jnp.split(jax.nn.sigmoid(x @ w["gates"] + h @ w["gates"]), 2, -1)
            h = (1 - z) * jnp.tanh(x + (r * h) @ w["new"]) + z * h
            return h, h

        return jnp.mean(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)

    w = {"gates": normal(0, 96, 192) / 10, "new": normal(1, 96, 96) / 10}
    f, args = jax.value_and_grad(loss), (w, normal(2, 80, 32, 96))
    size = 80 * 32 * 96
    natural, optimised = (
        sum(math.prod(shape) for shape in stacked(jax.make_jaxpr(g)(*args).jaxpr, size)) / size
        for g in (f, ag.optimize(f))
    )
    assert natural >= 10
    assert optimised <= 6  # states, gates (twice as long), candidates, r * h, the cotangents of the candidates
    ag.verify(f)(*args)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_joined_of_an_input_and_a_state_is_not_stored(dtype: str) -> None:
    """`[x, h] @ w`: of an LSTM in one product the joined rows are made again of the input and the state."""

    def loss(w: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros_like(xs[0])
        return jnp.mean(lax.scan(step, (zeros, zeros), xs)[1].astype(jnp.float32) ** 2)

    args = (normal(0, 192, 384) / 14).astype(dtype), normal(1, 80, 32, 96).astype(dtype)
    g = jax.value_and_grad(loss)
    joined = (80, 32, 192)
    assert joined in stacked(jax.make_jaxpr(g)(*args).jaxpr, 80 * 32 * 96)
    assert joined not in stacked(jax.make_jaxpr(ag.optimize(g))(*args).jaxpr, 80 * 32 * 96)
    if dtype == "float32":
        ag.verify(g)(*args)


def test_what_is_joined_of_computed_values_is_stored() -> None:
    """A state of three coordinates that each stage joins: a join is a kernel of its own, dearer than its store."""

    def f(state: Any) -> Any:
        def slope(y: Any) -> Any:
            return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 2 * y[2]])

        def step(y: Any, _: Any) -> Any:
            y = y + 0.01 * slope(y + 0.005 * slope(y))
            return y, jnp.sum(y * y)

        return jnp.mean(lax.scan(step, state, None, length=T)[1])

    jaxpr = jax.make_jaxpr(ag.optimize(jax.value_and_grad(f)))(normal(0, 3, 8192))
    *_, backward = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert not {"stack", "concatenate"} & {eqn.primitive.name for eqn in backward.params["jaxpr"].jaxpr.eqns}


def test_small_loops_are_left() -> None:
    """Residuals that stay in the cache are not worth a change."""
    f, args = loss("logistic map", False), arguments((4, 8))
    assert not [d for d in ag.explain(f)(*args).fired if d.rule == "residual-choice"]


@pytest.mark.parametrize(("width", "fires"), [(32, True), (8, False)])
def test_small_stacks_of_steps_with_a_product(width: int, fires: bool) -> None:
    """Where a library makes a step's product, each stack is a kernel of its own; else the loop may be one kernel."""

    def loss(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            gate, new = jax.nn.sigmoid(h @ w + x), jnp.tanh(h @ w - x)
            return gate * h + (1 - gate) * new, None

        return jnp.sum(lax.scan(step, xs[0], xs)[0] ** 2)

    f, args = jax.value_and_grad(loss), (normal(0, width, width) / 8, normal(1, 40, 4, width))
    assert fires == bool([d for d in ag.explain(f)(*args).fired if d.rule == "residual-choice"])
    ag.verify(f)(*args)


def test_rows_of_a_map_are_made_again() -> None:
    """A sum over the coordinates of points is made again, and what a step multiplies and adds up is not stacked."""

    def kernel(x: Any, y: Any, b: Any) -> Any:
        return jnp.mean(lax.map(lambda p: jnp.exp(-jnp.sum((p - y) ** 2, -1)) @ b, x) ** 2)

    f, rows, columns = jax.value_and_grad(kernel, (0, 1, 2)), 4096, 8192
    large = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 3), (columns, 3), (columns,))]
    natural, optimised = (jax.make_jaxpr(g)(*large).jaxpr for g in (f, ag.optimize(f)))
    assert stacked(natural, rows * columns)
    assert not stacked(optimised, rows * columns)
    ag.verify(f)(normal(0, 512, 3), normal(1, 2048, 3), normal(2, 2048))


@pytest.mark.parametrize(
    ("batch", "steps", "batch_last", "again"),
    [(300, 90, False, 0), (700, 60, False, 0), (300, 90, True, 1), (24, 700, False, 1)],
)
def test_sums_of_short_rows_that_others_read(batch: int, steps: int, batch_last: bool, again: int) -> None:
    """A library adds up the rows of a hidden Markov model one by one; not long rows, and few at once."""

    def loss(transitions: Any, first: Any, evidence: Any) -> Any:
        def step(a: Any, e: Any) -> Any:
            added = a[..., None] + transitions
            return e + jax.nn.logsumexp(added, -2), None

        def long_step(a: Any, e: Any) -> Any:
            added = a[:, None] + transitions[..., None]
            return e + jax.nn.logsumexp(added, 0), None

        return lax.scan(long_step if batch_last else step, first, evidence)[0].sum()

    shape = (5, batch) if batch_last else (batch, 5)
    f, args = jax.value_and_grad(loss), (normal(0, 5, 5), normal(1, *shape), normal(2, steps, *shape))
    passes = (ResidualChoice(),)

    def sums(made: Any) -> int:
        *_, backward = [eqn for eqn in jax.make_jaxpr(made)(*args).jaxpr.eqns if eqn.primitive.name == "scan"]
        return sum(eqn.primitive.name == "reduce_sum" for eqn in backward.params["jaxpr"].jaxpr.eqns)

    assert sums(ag.optimize(f, passes=passes)) == sums(f) + again
    ag.verify(f)(*args)
