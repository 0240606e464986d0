"""Equations that only show a part of a value become slices, with the same bits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.normalize import normalize

X, ROW = np.arange(24.0, dtype=np.float32).reshape(6, 4), np.arange(4.0, dtype=np.float32)[None]


def window(x: Any, *corner: int, collapsed: tuple[int, ...] = ()) -> Any:
    """What begins at a corner: 3 x 2 entries, or of these one row where that is collapsed."""
    offsets = tuple(range(2 - len(collapsed)))
    numbers = lax.GatherDimensionNumbers(offsets, collapsed, (1, 0))
    index = jnp.concatenate([jnp.full(1, at, "int32") for at in corner[::-1]])
    return lax.gather(x, index, numbers, (1 if collapsed else 3, 2), mode="fill")


# What is shown, and the primitive that is gone.
SHOWN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "split": ("split", lambda x: jnp.split(x, (2, 5))),
    "row by an array": ("gather", lambda x: jnp.take(x, 3, axis=0)),
    "rows at one distance": ("gather", lambda x: x[jnp.arange(1, 6, 2)]),
    "many columns": ("gather", lambda x: jnp.tile(x, 1000)[:, jnp.arange(500, 3500)]),
    "the gradient of many columns": (
        "scatter-add",
        jax.grad(lambda x: jnp.sum(jnp.tile(x, 1000)[:, jnp.arange(500, 3500)] ** 2)),
    ),
    "the gradient of rows at one distance": ("scatter-add", jax.grad(lambda x: jnp.sum(x[jnp.arange(1, 6, 2)] ** 2))),
    "a window": ("gather", lambda x: window(x, 1, 2)),
    "a window of one row": ("gather", lambda x: window(x, 5, 0, collapsed=(0,))),
    "the gradient of a window": ("scatter-add", jax.grad(lambda x: jnp.sum(window(x, 3, 1) ** 2))),
    "the gradient of one row": ("scatter-add", jax.grad(lambda x: jnp.sum(window(x, 3, 1, collapsed=(0,)) ** 2))),
    "the gradient of an interior": ("gather", jax.grad(lambda x: jnp.sum(x.at[1:-1, 1:-1].add(2 * x[2:, 2:]) ** 2))),
    "rows at constant places": ("gather", lambda x: x[np.array([1, 3, 5])]),
    "reversed broadcast": ("rev", lambda x: jnp.broadcast_to(x[0], (5, 4))[::-1]),
    "a row of what was written": ("scatter", lambda x: x.at[3].set(x[0])[3:4]),
    "a reshape that turns": ("reshape", lambda x: lax.reshape(x, (4, 6), (1, 0)) * 2),
    "rows beside what was written": ("scatter", lambda x: x.at[0].set(7.0)[1:]),
}
KEPT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a reshape that turns nothing": ("reshape", lambda x: lax.reshape(x, (2, 12))),
    "a window beyond the end": ("gather", lambda x: window(x, 4, 2)),
    "a window before the start": ("gather", lambda x: window(x, -1, 0)),
    "rows backwards": ("gather", lambda x: x[jnp.arange(5, 0, -2)]),
    "rows that are added to others": ("scatter-add", lambda x: x.at[jnp.arange(1, 6, 2)].add(1.0)),
    "the gradient of rows that repeat": (
        "scatter-add",
        jax.grad(lambda x: jnp.sum(jnp.take(x, jnp.zeros(3, int), axis=0) ** 2)),
    ),
    "rows that repeat": ("gather", lambda x: jnp.take(x, jnp.zeros(3, int), axis=0)),
    "rows around what was written": ("scatter", lambda x: x.at[2].set(7.0)[1:4]),
    "rows that may be out of range": ("gather", lambda x: jnp.take(x, jnp.arange(4, 8), axis=0)),
}


def names(program: ClosedJaxpr) -> list[str]:
    """The primitives of a program."""
    return [eqn.primitive.name for eqn in program.jaxpr.eqns]


@pytest.mark.parametrize("name", [*SHOWN, *KEPT])
def test_parts_are_slices(name: str) -> None:
    """The primitive is there in the program as written; in normal form it is gone, or kept; the bits are the same."""
    primitive, f = {**SHOWN, **KEPT}[name]
    natural = jax.make_jaxpr(jax.jit(f, inline=True))(X)
    program, _ = normalize(natural)
    assert primitive in str(natural)
    assert (primitive in names(program)) == (name in KEPT)
    for got, want in zip(evaluate(program, [jnp.asarray(X)]), evaluate(natural, [jnp.asarray(X)]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_a_part_of_a_reversed_array_is_a_reversed_part() -> None:
    """Along one dimension and both: the slice comes first, and takes what it took; with strides it stays behind."""
    stays = [np.s_[::2], np.s_[1:6:3, ::2], np.s_[4:4]]
    parts = [np.s_[:2], np.s_[1:], np.s_[2:5, 1:], *stays]
    for turned in ((0,), (0, 1)):
        for part in parts:
            program, _ = normalize(jax.make_jaxpr(lambda x, t=turned, p=part: lax.rev(x, t)[p])(X))
            np.testing.assert_array_equal(evaluate(program, [jnp.asarray(X)])[0], np.flip(X, turned)[part])
            assert names(program) == (["rev", "slice"] if part in stays else ["slice", "rev"])
    report = ag.explain(lambda x: jnp.sort(x)[::-1][:10], rules=ag.rules.default)(jnp.arange(1000.0))
    assert [d.rule for d in report.fired] == ["last-of-sorted"]


@pytest.mark.parametrize("first", range(5))
def test_a_row_of_a_broadcast_row(first: int) -> None:
    """`broadcast(row)[k : k + 1]` is the row itself for every `k`, not row `k` of it."""

    def f(row: Any) -> Any:
        return lax.slice_in_dim(lax.broadcast_in_dim(row, (5, 4), (0, 1)), first, first + 1)

    program, _ = normalize(jax.make_jaxpr(f)(ROW))
    np.testing.assert_array_equal(evaluate(program, [jnp.asarray(ROW)])[0], ROW)


def test_a_slice_alone_is_a_change() -> None:
    """The report says so, and the program is kept."""
    report = ag.explain(lambda x: jnp.tanh(x[:, jnp.arange(1, 3)]))(X)
    assert {decision.rule for decision in report.fired} == {"views"}


def test_floats_are_converted_before_they_are_repeated() -> None:
    """Each once; not where nothing is repeated, and not what is no float."""
    row, column = jnp.arange(4.0), jnp.arange(6.0)[:, None]

    def sizes(f: Callable[[Any], Any], x: Any) -> list[int]:
        program, _ = normalize(jax.make_jaxpr(f)(x))
        got, want = (evaluate(p, [x])[0] for p in (program, jax.make_jaxpr(f)(x)))
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))
        return [eqn.invars[0].aval.size for eqn in program.jaxpr.eqns if eqn.primitive.name == "convert_element_type"]

    for x in (row, column, row.astype(jnp.bfloat16)):
        for dtype in (jnp.bfloat16, jnp.float16):
            if x.dtype != dtype:
                assert sizes(lambda x, d=dtype: jnp.broadcast_to(x, (6, 4)).astype(d), x) == [x.size]
    assert sizes(lambda x: jnp.broadcast_to(x, (1, 4)).astype(jnp.bfloat16), row) == [4]
    assert sizes(lambda x: jnp.broadcast_to(x, (6, 4)).astype(jnp.int32), row) == [24]
    assert sizes(lambda x: jnp.broadcast_to(x > 1, (6, 4)).astype(jnp.float32), row) == [24]


def test_a_mean_of_bfloat16_products_has_the_gradient_of_a_product_of_matrices() -> None:
    """What a mean hands down is float32, and repeated before it is converted: no number of all products is made."""
    x, w = (
        jnp.asarray(np.random.default_rng(k).normal(size=s), jnp.bfloat16) for k, s in ((0, (70, 40)), (1, (40, 60)))
    )
    natural = lambda x, w: jnp.sum(jnp.mean(x[:, :, None] * w, 1).astype(jnp.float32) ** 2)  # noqa: E731
    f = jax.grad(natural, (0, 1))
    largest = lambda f: max(v.aval.size for eqn in jax.make_jaxpr(f)(x, w).jaxpr.eqns for v in eqn.outvars)  # noqa: E731
    assert largest(f) == 70 * 40 * 60
    forward = x.size * 60  # XLA itself never makes these
    made = [v.aval for eqn in jax.make_jaxpr(ag.optimize(f))(x, w).jaxpr.eqns for v in eqn.outvars]
    assert sum(aval.size == forward for aval in made) <= 2
    wide = jax.grad(lambda x, w: jnp.sum(jnp.mean(x[:, :, None] * w, 1) ** 2), (0, 1))
    want = wide(*(a.astype(jnp.float32) for a in (x, w)))
    for ours, plain, exact in zip(jax.jit(ag.optimize(f))(x, w), jax.jit(f)(x, w), want, strict=True):
        errors = [np.linalg.norm(np.asarray(a, np.float64) - exact) for a in (ours, plain)]
        assert errors[0] < 1.5 * errors[1]


def test_constants_that_are_no_arrays_are_not_looked_at() -> None:
    """A ref, which gives its entries one by one and forever, and the shape of an array, which has none."""
    ref = jax.new_ref(jnp.arange(3))
    assert np.array_equal(jax.jit(ag.optimize(lambda x: ref[...] + x))(1), [1, 2, 3])
    shape = jax.ShapeDtypeStruct((3,), jnp.int32)
    with pytest.raises(Exception, match="ShapeDtypeStruct does not have a value"):
        jax.jit(ag.optimize(lambda x: (x, shape)))(jnp.arange(3))
