"""Sums of products are taken in the cheapest order, however they are spelled; the numbers stay."""

import dataclasses
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import ClosedJaxpr, evaluate
from aerogel.compiler.cost import program_cost
from aerogel.compiler.networks import contractions, networks
from aerogel.compiler.networks.contraction import product
from aerogel.compiler.normal_form.kernel_branches import without_kernel_branches
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.contraction import ContractionOrder
from compiler.programs_of import FAST, STRICT, run, traced

N = 128


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def passed(f: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, ClosedJaxpr, list[Any]]:
    """The program, what the pass makes of it, and the decisions that fired."""
    before = normalize(without_kernel_branches(normalize(traced(f, *args))[0], "cpu"))[0]
    after, decisions = ContractionOrder()(before, FAST)
    return before, after, [d for d in decisions if d.fired]


def assert_near(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    """Equal types, and values up to rounding."""
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.weak_type) == (b.dtype, b.shape, b.weak_type)
        x, y = (np.asarray(z).astype(complex) for z in (a, b))
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max(initial=0)))


def assert_cheaper(f: Callable[..., Any], *args: Any, times: float = 3, tolerance: float = 2e-5) -> ClosedJaxpr:
    """The pass fires, saves that many times the flops, and gives the same."""
    before, after, fired = passed(f, *args)
    assert fired, before
    old, new = (program_cost(p.jaxpr) for p in (before, after))
    assert old.flops > times * new.flops, after
    assert_near(run(after, *args), run(before, *args), tolerance)
    return after


A, B, V, D = values(N, N), values(N, N, seed=1), values(N), values(N, seed=2)
T = jnp.asarray(np.random.default_rng(0).integers(-3, N + 3, 300), jnp.int32)
BATCH = values(8, N, N)


def in_scan(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` in the body of a loop over its last argument."""
    return lambda *args: lax.scan(lambda c, x: (c + 1, f(*args[:-1], x)), 0, jnp.stack([args[-1], args[-1] + 1]))[1]


CHAINS = {
    "at": (lambda a, b, x: a @ b @ x, (A, B, V)),
    "dot": (lambda a, b, x: jnp.dot(jnp.dot(a, b), x), (A, B, V)),
    "from the left": (lambda a, b, x: x @ (a @ b), (A, B, V)),
    "einsum from left to right": (lambda a, b, x: jnp.einsum("ik,k->i", jnp.einsum("ij,jk->ik", a, b), x), (A, B, V)),
    "through a transpose": (lambda a, b, x: (a @ b).T @ x, (A, B, V)),
    "through a scale": (lambda a, b, x: (0.5 * -(a @ b)) @ x, (A, B, V)),
    "vmap over vectors": (lambda a, b, x: jax.vmap(lambda v: a @ b @ v)(x[None]), (A, B, V)),
    "vmap over matrices": (lambda a, b, x: jax.vmap(lambda m: m @ b @ x)(a), (BATCH, B, V)),
    "in a scan": (in_scan(lambda a, b, x: a @ (b + x) @ x), (A, B, V)),
    "low rank": (lambda u, w, x: u @ w.T @ x, (values(500, 8), values(400, 8), values(400, 60))),
    "power": (lambda a, b, x: jnp.linalg.matrix_power(a / 12, 8) @ x, (A, B, V)),
    "complex": (lambda a, b, x: (a * 1j) @ (b + 0j) @ (x - 1j), (A, B, V)),
    "sum of squares": (lambda a, b, x: ((x[:, None] * x) ** 2).sum(), (A, B, V)),
    "linear attention": (
        lambda q, k, v: jnp.einsum("hts,hsd->htd", jnp.einsum("htd,hsd->hts", q, k) / 8, v),
        tuple(values(2, 400, 16, seed=s) for s in range(3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_multiplied_from_the_cheap_end(name: str) -> None:
    """A product of products costs its cheapest order, in any spelling."""
    f, args = CHAINS[name]
    assert_cheaper(f, *args, times=2 if name == "sum of squares" else 3, tolerance=1e-4)


def test_bfloat16_chain() -> None:
    """In 16 bits, too; the results are as near to those of 64 bits as before."""
    args = [x.astype(jnp.bfloat16) for x in (A, B, V)]
    f = CHAINS["at"][0]
    before, after, fired = passed(f, *args)
    assert fired
    want = np.asarray(args[0], np.float64) @ np.asarray(args[1], np.float64) @ np.asarray(args[2], np.float64)
    errors = [np.abs(np.asarray(run(p, *args)[0], np.float64) - want).max() for p in (after, before)]
    assert errors[0] < 1.5 * errors[1]


STRUCTURED = {
    "diagonal first": lambda a, x, t: jnp.diag(x) @ a,
    "diagonal last": lambda a, x, t: a @ jnp.diag(x),
    "diagonal between": lambda a, x, t: a.T @ jnp.diag(x) @ jnp.ones(N),
    "diagonals under vmap": lambda a, x, t: jax.vmap(lambda v: jnp.diag(v) @ a)(jnp.stack([x, x + 1])),
    "masked": lambda a, x, t: jnp.einsum("ij,jk->ik", jnp.where(jnp.eye(N, dtype=bool), a, 0.0), a),
    "identity": lambda a, x, t: jnp.eye(N) @ a,
    "identity last, scaled": lambda a, x, t: a @ (3 * jnp.eye(N)).T,
    "ones": lambda a, x, t: jnp.ones((N, N)) @ a,
    "repeated row": lambda a, x, t: jnp.broadcast_to(x, (N, N)) @ a,
    "kron": lambda a, x, t: jnp.kron(a[:16, :16], a[:8, :8]) @ x,
    "kron from the left": lambda a, x, t: x @ jnp.kron(a[:16, :16], a[:8, :8]),
    "trace of kron": lambda a, x, t: jnp.trace(jnp.kron(a[:30, :30], jnp.eye(20))),
    "jacobian of a product": lambda a, x, t: jax.jacfwd(lambda v: jnp.tanh(a @ v))(x),
    "jacobian backwards": lambda a, x, t: jax.jacrev(lambda v: jnp.tanh(a @ v))(x),
    "jacobian times a vector": lambda a, x, t: jax.jacfwd(lambda v: jnp.sin(a @ v))(x).T @ x,
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_known_operands_are_not_multiplied_out(name: str) -> None:
    """Zeros, ones and repetitions of an operand cost nothing."""
    f = STRUCTURED[name]
    assert_cheaper(f, A, V, T, times=1.5 if name == "jacobian times a vector" else 3)


ONE_HOT = {
    "at": lambda a, t: jax.nn.one_hot(t, N) @ a,
    "dot, from the right": lambda a, t: jnp.dot(a.T, jax.nn.one_hot(t, N, axis=0)),
    "compared": lambda a, t: (t[:, None] == jnp.arange(N)).astype(a.dtype) @ a,
    "einsum": lambda a, t: jnp.einsum("nv,ev->ne", jax.nn.one_hot(t, N), a),
    "sum of a product": lambda a, t: (jnp.resize(a, (300, N)) * jax.nn.one_hot(t, N)).sum(-1),
    "vmap": lambda a, t: jax.vmap(lambda i: jax.nn.one_hot(i, N) @ a)(t),
    "two dimensions": lambda a, t: jax.nn.one_hot(t.reshape(10, 30), N) @ a,
    "before another product": lambda a, t: jax.nn.one_hot(t, N) @ (a * 2) @ jnp.sin(a[:, :2]),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_one_hot_rows_pick(name: str) -> None:
    """Rows are picked, zeros where an index is out of bounds (also where it is negative)."""
    after = assert_cheaper(ONE_HOT[name], A, T, times=1.5)
    assert any(eqn.primitive.name == "gather" for eqn in after.jaxpr.eqns)


def test_the_sums_of_classes_are_rows_added_up() -> None:
    """Of 16 entries a row costs less than 16 of one; labels out of bounds are in no class."""
    x, labels = values(50_000, 16), jnp.arange(50_000) * 7 % 23 - 1

    def means(x: Any) -> Any:
        hot = jax.nn.one_hot(labels, 20)
        return hot.T @ x / hot.sum(0)[:, None]

    before, after, _ = passed(means, x)
    assert " dot_general[" in str(before)
    assert " dot_general[" not in str(after)
    assert " scatter-add[" in str(after)
    assert_near(evaluate(after, (x,)), [means(x)])


def test_the_gradient_of_picked_rows_adds_them() -> None:
    """The gradient of a table is added up row by row, in a program that JAX differentiated."""
    table, index = values(600, 64), T

    def loss(table: Any) -> Any:
        return (jax.nn.one_hot(index, 600) @ table).mean() + ((jax.nn.one_hot(index, 600) @ table) ** 2).sum()

    after = assert_cheaper(jax.grad(loss), table)
    assert {"gather", "scatter-add"} <= {eqn.primitive.name for eqn in after.jaxpr.eqns}


SELECTED = {
    "trace": lambda a, b: jnp.trace(a @ b),
    "diag": lambda a, b: jnp.diag(a @ b),
    "diagonal of a batch": lambda a, b: jnp.diagonal(jnp.stack([a, b]) @ a, axis1=1, axis2=2),
    "diag under vmap": lambda a, b: jax.vmap(lambda m: jnp.diag(m @ b))(jnp.stack([a, b])),
    "sum": lambda a, b: jnp.sum(a @ b),
    "mean": lambda a, b: (a @ b).mean(),
    "sum of rows": lambda a, b: jnp.sum(a @ b, 1),
    "sum of columns": lambda a, b: jnp.einsum("ij,jk->ik", a, b).sum(0),
    "masked sum": lambda a, b: jnp.sum(jnp.eye(N) * (a @ b), 1),
    "quadratic forms": lambda a, b: jnp.diag(a @ b @ a.T),
    "weighted sum": lambda a, b: jnp.sum((a @ b) * jnp.outer(a[0], b[0])),
    "norms of gradients": lambda a, b: jnp.sum(jnp.einsum("ni,nj->nij", a, b) ** 2, (1, 2)),
    "gradient of a trace": lambda a, b: jax.grad(lambda a: jnp.trace(a @ b) ** 2)(a),
    "gradient of a sum of rows": lambda a, b: jax.grad(lambda a: jnp.tanh(jnp.sum(a @ b, 1)).sum())(a),
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTED)
def test_of_a_product_only_what_is_read_is_made(name: str) -> None:
    """A diagonal, a trace or a sum of a product does not make the product."""
    assert_cheaper(SELECTED[name], A, B, times=1.9 if name == "quadratic forms" else 3, tolerance=1e-4)


def centred(a: Any, rest: Any = 1 / N) -> Any:
    """`a` less the means of its columns, as statistics books write it."""
    return (jnp.eye(N) - rest) @ a


CENTRED = {
    "columns": lambda a, x, t: centred(a),
    "rows": lambda a, x, t: a @ (jnp.eye(N) - jnp.full((N, N), 1 / N)),
    "both": lambda a, x, t: (lambda h: h @ a @ h)(jnp.eye(N) - jnp.ones((N, N)) / N),
    "both, distances": lambda a, x, t: -0.5 * (lambda h: h @ a**2 @ h.T)(jnp.identity(N) - jnp.ones((N, N)) / N),
    "a vector": lambda a, x, t: centred(x),
    "under vmap": lambda a, x, t: jax.vmap(centred)(a),
    "batch": lambda a, x, t: (jnp.eye(N) - 1 / N) @ jnp.stack([a, a.T, a + 1]),
    "in a trace": lambda a, x, t: jnp.trace((lambda h: a @ h @ a.T @ h)(jnp.eye(N) - 1 / N)),
    "scaled and added": lambda a, x, t: (0.5 * jnp.eye(N) + 0.25) @ a,
    "with a minus": lambda a, x, t: -(1 / N - jnp.eye(N)) / 3 @ a,
    "gradient": jax.grad(lambda a, x, t: (lambda h: jnp.sum((h @ a @ h) ** 2))(jnp.eye(N) - 1 / N)),
    "in a scan": lambda a, x, t: lax.scan(lambda c, row: (centred(c + row), None), x, a)[0],
}


@pytest.mark.parametrize("name", CENTRED)
def test_an_identity_and_a_constant_are_multiplied_one_by_one(name: str) -> None:
    """A matrix that subtracts means costs sums, on both sides, in traces and in gradients."""
    after = assert_cheaper(CENTRED[name], A, V, T, times=1.5 if name in ("gradient", "in a trace") else 3)
    if name in ("columns", "both", "scaled and added"):
        assert "dot_general" not in {eqn.primitive.name for eqn in after.jaxpr.eqns}


def test_means_are_subtracted_more_exactly() -> None:
    """The error against float64 is no larger than that of the product with a rounded matrix."""
    both = CENTRED["both"]
    a = np.asarray(A, np.float64)
    exact = a - a.mean(0) - a.mean(1)[:, None] + a.mean()
    errors = [np.abs(np.asarray(f(A, V, T), np.float64) - exact).max() for f in (ag.optimize(both), both)]
    assert errors[0] < 0.5 * errors[1]


def test_differences_that_are_multiplied_and_summed_are_made_first() -> None:
    """`trace(K H L H)` multiplied out is what is left of large sums: two digits less."""

    def dependence(a: Any) -> Any:
        h, k, l = jnp.eye(N) - 1 / N, 1 + 0.01 * a, 1 + 0.01 * a.T  # noqa: E741
        return jnp.trace(k @ h @ l @ h)

    a = 0.01 * np.asarray(A, np.float64)
    centre = [x - x.mean(1)[:, None] for x in (a, a.T)]
    exact = np.sum(centre[0] * centre[1].T)
    errors = [abs(float(f(A)) - exact) for f in (ag.optimize(dependence), dependence)]
    assert errors[0] < max(2 * errors[1], 1e-5 * abs(exact))


@pytest.mark.parametrize("factors", [3, 4, 5])
def test_more_sums_than_are_multiplied_out(factors: int) -> None:
    """Three factors that subtract means are multiplied out, with 8 terms; of more, the others stay products."""

    def f(x: Any) -> Any:
        for _ in range(factors):
            x = (jnp.eye(N) - 1 / N) @ x
        return x

    before, after, _ = passed(f, V)
    products = [sum(eqn.primitive.name == "dot_general" for eqn in p.jaxpr.eqns) for p in (before, after)]
    assert products == [factors, factors - 3]
    assert_near(run(after, V), run(before, V))


def test_a_chain_of_more_sums_is_cut() -> None:
    """A chain of five such factors has 32 terms: it keeps its numbers."""

    def f(a: Any) -> Any:
        h = jnp.eye(N) - 1 / N
        return h @ a @ h @ a @ h @ a @ h @ a @ h

    before, after, fired = passed(f, A / N)
    assert fired
    assert_near(run(after, A / N), run(before, A / N))


MULTIPLIED = {
    "broadcast": lambda a, b: jnp.sum(a[:, :, None] * b, 1),
    "einsum in two": lambda a, b: jnp.einsum("ij,jk->ijk", a, b).sum(1),
    "vmap of vmap": lambda a, b: jax.vmap(lambda u: jax.vmap(lambda v: jnp.sum(u * v))(b.T))(a),
    "other axes": lambda a, b: jnp.sum(b.T[:, None] * a, -1),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_multiplied_and_summed_is_a_product(name: str) -> None:
    """In a gradient nothing is repeated to be multiplied and summed: all of it is matrix products."""
    f = MULTIPLIED[name]
    g = jax.grad(lambda a, b: jnp.sum(jnp.sin(f(a, b))), (0, 1))
    before, after, fired = passed(g, A, B)
    largest = [max(v.aval.size for eqn in p.jaxpr.eqns for v in eqn.outvars) for p in (before, after)]
    assert fired
    assert largest == [N**3, N**2], after
    assert_near(run(after, A, B), run(before, A, B))


def test_a_known_number_on_a_diagonal() -> None:
    """A product of identities is one: nothing but its shape is left."""
    before, after, _ = passed(lambda: 2 * jnp.eye(N) @ jnp.eye(N) @ jnp.diag(jnp.full(N, 3.0)))
    assert all(eqn.primitive.name != "dot_general" for eqn in after.jaxpr.eqns)
    assert_near(run(after), run(before))


def pairs(x: Any, y: Any) -> Any:
    """The features of both ends of each edge of a complete graph."""
    n, m = len(x), len(y)
    return jnp.concatenate([jnp.broadcast_to(x[:, None], (n, m, x.shape[1])), jnp.broadcast_to(y, (n, *y.shape))], -1)


def repeated_pairs(x: Any, y: Any) -> Any:
    """All pairs of rows, one below the other."""
    return jnp.concatenate([jnp.repeat(x, len(y), axis=0), jnp.tile(y, (len(x), 1))], 1)


REPEATED = {
    "edges of a graph": lambda x, y, w: pairs(x, y) @ w,
    "edges, rows repeated and tiled": lambda x, y, w: repeated_pairs(x, y) @ w,
    "edges, weights first": lambda x, y, w: jnp.einsum("co,ijc->oij", w, pairs(x, y)),
    "a query beside each row": lambda x, y, w: jax.vmap(lambda row: jnp.concatenate([row, y[0]]) @ w)(x),
    "a query, repeated by hand": lambda x, y, w: jnp.hstack([jnp.tile(y[:1], (len(x), 1)), x]) @ w,
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("grad", [False, True], ids=["value", "gradient"])
def test_what_repeats_in_a_joined_operand_is_multiplied_once(name: str, grad: bool) -> None:
    """A product with repeated rows next to others is a sum of products, also in gradients that JAX wrote."""
    f = REPEATED[name]
    g = jax.grad(lambda *args: jnp.sin(f(*args)).sum(), (0, 1, 2)) if grad else f
    rows = 64 if "edges" in name else 20_000  # smaller products are shared by the cores for nearly nothing
    args = values(rows, 48), values(64, 48, seed=1), values(96, 32) / 10
    # What else is won in the gradient of the edges, without this, are 1.5 times.
    assert_cheaper(g, *args, times=10 if "edges" in name else 1.4, tolerance=1e-4)


NEAR_MISSES = {
    "joined, but nothing repeats": lambda a, b, x: jnp.concatenate([a, b], 1) @ jnp.concatenate([b, a]),
    "slices of a product": lambda a, b, x: jnp.split(a @ b, 2, 1),
    "slices of a product, summed with others": lambda a, b, x: (lambda y: (y[:, :64].sum(0), y[:, 64:], y))(a @ b),
    "the product is returned": lambda a, b, x: (a @ b, a @ b @ x),
    "the product is read entry by entry": lambda a, b, x: jnp.tanh(a @ b) @ x,
    "the order is the cheapest": lambda a, b, x: a @ (b @ x),
    "square matrices": lambda a, b, x: a @ b @ a,
    "few columns of many": lambda a, b, x: (a @ b) @ b[:, :100],
    "a shifted identity": lambda a, b, x: jnp.eye(N, k=1) @ a,
    "an identity less a matrix": lambda a, b, x: centred(a, b),
    "a shifted identity less a number": lambda a, b, x: (jnp.eye(N, k=1) - 1 / N) @ a,
    "an identity of few bits less a number": lambda a, b, x: (
        (jnp.eye(N, dtype=jnp.bfloat16) - 1 / N) @ a.astype(jnp.bfloat16)
    ),
    "two bands": lambda a, b, x: (jnp.eye(N) + jnp.eye(N, k=1)) @ a,
    "a trace of a function of a product": lambda a, b, x: jnp.trace(jnp.exp(a @ b)),
    "a diagonal of a sum": lambda a, b, x: jnp.diag(jnp.cumsum(a @ b, 0)),
    "not one-hot": lambda a, b, x: (jnp.argsort(x)[:, None] >= jnp.arange(N)).astype(a.dtype) @ a,
    "a small product": lambda a, b, x: a[:3, :3] @ b[:3, :3] @ x[:3],
    "a scale that keeps float16 from overflowing": lambda a, b, x: (
        (a.astype(jnp.float16) / 128 @ b.astype(jnp.float16)) @ x.astype(jnp.float16)
    ),
    "integers": lambda a, b, x: a.astype(jnp.int32) @ b.astype(jnp.int32) @ x.astype(jnp.int32),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay(name: str) -> None:
    """What is read otherwise, is cheapest as it is, or only looks structured, stays as it is."""
    before, after, fired = passed(NEAR_MISSES[name], A, B, V)
    assert after is before, fired


def test_a_product_that_two_chains_share_goes_only_with_both() -> None:
    """Two readers that each can do without the product leave none; a third that cannot leaves all as it was."""
    assert_cheaper(lambda a, b, x: (a @ b @ x, x @ (a @ b)), A, B, V)
    before, after, _ = passed(lambda a, b, x: (a @ b @ x, x @ (a @ b), jnp.sin(a @ b)), A, B, V)
    assert after is before


def test_what_two_sites_make_is_made_once() -> None:
    """Value and gradient of linear attention share the two small products, as an expert's do: six in all."""

    def f(q: Any, k: Any, v: Any) -> Any:
        return jnp.sin((q @ k.T / 8) @ v).sum()

    args = tuple(values(400, 32, seed=s) for s in range(3))
    after = assert_cheaper(jax.value_and_grad(f, (0, 1, 2)), *args, tolerance=1e-4)
    assert sum(eqn.primitive.name == "dot_general" for eqn in after.jaxpr.eqns) == 6


def bilinear(x: Any, w: Any, y: Any) -> Any:
    """A bilinear layer."""
    return jnp.einsum("bi,oij,bj->bo", x, w, y)


def bilinear_args(b: int, o: int, i: int, j: int) -> tuple[Any, ...]:
    """Inputs and weights of one."""
    return values(b, i), values(o, i, j), values(b, j, seed=1)


@pytest.mark.parametrize("sizes", [(128, 16, 32, 32), (512, 16, 32, 32), (32, 16, 32, 32)], ids=str)
def test_a_bilinear_layer_multiplies_by_its_weights_first(sizes: tuple[int, int, int, int]) -> None:
    """An outer product of its inputs is slow to write as a product's operand: two products, batch first."""
    args = bilinear_args(*sizes)
    before, after, fired = passed(bilinear, *args)
    assert fired
    b, o, _, j = sizes
    assert [eqn.primitive.name for eqn in after.jaxpr.eqns] == ["dot_general"] * 2, after
    assert after.jaxpr.eqns[0].outvars[0].aval.shape == (b, o, j)
    assert_near(run(after, *args), run(before, *args))


def outer_products(program: Any) -> list[Any]:
    """The equations that make outer products, entry by entry."""
    return [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "mul" and eqn.outvars[0].aval.ndim > 2]


@pytest.mark.parametrize("sizes", [(128, 16, 32, 32), (32, 64, 128, 32)], ids=str)
def test_a_bilinear_layer_gets_no_outer_products(sizes: tuple[int, int, int, int]) -> None:
    """None is made in the place of a product."""
    _, after, _ = passed(bilinear, *bilinear_args(*sizes))
    assert not outer_products(after)


@pytest.mark.parametrize("sizes", [(32, 64, 128, 128), (8, 16, 128, 128)], ids=str)
def test_the_gradient_of_a_bilinear_layer_turns_no_weights(sizes: tuple[int, int, int, int]) -> None:
    """That of the weights is made as they lie, of one outer product; the gradient of the other input reads it too."""

    def f(x: Any, w: Any, y: Any) -> Any:
        return jax.grad(lambda *a: jnp.sum(bilinear(*a) ** 2), (0, 1, 2))(x, w, y)

    before, after, _ = passed(f, *bilinear_args(*sizes))
    assert not [eqn for eqn in after.jaxpr.eqns if eqn.primitive.name == "transpose"], after
    assert len(outer_products(after)) <= 1
    assert_near(run(after, *bilinear_args(*sizes)), run(before, *bilinear_args(*sizes)))


def test_a_small_outer_product_is_still_made_first() -> None:
    """Of few entries it takes less than a batch of many products."""
    args = bilinear_args(512, 4, 8, 8)
    before, after, fired = passed(bilinear, *args)
    assert fired
    assert sum(eqn.primitive.name == "dot_general" for eqn in after.jaxpr.eqns) == 1, after
    assert_near(run(after, *args), run(before, *args))


def test_a_little_more_memory_beside_what_is_read() -> None:
    """Clipped gradients of examples are a product of matrices, whose weighted rows are 1/64 of what the sum reads."""

    def clipped(w: Any, x: Any) -> Any:
        g = jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)), (None, 0))(w, x)
        return jnp.tensordot(1 / jnp.sqrt((g**2).sum((1, 2))), g, 1)

    after = passed(clipped, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 128), (8192, 64))))[1]
    assert max(v.aval.size for eqn in after.jaxpr.eqns for v in eqn.outvars) == 8192 * 128


@pytest.mark.parametrize("spelling", ["einsum", "sum"])
def test_experts_are_weighed_before_their_last_product(spelling: str) -> None:
    """Batched over its middle axis, an operand is copied: one product of all experts' entries needs no such copy."""
    hidden, weights, gates = values(512, 8, 128), values(8, 128, 64), values(512, 8)

    def f(hidden: Any, weights: Any, gates: Any) -> Any:
        each = jnp.einsum("tef,efd->ted", hidden, weights)
        return jnp.einsum("ted,te->td", each, gates) if spelling == "einsum" else (each * gates[..., None]).sum(1)

    before, after, fired = passed(f, hidden, weights, gates)
    assert fired, before
    products = [eqn for eqn in after.eqns if eqn.primitive.name == "dot_general"]
    assert [eqn.params["dimension_numbers"][1] for eqn in products] == [((), ())]
    assert_near(run(after, hidden, weights, gates), run(before, hidden, weights, gates), 1e-4)


def test_a_factor_is_read_where_its_own_factors_would_be_multiplied_again() -> None:
    """The norms of outer products, and their sum with weights: neither needs them, both read `u` as it was made."""

    def clipped(x: Any, w: Any) -> Any:
        u = jnp.sin(w) * jnp.cos(w)
        products = lax.transpose(lax.dot_general(u, x, (((), ()), ((0,), (0,)))), (0, 2, 1))
        return jnp.tensordot(jnp.minimum(1, 1 / jnp.sqrt((products**2).sum((1, 2)))), products, 1)

    args = values(1 << 14, 16), values(1 << 14, 48)
    before, after, fired = passed(clipped, *args)
    largest = [max(v.aval.size for e in p.jaxpr.eqns for v in e.outvars) for p in (before, after)]
    assert (len(fired), *largest) == (2, 48 << 18, 48 << 14)
    assert_near(run(after, *args), run(before, *args), 1e-4)


def test_products_keep_their_precision() -> None:
    """A chain keeps the precision that it was given; what was multiplied entry by entry keeps all of it.

    The CPU has one precision: there such a product asks for none, so that it is the one that stands beside it.
    """
    entrywise: Any = lambda a, b, x: jax.grad(lambda a: jnp.sin((a[:, :, None] * b).sum(1)).sum())(a)  # noqa: E731
    high, cpu, gpu = lax.Precision.HIGH, FAST, dataclasses.replace(FAST, platform="gpu")
    cases: list[tuple[Any, Any, Any]] = [
        (lambda a, b, x: lax.dot(lax.dot(a, b, precision="high"), x, precision="high"), cpu, high),
        (entrywise, gpu, lax.Precision.HIGHEST),
        (entrywise, cpu, None),
        (lambda a, b, x: a @ b @ x, cpu, None),
    ]
    for f, context, want in cases:
        program = normalize(traced(f, values(1024, 1024), values(1024, 1024, seed=1), values(1024)))[0]
        after, fired = ContractionOrder()(program, context)
        found = {eqn.params["precision"] for eqn in after.jaxpr.eqns if eqn.primitive.name == "dot_general"}
        assert fired
        assert found == {want if want is None else (want, want)}


def squared(x: Any, y: Any) -> Any:
    """Of each example, the sum of the squares of a gradient of weights."""
    return jax.vmap(lambda a, b: jnp.sum(jnp.outer(a, b) ** 2))(x, y)


def squared_by_product(x: Any, y: Any) -> Any:
    """The same, spelled as its own square."""
    products = jnp.einsum("bi,bj->bij", x, y)
    return jnp.einsum("bij,bij->b", products, products)


def squared_norm(x: Any, y: Any) -> Any:
    """Its root, of which the derivative is the sum of two equal products."""
    return jax.vmap(lambda a, b: jnp.linalg.norm(jnp.outer(a, b)))(x, y)


@pytest.mark.parametrize("f", [squared, squared_by_product, squared_norm])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_the_gradient_of_squared_outer_products_makes_none(f: Any, argnums: Any) -> None:
    """Several networks read the products: alone none could let them go."""
    x, y = values(128, 60), values(128, 70, seed=1)
    args = (x / 60, y / 70)
    gradient = jax.grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), argnums)
    made = ag.optimize(gradient)
    assert program_cost(jax.make_jaxpr(made)(*args)).flops < program_cost(jax.make_jaxpr(gradient)(*args)).flops / 10
    assert_near(jax.jit(made)(*args), jax.jit(gradient)(*args), 1e-5)


def test_an_identity_times_what_is_rewritten_itself() -> None:
    """The result of one site may be that of another."""

    def f(a: Any, b: Any, x: Any) -> Any:
        y = a @ b @ jnp.outer(x, x)
        return jnp.eye(N) @ y, jnp.tanh(y / N**2)

    assert_cheaper(f, A, B, V, tolerance=1e-4)


MASKED: dict[str, Callable[..., Any]] = {
    "times an identity": lambda a, b: (a @ b) * jnp.eye(N),
    "where": lambda a, b: jnp.where(jnp.eye(N, dtype=bool), a @ b, 0),
    "diag of diag": lambda a, b: jnp.diag(jnp.diag(a @ b)),
    "scaled": lambda a, b: (a.T @ b) / N * jnp.eye(N),
    "a gradient": lambda a, b: jax.grad(lambda x: jnp.sum(((x * jnp.eye(N)) @ b) * a))(a),
    "of a batch": lambda a, b: jax.vmap(lambda x: (x @ b) * jnp.eye(N))(jnp.stack([a, b])),
}


@pytest.mark.parametrize("name", MASKED)
def test_of_a_product_that_is_masked_the_diagonal_is_made(name: str) -> None:
    """Of a product of which an identity leaves the diagonal, no other entry is computed."""
    assert_cheaper(MASKED[name], A, B)


def products_of_matrices(jaxpr: Any) -> int:
    """How many matrices are multiplied to matrices."""
    return sum(eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.shape == (N, N) for eqn in jaxpr.eqns)


def test_of_a_sum_of_products_that_is_masked_the_diagonal_is_made() -> None:
    """The gradient of `D @ A @ D` by the diagonal of D, of two products, makes neither of them."""

    def loss(a: Any, d: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.diag(d) @ a @ jnp.diag(d)))

    after = assert_cheaper(jax.grad(loss, (0, 1)), A, V, times=3)
    assert products_of_matrices(after.jaxpr) == 0


def test_a_diagonal_is_not_picked() -> None:
    """Of quadratic forms no row is looked up: `x @ s` is multiplied with x as it is."""
    x, s = values(3 * N, N), values(N, N)
    after = assert_cheaper(lambda x, s: jnp.diag(x @ s @ x.T), x, s, times=2, tolerance=1e-4)
    assert not any(eqn.primitive.name in ("gather", "transpose") for eqn in after.jaxpr.eqns)


@pytest.mark.parametrize(
    "f", [lambda a, b: ((a @ b) * jnp.eye(N), jnp.tanh(a @ b)), lambda a, b: (a @ b) * (1 - jnp.eye(N))]
)
def test_a_product_that_is_masked_and_read_stays(f: Callable[..., Any]) -> None:
    """It is made anyway, once."""
    _, after, _ = passed(f, A, B)
    assert [eqn.primitive.name for eqn in after.jaxpr.eqns].count("dot_general") == 1


WRITTEN: dict[str, Callable[..., Any]] = {
    "diagflat": lambda d, a: jnp.diagflat(d) @ a,
    "from both sides": lambda d, a: jnp.diagflat(d) @ a @ jnp.diagflat(d),
    "set": lambda d, a: jnp.zeros((N, N)).at[jnp.arange(N), jnp.arange(N)].set(d) @ a,
    "set at counted indices": lambda d, a: jnp.zeros((N, N)).at[jnp.diag_indices(N)].set(d) @ a,
    "fill_diagonal": lambda d, a: jnp.fill_diagonal(jnp.zeros((N, N)), d, inplace=False) @ a,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_diagonals_that_are_written_are_diagonals(name: str) -> None:
    """Written into a matrix or a vector of zeros, and in the gradient, which looks for equal indices in vain."""
    f = WRITTEN[name]
    assert_cheaper(f, V, A)
    loss = jax.grad(lambda d, a, c: jnp.sum(f(d, a) * c), (0, 1))
    after = assert_cheaper(loss, V, A, B, times=20)
    assert not any(eqn.outvars[0].aval.dtype == "uint32" and eqn.outvars[0].aval.size > N for eqn in after.eqns)


@pytest.mark.parametrize(
    "indices",
    [lambda n: jnp.arange(n), lambda n: jnp.arange(n)[::-1], lambda n: jnp.full(n, 3), lambda n: jnp.arange(n) + 1],
)
def test_gradients_of_written_rows(indices: Callable[[int], Any]) -> None:
    """The last of several writes to one place has the derivative, and one out of bounds has none."""
    i = indices(N)
    f = jax.grad(lambda x, v: jnp.sum(jnp.sin(x.at[i].set(v)) * D), (0, 1))
    g = jax.grad(lambda x, v: jnp.sum(jnp.sin(x.at[i, i].set(v)) * D), (0, 1))
    for one, args in ((f, (A, B)), (g, (A, V))):
        assert_near(jax.jit(ag.optimize(one))(*args), jax.jit(one)(*args))


def test_other_diagonals_that_are_written_stay() -> None:
    """Off the main diagonal, or into what is not zero."""
    for f in (lambda d, a: jnp.diagflat(d[1:], 1) @ a, lambda d, a: jnp.fill_diagonal(a, d, inplace=False) @ d):
        assert not passed(f, V, A)[2]


def test_strict_leaves_the_order() -> None:
    """Under strict no sum is taken in another order, and nothing is said."""
    program = normalize(traced(CHAINS["at"][0], A, B, V))[0]
    assert ContractionOrder()(program, STRICT) == (program, [])


def test_the_report_says_what_was_done() -> None:
    """`explain` names the line, the times and the exactness."""
    report = ag.explain(lambda a, x: jnp.diag(x) @ a)(A, V)
    (decision,) = [d for d in report.fired if d.rule == "contraction"]
    assert "off a diagonal" in decision.what
    assert "test_contraction.py" in decision.where
    assert decision.exactness == "finite"
    assert decision.flops_saved > N**3


@pytest.fixture
def always() -> Iterator[None]:
    """Every network is contracted in its own order, whether that pays or not."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MARGIN": 1e12, "LEAST_SECONDS": -1e12, "MORE_BYTES": 1 << 60}.items():
            patch.setattr(contractions, name, value)
        yield


def drawn(seed: int, sign: float) -> Callable[..., Any]:
    """Random sums of products of 4 by 4 matrices; `sign` stands for every minus."""
    rng = random.Random(seed)

    def f(x: Any, t: Any) -> Any:
        one_hot = jax.nn.one_hot(t, 4)
        pool = [x, x.T, jnp.eye(4), jnp.diag(x[0]), jnp.ones((4, 4)), one_hot, jnp.kron(x[:2, :2], x[2:, 2:])]
        pool += [
            jnp.eye(4) + sign / 3,
            jnp.broadcast_to(x[0], (4, 4)),
            jnp.broadcast_to(x[1][:, None], (4, 4)),
            jnp.exp(x),
        ]
        for _ in range(7):
            a, b, c = (rng.choice(pool) for _ in range(3))
            pool.append(
                rng.choice([
                    lambda a=a, b=b: a @ b,
                    lambda a=a, b=b: a @ b.T,
                    lambda a=a, b=b: a * b,
                    lambda a=a, b=b, c=c: jnp.einsum("ij,jk,ik->ki", a, b, c),
                    lambda a=a: sign * a / 2,
                    lambda a=a, b=b: a.sum(0) * b,
                    lambda a=a, b=b: (a * b).sum(1)[:, None] * b,
                    lambda a=a, b=b: jnp.trace(a) * b,
                    lambda a=a, b=b: jnp.diag(jnp.diag(a @ b)),
                    lambda a=a: a.reshape(2, 2, 4).swapaxes(0, 1).reshape(4, 4),
                    lambda a=a: a.reshape(4, 2, 2).sum(1).repeat(2, 1),
                    lambda a=a: jnp.where(jnp.eye(4, dtype=bool), a, 0),
                    lambda a=a, b=b: jax.vmap(lambda u, v: jnp.outer(u, v) @ a)(a, b).sum(0),
                    lambda a=a: a**2,
                    lambda a=a, b=b, c=c: jnp.concatenate([a[:, :3], b[:, :1]], 1) @ c,
                    lambda a=a, b=b: jnp.concatenate([jnp.broadcast_to(a[:1, :2], (4, 2)), b[:, 1:3]], 1) @ b,
                    lambda a=a, b=b: jnp.outer((a @ b)[:, 2:].sum(1), (a @ b)[1]),
                    lambda a=a, b=b: jnp.einsum("ai,bj->abij", a, b).reshape(16, 16)[:, :4].reshape(4, 4, 4).sum(0),
                ])()
            )  # fmt: skip
        m = pool[-1] @ pool[-2]
        return [m, m.sum(), jnp.trace(m), jnp.diag(m @ pool[-3])]

    return f


def with_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """All results, and the gradient of a weighted sum of them."""

    def total(x: Any, t: Any) -> tuple[Any, Any]:
        ys = f(x, t)
        return sum((y * (1 + k)).sum() for k, y in enumerate(ys)), ys

    return lambda x, t: jax.value_and_grad(total, has_aux=True)(x, t)


@pytest.mark.parametrize("seeds", [range(8), range(8, 14)], ids=["value and gradient", "vmap"])
def test_drawn_networks_keep_their_numbers(always: None, seeds: range) -> None:
    """Random networks give the same in the order that is chosen, as far as rounding of sums of their sizes allows."""
    x = jnp.asarray(np.random.default_rng(seeds[0]).normal(size=(4, 4)), jnp.float32)
    args = (x, jnp.asarray([2, -1, 4, 0]))
    change = with_gradient
    if seeds[0]:
        change, args = jax.vmap, (jnp.stack([x, -x]), jnp.stack([args[1], 3 - args[1]]))
    changed = 0
    for seed in seeds:
        program, bounds = (normalize(traced(change(drawn(seed, sign)), *args))[0] for sign in (-1.0, 1.0))
        after, _ = ContractionOrder()(program, FAST)
        changed += after is not program

        def all_three(xs: Any, t: Any, programs: Any = (after, program, bounds)) -> Any:
            return [evaluate(p, (jnp.abs(xs) if p is programs[2] else xs, t)) for p in programs]

        got, want, limits = jax.jit(all_three, compiler_options={"xla_backend_optimization_level": 0})(*args)
        for g, w, limit in zip(got, want, limits, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            error = np.abs(np.asarray(g, np.float64) - np.asarray(w, np.float64))
            assert np.all(error <= 1e-5 * np.asarray(limit) + 1e-6), (seed, program.jaxpr, after.jaxpr)
    assert changed >= len(seeds) - 1


def test_factors_that_leave_a_sum_are_for_finite_numbers() -> None:
    """A chain in another order is `finite`: a product of infinity with a sum is no sum of products."""
    report = ag.explain(lambda a, b, v: a @ b @ v)(jnp.ones((400, 300)), jnp.ones((300, 500)), jnp.ones(500))
    assert {d.exactness for d in report.fired if d.rule == "contraction"} == {"finite"}


def test_what_leaves_a_sum_of_two_factors_is_for_finite_numbers() -> None:
    """All entries of a product, summed: rows and columns are summed first, and `inf - inf` becomes `inf * 1`."""
    a, b = jnp.ones((400, 300)), jnp.ones((300, 500))
    promised = {}
    for name, f in {
        "taken out": lambda a, b: (a @ b).sum(),
        "in step": lambda a, b: (a[:, None] * b.T).sum(-1),
    }.items():
        fired = [d for d in ag.explain(f)(a, b).fired if d.rule == "contraction"]
        promised[name] = {d.exactness for d in fired}
    assert promised == {"taken out": {"finite"}, "in step": {"reassociates"}}


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 3)])
def test_sums_of_nothing_are_left_alone(shape: tuple[int, ...]) -> None:
    """A sum over an empty axis, behind a reshape that could be cut anywhere, is no network; the pass does not fail."""
    before, after, fired = passed(lambda x: (x[:0] * 2).reshape(shape).sum(shape.index(0)), A)
    assert not fired
    assert_near(run(after, A), run(before, A))
    assert run(after, A)[0].size > 0


SQUARES: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda x, w: ((x @ w) ** 2).sum(-1),
    "rows by hand": lambda x, w: ((x @ w) * (x @ w)).sum(-1),
    "einsum": lambda x, w: jnp.einsum("ij,ij->i", x @ w, x @ w),
    "whole": lambda x, w: ((x @ w) ** 2).sum(),
    "trace": lambda x, w: jnp.trace((x @ w).T @ (x @ w)),
    "diagonal": lambda x, w: jnp.diagonal((x @ w).T @ (x @ w)),
    "weighted": lambda x, w: (x[:, 0] ** 2) @ (x @ w) ** 2,
}


@pytest.mark.parametrize("squares", SQUARES.values(), ids=SQUARES)
def test_sums_of_squares_of_a_product_are_never_negative(squares: Callable[[Any, Any], Any]) -> None:
    """`x @ w @ w.T @ x` has few digits where `x @ w` is small: a norm of residuals became nan."""
    w = np.random.default_rng(0).normal(size=(16, 12))
    x = np.random.default_rng(1).normal(size=(2000, 16))
    basis = np.linalg.qr(w)[0]
    args = jnp.asarray(x - x @ basis @ basis.T, jnp.float32), jnp.asarray(w, jnp.float32)
    plain, got = (np.asarray(jax.jit(f)(*args), np.float64) for f in (squares, ag.optimize(squares)))
    assert (got >= 0).all()
    assert np.linalg.norm(got) <= 8 * np.linalg.norm(plain)


def test_powers_are_still_multiplied_from_the_cheap_end() -> None:
    """In `m @ m @ v` no row of `m` meets itself: nothing is a square."""
    m, v = values(256, 256), values(256)
    before, after, fired = passed(lambda m, v: ((m @ m) @ v).sum(), m, v)
    sizes = [max(v.aval.size for e in p.jaxpr.eqns for v in e.outvars) for p in (before, after)]
    assert (len(fired), *sizes) == (1, 1 << 16, 1 << 8)


def test_terms_of_a_factor_stay_together_under_a_sum() -> None:
    """A sum over the rows of a product sums the factor; its terms, multiplied one by one, took 14 times as long."""

    def loss(x: Any, b: Any) -> Any:
        y = jnp.broadcast_to(x, (80, 80)) @ b
        return jnp.mean(0.5 * y * y + y)

    g = jax.grad(loss, (0, 1))
    args = (jnp.linspace(0.0, 1.0, 80), jnp.eye(80) + 0.1)
    text = str(jax.make_jaxpr(ag.optimize(g))(*args))
    assert "dot_general" in text
    assert not re.search(r"f32\[80,80\] = dot_general", text)
    ag.verify(g)(*args)


def test_another_walk_reads_no_network_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What several networks read and stays is a reason to walk again: only what comes to it is read anew."""
    read: list[tuple[int, frozenset[int]]] = []
    walks: list[frozenset[int]] = []
    network_of, walk = networks.network_of, contractions._Finder.run  # pyright: ignore[reportPrivateUsage]

    def counted(level: Any, facts: Any, place: int, closed: frozenset[int], *rest: Any) -> Any:
        read.append((place, closed))
        return network_of(level, facts, place, closed, *rest)

    def counted_walk(finder: Any) -> Any:
        walks.append(finder.staying)
        return walk(finder)

    monkeypatch.setattr(networks, "network_of", counted)
    monkeypatch.setattr(contractions._Finder, "run", counted_walk)  # pyright: ignore[reportPrivateUsage]

    def f(a: Any, b: Any, x: Any, d: Any) -> Any:
        y = a @ b
        return y @ x, y @ d, (a + d) @ d @ x

    args = A, B, V, A + B
    before, after, fired = passed(f, *args)
    assert fired
    assert len(walks) == 2
    assert walks[-1]
    assert len(read) == len(set(read)), "a network is read twice"
    assert [place for place, closed in read if closed], "what comes to it is"
    assert {place for place, _ in read} - {place for place, closed in read if closed}, "what does not is not"
    assert_near(run(after, *args), run(before, *args), 1e-4)


def primitives(program: ClosedJaxpr) -> list[str]:
    """The names of what a program computes."""
    return [eqn.primitive.name for eqn in program.jaxpr.eqns]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_gradient_of_sums_of_classes_picks_rows(dtype: str) -> None:
    """The product with one-hot rows is read through the transpose that JAX's derivative leaves behind it."""
    with jax.enable_x64(dtype == "float64"):
        x, y = values(20_000, 16, dtype=dtype), jnp.arange(20_000) % 12 - 1

        def sums(x: Any, y: Any) -> Any:
            return jax.nn.one_hot(y, 10, dtype=x.dtype).T @ x

        before, after, _ = passed(jax.grad(lambda x, y: (sums(x, y) ** 2).mean()), x, y)
        assert primitives(before).count("dot_general") == 2
        assert "dot_general" not in primitives(after)
        assert primitives(after).count("gather") == 1
        assert_near(run(after, x, y), run(before, x, y), {"float32": 1e-4, "float64": 1e-12, "bfloat16": 0.05}[dtype])


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (jax.nn.one_hot(y % 3, 3) @ x[:3, :2]).T,  # so few rows take no longer
        lambda x, y: ((0.9 * jax.nn.one_hot(y, 10) + 0.01) @ x).T,  # no one-hot rows
    ],
)
def test_products_whose_transpose_picks_no_rows_are_multiplied(f: Callable[..., Any]) -> None:
    """Near misses."""
    _, after, _ = passed(f, values(10, 64), jnp.arange(60) % 10)
    assert "dot_general" in primitives(after)


def test_a_product_that_several_read_turned_is_not_made() -> None:
    """`x @ (A @ B).T` and its gradient by x read one transpose of the product."""
    a, b, x = values(400, 400), values(400, 400, seed=1), values(7, 400)

    def loss(a: Any, b: Any, x: Any) -> Any:
        z = x @ (a @ b).T
        return jnp.mean(0.5 * z * z + z)

    f = jax.value_and_grad(loss, (0, 1, 2))
    before, after = traced(f, a, b, x), traced(ag.optimize(f), a, b, x)
    old, new = (program_cost(p.jaxpr) for p in (before, after))
    assert old.flops > 10 * new.flops, (old, new)
    assert_near(run(after, a, b, x), run(before, a, b, x), 1e-4)


def test_a_turned_product_that_is_read_otherwise_stays() -> None:
    """A near miss: the transpose is read entry by entry, too, so that the product is made anyway."""
    x = values(7, N)
    before, after, fired = passed(lambda a, b, x: (x @ (a @ b).T, jnp.tanh((a @ b).T)), A, B, x)
    assert not fired
    assert primitives(before).count("dot_general") == primitives(after).count("dot_general") == 2


def form_of_rows(x: Any, w: Any, y: Any) -> Any:
    """A bilinear form for each row, by broadcasts: XLA goes through all triples."""
    return jnp.sum(x[:, :, None] * w * y[:, None, :], (1, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bilinear_form_holds_a_part(dtype: str) -> None:
    """What takes half of the time may hold as much as an operand, as `((x @ w) * y).sum(1)` does."""
    with jax.enable_x64(dtype == "float64"):
        args = values(500, 64, dtype=dtype), values(64, 48, dtype=dtype), values(500, 48, seed=1, dtype=dtype)
        assert program_cost(traced(form_of_rows, *args).jaxpr).peak_bytes < 500 * 48
        after = assert_cheaper(form_of_rows, *args, times=1.4)
    assert "dot_general" in str(after.jaxpr)


def form_with_outputs(x: Any, w: Any, y: Any) -> Any:
    """Several bilinear forms for each row, by broadcasts."""
    return jnp.sum(x[:, :, None, None] * w * y[:, None, :, None], (1, 2))


FORMS = values(70, 40), values(40, 40, 24), values(70, 40, seed=1)


def test_the_faster_form_may_hold_more_than_an_operand() -> None:
    """A form of several outputs holds a product as large as a few of its weights, which saves more than half."""
    before, after, decisions = passed(form_with_outputs, *FORMS)
    assert len(decisions) == 1
    assert program_cost(after.jaxpr).peak_bytes > FORMS[1].nbytes + program_cost(before.jaxpr).peak_bytes
    assert_near(run(after, *FORMS), run(before, *FORMS))


def test_so_may_what_is_faster_with_others() -> None:
    """In the gradient all triples are stored for several sums: all of these take products in their place."""
    loss = jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(form_with_outputs(*args))), (0, 1, 2))
    before, after, decisions = passed(loss, *FORMS)
    assert len(decisions) == 4
    assert program_cost(before.jaxpr).peak_bytes > 10 * program_cost(after.jaxpr).peak_bytes
    for got, want in zip(run(after, *FORMS), run(before, *FORMS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(jnp.abs(want).max()))


def test_what_saves_little_holds_little() -> None:
    """Of few outputs, the same products save less than a half: nothing as large is held for that."""
    few = values(70, 10), values(10, 10, 2), values(70, 10, seed=1)
    before, after, _ = passed(form_with_outputs, *few)
    held = program_cost(after.jaxpr).peak_bytes - program_cost(before.jaxpr).peak_bytes
    assert held <= contractions.MORE_BYTES


def test_a_large_part_is_not_held() -> None:
    """Beyond a cache's size memory counts."""
    large = [jax.ShapeDtypeStruct(s, "float32") for s in ((1 << 16, 64), (64, 48), (1 << 16, 48))]
    decisions = ContractionOrder()(normalize(traced(form_of_rows, *large))[0], FAST)[1]
    assert [d.fired for d in decisions] == [False]
    assert "it would hold" in decisions[0].reason


def test_a_form_of_no_rows() -> None:
    """Nothing is multiplied of nothing."""
    args = values(0, 64), values(64, 48), values(0, 48)
    assert run(passed(form_of_rows, *args)[1], *args)[0].shape == (0,)


@pytest.mark.parametrize(("tokens", "experts", "capacity", "width"), [(128, 4, 80, 32), (300, 8, 93, 48)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_two_terms_are_no_calls(tokens: int, experts: int, capacity: int, width: int, weighted: bool) -> None:
    """What goes to experts is summed over a token's two choices first; weights are multiplied in a cheaper order."""

    def dispatch(weights: Any, keep: Any, slot: Any, x: Any) -> Any:
        if weighted:
            return jnp.einsum("nk,nke,nkec->nec", weights, keep, slot)
        return jnp.einsum("nec,nd->ecd", jnp.einsum("nke,nkec->nec", keep, slot), x)

    choices = tokens, 2, experts
    args = values(tokens, 2), values(*choices), values(*choices, capacity), values(tokens, width)
    assert bool(passed(dispatch, *args)[2]) == weighted
    ag.verify(dispatch)(*args)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("nkec,nk->nec", 1),
        ("nk,nkec->nec", 1),
        ("neck,nk->nec", 0),
        ("nk,neck->nec", 0),
        ("nkec,nke->nec", 1),
        ("nkec,nk->ec", 0),
    ],
)
def test_a_vector_stands_where_its_matrix_is_read_as_it_lies(text: str, at: int) -> None:
    """XLA turns a matrix on the left whose terms are not last, and one on the right whose terms are.

    One of few columns, without a batch, stays where it is: that is as fast, and adds up its terms in several parts.
    """
    sizes = {"n": 6, "k": 2, "e": 3, "c": 5}
    own, kept = text.split("->")
    of_x, of_y, of_out = (tuple("nkec".index(one) for one in some) for some in (*own.split(","), kept))
    x, y = (jax.random.normal(jax.random.key(k), [sizes[one] for one in some]) for k, some in enumerate(own.split(",")))

    def f(x: Any, y: Any) -> Any:
        return product(x, y, of_x, of_y, of_out, None, x.dtype)

    (eqn,) = jax.make_jaxpr(f)(x, y).jaxpr.eqns
    assert eqn.invars[at].aval.size == max(x.size, y.size)
    np.testing.assert_allclose(f(x, y), jnp.einsum(text, x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("repeated", "fires"), [(32, False), (512, True)])
def test_products_that_are_added_up_hold_little_more(repeated: int, fires: bool) -> None:
    """Each is as large as the result: so a step of a diffusion model held 0.62 MB in place of 0.53, for no time."""

    def f(x: Any, e: Any, c: Any, w: Any) -> Any:
        return jnp.concatenate([x, jnp.broadcast_to(e, (256, repeated)), c], -1) @ w

    args = [jax.random.normal(jax.random.key(k), s) for k, s in enumerate([(256, 32), (repeated,), (256, 8)])]
    args.append(jax.random.normal(jax.random.key(3), (40 + repeated, 128)))
    assert bool([d for d in ag.explain(f)(*args).fired if d.rule == "contraction"]) == fires
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), rtol=1e-4, atol=1e-4)
