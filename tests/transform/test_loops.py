"""Loops, branches and `vmap`: JAX's results, with anything in carries, operands and results."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import aerogel as ag
from aerogel.transform._static import hide, is_static, reveal
from module.drawn import modules


class Cell(ag.Module):
    weight: Any
    kind: str = "plain"
    scale: float = 1.0

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.weight * x) * self.scale


XS = np.linspace(0.0, 1.0, 4, dtype=np.float32)


@settings(max_examples=60)
@given(modules())
def test_hide_and_reveal_are_inverse(model: Any) -> None:
    """What is hidden is structure, equal exactly for equal values, and comes back."""
    tree = {"model": model, "f": jnp.sin, "text": "text", "dtype": jnp.float32, "n": 1, "none": None}
    hidden = hide(tree)
    assert not any(map(is_static, jax.tree.leaves(hidden)))
    assert reveal(hidden) == tree
    assert jax.tree.structure(hide({**tree, "n": 2})) == jax.tree.structure(hidden)
    assert jax.tree.structure(hide({**tree, "text": "other"})) != jax.tree.structure(hidden)
    assert hide(model) is model


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    """Carry, inputs and stacked results hold modules, strings and functions; numbers are `jax.lax.scan`'s."""

    def plain(w: Any, x: Any) -> Any:
        return w * 0.5 + x, jnp.tanh(w * x)

    def step(carry: Any, x: Any) -> Any:
        cell, how = carry
        y = cell(x["x"])
        return (ag.at(cell).weight.set(cell.weight * 0.5 + x["x"]), how), {"y": y, "how": x["how"], "kind": cell.kind}

    want = jax.lax.scan(plain, 1.0, XS, reverse=reverse)
    (cell, how), ys = ag.scan(step, (Cell(jnp.array(1.0)), jnp.sin), {"x": XS, "how": jnp.cos}, reverse=reverse)
    np.testing.assert_allclose(cell.weight, want[0], rtol=1e-6)
    np.testing.assert_allclose(ys["y"], want[1], rtol=1e-6)
    assert (how, ys["how"], ys["kind"]) == (jnp.sin, jnp.cos, "plain")


@pytest.mark.parametrize("loop", ["scan", "while_loop", "fori_loop"])
@pytest.mark.parametrize(
    ("change", "path", "got"),
    [
        (lambda c: {**c, "cell": ag.at(c["cell"]).scale.set(2.0)}, "carry['cell'].scale", "2.0"),
        (lambda c: {**c, "name": "other"}, "carry['name']", "'other'"),
        (lambda c: {"cell": c["cell"]}, "carry['name']", "nothing"),
        (lambda c: {**c, "more": 1}, "carry['more']", "an array"),
        (lambda c: {**c, "cell": None}, "carry['cell']", "None"),
        (lambda c: {**c, "cell": c["cell"].weight}, "carry['cell']", "an array"),
    ],
    ids=["static field", "string", "gone", "new", "none", "leaf"],
)
def test_a_carry_that_changes_is_told_by_path(loop: str, change: Any, path: str, got: str) -> None:
    """The error names the first position that differs, and what was there before and after."""
    carry = {"cell": Cell(jnp.array(1.0)), "name": "same"}
    run = {
        "scan": lambda: ag.scan(lambda c, _: (change(c), None), carry, length=3),
        "while_loop": lambda: ag.while_loop(lambda c: c["cell"].weight < 3, change, carry),
        "fori_loop": lambda: ag.fori_loop(0, 3, lambda i, c: change(c), carry),
    }[loop]
    with pytest.raises(ag.CarryError) as error:
        run()
    assert (error.value.loop, error.value.path, error.value.got) == (loop, path, got)


def test_weak_types_and_dtypes_are_jaxs_business() -> None:
    """A Python number for a first carry is promoted as in JAX; another dtype raises JAX's error."""
    f = lambda c, x: (c + x, c)  # noqa: E731
    np.testing.assert_allclose(ag.scan(f, 0, XS)[0], jax.lax.scan(f, 0, XS)[0])
    with pytest.raises(TypeError, match="carry"):
        ag.scan(lambda c, x: (c.astype(jnp.int32), x), jnp.float32(0), XS)
    with pytest.raises(TypeError):
        ag.scan(lambda c, x: c, 0.0, XS)  # type: ignore[arg-type, return-value]


def test_while_and_fori_and_their_gradients() -> None:
    """Modules with strings in the carry; a gradient through `scan` and `fori_loop` with static bounds."""
    end = ag.while_loop(
        lambda c: c[0].weight < 10,
        lambda c: (ag.at(c[0]).weight.apply(lambda w: 2 * w), c[1]),
        (Cell(jnp.array(1.0)), "t"),
    )
    assert (float(end[0].weight), end[0].kind, end[1]) == (16.0, "plain", "t")
    f = lambda cell, x: ag.fori_loop(0, 3, lambda i, c: (c[0], c[0](c[1])), (cell, x))[1]  # noqa: E731
    want = jax.grad(lambda w: jnp.tanh(w * jnp.tanh(w * jnp.tanh(w * 0.5))))(0.7)
    np.testing.assert_allclose(ag.grad(f)(Cell(jnp.array(0.7)), 0.5).weight, want, rtol=1e-5)


def test_cond_and_switch() -> None:
    """Operands and results hold anything; branches that return other strings do not agree."""
    cell = Cell(jnp.array(1.0))
    double = lambda c, how: (ag.at(c).weight.apply(lambda w: 2 * how(w)), "out")  # noqa: E731
    same = lambda c, how: (c, "out")  # noqa: E731
    for pred, weight in ((True, 2 * np.sin(1.0)), (False, 1.0)):
        out, name = ag.jit(lambda p: ag.cond(p, double, same, cell, jnp.sin))(pred)
        np.testing.assert_allclose(out.weight, weight, rtol=1e-6)
        assert name == "out"
        out, name = ag.switch(int(pred), [same, double], cell, jnp.sin)
        np.testing.assert_allclose(out.weight, weight, rtol=1e-6)
    with pytest.raises(TypeError, match="out"):
        ag.cond(True, double, lambda c, how: (c, "other"), cell, jnp.sin)


MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("in_axes", "out_axes"),
    [((0, None), 0), ((1, None), 0), ((0, None), 1), ([1, None], -1), ((0, {"cell": None, "how": None}), 0)],
    ids=str,
)
def test_vmap_takes_jaxs_axes(in_axes: Any, out_axes: Any) -> None:
    """Prefix trees as in JAX, with functions and strings in arguments and results."""

    def f(x: Any, t: Any) -> Any:
        return t["how"](x) * t["cell"].weight

    cell = Cell(jnp.array(2.0))
    first = in_axes[0]
    want = jax.vmap(lambda x: jnp.sin(x) * 2.0, first, out_axes)(MATRIX)
    got = ag.vmap(f, in_axes, out_axes)(MATRIX, {"cell": cell, "how": jnp.sin})
    np.testing.assert_allclose(got, want, rtol=1e-6)
    out, name = ag.vmap(lambda x, t: (f(x, t), "name"), in_axes, out_axes)(MATRIX, {"cell": cell, "how": jnp.sin})
    np.testing.assert_allclose(out, want, rtol=1e-6)
    assert name == "name"
    out, name = ag.vmap(lambda x, t: (f(x, t), "name"), in_axes, (out_axes, None))(
        MATRIX, {"cell": cell, "how": jnp.sin}
    )
    np.testing.assert_allclose(out, want, rtol=1e-6)


def test_vmap_by_name_and_by_function() -> None:
    """A dict names what is mapped, by position or keyword; a function is asked for each array; methods are mapped."""
    f = lambda x, y, how: how(x, y)  # noqa: E731
    row = np.ones(3, np.float32)
    for args, kwargs in (((MATRIX, row, jnp.add), {}), ((MATRIX,), {"how": jnp.add, "y": row})):
        np.testing.assert_array_equal(ag.vmap(f, {"x": 0})(*args, **kwargs), MATRIX + 1)
    np.testing.assert_array_equal(ag.vmap(f, {"x": 1, "y": 0})(MATRIX, row, jnp.add), (MATRIX + 1).T)
    by_rank = lambda leaf: 0 if leaf.ndim == 2 else None  # noqa: E731
    for axes in (by_rank, (by_rank, None, None), [0, by_rank, by_rank], {"x": by_rank}):
        np.testing.assert_array_equal(ag.vmap(f, axes)(MATRIX, row, jnp.add), MATRIX + 1)
    stacked = Cell(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(ag.vmap(lambda c, x: c(x), (0, None))(stacked, 0.5), np.tanh([0.5, 1.0]), rtol=1e-6)
    models = ag.vmap(lambda key: Cell(jax.random.normal(key), "made"))(jax.random.split(jax.random.key(0), 3))
    assert (models.weight.shape, models.kind) == ((3,), "made")
    with pytest.raises(ag.UsageError, match="'z'"):
        ag.vmap(f, {"z": 0})(MATRIX, row, jnp.add)


def test_shapes_and_programs() -> None:
    """`eval_shape` and `make_jaxpr` take and return anything; a model of shapes has the model's structure."""
    out = ag.eval_shape(lambda c, how: (c, how(c.weight), "text"), Cell(jnp.ones(3)), jnp.sum)
    assert jax.tree.structure(out[0]) == jax.tree.structure(Cell(jnp.ones(3)))
    assert (out[1].shape, out[2]) == ((), "text")
    program, shape = ag.make_jaxpr(lambda c, n, how: (how(c.weight) * n, how), static_argnums=1, return_shape=True)(
        Cell(jnp.ones(3)), 2, jnp.sin
    )
    assert len(program.in_avals) == 1
    assert shape[1] is jnp.sin
