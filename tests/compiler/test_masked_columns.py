"""Loops and levels that leave out what a mask empties."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler import DEFAULT_PASSES
from aerogel.compiler.level import Level
from aerogel.compiler.masks import split_rows
from aerogel.compiler.masks.visible import Known, Part
from aerogel.compiler.normalize import normalize
from aerogel.compiler.passes.masked_columns import NAME, MaskedColumns
from compiler.programs_of import FAST, run, traced

WITHOUT = tuple(p for p in ag.compiler.DEFAULT_PASSES if p.name != NAME)
T = 512


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


QKV = tuple(normal(k, 5, T, 16) for k in range(3))


def fired(f: Callable[..., Any], *args: Any) -> int:
    """How many loops and levels leave something out."""
    return sum(d.rule == NAME for d in ag.explain(f)(*args).fired)


def temporary(f: Callable[..., Any], *args: Any) -> int:
    """Bytes of temporary memory of the compiled program."""
    plan: Any = jax.jit(f).lower(*args).compile().memory_analysis()
    return plan.temp_size_in_bytes


def attended(masked: Callable[[Any], Any], q: Any, k: Any, v: Any) -> Any:
    """Attention whose scores go through `masked`."""
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return jax.nn.softmax(masked(s), -1) @ v


def tril(s: Any) -> Any:
    """Keys up to the query."""
    return jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)


def places(s: Any) -> Any:
    """The same by places, with a number that no score is."""
    i, j = jnp.arange(s.shape[-2]), jnp.arange(s.shape[-1])
    return jnp.where(j[None] > i[:, None], -1e9, s)


def added(s: Any) -> Any:
    """The same as a sum."""
    return s + (1 - jnp.tril(jnp.ones(s.shape[-2:], s.dtype))) * -1e9


def window(s: Any) -> Any:
    """Keys of the last 64 places."""
    i = jnp.arange(s.shape[-1])
    d = i[:, None] - i
    return jnp.where((d >= 0) & (d < 64), s, jnp.finfo(s.dtype).min)


def band(s: Any) -> Any:
    """Keys near the query on both sides."""
    i = jnp.arange(s.shape[-1])
    return jnp.where(jnp.abs(i[:, None] - i) <= 32, s, -jnp.inf)


def before(s: Any) -> Any:
    """Keys from the query on."""
    return jnp.where(jnp.triu(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)


def not_upper(s: Any) -> Any:
    """Keys up to the query, by what is above the diagonal."""
    return jnp.where(~jnp.triu(jnp.ones(s.shape[-2:], bool), 1), s, -1e30)


MASKS = (tril, places, added, window, band, before, not_upper)


def padded(q: Any, k: Any, v: Any) -> Any:
    """Keys up to the query that are there: which are is data, and nothing may be."""
    causal = jnp.tril(jnp.ones((T, T), bool))
    return attended(lambda s: jnp.where(causal & (v[:, None, :, 0] > -2), s, -jnp.inf), q, k, v)


def dotted(q: Any, k: Any, v: Any) -> Any:
    """JAX's own attention."""
    q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def with_weights(q: Any, k: Any, v: Any) -> Any:
    """Attention that gives its weights, too."""
    p = jax.nn.softmax(tril(q @ k.swapaxes(-1, -2)), -1)
    return p @ v, p


def of_heads(q: Any, k: Any, v: Any) -> Any:
    """One head after the other, by `vmap`."""
    return jax.vmap(partial(attended, places))(q, k, v)


FORMS: dict[str, Callable[..., Any]] = {
    **{mask.__name__: partial(attended, mask) for mask in MASKS},
    "padded": padded,
    "dotted": dotted,
    "with weights": with_weights,
    "of heads": of_heads,
}


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient of a loss of all results."""

    def loss(*args: Any) -> Any:
        return sum(jnp.sum(jnp.sin(x) * x) for x in jax.tree.leaves(f(*args)))

    return jax.value_and_grad(loss, (0, 1, 2))


def check(f: Callable[..., Any], *args: Any, tolerance: float = 2e-5) -> None:
    """The optimised function gives what the function gives."""
    want, got = (jax.tree.leaves(jax.jit(g)(*args)) for g in (f, ag.optimize(f)))
    for a, b in zip(want, got, strict=True):
        assert a.dtype == b.dtype
        finite = jnp.where(jnp.isfinite(a), a, 0).astype(jnp.float32)
        scale = float(jnp.max(jnp.abs(finite))) + 1e-30
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=tolerance * scale)


@pytest.mark.parametrize("name", FORMS)
def test_attention_reads_what_its_mask_leaves(name: str) -> None:
    """However a mask is spelt."""
    assert fired(FORMS[name], *QKV) == 1
    check(FORMS[name], *QKV)


@pytest.mark.parametrize("name", FORMS)
def test_gradients_do(name: str) -> None:
    """Inside of what is optimised."""
    assert fired(gradient(FORMS[name]), *QKV) >= 1
    check(gradient(FORMS[name]), *QKV)


def test_gradients_from_outside_do() -> None:
    """The gradient of an optimised function."""
    f = FORMS["places"]
    want, got = (jax.tree.leaves(jax.jit(gradient(g))(*QKV)) for g in (f, ag.optimize(f)))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(a).max()))


def test_second_derivatives_do() -> None:
    """A product with a Hessian."""

    def product(q: Any, k: Any, v: Any) -> Any:
        f = lambda q: jnp.sum(jnp.tanh(FORMS["tril"](q, k, v)))  # noqa: E731
        return jax.jvp(jax.grad(f), (q,), (k,))[1]

    assert fired(product, *QKV) >= 1
    check(product, *QKV)


def test_half_precision() -> None:
    """Products of bfloat16, and a softmax in float32."""
    q, k, v = (x.astype(jnp.bfloat16) for x in QKV)

    def f(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("htd,hsd->hts", q, k, preferred_element_type=jnp.float32)
        return jnp.einsum("hts,hsd->htd", jax.nn.softmax(tril(s), -1).astype(q.dtype), v)

    assert fired(f, q, k, v) == 1
    check(f, q, k, v, tolerance=1e-2)
    check(gradient(f), q, k, v, tolerance=3e-2)


def test_less_time_takes_less_memory() -> None:
    """What is left out is not kept for the gradient either."""
    f = gradient(FORMS["tril"])
    assert 1.25 * temporary(ag.optimize(f), *QKV) < temporary(ag.optimize(f, passes=WITHOUT), *QKV)


def of_other_length(q: Any, k: Any, v: Any) -> Any:
    """Of fewer queries, which come last."""
    s = q[:, T // 2 :] @ k.swapaxes(-1, -2)
    i, j = jnp.arange(T // 2) + T // 2, jnp.arange(T)
    return jax.nn.softmax(jnp.where(i[:, None] >= j, s, -jnp.inf), -1) @ v


def blocked(f: Callable[..., Any], again: Callable[..., Any] = lambda block: block) -> Callable[..., Any]:
    """Attention over blocks of queries, as people write it to save memory; `again`: for its gradient, too."""

    def run(q: Any, k: Any, v: Any) -> Any:
        size = 32

        def block(carry: Any, one: Any) -> Any:
            at, rows = one
            s = rows @ k.T
            i, j = at * size + jnp.arange(size), jnp.arange(k.shape[0])
            return carry + 1, jax.nn.softmax(f(s, i, j), -1) @ v

        blocks = q.reshape(-1, size, q.shape[-1])
        _, out = lax.scan(again(block), jnp.int32(0), (jnp.arange(len(blocks)), blocks))
        return out.reshape(q.shape[0], -1)

    return run


SCORES: dict[str, Callable[..., Any]] = {
    "causal": lambda s, i, j: jnp.where(i[:, None] >= j, s, -jnp.inf),
    "window": lambda s, i, j: jnp.where((i[:, None] >= j) & (i[:, None] - j < 100), s, -1e9),
}
ROWS = tuple(normal(k, 1024, 16) for k in range(3))


@pytest.mark.parametrize("name", SCORES)
def test_steps_of_a_loop_do(name: str) -> None:
    """Value and gradient, whose steps go backwards and add to all keys; by itself: loops of so little are no loops."""
    for f in (blocked(SCORES[name]), gradient(blocked(SCORES[name], jax.checkpoint))):
        program = normalize(traced(f, *ROWS))[0]
        new, decisions = MaskedColumns()(program, FAST)
        assert any(d.fired for d in decisions)
        for a, b in zip(run(program, *ROWS), run(new, *ROWS), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(a).max()))


def test_streams_do() -> None:
    """Scores that are too large to exist."""
    qkv = tuple(normal(k, 1, 4096, 8) for k in range(3))
    assert fired(FORMS["tril"], *qkv) == 1
    assert temporary(ag.optimize(FORMS["tril"]), *qkv) * 4 < temporary(FORMS["tril"], *qkv)
    check(FORMS["tril"], *qkv)
    check(gradient(FORMS["tril"]), *qkv)


def left_padded(q: Any, k: Any, v: Any) -> Any:
    """The first rows see nothing: each takes the mean of all values."""
    there = jnp.arange(T) >= 100
    causal = jnp.tril(jnp.ones((T, T), bool))
    return attended(lambda s: jnp.where(causal & there, s, -1e9), q, k, v)


def by_data(q: Any, k: Any, v: Any) -> Any:
    """Which rows see something is data."""
    there = v[0, :, 0] > 0
    causal = jnp.tril(jnp.ones((T, T), bool))
    return attended(lambda s: jnp.where(causal & there, s, -1e9), q, k, v)


def zeros(q: Any, k: Any, v: Any) -> Any:
    """A score of 0 counts."""
    return attended(lambda s: jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, 0.0), q, k, v)


def low(q: Any, k: Any, v: Any) -> Any:
    """So does one that others may have."""
    return attended(lambda s: jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -10.0), q, k, v)


def scores(q: Any, k: Any, v: Any) -> Any:
    """What is masked is a result."""
    return tril(q @ k.swapaxes(-1, -2)), attended(tril, q, k, v)


def all_seen(q: Any, k: Any, v: Any) -> Any:
    """A mask that leaves nearly all."""
    i = jnp.arange(T)
    return attended(lambda s: jnp.where(i[:, None] >= i - 500, s, -jnp.inf), q, k, v)


@pytest.mark.parametrize("f", [left_padded, by_data, zeros, low, scores, all_seen])
def test_what_counts_is_not_left_out(f: Callable[..., Any]) -> None:
    """Near misses."""
    assert fired(f, *QKV) == 0
    check(f, *QKV)


def test_fewer_queries() -> None:
    """Rows and columns of different numbers: none is large enough for groups, and results agree."""
    check(of_other_length, *QKV)
    check(gradient(of_other_length), *QKV)


BLOCK = 128
ROWS = tuple(normal(k, 1024, 64) for k in range(3))


def in_blocks(masked: Callable[[Any, Any, Any], Any], q: Any, k: Any, v: Any) -> Any:
    """Attention over blocks of queries, cut out by hand, each against all keys."""
    outs = []
    for at in range(0, q.shape[0], BLOCK):
        s = masked(jnp.arange(at, at + BLOCK)[:, None], jnp.arange(k.shape[0]), q[at : at + BLOCK] @ k.T / 8)
        outs.append(jax.nn.softmax(s) @ v)
    return jnp.concatenate(outs)


BLOCKS: dict[str, tuple[Callable[..., Any], int]] = {
    "causal": (lambda i, j, s: jnp.where(i >= j, s, -jnp.inf), 6),
    "a low number": (lambda i, j, s: jnp.where(i < j, -1e9, s), 6),
    "a window": (lambda i, j, s: jnp.where((i >= j) & (i - j < 100), s, -jnp.inf), 8),
    "added": (lambda i, j, s: s + jnp.where(i >= j, 0.0, -1e9), 6),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_queries_read_what_their_mask_leaves(name: str) -> None:
    """Each block of its own, though all read the same keys and are masked by one number; so do gradients."""
    masked, count = BLOCKS[name]
    f = partial(in_blocks, masked)
    assert fired(f, *ROWS) == count
    g = jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2))
    assert fired(g, *ROWS) == count
    assert temporary(ag.optimize(f), *ROWS) <= temporary(f, *ROWS)
    for h in (f, g):
        for got, want in zip(*(jax.tree.leaves(jax.jit(k)(*ROWS)) for k in (ag.optimize(h), h)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def all_of_them(i: Any, j: Any, s: Any) -> Any:
    """A mask that leaves each key to some query of the block."""
    return jnp.where((i + j) % 2 == 0, s, -jnp.inf)


def not_at_the_ends(i: Any, j: Any, s: Any) -> Any:
    """A mask that empties columns in the middle."""
    return jnp.where((j < 100) | (j > 900), s, -jnp.inf)


def of_zeros(i: Any, j: Any, s: Any) -> Any:
    """Zeros count in a softmax."""
    return jnp.where(i >= j, s, 0.0)


@pytest.mark.parametrize("masked", [all_of_them, not_at_the_ends, of_zeros])
def test_blocks_that_read_all_are_left(masked: Callable[..., Any]) -> None:
    """Nothing at the ends is empty, or what is there counts."""
    f = partial(in_blocks, masked)
    assert fired(f, *ROWS) == 0
    np.testing.assert_allclose(jax.jit(ag.optimize(f))(*ROWS), jax.jit(f)(*ROWS), rtol=1e-4, atol=1e-5)


def test_small_blocks_are_left() -> None:
    """Of 32 queries there is little to leave out."""
    f = partial(attended, lambda s: jnp.where(jnp.arange(300) < 32, s, -jnp.inf))
    assert fired(f, *(x[:n, :16] for x, n in zip(ROWS, (32, 300, 300), strict=True))) == 0


def lowest(q: Any, k: Any, v: Any) -> Any:
    """Minus infinity, as a number."""
    seen = jnp.tril(jnp.ones((q.shape[0], k.shape[0]), bool))
    return jax.nn.softmax(jnp.where(seen, q @ k.T / 8, -1e9), -1) @ v


def test_cut_counters_cost_nothing() -> None:
    """XLA makes shorter ones. Priced as copies, one head seemed not to pay."""
    args = tuple(normal(k, 1024, 64) for k in range(3))
    for f in (lowest, gradient(lowest)):
        passes = tuple(replace(one, least_bytes=4 << 20) if one.name == NAME else one for one in DEFAULT_PASSES)
        reports: list[Any] = []
        jax.make_jaxpr(ag.optimize(f, passes=passes, on_report=reports.append))(*args)
        assert any(d.rule == NAME for d in reports[0].fired)
        check(f, *args)


@pytest.mark.parametrize("diagonal", [-jnp.inf, 1e6])
def test_a_diagonal_is_found_out_soon(diagonal: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs but the own one: of seven groups two are written, and the reason is said. A large number is no mask."""
    written: list[tuple[int, int]] = []
    run = split_rows._Group.run
    monkeypatch.setattr(split_rows._Group, "run", lambda self, *ends: (written.append(ends), run(self, *ends))[1])

    def others(x: jax.Array) -> jax.Array:
        own = jnp.where(jnp.eye(len(x), dtype=bool), diagonal, 0.0)
        return jnp.exp(own + x[:, None] * x).sum(1)

    x = jnp.linspace(0, 3, 1000)
    reasons = [d.reason for d in ag.explain(others)(x).decisions if d.rule == "masked-columns"]
    assert set(reasons) == ({"its first rows and its last ones see all columns"} if diagonal < 0 else set())
    assert {first for first, _ in written} == ({0, 1000 * 6 // 7} if diagonal < 0 else set())
    assert len(written) == 2 * len(reasons)
    check(others, x)


@pytest.mark.parametrize("shape", [(1024, 64), (700, 32), (2, 520, 48)])
def test_one_head_is_put_into_groups(shape: tuple[int, ...]) -> None:
    """And few scores, from 1 MB on."""
    args = tuple(normal(k, *shape) for k in range(3))
    for f in (FORMS["tril"], gradient(FORMS["tril"])):
        assert fired(f, *args) >= 1
        check(f, *args)


def test_few_scores_are_left() -> None:
    """Less than 1 MB of them in no loop, and what groups of so few rows would cost."""
    for shape in ((500, 16), (3, 200, 16)):
        assert fired(FORMS["tril"], *(normal(k, *shape) for k in range(3))) == 0


def test_strict_leaves_it() -> None:
    """Other numbers of terms are another order of sums."""
    decisions = ag.explain(FORMS["tril"], numerics="strict")(*QKV).decisions
    assert not any(d.rule == NAME for d in decisions)


def test_a_report_says_what_is_left() -> None:
    """In the words of the user's shapes."""
    (decision,) = (d for d in ag.explain(FORMS["tril"])(*QKV).fired if d.rule == NAME)
    assert decision.what == "f32[5,512,512] behind a mask, which leaves 62% of it to 4 groups of rows"


def drawn(rng: np.random.Generator, i: Any, j: Any, data: Any, depth: int = 0) -> Any:
    """A random mask of places, with data here and there."""
    kind = rng.integers(4 if depth > 2 else 8)
    a, b = int(rng.integers(-8, 9)), int(rng.integers(1, 3))
    match kind:
        case 0:
            return i * b + a >= j
        case 1:
            return i - j < a
        case 2:
            return jnp.broadcast_to(j > a, jnp.broadcast_shapes(i.shape, j.shape))
        case 3:
            return jnp.broadcast_to(data > 0, jnp.broadcast_shapes(i.shape, j.shape))
        case 4:
            return ~drawn(rng, i, j, data, depth + 1)
        case 5:
            return drawn(rng, i, j, data, depth + 1) & drawn(rng, i, j, data, depth + 1)
        case 6:
            return drawn(rng, i, j, data, depth + 1) | drawn(rng, i, j, data, depth + 1)
        case _:
            return jnp.where(
                drawn(rng, i, j, data, depth + 1),
                drawn(rng, i, j, data, depth + 1),
                drawn(rng, i, j, data, depth + 1),
            )


@pytest.mark.parametrize("seed", range(60))
def test_what_is_seen_is_not_left_out(seed: int) -> None:
    """Of random masks: true somewhere is said to be anywhere, and what is said to be everywhere is."""
    rows, columns = 70, 90
    data = normal(seed, columns)

    def mask(data: Any) -> Any:
        return drawn(np.random.default_rng(seed), jnp.arange(rows)[:, None], jnp.arange(columns)[None], data)

    program = traced(mask, data)
    known = Part(Level(program.jaxpr), around=Known(Level(program.jaxpr)), reads={})
    (out,) = program.jaxpr.outvars
    true = np.asarray(mask(data))
    for dim in (0, 1):
        seen = known.seen(out, dim)
        assert np.all(seen.anywhere | ~true.any(1 - dim))
        assert np.all(~seen.everywhere | true.all(1 - dim))
    assert not known.is_seen_by_all(out, 1, True) or true.any(1).all()
    assert not known.is_seen_by_all(out, 1, False) or (~true).any(1).all()


def test_tangents_in_half_precision() -> None:
    """An identity that a step adds, in a type without the numbers that masks are told by, is no mask."""
    step = lambda y, c: (y + 0.02 * jnp.sin(jnp.roll(y, 1)) * c, None)  # noqa: E731

    def layered(x: Any) -> Any:
        cs = jnp.linspace(0, 1, 9, dtype=x.dtype)
        return lax.fori_loop(0, 3, lambda _, y: lax.scan(step, jnp.tanh(y), cs)[0] + x, x)

    passes = [one for one in DEFAULT_PASSES if one.name != "basis-products"]
    jacobian = jax.jacfwd(layered)
    x = normal(0, 256, dtype="float16")
    got, want = (jax.jit(f)(x) for f in (ag.optimize(jacobian, passes=passes), jacobian))
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), atol=1e-2)
