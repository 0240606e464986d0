"""Products of many small matrices are written out where that is faster, and nowhere else."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.rules.once import stored
from rules.rules_under_test import normal, refusals, report_of

RULE = ag.rules.small_product
LIE = "rows of {} entries with rows, which are read as vectors where they lie"
N = 32


def step(c: Any, xs: Any) -> Any:
    """A chain of products, one in each step."""
    return c @ xs, jnp.trace(c, axis1=1, axis2=2)


def row_products(a: Any, b: Any) -> Any:
    """Rows with rows."""
    return jnp.einsum("bmk,bnk->bmn", a, b)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "@": (lambda a, b: a @ b, (normal(0, N, 4, 4), normal(1, N, 4, 4))),
    "vmap": (jax.vmap(lambda a, b: a @ b.T), (normal(0, N, 4, 5), normal(1, N, 3, 5))),
    "vmap of vmap": (jax.vmap(jax.vmap(jnp.dot, (1, 0))), (normal(0, 4, 4, 8, 4), normal(1, 4, 8, 4, 4))),
    "batch at the end": (lambda a, b: jnp.einsum("ikn,kjn->jin", a, b), (normal(0, 4, 5, N), normal(1, 5, 6, N))),
    "two contracted axes": (
        lambda a, b: jnp.einsum("nijk,nkjl->nil", a, b),
        (normal(0, N, 4, 2, 3), normal(1, N, 3, 2, 4)),
    ),
    "float64": (lambda a, b: a @ b, (normal(0, N, 4, 4), normal(1, N, 4, 4))),
    "in a loop": (lambda a, b: jax.lax.scan(step, a, jnp.stack([b, b])), (normal(0, N, 4, 4), normal(1, N, 4, 4))),
    "vectors with vectors": (jax.vmap(jnp.dot), (normal(0, 1024, 2), normal(1, 1024, 2))),
    "vectors of 4": (jax.vmap(jnp.matmul), (normal(0, 256, 4, 4), normal(1, 256, 4))),
    "3 x 3": (lambda a, b: a @ b, (normal(0, 1024, 3, 3), normal(1, 1024, 3, 3))),
    "points times a rotation": (lambda a, b: a @ b, (normal(0, 1024, 3), normal(1, 3, 3))),
    "five features": (lambda a, b: a @ b, (normal(0, 1024, 5), normal(1, 5, 4))),
    "seven columns": (lambda a, b: a @ b, (normal(0, 1024, 3), normal(1, 3, 7))),
    "six and six": (lambda a, b: jnp.tanh(a @ b), (normal(0, 1024, 6), normal(1, 6, 6))),
    "rows of ten with rows": (row_products, (normal(0, 1024, 9, 10), normal(1, 1024, 9, 10))),
    "rows of eight with rows": (row_products, (normal(0, 1024, 9, 8), normal(1, 1024, 9, 8))),
    "few rows with rows": (row_products, (normal(0, 1024, 7, 16), normal(1, 1024, 9, 16))),
    "columns with columns": (
        lambda a, b: jnp.einsum("bkm,bkn->bmn", a, b),
        (normal(0, 1024, 12, 9), normal(1, 1024, 12, 9)),
    ),
    "a rotation of points": (jax.vmap(lambda b, x: b @ x, (None, 0)), (normal(1, 3, 3), normal(0, 1024, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_it_fires(name: str) -> None:
    """Each spelling is found, and its results stay what they were."""
    f, args = CASES[name]
    with jax.enable_x64(name == "float64"):
        args = tuple(x.astype("float64") for x in args) if name == "float64" else args
        assert [d.rule for d in report_of(f, [RULE], *args).fired] == [RULE.name]


def test_it_fires_in_gradients() -> None:
    """The products of a gradient are products like others, inside and outside; those of other derivatives stay."""
    loss = lambda a, b: jnp.sum((a @ b) ** 2)  # noqa: E731
    args = normal(0, N, 4, 4), normal(1, N, 4, 4)
    assert len(report_of(jax.grad(loss, (0, 1)), [RULE], *args).fired) == 3
    optimised = ag.optimize(loss, rules=[RULE], passes=())

    def products(f: Any) -> int:
        return sum(eqn.primitive.name == "dot_general" for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns)

    assert products(jax.grad(optimised)) == 0
    assert products(lambda *xs: jax.jvp(optimised, xs, xs)) == 3


@pytest.mark.parametrize(
    ("f", "args", "reason"),
    [
        (jnp.matmul, ((N, 2, 2), (N, 2, 2)), "sums of two terms, which XLA writes out itself"),
        (jnp.matmul, ((2, 4, 4), (2, 4, 4)), "fewer than 16 products of 4 x 4 x 4"),
        (jnp.matmul, ((N, 17, 17), (N, 17, 17)), "larger than 16 x 16"),
        (jnp.matmul, ((N, 16, 16), (N, 16, 16)), "fewer than 1024 products of 16 x 16 x 16"),
        (row_products, ((2048, 16, 16), (2048, 16, 16)), LIE.format(16)),
        (row_products, ((2048, 8, 12), (2048, 9, 12)), LIE.format(12)),
        (jax.vmap(jnp.dot), ((N, 3), (N, 3)), "fewer than 1024 products of vectors"),
        (jax.vmap(jnp.dot), ((2048, 17), (2048, 17)), "larger than 16 x 16"),
        (jnp.matmul, ((4, 4), (4, 4)), "one product with fewer than 1024 rows"),
        (jnp.matmul, ((2048, 8), (8, 8)), "one product with more than 7 terms or columns"),
        (jnp.matmul, ((2048, 8), (8, 4)), "one product with more than 7 terms or columns"),
        (
            lambda a, b: jnp.tanh(a) @ b,
            ((2048, 5), (5, 4)),
            "`tanh` makes an operand, and would be computed for each row or column of the other",
        ),
        (lambda a, b: a.T @ b, ((3, 2048), (3, 3)), "one product, whose rows lie one after the other already"),
        (
            lambda a, b: jnp.einsum("jn,ji->ni", a, b),
            ((2, 2048), (2, 3)),
            "one product, whose rows lie one after the other already",
        ),
        (jax.vmap(jnp.matmul), ((N, 4, 4), (N, 4)), "matrices with vectors, which XLA's own loop takes as long for"),
        (
            lambda a, b: jnp.cos(a) @ b,
            ((1024, 3, 3), (1024, 3, 3)),
            "`cos` makes an operand, and would be computed for each row or column of the other",
        ),
        (
            lambda a, b: jnp.sin(a @ b),
            ((1024, 3, 3), (1024, 3, 3)),
            "what reads it takes much longer, and is as fast from memory",
        ),
        (
            lambda a, b: (2 * a) @ b,
            ((1024, 4), (4, 4)),
            "`mul` makes an operand, and would be computed for each row or column of the other",
        ),
        (
            lambda a, b: lax.dot_general(2 * a, b, (((), ()), ((), ()))),
            ((1024,), (4,)),
            "`mul` makes an operand, and would be computed for each row or column of the other",
        ),
        (jnp.matmul, ((N, 0, 4), (N, 4, 4)), "it has no elements"),
    ],
)
def test_what_would_lose_stays(f: Callable[..., Any], args: Any, reason: str) -> None:
    """Where XLA is as fast, the rule says so."""
    assert refusals(f, RULE, *(normal(k, *shape) for k, shape in enumerate(args))) == [reason]


@pytest.mark.parametrize(
    ("read", "is_stored"),
    [
        (lambda p: jnp.sum(p * p), True),
        (lambda p: jnp.max(jnp.abs(p - 1), -1), True),
        (lambda p: jnp.sum(jnp.transpose(p).reshape(-1, 2), 0), True),
        (lambda p: (jnp.sum(p), jnp.max(p)), True),
        (lambda p: p + 1, False),
        (lambda p: (jnp.sum(p), p), False),
        (lambda p: jnp.sum((2 * p) @ jnp.ones((4, 4))), False),
    ],
)
def test_what_reductions_alone_read_is_stored(read: Callable[..., Any], is_stored: bool) -> None:
    """XLA's library for reductions takes no slices: a product that only they read is stored, its slices are not."""
    a, b = normal(0, 256, 4, 4), normal(1, 256, 4)
    f = lambda a, b: read(jax.vmap(jnp.matmul)(a, b))  # noqa: E731
    report_of(f, [RULE], a, b)  # compares the results
    program = jax.make_jaxpr(ag.optimize(f, rules=[RULE], passes=()))(a, b)
    assert [eqn.primitive.name for eqn in program.jaxpr.eqns].count("mul") >= 4  # it is written out
    assert ("shift_right_logical" in str(program)) == is_stored


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf, -0.0, 1e-40])
def test_stored_values_are_what_they_were(value: float) -> None:
    """Whatever the bits are, and with their derivative."""
    x = jnp.full(8, value)
    np.testing.assert_array_equal(np.asarray(jax.jit(stored)(x)).view("int32"), np.asarray(x).view("int32"))
    assert jax.grad(lambda x: stored(x).sum())(x).tolist() == [1.0] * 8


def test_other_types_stay() -> None:
    """Half precision is summed up in single precision by XLA, integers are exact."""
    for dtype in ("bfloat16", "int32"):
        x = jnp.ones((N, 4, 4), dtype)
        assert refusals(jnp.matmul, RULE, x, x) == [f"{dtype} numbers"]


def test_it_keeps_its_claim() -> None:
    """Values are as exact as a sum in another order is."""
    ag.check_rule(RULE, fires_on=[(jnp.matmul, (normal(0, N, 4, 4), normal(1, N, 4, 4)))], under=[jax.vmap])


ROWS = normal(0, 1024, 4), normal(1, 4, 4)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: jnp.tanh(x @ w).mean(),
        lambda x, w: jax.nn.relu(x @ w).sum(),
        lambda x, w: jnp.max(jnp.abs(x @ w), 0),
        lambda x, w: jnp.sum(jnp.exp((x @ w).reshape(-1))),
    ],
)
def test_what_is_computed_and_reduced_along_rows_stays(f: Callable[..., Any]) -> None:
    """XLA's library takes product, function and sum in one; written out they took 1.5 to 2 times as long."""
    assert "reduced along its rows" in refusals(f, RULE, *ROWS)[0]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: jnp.tanh(x @ w).sum(1),
        lambda x, w: jnp.sum((x @ w) ** 2),
        lambda x, w: jnp.max(x @ w, 0),
        lambda x, w: jax.nn.relu(x @ w),
    ],
)
def test_other_sums_of_rows_are_written_out(f: Callable[..., Any]) -> None:
    """Along the columns, of squares, or of nothing else: 0.15 to 0.8 of the time is left."""
    assert [d.rule for d in report_of(f, [RULE], *ROWS).fired] == [RULE.name]
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(*ROWS), jax.jit(f)(*ROWS), rtol=1e-5, atol=1e-5)
