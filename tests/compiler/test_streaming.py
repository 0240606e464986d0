"""Streaming: formulas whose inside is large run in blocks, with the same results, value and gradient."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aerogel as ag
from aerogel import _jax
from aerogel.compiler import Context, Exactness
from aerogel.compiler.exactness import allowed
from aerogel.compiler.passes.streaming import Streaming
from aerogel.compiler.program import inner_jaxprs
from aerogel.compiler.streams import streaming
from aerogel.compiler.streams.stream_plan import Sizes
from aerogel.compiler.streams.unit_batches import without_unit_batches
from compiler.loop_patterns import normal
from compiler.programs_of import FAST, STRICT, run, traced

SIZES = Sizes(1 << 12, at_any_price=True)  # 4 KiB are large
SMALL = Streaming(SIZES)
N, M = 96, 89  # neither divides the other, nor has a block's length


def distances(x: Any, y: Any) -> Any:
    """All squared distances."""
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def kernel(x: Any, y: Any) -> Any:
    """A Gaussian of one pair."""
    return jnp.exp(-0.5 * jnp.sum((x - y) ** 2))


def attention(q: Any, k: Any, v: Any) -> Any:
    """As it stands in the paper."""
    return jax.nn.softmax(q @ k.T / 4, axis=-1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    """With a mask."""
    s = jnp.einsum("qd,kd->qk", q, k)
    s = jnp.where(jnp.arange(s.shape[0])[:, None] >= jnp.arange(s.shape[1])[None], s, -1e30)
    return jax.nn.softmax(s, -1) @ v


def heads(q: Any, k: Any, v: Any) -> Any:
    """Two heads that share keys and values, with a bias by distance."""
    q = q.reshape(q.shape[0], 2, -1)
    bias = -jnp.abs(jnp.arange(q.shape[0])[:, None] - jnp.arange(k.shape[0])[None]).astype(q.dtype)
    s = jnp.einsum("qhd,kd->hqk", q, k[:, : q.shape[-1]]) + 0.1 * bias
    return jnp.einsum("hqk,kd->qhd", jax.nn.softmax(s, -1), v)


def bias(q: Any, k: Any, v: Any) -> Any:
    """With a bias that is looked up for each pair, in a table that is the first column of the keys."""
    places = jnp.clip(jnp.arange(q.shape[0])[:, None] - jnp.arange(k.shape[0])[None], -20, 20) + 20
    return jax.nn.softmax(q @ k.T / 4 + k[:, 0][places], axis=-1) @ v


def clipped(x: Any, y: Any, v: Any) -> Any:
    """The sum of the gradients of examples, each clipped to a norm of one."""

    def loss(w: Any, a: Any, b: Any) -> Any:
        return jnp.sum((jnp.tanh(a @ w) - b) ** 2)

    gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(0.1 * y[0][:, None] * v[:48, 0], x, x[:, 0])
    norms = jnp.sqrt((gradients**2).sum((1, 2)))
    return jnp.tensordot(jnp.minimum(1, 1 / norms), gradients, 1) + v.sum()


def jacobian(x: Any, y: Any, v: Any) -> Any:
    """A Jacobian times a vector."""
    f = lambda z: jnp.tanh(y[:, 0] * jnp.roll(z, 1)) + z * jnp.sin(z)  # noqa: E731
    return jax.jacrev(f)(x[: len(y), 0]) @ v[:, 0]


def forces(x: Any, y: Any, v: Any) -> Any:
    """Of bodies on others."""
    d = y[None] - x[:, None]
    return (d * (v[None] * ((d**2).sum(-1) + 1e-2) ** -1.5)[..., None]).sum(1)


def mixture(x: Any, y: Any, v: Any) -> Any:
    """A log-likelihood."""
    return jax.nn.logsumexp(jax.nn.log_softmax(v)[None] - 0.5 * distances(x, y), axis=1).sum()


def column_softmax(q: Any, k: Any, v: Any) -> Any:
    """A sum over rows that enters each of them: the inside is needed twice."""
    s = q @ k.T / 4
    return (jax.nn.softmax(s, axis=0) * s).sum(1)


def dropout(q: Any, k: Any, v: Any) -> Any:
    """Attention of which some is dropped."""
    p = jax.nn.softmax(q @ k.T / 4, axis=-1)
    return jnp.where(jax.random.bits(jax.random.key(7), p.shape, "uint32") > 2**29, p, 0) @ v


def wide(x: Any, y: Any, v: Any) -> Any:
    """A power of distances in five dimensions: its gradient reads arrays that are a fifth of the differences."""
    return jnp.mean(jax.vmap(lambda a: jnp.sum((1 + 0.5 * jnp.sum((a - y) ** 2, -1)) ** -1.5 * v))(x) ** 2)


def contrastive(x: Any, y: Any, v: Any) -> Any:
    """CLIP's loss: a cross-entropy along the rows and one along the columns, both with the diagonal for labels."""

    def cross_entropy(logits: Any) -> Any:
        labels = jnp.arange(logits.shape[0])[:, None]
        return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels, -1)[:, 0]

    logits = v.sum() * x @ y.T
    return cross_entropy(logits) + cross_entropy(logits.T)


def quadrants(x: Any, y: Any, v: Any) -> Any:
    """A maximum mean discrepancy by one Gram matrix, and what its parts give row by row."""
    z, n = jnp.concatenate([x, y]), len(x)
    k = jnp.exp(-distances(z, z))
    rows = (k[:n, n:].sum(1) ** 2).mean() - k[n:, n:].sum(0)[3]
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean() + rows + v.sum()


def within(x: Any, y: Any, v: Any) -> Any:
    """How many pairs are closer than each of many radii, smoothly."""
    d = jnp.sqrt(distances(x, y) + 0.1)
    return jax.vmap(lambda r: jax.nn.sigmoid((r - d) * 4).sum())(jnp.linspace(0.1, 2, 24)) + v.sum()


POINTS = (normal(0, N, 3), normal(1, M, 3), normal(2, M))
TOKENS = (normal(0, N, 16), normal(1, M, 16), normal(2, M, 5))
Formula = Callable[..., Any]
SMOOTH: dict[str, tuple[Formula, tuple[Any, ...]]] = {
    "broadcast": (lambda x, y, v: jnp.exp(-0.5 * distances(x, y)) @ v, POINTS),
    "vmap of vmap": (lambda x, y, v: jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(y))(x) @ v, POINTS),
    "einsum": (
        lambda x, y, v: jnp.exp(-jnp.einsum("ijk,ijk->ij", x[:, None] - y[None], x[:, None] - y[None])) @ v,
        POINTS,
    ),
    "itself": (lambda x, y, v: (jnp.exp(-distances(x, x)) @ x).sum() + v.sum(), POINTS),
    "transposed": (lambda x, y, v: v @ jnp.exp(-distances(x, y)).T, POINTS),
    "logsumexp": (lambda x, y, v: jax.nn.logsumexp(v - distances(x, y), axis=1), POINTS),
    "nearest": (lambda x, y, v: distances(x, y).min(1), POINTS),
    "forces": (forces, POINTS),
    "mixture": (mixture, POINTS),
    "attention": (attention, TOKENS),
    "causal": (causal, TOKENS),
    "dropout": (dropout, TOKENS),
    "five dimensions": (wide, (normal(0, N, 5), normal(1, M, 5), normal(2, M))),
    "heads": (heads, TOKENS),
    "bias by index": (bias, TOKENS),
    "column softmax": (column_softmax, TOKENS),
    "both directions": (contrastive, (normal(0, N, 16), normal(1, N, 16), normal(2, M))),
    "quadrants": (quadrants, POINTS),
}
CHOICES: dict[str, tuple[Formula, tuple[Any, ...]]] = {
    "argmin": (lambda x, y, v: distances(x, y).argmin(1), POINTS),
    "nearest five": (lambda x, y, v: jax.lax.top_k(-distances(x, y), 5), POINTS),
    "count": (lambda x, y, v: (distances(x, y) < 0.5).sum(1), POINTS),
    "both ways": (lambda x, y, v: distances(x, y).min(1).mean() + distances(x, y).min(0).mean(), POINTS),
}


def squares(f: Formula) -> Formula:
    """A scalar of `f`."""
    return lambda *args: (f(*args) ** 2).sum()


def streamed(f: Formula, *args: Any, sizes: Sizes = SIZES) -> tuple[Any, list[Any]]:
    """Results of the streamed function, compiled, and what fired."""
    reports: list[Any] = []
    out = jax.jit(ag.optimize(f, passes=(Streaming(sizes),), on_report=reports.append))(*args)
    return out, [d for d in reports[0].fired if d.rule == "streaming"]


def close(got: Any, want: Any, exact: Any) -> None:
    """`got` is as near to `exact` as `want` is, or within a few ulp of the largest value."""
    for a, b, c in zip(*map(jax.tree.leaves, (got, want, exact)), strict=True):
        assert a.dtype == b.dtype
        a, b, c = (np.asarray(x, np.float64) for x in (a, b, c))
        assert np.abs(a - c).max() <= max(4 * np.abs(b - c).max(), 1e-5 * np.abs(c).max())


def in_float64(f: Formula, args: Any) -> Any:
    """What `f` is in float64."""
    with jax.enable_x64(True):
        return jax.jit(f)(*(np.asarray(x, np.float64) for x in args))


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients(name: str) -> None:
    """A formula in blocks gives the value and the gradient of the formula, however the gradient is taken."""
    f, args = SMOOTH[name]
    out, fired = streamed(f, *args)
    assert fired
    close(out, jax.jit(f)(*args), in_float64(f, args))
    g = jax.value_and_grad(squares(f), argnums=(0, 1, 2))
    want, exact = jax.jit(g)(*args), in_float64(g, args)
    inside, fired = streamed(g, *args)
    assert fired
    close(inside, want, exact)
    outside = jax.value_and_grad(ag.optimize(squares(f), passes=(SMALL,)), argnums=(0, 1, 2))
    close(jax.jit(outside)(*args), want, exact)


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    """What picks or counts gives the same, bit for bit."""
    f, args = CHOICES[name]
    out, fired = streamed(f, *args)
    assert fired
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(jax.jit(f)(*args)), strict=True):
        assert np.array_equal(a, b) if a.dtype.kind == "i" else np.allclose(a, b, rtol=1e-5)


def sizes_in(jaxpr: Any) -> list[int]:
    """The numbers of elements of all values, nested ones included."""
    own = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    return own + [n for eqn in jaxpr.eqns for inner in inner_jaxprs(eqn) for n in sizes_in(inner)]


@pytest.mark.parametrize(
    "name",
    [
        "broadcast",
        "vmap of vmap",
        "logsumexp",
        "nearest",
        "forces",
        "mixture",
        "attention",
        "both directions",
        "quadrants",
    ],
)
def test_nothing_large_is_left(name: str) -> None:
    """At 8192 by 8192 no value of the optimised program, gradient included, has a tenth of the elements."""
    f, args = SMOOTH[name]
    large = [jax.ShapeDtypeStruct((8192, *x.shape[1:]), x.dtype) for x in args]
    for g in (f, jax.value_and_grad(squares(f), argnums=(0, 1, 2))):
        assert max(sizes_in(traced(g, *large).jaxpr)) >= 8192 * 8192
        assert max(sizes_in(traced(ag.optimize(g), *large).jaxpr)) < 8192 * 8192 // 10


@pytest.mark.parametrize("dimensions", [2, 24])
def test_means_of_a_mixture_are_no_product_of_matrices(dimensions: int) -> None:
    """Weights of 100,000 points times these few coordinates: blocks from 16 MiB on, not only from 64 on."""

    def means(c: Any, x: Any) -> Any:
        r = jax.nn.softmax(-distances(x, c), 1)
        return (r.T @ x) / r.sum(0)[:, None]

    args = [jax.ShapeDtypeStruct((n, dimensions), jnp.float32) for n in (64, 100_000)]
    assert max(sizes_in(traced(means, *args).jaxpr)) >= 64 * 100_000
    assert max(sizes_in(traced(ag.optimize(means), *args).jaxpr)) < 64 * 100_000


def test_a_mask_that_heads_share_is_made_in_blocks() -> None:
    """Causal attention with heads, which run one after the other: the mask does not exist for all of them."""
    heads = jax.ShapeDtypeStruct((1, 8192, 4, 64), jnp.float32)
    f = functools.partial(jax.nn.dot_product_attention, is_causal=True)
    assert max(sizes_in(traced(f, heads, heads, heads).jaxpr)) >= 4 * 8192 * 8192
    assert max(sizes_in(traced(ag.optimize(f), heads, heads, heads).jaxpr)) < 8192 * 8192 // 10


def with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """Attention of heads in a window, whose softmax has a further column."""
    places = jnp.arange(q.shape[1])
    apart = places[:, None] - places
    scores = jnp.where((apart >= 0) & (apart < 64), jnp.einsum("htd,hsd->hts", q, k), -1e30)
    column = jnp.broadcast_to(sink[:, None, None], (*q.shape[:2], 1))
    return jax.nn.softmax(jnp.concatenate([scores, column], -1))[..., :-1] @ v


@pytest.mark.parametrize("gradient", [False, True])
def test_a_mask_beside_scores_with_the_column_of_a_sink(gradient: bool) -> None:
    """Scores have one column more than their mask, which heads share: neither exists."""
    args = [jax.ShapeDtypeStruct((4, 4096, 32), jnp.float32)] * 3 + [jax.ShapeDtypeStruct((4,), jnp.float32)]
    f = jax.grad(squares(with_sinks), (0, 1, 2, 3)) if gradient else with_sinks
    assert max(sizes_in(traced(f, *args).jaxpr)) >= 4 * 4096 * 4096
    assert max(sizes_in(traced(ag.optimize(f), *args).jaxpr)) < 4096 * 4096 // 4


def with_slopes(q: Any, k: Any, v: Any) -> Any:
    """Attention of heads that forget what is far away, each at a speed of its own (ALiBi)."""
    slopes = 2.0 ** -jnp.arange(1.0, 1 + len(q))
    apart = -jnp.abs(jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1]))
    scores = jnp.einsum("htd,hsd->hts", q, k) + slopes[:, None, None] * apart
    return jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores), v)


@pytest.mark.parametrize(("count", "gradient"), [(2, True), (4, False), (4, True)])
def test_a_bias_that_few_heads_share_is_made_in_blocks(count: int, gradient: bool) -> None:
    """It is nearly as large as the scores of all of them, and neither exists."""
    args = [jax.ShapeDtypeStruct((count, 4096, 32), jnp.float32)] * 3
    f = jax.grad(squares(with_slopes), (0, 1, 2)) if gradient else with_slopes
    assert max(sizes_in(traced(f, *args).jaxpr)) >= count * 4096 * 4096
    assert max(sizes_in(traced(ag.optimize(f), *args).jaxpr)) < 4096 * 4096 // 4
    small = [normal(k, count, 128, 16) for k in range(3)]
    got, fired = streamed(f, *small)
    assert fired
    close(got, jax.jit(f)(*small), in_float64(f, small))


def padded(q: Any, k: Any, v: Any, kept: Any) -> Any:
    """Attention of examples whose keys are partly padding, with the keys in front."""

    def one(q: Any, k: Any, v: Any, kept: Any) -> Any:
        weights = jax.nn.softmax(jnp.where(kept[:, None], k @ q.T, -jnp.inf), 0)
        return weights.T @ v

    return jax.vmap(one)(q, k, v, kept)


def test_a_constant_that_examples_share_is_made_in_blocks() -> None:
    """`vmap` fills a table with what `where` puts elsewhere, and repeats it: the gradient makes no table of it."""
    args = [jax.ShapeDtypeStruct((2, 8192, 16), jnp.float32)] * 3 + [jax.ShapeDtypeStruct((2, 8192), jnp.bool_)]
    f = jax.grad(squares(padded), (0, 1, 2))
    assert 8192 * 8192 in sizes_in(traced(f, *args).jaxpr)
    assert max(sizes_in(traced(ag.optimize(f), *args).jaxpr)) < 8192 * 8192 // 4


def test_parts_by_a_mask_count_nothing_else() -> None:
    """What is not a number outside a part does not enter its sum, nor its gradient; integers have no infinity."""

    def f(x: Any, y: Any) -> Any:
        d = distances(x, y)
        n = (10 * d).astype(jnp.int32)
        parts = (n[:40, :40].max(), n[40:, :40].min(), n[:40, 40:].sum())
        return d[:40, :40].sum() + d[:40, 40:].max(), d[40:, :40].min(1), parts

    x, y = np.array(POINTS[0]), POINTS[1]
    x[90] = np.nan
    out, fired = streamed(f, x, y)
    assert fired
    want = jax.jit(f)(x, y)
    assert np.isnan(want[1]).sum() == 1
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_sums_of_parts_are_said_to_be_reordered() -> None:
    """Each row of a part is added up with the rest of its row, though the blocks are of whole rows."""

    def f(x: Any, y: Any) -> Any:
        k = jnp.exp(-distances(x, y))
        return k[:, 40:].sum(1), k[:, :40].sum(1)

    decisions = Streaming(SIZES)(traced(f, *POINTS[:2]), FAST)[1]
    assert [d.exactness for d in decisions if d.fired] == ["reassociates"]


def test_no_masks_where_nothing_goes_in_blocks() -> None:
    """The parts of a value that exists anyway are read as they were; so are those that are added up, under `strict`."""

    def f(x: Any, y: Any) -> Any:
        d = jnp.exp(-distances(x, y))
        return d[:40, :40].sum(), d[40:, 40:].sum(), d

    program = traced(f, *POINTS[:2])
    assert Streaming(SIZES)(program, FAST)[0] is program

    def g(x: Any, y: Any) -> Any:
        return f(x, y)[:2]

    program = traced(g, *POINTS[:2])
    assert any(d.fired for d in Streaming(SIZES)(program, FAST)[1])
    assert not any(d.fired for d in Streaming(SIZES)(program, STRICT)[1])


def test_what_many_functions_read_does_not_exist() -> None:
    """The distances beside 24 functions of each are smaller than these, and as large as they are by themselves."""
    args = [jax.ShapeDtypeStruct((8192, *x.shape[1:]), x.dtype) for x in POINTS]
    f = jax.value_and_grad(squares(within), argnums=(0, 1, 2))
    assert max(sizes_in(traced(f, *args).jaxpr)) >= 24 * 8192 * 8192
    assert max(sizes_in(traced(ag.optimize(f), *args).jaxpr)) < 8192 * 8192 // 10
    out, fired = streamed(f, *POINTS)
    assert fired
    close(out, jax.jit(f)(*POINTS), in_float64(f, POINTS))


REDUCED: dict[str, tuple[Formula, int]] = {
    "clipped gradients of examples": (clipped, 1 << 14),
    "gradient of a Jacobian times a vector": (jax.value_and_grad(squares(jacobian), argnums=(0, 1, 2)), 4096),
}


@pytest.mark.parametrize("name", REDUCED)
def test_what_is_only_reduced(name: str) -> None:
    """Gradients of examples and Jacobians do not exist; diagonals of Jacobians are read row by row."""
    f, n = REDUCED[name]
    args = [jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype) for x in TOKENS]
    before, after = (max(sizes_in(traced(g, *args).jaxpr)) for g in (f, ag.optimize(f)))
    assert after < before // 10
    out = jax.jit(ag.optimize(f, passes=(*ag.compiler.DEFAULT_PASSES, SMALL)))(*TOKENS)
    close(out, jax.jit(f)(*TOKENS), in_float64(f, TOKENS))


def test_outer_products_are_no_products_of_matrices() -> None:
    """The gradients of examples go in blocks though they are smaller than products would have to be."""
    args = [jax.ShapeDtypeStruct((1 << 14, *x.shape[1:]), x.dtype) for x in TOKENS]
    assert any(d.fired for d in Streaming()(traced(clipped, *args), FAST)[1])


@pytest.mark.parametrize("dear", [False, True])
def test_a_mask_that_heads_share(dear: bool) -> None:
    """The mask of a causal attention is made head by head, in blocks; one of sines once, for all of them."""

    def f(q: Any, k: Any, v: Any) -> Any:
        places = jnp.arange(q.shape[1], dtype=q.dtype)
        mask = jnp.sin(places[:, None] - places[None]) > 0.1
        return jax.nn.dot_product_attention(q, k, v, mask=mask if dear else None, is_causal=not dear)

    large = jax.ShapeDtypeStruct((1, 8192, 32, 16), jnp.float32)
    assert (max(sizes_in(traced(ag.optimize(f), large, large, large).jaxpr)) < 8192 * 8192 // 10) != dear
    args = [normal(k, 1, 128, 3, 16) for k in range(3)]
    out, fired = streamed(f, *args)
    assert fired
    close(out, jax.jit(f)(*args), in_float64(f, args))


WITHOUT_GRADIENT: dict[str, Callable[..., Any]] = {
    # A maximum alone could read its mask in smaller blocks, but what is summed up behind it would store it again.
    "those at risk": lambda x, t: jnp.sum(jax.nn.logsumexp(jnp.where(t[None] >= t[:, None], x[None], -jnp.inf), 1)),
    "sines": lambda x, t: jnp.sum((t + jnp.mean(jnp.sin(x[None] - x[:, None]), 1)) ** 2),
    "cosines": lambda x, t: jnp.sum(jnp.cos(x[None] - t[:, None]), 1),
}


def test_memory() -> None:
    """The temporary memory of value and gradient falls to a fifteenth and less."""
    f, args = SMOOTH["broadcast"]
    large = [jax.ShapeDtypeStruct((4096, *x.shape[1:]), x.dtype) for x in args]
    for g, share in ((f, 30), (jax.value_and_grad(squares(f), argnums=(0, 1, 2)), 15)):
        assert share * temporary_bytes(ag.optimize(g), large) <= temporary_bytes(g, large)


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_memory_of_values(name: str) -> None:
    """What XLA's library for sums does not compute in its call goes in blocks, gradient or not."""
    x = jax.ShapeDtypeStruct((4096,), jnp.float32)
    f = WITHOUT_GRADIENT[name]
    plain = temporary_bytes(f, [x, x])
    if plain or jax.__version_info__ < (0, 12):  # whose XLA has vector code for sums of sines: it makes no pairs
        assert 30 * temporary_bytes(ag.optimize(f), [x, x]) <= plain


def temporary_bytes(f: Formula, args: Any) -> int:
    """What the compiled function takes besides arguments and results."""
    found = jax.jit(f).lower(*args).compile().memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


@pytest.mark.parametrize("rows", [97, 150, 211])
def test_what_is_left_behind_the_last_block(rows: int) -> None:
    """Lengths that no block divides are covered: 401 is prime, and blocks have several entries."""
    x, y, v = normal(0, rows, 3), normal(1, 401, 3), normal(2, 401)
    f = lambda x, y, v: (jnp.exp(-distances(x, y)) @ v, distances(x, y).max(0), distances(x, y).sum())  # noqa: E731
    out, fired = streamed(f, x, y, v, sizes=Sizes(1 << 16, at_any_price=True))
    assert fired
    close(out, jax.jit(f)(x, y, v), in_float64(f, (x, y, v)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "complex64"])
def test_types(dtype: str) -> None:
    """Other types than float32 keep their type, and their results."""
    x, y = (10 * normal(k, 64, 64) for k in range(2))
    x, y = (z.astype(dtype) for z in (x, y))

    def f(x: Any, y: Any) -> Any:
        d = jnp.abs(x[:, None] - y[None]).sum(-1)
        return d.sum(1), d.max(0)

    out, fired = streamed(f, x, y)
    assert fired
    for a, b in zip(out, jax.jit(f)(x, y), strict=True):
        assert a.dtype == b.dtype
        assert np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-2)


@pytest.mark.parametrize("around", ["vmap", "scan", "cond"])
def test_inside_of_others(around: str) -> None:
    """A formula under vmap, in a step of a loop and in a branch is streamed too."""
    f, (x, y, v) = SMOOTH["logsumexp"]
    wrapped: dict[str, Formula] = {
        "vmap": lambda x, y, v: jax.vmap(f, (0, None, None))(jnp.stack([x, 2 * x]), y, v),
        "scan": lambda x, y, v: jax.lax.scan(lambda c, s: (c + f(s * x, y, v), None), jnp.zeros(N), jnp.arange(3.0))[0],
        "cond": lambda x, y, v: jax.lax.cond(v[0] > 0, f, lambda *_: jnp.zeros(N), x, y, v),
    }
    g = wrapped[around]
    out, fired = streamed(g, x, y, v)
    assert fired
    close(out, jax.jit(g)(x, y, v), in_float64(g, (x, y, v)))


def reasons(f: Formula, *args: Any, numerics: str = "fast", sizes: Sizes = SIZES) -> str:
    """Why nothing fired."""
    program = ag.compiler.Program(traced(f, *args).jaxpr, traced(f, *args).consts)
    new, decisions = Streaming(sizes)(program, Context(allowed(numerics), "cpu"))
    assert new is program
    assert not any(d.fired for d in decisions)
    return "; ".join(d.reason for d in decisions)


def test_near_misses() -> None:
    """What exists anyway, is small, or would change what it promises is left, with the reason."""
    x, y, v = POINTS
    q, k, w = TOKENS
    assert "it is a result" in reasons(lambda x, y: jnp.exp(-distances(x, y)), x, y)
    assert reasons(SMOOTH["broadcast"][0], x, y, v, sizes=Sizes(1 << 20)) == ""
    assert "sort" in reasons(lambda q, k: jnp.sort((q @ k.T).reshape(-1))[-5:], q, k)
    assert "products" in reasons(attention, q, k, w, sizes=Sizes(1 << 14))
    windows = lambda x: x[:, 0][jnp.arange(len(x) - 64)[:, None] + jnp.arange(64)].mean(1)  # noqa: E731
    assert "gathers" in reasons(windows, x, sizes=Sizes(1 << 13))
    assert streamed(windows, x)[1]
    above = lambda d: ((d >= d.max(0)) & (d <= d.max(1)[:, None])).sum(0)  # noqa: E731
    assert "last bit" in reasons(lambda x, y: above(distances(x, y)), x, y)


def test_distances_by_products_of_vectors_are_left() -> None:
    """However a sum of squares is spelt: XLA makes each entry as it sums, and blocks took twice as long."""
    x, y = (jax.ShapeDtypeStruct((2000, 128), np.float32) for _ in range(2))
    dots = jax.vmap(jax.vmap(lambda a, b: jnp.vdot(a - b, a - b), (None, 0)), (0, None))
    for f in (dots, lambda x, y: ((x[:, None] - y) ** 2).sum(-1)):
        for g in (f, lambda x, y, f=f: f(x, y).min(1), lambda x, y, f=f: jnp.exp(-f(x, y)).sum(1)):
            assert not is_streamed(g, x, y)
            assert is_streamed(jax.value_and_grad(lambda x, y, g=g: g(x, y).sum()), x, y)


def alignment(x: Any, y: Any) -> Any:
    """Of two kernels, one of them centred."""
    k, m = jnp.exp(-distances(x, x) / 16), jnp.exp(-distances(y, y) / 16)
    k = k - k.mean(0) - k.mean(1)[:, None] + k.mean()
    return (k * m).sum()


@pytest.mark.parametrize("dimensions", [16, 24])
def test_a_centred_kernel_of_longer_points_is_in_no_memory(dimensions: int) -> None:
    """Taken apart as a whole it takes 1.5 times plain JAX's memory, for hardly less time than blocks."""
    args = [jax.ShapeDtypeStruct((4001, dimensions), np.float32)] * 2
    assert is_streamed(alignment, *args)
    plain, ours = (temporary_bytes(f, args) for f in (alignment, ag.optimize(alignment)))
    assert plain > 8 * 4001**2 - 1
    assert ours < plain / 10
    assert not is_streamed(alignment, *[jax.ShapeDtypeStruct((1001, dimensions), np.float32)] * 2)


def is_streamed(f: Formula, *args: Any) -> bool:
    """Whether it fires among the other passes."""
    found: list[Any] = []
    jax.eval_shape(ag.optimize(f, on_report=found.append), *args)
    return any(d.rule == "streaming" for d in found[0].fired)


def test_a_loop_that_sums_up_its_whole_state() -> None:
    """What a loop makes beside its blocks would be made in each of them again: it stays whole."""

    def f(c: Any) -> Any:
        def step(c: Any, _: Any) -> tuple[Any, Any]:
            c = c - 0.05 * c * c
            return c, (c**2).sum()

        return jax.lax.scan(step, c, None, 100)[1].sum()

    found: list[Any] = []
    large = jax.ShapeDtypeStruct((100_000,), np.float32)
    jax.eval_shape(ag.optimize(jax.value_and_grad(f), on_report=found.append), large)
    assert [d.fired for d in found[0].decisions if d.rule == "streaming"] == [False]


def test_strict_sums_in_the_old_order() -> None:
    """With strict numerics rows are cut, whose sums stay as they are, and no sum is cut."""
    x, y, v = POINTS
    program = traced(lambda x, y, v: jnp.exp(-distances(x, y)) @ v, x, y, v)
    _, decisions = SMALL(program, Context(allowed("strict"), "cpu"))
    assert {d.exactness for d in decisions if d.fired} == {Exactness.BITWISE}
    gradient = jax.grad(lambda x, y: jnp.exp(-distances(x, y)).sum(), argnums=(0, 1))
    assert "strict" in reasons(gradient, x, y, numerics="strict")


def hausdorff(x: Any, y: Any) -> Any:
    """The largest distance to the nearest."""
    return jnp.maximum(distances(x, y).min(1).max(), distances(x, y).min(0).max())


def as_written(x: Any, y: Any) -> Any:
    """The nearest by comparing, of the largest in their column, which are repeated for all pairs."""
    d = distances(x, y)
    return jnp.where(d == jnp.broadcast_to(d.max(0)[None], d.shape), d, 0).sum(1).sum()


EXTREMES: dict[str, Formula] = {
    "Chamfer": lambda x, y: distances(x, y).min(1).mean() + distances(x, y).min(0).mean(),
    "Hausdorff": hausdorff,
    "of all": lambda x, y: distances(x, y).max(),
    "as written": as_written,
}


# Each point twice, in whole blocks.
TWICE = tuple(jnp.concatenate([normal(k, n, 3)] * 2 + [normal(3 + k, 1, 3)]) for k, n in enumerate((200, 90)))
# Those that are far from all others, the nearest ones to each other and with the largest distances, stand in the first
# block and behind the last one, which is another kernel: it may give another last bit, but not of eighths.
FAR = (jnp.array([[12, 3, 0]]), jnp.array([[10, 0, 0], [-5, -1, 0]]))
AT_BOTH_ENDS = tuple(
    jnp.concatenate([far, jnp.round(8 * normal(k, 401 - 220 * k - 2 * len(far), 3)) / 8, far])
    for k, far in enumerate(FAR)
)


@pytest.mark.parametrize("points", [TWICE, AT_BOTH_ENDS], ids=["twice", "at both ends"])
@pytest.mark.parametrize("name", EXTREMES)
def test_the_place_of_a_minimum_is_found_again(name: str, points: tuple[Any, Any]) -> None:
    """The gradient of a minimum reaches each of the points that attain it, in blocks as in one piece, ties included.

    Over blocks too: each is compared with what was found in it, in the blocks that attain the minimum of all.
    """
    x, y = points
    g = jax.value_and_grad(EXTREMES[name], argnums=(0, 1))
    (value, got), fired = streamed(g, x, y, sizes=Sizes(1 << 14, at_any_price=True))
    assert fired
    wanted, gradient = jax.jit(g)(x, y)
    assert np.allclose(value, wanted, rtol=1e-5)
    for a, b in zip(got, gradient, strict=True):
        assert np.array_equal(np.any(a != 0, axis=1), np.any(b != 0, axis=1))
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_unit_batches() -> None:
    """A product with batch dimensions of length one is a plain one, whatever its operands' order."""
    a, b = normal(0, 1, 5, 1, 4), normal(1, 6, 1, 1, 4)
    f = lambda a, b: jnp.einsum("xqyd,kxyd->xyqk", a, b)  # noqa: E731
    before = traced(f, a, b)
    after = ag.compiler.Program(without_unit_batches(before.jaxpr), before.consts)
    (product,) = (eqn for eqn in after.jaxpr.eqns if eqn.primitive.name == "dot_general")
    assert product.params["dimension_numbers"][1] == ((), ())
    assert np.allclose(run(after, a, b)[0], run(before, a, b)[0], rtol=1e-6, atol=1e-6)


def test_a_loop_that_makes_something_that_all_blocks_share() -> None:
    """A scan that maps over the axis, and counts beside it, stays whole where the count is read."""

    def f(x: Any, counts: bool) -> Any:
        (u, k), us = jax.lax.scan(lambda c, _: ((0.9 * c[0], c[1] + 1), c[0]), (x, 0.0), None, length=600)
        return us.sum(0) + u, k if counts else 0.0

    x = normal(0, 300)
    for counts in (False, True):
        out, fired = streamed(partial(f, counts=counts), x)
        assert bool(fired) != counts
        for got, want in zip(out, jax.jit(f, static_argnames="counts")(x, counts=counts), strict=True):
            assert np.allclose(got, want, rtol=1e-5)
    assert "it exists anyway" in reasons(partial(f, counts=True), x)


def test_an_array_that_a_program_closes_over_may_become_an_argument() -> None:
    """Of a part of the program; it has no name, and the names of the other arguments fit no longer."""
    w = jnp.ones(N)
    jaxpr = traced(lambda x: w + x, 1.0).jaxpr
    assert len(jaxpr.constvars) == 1
    part = _jax.new_jaxpr(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)
    assert len(_jax.drop_dead(part).invars) == 2


def test_parts_of_one_kernel_are_not_written() -> None:
    """XLA makes a stack of computed arrays and its sum in one kernel; blocks of it would read these from memory."""

    def f(x: Any) -> Any:
        parts = [x]
        for _ in range(7):
            parts.append(jnp.sin(parts[-1]) * 0.5)
        return jnp.stack(parts).mean(0)

    def given(*parts: Any) -> Any:
        s = jnp.stack(parts)
        return ((s - s.mean(0)) ** 2).sum(0)

    x = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    left, done = (Streaming()(traced(g, *args), FAST)[1] for g, args in ((f, [x]), (given, [x] * 8)))
    assert not any(d.fired for d in left)
    assert any(d.fired for d in done)


def cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Lets the machine have so many."""
    monkeypatch.setattr(_jax, "usable_cores", lambda: count)


def fires(f: Formula, *shapes: tuple[int, ...]) -> bool:
    """Whether something of these sizes is streamed."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return any(d.fired for d in Streaming()(traced(f, *args), FAST)[1])


def by_heads(q: Any, k: Any, v: Any) -> Any:
    """Attention of several heads."""
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 8, -1), v)


@pytest.mark.parametrize("count", [2, 4])
def test_few_cores_take_smaller_products(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Two cores gain from 64 MiB on, four from 256 MiB of one matrix: of several heads, from as much of each."""
    cores(monkeypatch, count)
    assert fires(attention, *[(4096, 64)] * 3) == (count == 2)
    assert fires(by_heads, *[(16, 1024, 64)] * 3) == (count == 2)
    assert not fires(attention, *[(4096, 512)] * 3)
    assert fires(by_heads, *[(2, 8192, 64)] * 3)


def test_sums_of_kernels() -> None:
    """The mean of a kernel of points, which XLA computes slowly, is streamed; one of differences of numbers is not."""
    mean = lambda x, y: jnp.sqrt(distances(x, y) + 1e-9).mean()  # noqa: E731
    assert fires(mean, (2048, 3), (2048, 3))
    assert not fires(lambda x, y: jnp.abs(x[:, None] - y[None]).mean(), (2048,), (2048,))
    energy = lambda x, y: 2 * mean(x, y) - mean(x, x) - mean(y, y)  # noqa: E731
    large = [jax.ShapeDtypeStruct((4096, 3), jnp.float32)] * 2
    assert 30 * temporary_bytes(ag.optimize(energy), large) <= temporary_bytes(energy, large)


def test_sums_of_kernels_of_longer_points() -> None:
    """Points of up to 32 coordinates, whose distances would be stored as soon as these are taken apart."""
    mean = lambda x, y: jnp.exp(-distances(x, y)).mean()  # noqa: E731
    nearest = lambda x, y: distances(x, y).min(1).mean()  # noqa: E731
    for f in (mean, nearest):
        for n in (16, 32):
            large = [jax.ShapeDtypeStruct((4096, n), jnp.float32)] * 2
            assert temporary_bytes(ag.optimize(f), large) < 4096 * 4096 * 4 // 10
    args = normal(0, 2100, 24), normal(1, 2100, 24)
    np.testing.assert_allclose(jax.jit(ag.optimize(nearest))(*args), jax.jit(nearest)(*args), rtol=1e-6)


def tsne(y: Any, p: Any) -> Any:
    """The loss of an embedding, with distances by a product."""
    squares = (y**2).sum(1)
    near = (1 / (1 + squares[:, None] + squares[None] - 2 * y @ y.T)).at[jnp.diag_indices(len(y))].set(0.0)
    return (p * jnp.log((p + 1e-9) / (near / near.sum() + 1e-9))).sum()


def test_products_of_points_are_no_products_of_matrices() -> None:
    """Distances by a product of a few coordinates, and a diagonal filled in them, are in blocks."""
    gram = lambda x, y: jnp.exp(x @ y.T - (y**2).sum(1)).sum(1)  # noqa: E731
    assert fires(gram, (3000, 3), (3000, 3))
    assert not fires(gram, (3000, 9), (3000, 9))
    large = [jax.ShapeDtypeStruct((3000, 2), jnp.float32), jax.ShapeDtypeStruct((3000, 3000), jnp.float32)]
    for f in (tsne, jax.value_and_grad(tsne)):
        assert 5 * temporary_bytes(ag.optimize(f), large) <= temporary_bytes(f, large)
    y, p = normal(0, 90, 2), jax.nn.softmax(normal(1, 90 * 90)).reshape(90, 90)
    gradient = jax.value_and_grad(tsne)
    small = jax.jit(ag.optimize(gradient, passes=(*ag.compiler.DEFAULT_PASSES, SMALL)))
    close(small(y, p), jax.jit(gradient)(y, p), in_float64(gradient, (y, p)))


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_of_all_pairs_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    """No copy of it is made where no block divides its length, or it is cut along its last axis."""
    monkeypatch.setattr(streaming, "LEAST_COPY", 1 << 12)

    def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
        s = jnp.where(mask, k @ q.T, -1e9).T if turned else jnp.where(mask, q @ k.T, -1e9)
        return jax.nn.softmax(s, -1) @ v

    rows = 97  # no block divides it, nor M
    args = (normal(0, rows, 16), *TOKENS[1:], normal(3, *((M, rows) if turned else (rows, M))) > 0)
    program = traced(f, *args)
    new, decisions = SMALL(program, FAST)
    assert any(d.fired for d in decisions)
    assert max(v.aval.size for eqn in new.jaxpr.eqns for v in eqn.outvars) < rows * M // 2
    close(run(new, *args), [jax.jit(f)(*args)], [in_float64(f, args)])


def test_rows_that_are_put_together_are_in_no_memory() -> None:
    """XLA makes one kernel of a stack and its sum; in blocks all rows would be written first."""
    x = jax.ShapeDtypeStruct((300_000,), jnp.float32)
    for join in (lambda rows: jnp.stack(rows).sum(0), lambda rows: jnp.stack(rows, 1).max(1)):
        f = lambda x, join=join: join([jnp.roll(x, k) for k in range(20)])  # noqa: E731
        assert not [d for d in ag.explain(f)(x).fired if d.rule == "streaming"]
