"""Dear work that few lanes take, or none, is in a branch: what is found, what is left, the same results."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import aerogel as ag
from aerogel._jax import Jaxpr, jaxprs_in_params
from aerogel.compiler.passes.branch_guard import BranchGuard
from aerogel.compiler.passes.equal_cases import EqualCases
from compiler.loop_patterns import normal
from compiler.programs_of import bits

LANES, N = 4, 192
W = jnp.asarray(normal(0, N, N)) / N**0.5
X = jnp.asarray(normal(1, LANES, N, N))
TAKEN = jnp.array([False, True, False, False])
NONE = jnp.zeros(LANES, bool)


def alone(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`f` with this pass alone, after the one that lets it see what the branches of a `cond` are given."""
    return ag.optimize(f, passes=(EqualCases(), BranchGuard()), **options)


def unguarded(f: Callable[..., Any], *args: Any) -> int:
    """How many products stand outside of all branches."""

    def count(jaxpr: Jaxpr) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            total += eqn.primitive.name in ("dot_general", "eigh")
            if eqn.primitive.name != "cond":
                total += sum(count(getattr(j, "jaxpr", j)) for j in jaxprs_in_params(eqn.params))
        return total

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def dear(x: Any) -> Any:
    """Products in a row."""
    for _ in range(4):
        x = jnp.tanh(x @ W)
    return x


def switched(p: Any, x: Any) -> Any:
    """One dear branch of three."""
    return lax.switch(p.astype(jnp.int32), (jnp.sin, dear, lambda x: x * 2), x)


def both(p: Any, x: Any) -> Any:
    """Both branches are dear."""
    return lax.cond(p, dear, lambda x: jnp.sin(dear(x.T)), x)


def nested(p: Any, x: Any) -> Any:
    """A branch in a branch."""
    return lax.cond(p, lambda x: lax.cond(x[0, 0] > 0, dear, jnp.cos, x), jnp.sin, x)


def random(p: Any, x: Any) -> Any:
    """Random numbers are drawn in the branch."""
    draw = lambda x: dear(x + jax.random.normal(jax.random.key(3), x.shape))  # noqa: E731
    return lax.cond(p, draw, lambda x: x * 2, x)


FOUND: dict[str, Callable[[Any, Any], Any]] = {
    "cond": jax.vmap(lambda p, x: lax.cond(p, dear, lambda x: x * 2, x)),
    "the other branch": jax.vmap(lambda p, x: lax.cond(p, lambda x: x * 2, dear, x)),
    "switch": jax.vmap(switched),
    "both": jax.vmap(both),
    "nested": jax.vmap(nested),
    "random": jax.vmap(random),
    "where": lambda p, x: jnp.where(p[:, None, None], dear(x), x),
    "where of a number": lambda p, x: jnp.where(p[1], dear(x).sum(), 0.0),
    "not": lambda p, x: jnp.where(~p[:, None, None], x, dear(x)),
    "select": lambda p, x: lax.select_n(jnp.broadcast_to(p[:, None, None], x.shape), x, dear(x)),
    "in a loop": lambda p, x: lax.scan(lambda x, q: (jnp.where(q, dear(x), x), x[0, 0, 0]), x, p),
}


@pytest.mark.parametrize("name", FOUND)
def test_dear_branches_are_guarded(name: str) -> None:
    """No product runs where no lane takes it; bits stay, however many lanes do."""
    f = FOUND[name]
    assert unguarded(f, TAKEN, X) > unguarded(alone(f), TAKEN, X) == 0
    compiled, plain = jax.jit(alone(f)), jax.jit(f)
    for taken in (TAKEN, NONE, ~NONE):
        for got, want in zip(*(jax.tree.leaves(g(taken, X)) for g in (compiled, plain)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def loss(p: Any, x: Any, w: Any) -> Any:
    """A number to differentiate."""
    y = jnp.where(p, jnp.tanh(jnp.tanh(x[0] @ w) @ w) @ w, x[0])
    return jnp.sum(y * y)


def test_gradients() -> None:
    """A gradient's products wait with their branch, forward and backward, whichever is optimised."""
    g = jax.value_and_grad(loss, (1, 2))
    for h in (alone(g), jax.value_and_grad(alone(loss), (1, 2))):
        assert unguarded(h, TAKEN[0], X, W) == 0 < unguarded(g, TAKEN[0], X, W)
        for taken in (jnp.array(True), jnp.array(False)):
            got, want = (jax.tree.leaves(jax.jit(k)(taken, X, W)) for k in (h, g))
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def steps(x: Any, w: Any) -> Any:
    """A loop whose body is dear."""
    return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=9)[0]


INSIDE: dict[str, Callable[..., Any]] = {
    "a loop": lambda p, x, w: jnp.where(p, steps(x, w), x).sum(),
    "a loop over rows": lambda p, x, w: jnp.where(
        p, lax.scan(lambda c, v: (jnp.tanh((c + v) @ w), c), x[0], x)[1], x
    ).sum(),
    "a loop in a loop": lambda p, x, w: jnp.where(
        p, lax.fori_loop(0, 3, lambda i, c: steps(c, w) + i * x, x), 2.0 * x
    ).sum(),
    "a solve": lambda p, x, w: jnp.where(p, jnp.linalg.solve(w @ w.T + 9 * jnp.eye(N), x), x).sum(),
}


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_gradients_of_loops_and_solves_wait(name: str, dtype: Any) -> None:
    """What comes back through a loop or a solve is zeros where the branch is not taken."""
    with jax.enable_x64(True):
        x, w = jnp.asarray(normal(3, N, N), dtype), jnp.asarray(normal(4, N, N) / N**0.5, dtype)
        g = jax.value_and_grad(INSIDE[name], (1, 2))
        h = alone(g)
        assert unguarded(h, TAKEN[0], x, w) == 0 < unguarded(g, TAKEN[0], x, w)
        for taken in (jnp.array(True), jnp.array(False)):
            got, want = (jax.tree.leaves(jax.jit(k)(taken, x, w)) for k in (h, g))
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda p, x, w: lax.scan(lambda c, v: (jnp.tanh((c + v) @ w), c), x[0], jnp.where(p, x, 0.0))[0].sum(),
        lambda p, x, w: lax.scan(lambda c, v: (jnp.tanh(c @ w), c), jnp.where(p, x, 1.0), None, 9)[0].sum(),
    ],
)
def test_loops_that_start_or_go_on_with_something_else_run(f: Callable[..., Any]) -> None:
    """A carry or an input that is not zero where the branch is not taken."""
    g = jax.value_and_grad(f, (1, 2))
    assert unguarded(alone(g), TAKEN[0], X[0], W) == unguarded(g, TAKEN[0], X[0], W)


SELECTED: dict[str, Callable[[Any, Any], Any]] = {
    "two": jax.vmap(lambda p, x: lax.cond(p, dear, lambda x: x, x)),
    "the first": jax.vmap(lambda p, x: lax.cond(p, lambda x: x, dear, x)),
    "three": jax.vmap(lambda p, x: lax.switch(p.astype(jnp.int32), (lambda x: x, dear, lambda x: dear(x.T)), x)),
    "by hand": lambda p, x: jnp.where(p[:, None, None], dear(x), x),
}


@pytest.mark.parametrize("name", SELECTED)
def test_what_is_selected_instead_is_there(name: str) -> None:
    """Where no lane takes a branch, nothing is made and nothing is selected: what stands there is the result."""
    f = SELECTED[name]
    eqns = jax.make_jaxpr(alone(f))(TAKEN, X).jaxpr.eqns
    assert "select_n" not in {eqn.primitive.name for eqn in eqns}
    conds = [eqn for eqn in eqns if eqn.primitive.name == "cond"]
    assert len(conds) == (2 if name == "three" else 1)
    assert all(not eqn.params["branches"][0].jaxpr.eqns for eqn in conds)
    for taken in (TAKEN, NONE, ~NONE):
        (got, want) = (jax.jit(g)(taken, X) for g in (alone(f), f))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def squashed(p: Any, x: Any, w: Any) -> Any:
    """Whose derivative reads one less a square."""
    return (jax.vmap(lambda p, x: lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: x, x))(p, x) ** 2).sum()


def test_what_the_backward_part_alone_reads_is_computed_there() -> None:
    """`1 - tanh(y)`: were it made in the forward branch, it would have to be written down for the backward one."""
    p, x = jnp.zeros(256, bool), jnp.asarray(normal(2, 256, 256))
    w = jnp.asarray(normal(3, 256, 256)) / 16
    g = jax.grad(squashed, (1, 2))
    assert unguarded(g, p, x, w) > 0 == unguarded(ag.optimize(g), p, x, w)
    for taken in (p, p.at[3].set(True), ~p):
        for a, b in zip(jax.jit(ag.optimize(g))(taken, x, w), jax.jit(g)(taken, x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_strict_numerics_guard_no_zeros() -> None:
    """That zero times anything is zero is for fast numerics; what a selection drops may be left out anyway."""
    g = jax.value_and_grad(loss, (1, 2))
    fast, strict = (unguarded(alone(g, numerics=word), TAKEN[0], X, W) for word in ("fast", "strict"))
    assert 0 == fast < strict
    f = FOUND["cond"]
    assert unguarded(alone(f, numerics="strict"), TAKEN, X) == 0
    x = X.at[0, 0, 0].set(jnp.inf).at[1, 0, 0].set(jnp.nan)
    assert bits([jax.jit(alone(f, numerics="strict"))(NONE, x)]) == bits([jax.jit(f)(NONE, x)])


def read_elsewhere(p: Any, x: Any) -> Any:
    """The dear value is wanted anyway."""
    y = dear(x)
    return jnp.where(p[:, None, None], y, x), y.sum()


def printed(p: Any, x: Any) -> Any:
    """A value that is shown to the user."""
    y = dear(x)
    jax.debug.callback(lambda _: None, y[0, 0, 0])
    return jnp.where(p[:, None, None], y, x)


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "cheap": lambda p, x: jnp.where(p[:, None, None], jnp.tanh(x), x),
    "read elsewhere": read_elsewhere,
    "printed": printed,
    "a mask with a constant": lambda p, x: jnp.where(p[:, None, None], dear(x), 0.0),
    "a mask of entries": lambda p, x: jnp.where(x > p[0], dear(x), x),
    "both cases": lambda p, x: (lambda y: jnp.where(p[:, None, None], y, 2 * y))(dear(x)),
    "compared with infinity": lambda p, x: jnp.where(x == jnp.inf, dear(x), x),
    "the selector": lambda p, x: jnp.where(dear(x)[0, 0, 0] > 0, x, 2 * x),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_selections_are_left(name: str) -> None:
    """What is cheap, wanted anyway or taken somewhere for sure stays where it is."""
    f = LEFT[name]
    assert unguarded(f, TAKEN, X) == unguarded(alone(f), TAKEN, X)
    if name == "a mask with a constant":  # as a mask over a batch has it
        assert not [d for d in ag.explain(f)(TAKEN, X).fired if d.rule == "branch-guard"]


def test_what_is_the_same_in_every_step_stays_outside_of_branches() -> None:
    """XLA computes it once for all steps, which it does not do in a branch."""
    f = lambda p, x: lax.scan(lambda y, q: (jnp.where(q, dear(x) + y, y), None), x, p)[0]  # noqa: E731
    assert unguarded(f, TAKEN, X) == unguarded(alone(f), TAKEN, X) > 0


def test_a_loop_that_will_be_differentiated_is_left() -> None:
    """Its gradient would be a branch in every step. Outside of loops a branch is guarded before differentiation too."""
    f = FOUND["in a loop"]
    g = lambda f: jax.grad(jax.checkpoint(lambda x: f(TAKEN, x)[0].sum()))  # noqa: E731
    assert unguarded(g(alone(f)), X) == unguarded(g(f), X)


def test_the_report_says_what_is_left_and_why() -> None:
    """A branch that is dear, but not beside what it would cost to ask."""
    f = lambda p, x: jnp.where(p, jnp.tanh(x @ W), x)  # noqa: E731
    (refused,) = (d for d in ag.explain(f)(TAKEN[0], jnp.tile(X[0], (8, 1))).refused if d.rule == "branch-guard")
    assert "asking, and writing down" in refused.reason


def test_what_a_gather_would_have_to_write_down_counts() -> None:
    """XLA takes rows where it needs them: a branch would write all of them."""
    f = lambda p, x: jnp.where(p[:, None], x[jnp.argsort(x[:, 0])], x)  # noqa: E731
    report = ag.explain(f, rules=())(jnp.arange(512) < 8, jnp.ones((512, 4000)))
    (refused,) = (d for d in (*report.fired, *report.refused) if d.rule == "branch-guard" and "gather" in d.what)
    assert not refused.fired
    assert "asking, and writing down" in refused.reason


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.complex64])
def test_types(dtype: Any) -> None:
    """Zeros of any type stand for what is not computed."""
    f = lambda p, x: jnp.where(p[:, None, None], x @ (x @ x), x)  # noqa: E731
    x = (10 * X).astype(dtype)
    assert unguarded(alone(f), TAKEN, x) == 0
    assert bits([jax.jit(alone(f))(TAKEN, x)]) == bits([jax.jit(f)(TAKEN, x)])


@pytest.mark.parametrize("number", [np.inf, np.nan, 1.5, 1j])
def test_a_comparison_with_a_number_that_is_no_integer(number: Any) -> None:
    """Infinity, nan, fractions and complex numbers are no cases of a switch: the selection waits for its comparison."""
    f = lambda p, x: jnp.where((p == number)[:, None, None], x @ (x @ x), x)  # noqa: E731
    p = jnp.array([number, 0] * (len(X) // 2))
    np.testing.assert_allclose(jax.jit(alone(f))(p, X), jax.jit(f)(p, X), rtol=1e-5)


STEPS: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda p, x, y: jnp.where(p, dear(x), y),
    lambda p, x, y: jnp.where(p, y, x) + x,
    lambda p, x, y: jnp.where(p, jnp.zeros_like(x), x @ W) @ W,
    lambda p, x, y: lax.select(p, dear(y), dear(x)),
    lambda p, x, y: x * 2 + y,
)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(len(STEPS))), st.integers(0, 1)), min_size=1, max_size=4))
def test_selections_one_after_the_other(chosen: list[tuple[int, int]]) -> None:
    """Of two selectors, with results of one read by the other: the same numbers."""

    def f(p: Any, x: Any) -> Any:
        y = jnp.cos(x)
        for k, which in chosen:
            x, y = STEPS[k](p[which], x, y), x
        return x + y

    compiled, plain = jax.jit(alone(f)), jax.jit(f)
    for taken in (TAKEN, NONE, TAKEN[1:]):
        taken = jnp.resize(taken, (2,))
        np.testing.assert_allclose(compiled(taken, X[0]), plain(taken, X[0]), rtol=1e-4, atol=1e-4)


def test_over_devices_nothing_is_asked() -> None:
    """Where values may be spread, asking all devices would wait for the slowest."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    f = jax.jit(alone(FOUND["where"]), in_shardings=(spread, spread))
    np.testing.assert_allclose(f(TAKEN, X), jax.jit(FOUND["where"])(TAKEN, X), rtol=1e-5, atol=1e-5)
