"""What the steps of a loop scatter is put into the whole in place, and such a loop may be one kernel."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import KNOWS_KERNELS, JaxprEqn, jaxprs_in_params
from aerogel.compiler.kernels import one_kernel
from aerogel.compiler.passes import loop_fusion
from aerogel.compiler.report import Report
from compiler.loop_patterns import normal

STEPS, ROWS, WIDTH = 60, 40, 16
X, W = normal(0, STEPS, WIDTH), normal(1, WIDTH, WIDTH) / 4
PLACES = jax.random.randint(jax.random.key(2), (STEPS,), -ROWS - 5, ROWS + 5)  # some are out of bounds
MARK = "xla_cpu_small_call"


def states(x: Any, w: Any, reverse: bool = False) -> Any:
    """What a recurrent network makes of rows."""

    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(row + h @ w.astype(h.dtype))
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x, reverse=reverse)[1]


def equations(f: Callable, *args: Any) -> Iterator[tuple[JaxprEqn, int]]:
    """All equations of the optimised program, with the number of loops that they stand in."""

    def walk(jaxpr: Any, depth: int) -> Iterator[tuple[JaxprEqn, int]]:
        for eqn in jaxpr.eqns:
            yield eqn, depth
            for inner in jaxprs_in_params(eqn.params):
                yield from walk(inner, depth + (eqn.primitive.name in ("scan", "while")))

    return walk(jax.make_jaxpr(f)(*args).jaxpr, 0)


def fused(f: Callable, reports: list[Report] | None = None) -> Callable:
    """`f` with loop fusion alone."""
    on_report = None if reports is None else reports.append
    return ag.optimize(f, passes=(loop_fusion.LoopFusion(),), rules=(), on_report=on_report)


def agree(f: Callable, g: Callable, *args: Any, tolerance: float = 1e-5) -> None:
    """Both give the same, up to rounding."""
    for got, want in zip(jax.tree.leaves(jax.jit(g)(*args)), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert got.dtype == want.dtype
        scale = float(jnp.abs(want).max(initial=0).astype(float)) or 1.0
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance * scale)


@pytest.fixture
def all_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops with a scatter in them are what is looked at, whatever else they could be."""
    monkeypatch.setattr(loop_fusion, "becomes_one", lambda *_: False)


@pytest.mark.usefixtures("all_pays")
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("how", ["add", "max", "min", "mul"])
def test_a_step_writes_a_row(how: str, mode: str) -> None:
    """No partial result of the whole's size: one scatter in each step, onto a carry."""
    places = jnp.clip(PLACES, 0, ROWS - 1) if mode == "promise_in_bounds" else PLACES
    table = normal(3, ROWS, WIDTH)

    def f(x: Any, table: Any) -> Any:
        return getattr(table.at[places], how)(states(x, W), mode=mode)

    inside = [eqn for eqn, depth in equations(fused(f), X, table) if depth]
    assert sum(eqn.primitive.name.startswith("scatter") for eqn in inside) == 1
    assert not [eqn for eqn in inside if eqn.primitive.name in ("add", "max", "mul") and
                eqn.outvars[0].aval.shape == table.shape]  # fmt: skip
    agree(f, fused(f), X, table)


@pytest.mark.usefixtures("all_pays")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("reverse", [False, True])
def test_other_types_and_directions(dtype: Any, reverse: bool) -> None:
    """Half precision is summed up in float32; of integers the sums are the same."""

    def f(x: Any) -> Any:
        rows = states(x, W, reverse)
        rows = (rows * 8).astype(dtype) if dtype == jnp.int32 else rows.astype(dtype)
        return jnp.ones((ROWS, WIDTH), dtype).at[PLACES].add(rows)

    assert any(depth and eqn.primitive.name == "scatter-add" for eqn, depth in equations(fused(f), X))
    agree(f, fused(f), X, tolerance=1e-2 if dtype == jnp.bfloat16 else 1e-5)


@pytest.mark.usefixtures("all_pays")
def test_some_steps_only_are_put_as_before() -> None:
    """Steps that are not read leave the whole as it is."""

    def f(x: Any) -> Any:
        return jnp.zeros((ROWS, WIDTH)).at[PLACES[5:]].add(states(x, W)[5:])

    agree(f, fused(f), X)


def test_the_gradient_of_looked_up_rows() -> None:
    """An embedding that a recurrent network reads has its gradient summed up in the backward loop."""
    tokens = jnp.abs(PLACES) % ROWS

    def loss(table: Any, w: Any) -> Any:
        return (states(table[tokens], w) ** 2).mean()

    gradient = jax.value_and_grad(loss, (0, 1))
    args = normal(4, ROWS, WIDTH), W
    assert any(depth and eqn.primitive.name == "scatter-add" for eqn, depth in equations(fused(gradient), *args))
    agree(gradient, ag.optimize(gradient), *args)
    agree(gradient, lambda *x: jax.value_and_grad(ag.optimize(loss), (0, 1))(*x), *args)


@pytest.mark.parametrize(("steps", "rows"), [(1, 4), (3, 0)])
def test_no_rows_and_one_step(steps: int, rows: int) -> None:
    """Sizes of zero and one."""
    x, places = jnp.ones((steps, WIDTH)), jnp.zeros(steps, jnp.int32)

    def f(x: Any) -> Any:
        return jnp.zeros((rows, WIDTH)).at[places].add(states(x, W), mode="drop")

    agree(f, ag.optimize(f), x)


@pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
def test_a_loop_that_is_one_kernel_keeps_its_stack() -> None:
    """An extremum cannot stand in one kernel: the loop is one without it."""
    reports: list[Report] = []

    def f(x: Any) -> Any:
        return jnp.zeros((ROWS, WIDTH)).at[PLACES].max(states(x, W))

    assert not any(depth and eqn.primitive.name == "scatter-max" for eqn, depth in equations(fused(f, reports), X))
    assert any("one kernel without it" in d.reason for d in reports[-1].decisions)
    agree(f, ag.optimize(f), X)


def counted(places: Any, rows: Any, how: str = "add", mode: str = "drop") -> Any:
    """A loop that somebody wrote with a scatter in it, and work beside it."""

    def step(carry: Any, row: Any) -> Any:
        table, h = carry
        at, x = row
        h = jnp.sin(h + table[0]) * 0.5 + jnp.cos(x) * jnp.exp(-x * x)
        return (getattr(table.at[at], how)(h, mode=mode), h), h.sum()

    return lax.scan(step, (jnp.ones((ROWS, WIDTH)), jnp.zeros(WIDTH)), (places, rows))


KERNELS: dict[str, Callable[[Any], Any]] = {
    **{f"{how}, {mode}": lambda x, how=how, mode=mode: counted(PLACES, x, how, mode)
       for how in ("add", "set", "multiply") for mode in ("drop", "clip")},
    "one entry": lambda x: lax.scan(
        lambda c, r: ((c[0].at[r[0], r[1]].add(r[2].sum()), jnp.sin(c[1]) + r[2]), None),
        (jnp.zeros((ROWS, 7)), X[0]), (PLACES, PLACES % 11, x))[0],
    "a piece of a row": lambda x: lax.scan(
        lambda c, r: ((lax.dynamic_update_slice(c[0], c[0][:, :2], (0, 3)).at[r[0], 2:5].add(r[1][:3]),
                       jnp.sin(c[1]) + r[1]), None), (jnp.zeros((ROWS, 7)), X[0]), (PLACES, x))[0],
}  # fmt: skip


@pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
@pytest.mark.parametrize("name", list(KERNELS))
def test_what_is_scattered_to_one_place_stands_in_a_kernel(name: str) -> None:
    """It is a slice that is read and written; what is out of bounds is dropped, or goes to the nearest."""
    f = KERNELS[name]
    assert any("scatter" in eqn.primitive.name for eqn, depth in equations(f, X) if depth)
    assert MARK in jax.jit(ag.optimize(f)).lower(X).as_text()
    agree(f, ag.optimize(f), X)


@pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
def test_what_is_scattered_to_several_places_does_not() -> None:
    """XLA makes a loop of them; and an array that is large would be copied."""
    several = ag.explain(lambda x: counted(jnp.stack([PLACES, PLACES], 1), x))(X)
    assert not [d for d in several.fired if d.rule == "loop-kernel"]
    assert one_kernel.MOST_WRITTEN_BYTES < ROWS * 4 * 10_000

    def wide(x: Any) -> Any:
        return lax.scan(lambda c, r: ((c[0].at[r[0]].add(r[1].sum()), jnp.sin(c[1]) + r[1]), None),
                        (jnp.zeros(400_000), x[0]), (PLACES, x))[0]  # fmt: skip

    assert not [d for d in ag.explain(wide)(X).fired if d.rule == "loop-kernel"]


def test_norms_of_short_rows_stay_behind_the_loop() -> None:
    """Each sum within a step is a kernel in every step: of rows this short, more than the stack costs."""

    def softmax(x: Any) -> Any:
        return jnp.log(jax.nn.softmax(states(x, W))[:, 0]).mean()

    assert not any(depth and eqn.primitive.name == "exp" for eqn, depth in equations(ag.optimize(softmax), X))
    agree(softmax, ag.optimize(softmax), X)


def test_rows_of_a_large_table_are_looked_up_before_the_loop() -> None:
    """XLA counts all of the table as read, and shares the small kernel of a step among threads for that."""
    tokens = jax.random.randint(jax.random.key(5), (STEPS, 8), 0, 4000)

    for rows, where in ((4000, 0), (400, 1)):
        table = normal(6, rows, 64)[:, :WIDTH] if rows == 400 else normal(6, rows, 64)
        w = W if rows == 400 else normal(7, 64, 64) / 8

        def g(table: Any, w: Any = w, rows: int = rows) -> Any:
            return (states(table[tokens % rows], w) ** 2).mean()

        depths = [depth for eqn, depth in equations(fused(g), table) if eqn.primitive.name == "gather"]
        assert depths == [where]
        agree(g, fused(g), table)
