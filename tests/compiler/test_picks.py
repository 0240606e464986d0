"""Picking one entry of each row by counted indices is picking along an axis."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.fusion.canonical import canonical
from aerogel.compiler.normalize import normalize


def numbers_of(f: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The canonical program of `f` as a function, and the dimension numbers of its gathers and scatters."""
    traced: Any = jax.make_jaxpr(f)(*args)
    program = normalize(traced)[0]
    jaxpr = canonical(program.jaxpr)
    picks = [e.params["dimension_numbers"] for e in jaxpr.eqns if e.primitive.name in ("gather", "scatter-add")]
    return lambda *xs: evaluate(ClosedJaxpr(jaxpr, program.consts), xs), picks


def by_row(x: Any, labels: Any) -> Any:
    """Rows in one dimension."""
    return x[jnp.arange(x.shape[0]), labels]


def by_two(x: Any, labels: Any) -> Any:
    """Rows in two dimensions."""
    return x[jnp.arange(x.shape[0])[:, None], jnp.arange(x.shape[1]), labels]


def in_front(x: Any, labels: Any) -> Any:
    """The dimension that is picked from comes first."""
    return x[labels, jnp.arange(x.shape[1])]


@given(st.sampled_from(["row", "two", "front", "vmap"]), st.sampled_from(["fill", "clip"]), st.integers(0, 2**31))
def test_counted_rows_are_batch_dimensions(kind: str, mode: str, seed: int) -> None:
    """No index counts rows any more, and values and gradients are the same bits, out of bounds too."""
    rng = np.random.default_rng(seed)
    a, b, v = rng.integers(2, 5, 3)
    shape = {"row": (a, v), "two": (a, b, v), "front": (v, a), "vmap": (b, a, v)}[kind]
    rows = {"row": (a,), "two": (a, b), "front": (a,), "vmap": (b, a)}[kind]
    f = {"row": by_row, "two": by_two, "front": in_front, "vmap": jax.vmap(by_row)}[kind]
    x, labels = rng.normal(size=shape).astype(np.float32), rng.integers(-v - 2, v + 2, rows).astype(np.int32)
    weights = rng.normal(size=rows).astype(np.float32)

    def loss(x: Any, labels: Any) -> Any:
        picked = f(x, labels) if mode == "fill" else f(x, jnp.clip(labels, 0, v - 1))
        return (weights * picked).sum()

    for g in (loss, jax.grad(loss)):
        run, picks = numbers_of(g, x, labels)
        assert all(len(p.operand_batching_dims) == len(shape) - 1 for p in picks)
        np.testing.assert_array_equal(jax.jit(run)(x, labels)[0], jax.jit(g)(x, labels))


def test_the_diagonal_of_a_transpose_is_that_of_the_matrix() -> None:
    """It is read from the matrix, the same bits; other entries of a transpose, and of other shapes, are not."""
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    places = {
        "diagonal": (x, lambda x: jnp.arange(4)[:, None], True),
        "another place": (x, lambda x: 3 - jnp.arange(4)[:, None], False),
        "wide": (x[:3], lambda x: jnp.arange(4)[:, None], False),
    }
    for of, place, turned in places.values():

        def f(x: Any, place: Any = place) -> Any:
            return jnp.take_along_axis(x.T, place(x), 1)

        traced: Any = jax.make_jaxpr(f)(of)
        jaxpr = canonical(normalize(traced)[0].jaxpr)
        (gather,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "gather")
        assert (gather.invars[0] in jaxpr.invars) == turned
        run, _ = numbers_of(f, of)
        np.testing.assert_array_equal(jax.jit(run)(of)[0], jax.jit(f)(of))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x[y, y],
        lambda x, y: x[jnp.arange(3), y[:3]],
        lambda x, y: x[jnp.arange(4) + 1, y],
        lambda x, y: x[jnp.arange(4)[::-1], y],
    ],
    ids=["nothing counts", "fewer than the rows", "from one on", "backwards"],
)
def test_other_indices_stay(f: Any) -> None:
    """What does not count all rows from the first one is a gather by two indices."""
    x, y = np.ones((4, 6), np.float32), np.zeros(4, np.int32)
    _, (numbers,) = numbers_of(f, x, y)
    assert numbers.operand_batching_dims == ()
