"""Reroll: loops that tracing unrolled are loops again, with the results that were there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel._jax import evaluate
from aerogel.compiler.loop import Loop
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes import reroll
from aerogel.compiler.passes.reroll import Reroll
from aerogel.compiler.program import inner_jaxprs
from compiler.programs_of import scans, traced
from rules.rules_under_test import normal


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of few steps, which compile fast."""
    monkeypatch.setattr(reroll, "FEWEST", 5)
    monkeypatch.setattr(reroll, "FEWEST_PRODUCTS", 7)


X = normal(0, 8, 4)
W = normal(1, 4, 4) / 3


def added(x: Any) -> Any:
    """Terms of slices."""
    return sum(jnp.sum(jnp.sin(x[i]) * i) for i in range(8))


def written(x: Any) -> Any:
    """Slices of an array, from its end."""
    y = jnp.zeros((8, 4))
    for i in range(8):
        y = y.at[7 - i].set(x[i] * i)
    return y


def listed(x: Any) -> Any:
    """A list of what is computed of rows."""
    return jnp.stack([jnp.cumsum(row) for row in x], 1)


def listed_numbers(x: Any) -> Any:
    """A list of numbers, with coefficients that follow no rule."""
    return jnp.array([jnp.sum(jnp.tanh(x[i])) * np.sin(i) for i in range(8)])


def summed_list(x: Any) -> Any:
    """A list, its sum, and some of its entries."""
    terms = [jnp.dot(x[i], x[i]) for i in range(8)]
    return sum(terms), terms[3], terms[7]


def columns(x: Any) -> Any:
    """Slices along the last axis that stay matrices."""
    return jnp.concatenate([jnp.sort(x.T[:, i : i + 1], 0) for i in range(8)], 1)


def windows(x: Any) -> Any:
    """Slices that overlap."""
    return jnp.stack([jnp.max(x[i : i + 3]) for i in range(6)])


def diagonal(x: Any) -> Any:
    """Entries along two axes at once."""
    y = x @ x.T
    return jnp.stack([jnp.exp(y[i, i]) * jnp.sum(y[0]) for i in range(8)])


def recurrent(x: Any) -> Any:
    """A recurrent network, backwards in time."""
    h = jnp.zeros(4)
    for k in range(9):
        h = jnp.tanh(W @ h + jnp.tile(x, (2, 1))[8 - k])
    return h


def with_rules_of_their_own(x: Any) -> Any:
    """Functions with derivatives of their own."""
    h = jnp.zeros(4)
    for i in range(8):
        h = jax.nn.softmax(jax.nn.relu(x[i] + h))
    return h


def random_numbers(x: Any) -> Any:
    """A key for each draw."""
    keys = jax.random.split(jax.random.key(3), 8)
    return jnp.stack([jax.random.normal(key, (3,)) for key in keys]) * x[0, 0]


def in_a_body(x: Any) -> Any:
    """In the body of a loop."""
    return jax.lax.scan(lambda c, y: (c * 0.5 + added(y), None), 0.0, jnp.stack([x, 2 * x]))[0]


def trajectory(x: Any) -> Any:
    """Euler's steps, all of which are kept."""
    xs = [x[0]]
    for _ in range(8):
        xs.append(xs[-1] + 0.1 * jnp.sin(xs[-1]))
    return jnp.stack(xs)


def two_species(x: Any) -> Any:
    """Two numbers that depend on each other, one of them kept."""
    a, b, kept = x[0, 0], x[0, 1], []
    for _ in range(9):
        a, b = a + 0.1 * a * (1.0 - b), b - 0.1 * b * (1.0 - a)
        kept.append(a)
    return jnp.array(kept)


def last_vector(x: Any) -> Any:
    """Steps that put a vector together, of which the last is kept."""
    y = x[0, :2]
    for _ in range(9):
        y = y + 0.1 * jnp.stack([y[1], -y[0]])
    return y


def stencil(x: Any) -> Any:
    """Steps that move many numbers to their neighbours."""
    y = jnp.tile(x[0], 300)
    for _ in range(9):
        y = y + 0.1 * (jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1))
    return y


def averages(x: Any) -> Any:
    """Running averages of rows."""
    kept = [x[0]]
    for i in range(1, 8):
        kept.append(0.9 * kept[-1] + 0.1 * x[i])
    return jnp.mean(jnp.stack(kept) ** 2)


LOOPS = {f.__name__: f for f in (
    added, written, listed, listed_numbers, summed_list, columns, windows, diagonal, recurrent,
    with_rules_of_their_own, random_numbers, in_a_body, trajectory, two_species,
    last_vector, stencil, averages,
)}  # fmt: skip


def alone(f: Any, *args: Any) -> Any:
    """The program with this pass alone, checked, and its decisions."""
    reports: list[Any] = []
    program = traced(ag.optimize(f, passes=(Reroll(),), on_report=reports.append), *args)
    assert not reports[-1].failed
    return program, reports[-1]


def loops_in(jaxpr: Any) -> Any:
    """For each equation of all levels whether it is a loop."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name == "scan"
        for inner in inner_jaxprs(eqn):
            yield from loops_in(inner)


@pytest.mark.parametrize("name", LOOPS)
def test_unrolled_loops_are_loops(name: str) -> None:
    """Each becomes a program with a loop; results and derivatives are what they were."""
    f = LOOPS[name]
    program, report = alone(f, X)
    assert report.fired
    assert sum(loops_in(program.jaxpr)) > sum(loops_in(normalize(traced(f, X))[0].jaxpr))
    g = ag.optimize(f, passes=(Reroll(),))
    for got, want in zip(jax.tree.leaves(jax.jit(g)(X)), jax.tree.leaves(jax.jit(f)(X)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, 2e-5, 1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "written",
        "listed",
        "recurrent",
        "summed_list",
        "trajectory",
        "two_species",
        "last_vector",
        "stencil",
        "averages",
    ],
)
def test_derivatives_agree(name: str) -> None:
    """Taken of the loop, or found unrolled in a program that JAX has differentiated."""
    loss = lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(LOOPS[name](x)))  # noqa: E731
    want = jax.jit(jax.grad(loss))(X)
    before = jax.jit(jax.grad(ag.optimize(loss, passes=(Reroll(),))))(X)
    after = ag.optimize(jax.grad(loss), passes=(Reroll(),))
    assert scans(traced(after, X))
    for got in (before, jax.jit(after)(X)):
        np.testing.assert_allclose(got, want, 2e-5, 1e-5)


def several_arrays(x: Any) -> Any:
    """As many arrays as steps."""
    arrays = [jnp.sin(x * (k + 0.5)) for k in range(9)]
    h = x
    for a in arrays:
        h = jnp.cumsum(h, 0) * 0.1 + a
    return h


def fibonacci(x: Any) -> Any:
    """Two values that change places."""
    a, b = x[0], x[1]
    for i in range(8):
        a, b = b, jnp.cumsum(a) * 0.1 + x[i]
    return a


def elementwise(x: Any) -> Any:
    """A chain of functions of each entry."""
    h = jnp.zeros(4)
    for i in range(8):
        h = jnp.sin(h + x[i])
    return h


def dear_trajectory(x: Any) -> Any:
    """Steps that XLA stores, all of which are kept."""
    xs = [x[0]]
    for _ in range(8):
        xs.append(0.9 * jnp.tanh(xs[-1]))
    return jnp.stack(xs)


def large_trajectory(x: Any) -> Any:
    """Cheap steps of many numbers, all of which are kept."""
    xs = [jnp.tile(x[0], 300)]
    for _ in range(8):
        xs.append(0.9 * xs[-1] + 0.1)
    return jnp.stack(xs)


def trajectory_of_16_bits(x: Any) -> Any:
    """Cheap steps in bfloat16, all of which are kept."""
    return trajectory(x.astype("bfloat16"))


def turned_round(x: Any) -> Any:
    """Steps that put a vector together of entries that are read once."""
    y = x[0]
    for _ in range(9):
        y = 0.9 * jnp.roll(y, 1)
    return y


def last_of_trajectory(x: Any) -> Any:
    """Steps of which two are kept."""
    xs = [x[0]]
    for _ in range(9):
        xs.append(xs[-1] + 0.1 * jnp.sin(xs[-1]))
    return xs[4] + xs[-1]


def dense(x: Any) -> Any:
    """Layers that share all they have."""
    for _ in range(9):
        x = jnp.tanh(x @ W)
    return x


def few(x: Any) -> Any:
    """Too few to gain anything."""
    return jnp.stack([jnp.sum(x[i]) for i in range(4)])


def short_chain(x: Any) -> Any:
    """Products that wait for each other."""
    h = x[0]
    for i in range(6):
        h = jnp.tanh(W @ h + x[i])
    return h


def irregular(x: Any) -> Any:
    """Slices in disorder."""
    return jnp.stack([jnp.sum(x[i]) for i in (0, 1, 3, 2, 4, 7, 6)])


def effects(x: Any) -> Any:
    """Steps that the outside sees."""
    for i in range(8):
        jax.debug.callback(lambda v: None, x[i].sum())
    return x


LEFT = {
    several_arrays: "each reads arrays of its own",
    elementwise: "one kernel",
    dear_trajectory: "one kernel",
    large_trajectory: "one kernel",
    turned_round: "each reads what all read",
    trajectory_of_16_bits: "one kernel",
    last_of_trajectory: "one kernel",
    dense: "each reads what all read",
    short_chain: "fewer than 7 products",
    irregular: "places that follow no rule",
    few: None,
    effects: None,
}


@pytest.mark.parametrize("f", LEFT, ids=lambda f: f.__name__)
def test_what_is_no_loop_stays(f: Any) -> None:
    """And the report says why, where there was something to try."""
    program, report = alone(f, X)
    assert not scans(program)
    reasons = [d.reason for d in report.refused if d.rule == "reroll"]
    assert (LEFT[f] is None and reasons == []) or any(str(LEFT[f]) in reason for reason in reasons), reasons


def test_a_delay_of_two_steps_is_one_period_of_two() -> None:
    """What a step reads from the last but one: two steps are taken for one, or nothing happens; results stay."""
    np.testing.assert_allclose(jax.jit(ag.optimize(fibonacci, passes=(Reroll(),)))(X), jax.jit(fibonacci)(X), 1e-6)


def test_whole_arrays_go_into_a_loop_as_they_are() -> None:
    """A loop over all rows of an argument reads it, and no copy in another shape, which XLA would store."""

    def f(x: Any) -> Any:
        h = jnp.zeros((4, 4))
        for t in range(8):
            h = jnp.tanh(h @ W + x[t])
        return h

    made = jax.make_jaxpr(ag.optimize(f, passes=(Reroll(),), rules=[]))(normal(2, 8, 4, 4))
    (loop,) = [eqn for eqn in made.eqns if eqn.primitive.name == "scan"]
    assert made.jaxpr.invars[0] in loop.invars


def test_types_survive() -> None:
    """Of 16 bits, integers, keys, sizes of zero; weak numbers stay weak."""
    for dtype in ("bfloat16", "float16", "int8", "complex64"):
        x = X.astype(dtype)
        f = lambda x: (sum(jnp.sum(x[i] * i) for i in range(8)), jnp.stack([jnp.prod(x[i]) for i in range(8)]))  # noqa: E731
        program, report = alone(f, x)
        assert report.fired
        assert [v.aval for v in program.jaxpr.outvars] == [v.aval for v in traced(f, x).jaxpr.outvars]
    empty = X[:, :0]
    assert jax.jit(ag.optimize(listed, passes=(Reroll(),)))(empty).shape == (0, 8)


@pytest.mark.parametrize("other", [1, 2, 5])
def test_a_loop_begins_with_an_entry_of_another_loops_output(other: int) -> None:
    """Where one term of a sum is another one, loops of the rest make what a second loop carries."""

    def f(x: Any) -> Any:
        terms = [jnp.sum(x[i]) if i == other else jnp.sum(x[i] * i) for i in range(8)]
        return sum(terms), jnp.stack([jnp.prod(x[i]) for i in range(8)])

    x = X.astype("bfloat16")
    program, report = alone(f, x)
    assert report.fired
    for got, want in zip(evaluate(program, [x]), f(x), strict=True):
        np.testing.assert_allclose(np.asarray(got, "float32"), np.asarray(want, "float32"), rtol=0.05)


def test_all_passes_together_leave_no_loop_where_none_is_needed() -> None:
    """A sum over slices is a sum again, and what is written slice by slice is one array."""
    for f in (added, written):
        after = traced(ag.optimize(f), X)
        assert not scans(after) or not Loop(scans(after)[0]).init


def test_a_padding_that_cuts_stays() -> None:
    """Entries that are pushed over the end are gone, and those behind them do not take their place."""

    def pushed(x: Any) -> Any:
        return sum(jnp.sin(jax.lax.pad(x, 0.0, [(-i, i, 0)])) for i in range(8))

    x = normal(0, 9)
    reports: list[Any] = []
    got = jax.jit(ag.optimize(pushed, on_report=reports.append))(x)
    np.testing.assert_allclose(got, pushed(x), rtol=1e-5, atol=1e-5)
    assert "they cut off what they pad" in [d.reason for d in reports[0].refused]
    moved = lambda x: jnp.sum(sum(jnp.tanh(jnp.pad(x, (i, 8 - i)) * i) for i in range(8)))  # noqa: E731
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(moved)))(x), jax.grad(moved)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "one",
    [
        lambda x, y, k: jnp.sum(jnp.where(y == k, x, 0.0)),
        lambda x, y, k: jnp.max(jnp.where(y == k, x, -jnp.inf)),
        lambda x, y, k: jnp.sum(x * (y >= k)),
        lambda x, y, k: jnp.sum(x * ((y >> k) & 1)),
    ],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_classes_of_an_array_that_all_steps_read_stay(one: Any, gradient: bool) -> None:
    """In a loop these took 1.5 to 3.3 times plain JAX's time; but products of all of them are one."""

    def f(x: Any, y: Any) -> Any:
        found = jnp.stack([one(x, y, k) for k in range(24)])
        return jnp.sum(jnp.sin(found)) if gradient else found

    x, y = jnp.linspace(-1, 1, 30_000), jnp.arange(30_000) % 24
    g = jax.grad(f) if gradient else f
    made = jax.make_jaxpr(ag.optimize(g))(x, y)
    assert not [eqn for eqn in made.eqns if eqn.primitive.name in ("scan", "while")]
    np.testing.assert_allclose(jax.jit(ag.optimize(g))(x, y), jax.jit(g)(x, y), rtol=1e-5, atol=1e-6)
