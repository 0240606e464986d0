"""Attention is cuDNN's on a GPU, with its gradient; what is none, or what cuDNN computes otherwise, stays.

There is no GPU here: the platform is said to be one, and JAX's own attention stands for cuDNN's.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel._jax import mlir
from aerogel._jax.two_forms import _fused, two_forms_p
from aerogel.compiler.networks import attention_call, attention_layout

NAME = "fused-attention"
B, T, N, H = 2, 32, 4, 16
Form = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The platform is a GPU, small scores count, and what runs in the end is the form for it."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(_jax, "why_no_cudnn_attention", lambda: None)
    monkeypatch.setattr(attention_layout, "IMPLEMENTATION", "xla")
    monkeypatch.setattr(attention_call, "LEAST_BYTES", 0)
    mlir.register_lowering(two_forms_p, mlir.lower_fun(_fused, multiple_results=True), platform="cpu")
    jax.clear_caches()
    yield
    del mlir._platform_specific_lowerings["cpu"][two_forms_p]
    jax.clear_caches()


def inputs(*shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[Any]:
    """Random numbers."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def decisions(f: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What the pass decided."""
    return [d for d in ag.explain(f, **options)(*args).decisions if d.rule == NAME]


def forms(f: Callable[..., Any], *args: Any) -> int:
    """How many calls with two forms there are in a program, on all levels."""

    def count(jaxpr: Any) -> int:
        here = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "two_forms"]
        rest = [eqn for eqn in jaxpr.eqns if eqn.primitive.name != "two_forms"]
        return len(here) + sum(count(getattr(j, "jaxpr", j)) for eqn in rest for j in _jax.jaxprs_in_params(eqn.params))

    return count(jax.make_jaxpr(f)(*args).jaxpr)


def close(one: Any, other: Any, tolerance: float = 0.03) -> None:
    """Whether two trees of arrays are equal up to roundings of 16 bits."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, float(np.abs(b).max())), rtol=0)


def exact(f: Callable[..., Any], args: Any) -> Any:
    """The result of plain JAX in 32 bits, rounded to 16."""
    found = f(*(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in args))
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), found)


def naive(q: Any, k: Any, v: Any) -> Any:
    """[batch, time, heads, depth]."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def widened(q: Any, k: Any, v: Any) -> Any:
    """With a NumPy number, which makes all of it 32 bits wide, for a result of 16."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v).astype(q.dtype)


def matrices(q: Any, k: Any, v: Any) -> Any:
    """[batch, heads, time, depth], with products of matrices and a softmax by hand."""
    s = ((q * 0.25) @ k.swapaxes(-1, -2)).astype(jnp.float32)
    e = jnp.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(q.dtype) @ v


def head(q: Any, k: Any, v: Any) -> Any:
    """One head."""
    return jax.nn.softmax(q @ k.T / 4, axis=-1) @ v


def causal(q: Any, k: Any, v: Any, low: float = -1e9, mask: Any = None) -> Any:
    """With a causal mask."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)) if mask is None else mask
    weights = jax.nn.softmax(jnp.where(mask, scores, low).astype(jnp.float32), axis=-1).astype(q.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def counted(q: Any, k: Any, v: Any) -> Any:
    """A causal mask of counters, of scores that are scaled behind it."""
    i = jnp.arange(q.shape[1])
    scores = jnp.where(i[:, None] < i[None, :], -jnp.inf, jnp.einsum("bthd,bshd->bhts", q, k)) / 4
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def added(q: Any, k: Any, v: Any) -> Any:
    """A causal mask that is added."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / 4
    scores = scores + jnp.triu(jnp.full((q.shape[1], k.shape[1]), -jnp.inf, q.dtype), 1)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def positions(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """A bias for each head."""
    scores = bias + jnp.einsum("bthd,bshd->bhts", q, k) / 4
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def queries_share(q: Any, k: Any, v: Any) -> Any:
    """One head of keys and values for all heads of queries."""
    scores = jnp.einsum("bthd,bsd->bhts", q, k) / 4
    return jnp.einsum("bhts,bsd->bthd", jax.nn.softmax(scores, axis=-1), v)


def equinoxes(q: Any, k: Any, v: Any) -> Any:
    """Equinox's multi-head attention, without its projections."""
    return jax.vmap(jax.vmap(eqx.nn._attention.dot_product_attention, 1, 1))(q, k, v)


def ours(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
    """Our layer's, for grouped heads."""
    before = jnp.arange(k.shape[1])[None] <= jnp.arange(q.shape[1])[:, None] if is_causal else None
    weights = ag.nn._attention.attention_weights(q, k, before)
    return ag.nn._attention.weighted_values(weights, v)


def jaxs(q: Any, k: Any, v: Any, *bias: Any, **options: Any) -> Any:
    """JAX's own, which is not cuDNN's unless it is asked for."""
    return jax.nn.dot_product_attention(q, k, v, *bias, **options)


WHOLE, SHARED = (B, T, N, H), (B, T, 2, H)
FORMS: dict[str, Form] = {
    "naive": (naive, (WHOLE,) * 3),
    "widened": (widened, (WHOLE,) * 3),
    "matrices": (matrices, ((B, N, T, H),) * 3),
    "matrices of other lengths": (matrices, ((B, N, T, H), (B, N, 48, H), (B, N, 48, H))),
    "one head": (head, ((T, H),) * 3),
    "mapped": (jax.vmap(jax.vmap(head, 1, 1)), (WHOLE,) * 3),
    "mapped over leading": (jax.vmap(jax.vmap(head)), ((B, N, T, H),) * 3),
    "mapped over queries": (jax.vmap(head, (0, None, None)), ((B, T, H), (T, H), (T, H))),
    "causal": (causal, (WHOLE,) * 3),
    "causal, of counters": (counted, (WHOLE,) * 3),
    "causal, added": (added, (WHOLE,) * 3),
    "bias": (positions, (*(WHOLE,) * 3, (1, N, T, T))),
    "one head of keys": (queries_share, (WHOLE, (B, T, H), (B, T, H))),
    "Equinox": (equinoxes, (WHOLE,) * 3),
    "ours": (ours, (WHOLE,) * 3),
    "ours, grouped, causal": (lambda q, k, v: ours(q, k, v, True), (WHOLE, SHARED, SHARED)),
    "JAX": (jaxs, (WHOLE,) * 3),
    "JAX, grouped": (jaxs, (WHOLE, SHARED, SHARED)),
    "JAX, causal": (lambda q, k, v: jaxs(q, k, v, is_causal=True), (WHOLE,) * 3),
    "JAX, grouped, causal": (lambda q, k, v: jaxs(q, k, v, is_causal=True), (WHOLE, SHARED, SHARED)),
    "keys that a batch shares": (
        lambda q, k, v: jnp.einsum("bts,bsd->btd", jax.nn.softmax(q @ k.T / 4, axis=-1), v),
        ((B, T, H), (T, H), (B, T, H)),
    ),
    "queries that a batch shares": (
        lambda q, k, v: jax.vmap(head, (None, 0, 0))(q, k, v),
        ((T, H), (B, T, H), (B, T, H)),
    ),
    "JAX, bias": (jaxs, (*(WHOLE,) * 3, (1, N, T, T))),
}


@pytest.mark.parametrize("name", FORMS)
def test_fires(name: str) -> None:
    """Each spelling is found, with the same numbers, and its gradient is of two forms."""
    f, shapes = FORMS[name]
    args = inputs(*shapes)
    assert next((d.fired, d.reason) for d in decisions(f, *args))[0], decisions(f, *args)
    close(jax.jit(ag.optimize(f))(*args), exact(f, args))

    def loss(*args: Any) -> Any:
        return jnp.sin(f(*args).astype(jnp.float32)).sum()

    every = tuple(range(len(args)))
    gradient = ag.optimize(ag.grad(loss, every))
    assert forms(gradient, *args) == 2  # one that keeps what the other reads
    close(jax.jit(gradient)(*args), exact(jax.grad(loss, every), args), 0.06)


@pytest.mark.parametrize("name", FORMS)
def test_gradient_that_jax_wrote(name: str) -> None:
    """What `jax.grad` makes of each spelling is two forms, too: JAX has differentiated, and then it is optimised."""
    f, shapes = FORMS[name]
    args = inputs(*shapes)

    def loss(*args: Any) -> Any:
        return jnp.sin(f(*args).astype(jnp.float32)).sum()

    every = tuple(range(len(args)))
    gradient = jax.value_and_grad(loss, every)
    assert [d.fired and d.what.endswith("and so is its gradient") for d in decisions(gradient, *args)] == [True]
    assert forms(ag.optimize(gradient), *args) == 2
    close(jax.jit(ag.optimize(gradient))(*args)[1], exact(jax.grad(loss, every), args), 0.06)


def test_layers() -> None:
    """Attention between projections, as layers have it."""
    layer = ag.nn.MultiheadAttention(4, 64, is_causal=True, dtype=jnp.bfloat16, key=jax.random.key(0))
    (x,) = inputs((B, T, 64))
    run = lambda x: layer(x)  # noqa: E731
    assert [d.fired for d in decisions(run, x)] == [True]
    close(jax.jit(ag.optimize(run))(x), run(x))
    other = eqx.nn.MultiheadAttention(4, 64, dtype=jnp.bfloat16, key=jax.random.key(0))
    many = jax.vmap(lambda x: other(x, x, x))
    assert [d.fired for d in decisions(many, x)] == [True]
    close(jax.jit(ag.optimize(many))(x), many(x))
    flaxes = linen.MultiHeadDotProductAttention(4, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    params = flaxes.init(jax.random.key(0), x)
    applied = lambda params, x: flaxes.apply(params, x)  # noqa: E731
    assert [d.fired for d in decisions(applied, params, x)] == [True]
    close(jax.jit(ag.optimize(applied))(params, x), applied(params, x))


MANY = inputs(*(WHOLE,) * 3)
AGAIN = [x + 0.5 for x in MANY]


def total(q: Any, k: Any, v: Any) -> Any:
    """A number."""
    return jnp.sin(naive(q, k, v).astype(jnp.float32)).sum()


def layers(q: Any, k: Any, v: Any) -> Any:
    """Attention in a loop."""
    return jnp.sin(
        lax.scan(lambda c, _: (naive(c, k, v).astype(c.dtype), None), q, None, length=3)[0].astype(jnp.float32)
    ).sum()


TRANSFORMED: dict[str, tuple[Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]], int]] = {
    # With what wraps a function, and how many calls of two forms there are: none where other derivatives are taken.
    "forward mode": (lambda o, f: lambda *a: jax.jvp(o(f), a, tuple(AGAIN)), 0),
    "linearize": (lambda o, f: lambda *a: jax.linearize(o(f), *a)[1](*AGAIN), 0),
    "forward over reverse": (lambda o, f: lambda *a: jax.jvp(jax.grad(o(f)), a, tuple(AGAIN)), 0),
    "reverse over forward": (lambda o, f: jax.grad(lambda *a: jax.jvp(o(f), a, tuple(AGAIN))[1]), 0),
    "reverse over reverse": (lambda o, f: jax.grad(lambda *a: jnp.vdot(jax.grad(o(f))(*a), AGAIN[0])), 0),
    "mapped gradient": (
        lambda o, f: lambda q, k, v: jax.vmap(jax.grad(o(f)), (0, None, None))(jnp.stack([q, k]), k, v),
        2,
    ),
    "gradient of mapped": (
        lambda o, f: jax.grad(lambda q, k, v: jax.vmap(o(f), (None, 0, None))(q, jnp.stack([q, k]), v).sum()),
        2,
    ),
    "all gradients": (lambda o, f: jax.value_and_grad(o(f), (0, 1, 2)), 2),
    "checkpoint": (lambda o, f: jax.grad(jax.checkpoint(o(f))), 3),
    "checkpoint inside": (lambda o, f: jax.grad(o(jax.checkpoint(f))), 3),
    "jit between": (lambda o, f: jax.grad(jax.jit(o(f))), 2),
    "loop": (lambda o, f: jax.grad(o(lambda q, k, v: layers(q, k, v)), (0, 1, 2)), 2),
    "loop outside": (
        lambda o, f: jax.grad(
            lambda q, k, v: lax.scan(lambda c, _: (c + o(f)(q * c, k, v), None), 0.1, None, length=2)[0]
        ),
        2,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed(name: str) -> None:
    """Every transformation goes through; where a kernel has no derivative, the plain form has it."""
    make, count = TRANSFORMED[name]
    assert forms(make(ag.optimize, total), *MANY) == count
    found, plain = (jax.jit(make(wrap, total))(*MANY) for wrap in (ag.optimize, lambda f: f))
    close(found, plain, 0.15 if "over" in name else 0.08)


def blocks(run: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of three causal layers by their weights, as `run` runs a step over them."""

    def block(x: Any, w: Any) -> tuple[Any, None]:
        q, k, v = jnp.split((x @ w).reshape(B, T, N, 3 * H), 3, -1)
        return x + counted(q, k, v).reshape(x.shape), None

    def loss(ws: Any, x: Any) -> Any:
        return (run(block)(x, ws)[0].astype(jnp.float32) ** 2).mean()

    return jax.value_and_grad(loss, (0, 1))


def one_by_one(block: Callable[..., Any]) -> Callable[..., Any]:
    """Layers without a loop."""

    def run(x: Any, ws: Any) -> tuple[Any, None]:
        for w in ws:
            x = block(x, w)[0]
        return x, None

    return run


LAYERS = inputs((3, N * H, 3 * N * H), (B, T, N * H))
LAYERS[0] = LAYERS[0] / 8
WRITTEN: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
    # With the arguments, and how many calls of two forms there are.
    "one for all": (jax.grad(lambda x: total(x, x, x)), MANY[:1], 2),
    "one for all, and for something else": (
        jax.grad(lambda x: (x[0] ** 2).sum() + total(x, x, x) + (x**3).sum()),
        MANY[:1],
        2,
    ),
    "views of one, and of something else": (
        jax.grad(
            lambda x: (
                jnp.sin(matrices(*(h := x.swapaxes(1, 2),) * 3).astype(jnp.float32)).sum()
                + jnp.cos(h).astype(jnp.float32).sum()
            )
        ),
        MANY[:1],
        2,
    ),
    "cotangents of one, apart": (
        lambda x, v: jax.vjp(total, x, x, v)[1](1.0),
        MANY[:2],
        0,
    ),
    "one for queries and keys": (jax.value_and_grad(lambda x, v: total(x, x, v), (0, 1)), MANY[:2], 2),
    "of queries": (jax.grad(total), MANY, 2),
    "of keys": (jax.value_and_grad(total, 1), MANY, 2),
    "of values": (jax.grad(total, 2), MANY, 2),
    "a result that nothing reads": (jax.grad(lambda *a: naive(*a).sum(), (0, 1, 2)), MANY, 2),
    "the same, causal": (jax.grad(lambda *a: causal(*a).sum(), (0, 1, 2)), MANY, 2),
    "the same, matrices": (
        jax.grad(lambda *a: matrices(*(x.swapaxes(1, 2) for x in a)).sum(), (0, 1, 2)),
        MANY,
        2,
    ),
    "keys that are shared": (
        jax.value_and_grad(lambda q, k, v: total(causal(q, k, v), k, v) + (k * v).sum(), (0, 1, 2)),
        MANY,
        4,
    ),
    "a training loop": (
        lambda *a: lax.scan(
            lambda c, _: (
                tuple(x - 0.1 * y for x, y in zip(c, jax.grad(total, (0, 1, 2))(*c), strict=True)),
                c[0].sum(),
            ),
            tuple(a),
            None,
            length=3,
        ),
        MANY,
        2,
    ),
    "layers in a loop": (jax.grad(layers, (0, 1, 2)), MANY, 3),
    "causal layers": (blocks(one_by_one), LAYERS, 6),
    "causal layers in a loop": (blocks(lambda block: lambda x, ws: lax.scan(block, x, ws)), LAYERS, 3),
    "made again in a loop": (blocks(lambda block: lambda x, ws: lax.scan(jax.checkpoint(block), x, ws)), LAYERS, 3),
    "made again": (blocks(lambda block: one_by_one(jax.checkpoint(block))), LAYERS, 9),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name: str) -> None:
    """Gradients that JAX has written, in loops of layers too, which store queries, keys and values alone."""
    f, args, count = WRITTEN[name]
    assert forms(ag.optimize(f), *args) == count, decisions(f, *args)
    close(jax.jit(ag.optimize(f))(*args), jax.jit(f)(*args), 0.08)


def test_a_loop_stores_no_scores() -> None:
    """What is left of a loop of layers has nothing that is as large as the scores."""
    f = blocks(lambda block: lambda x, ws: lax.scan(block, x, ws))
    stored = next(d for d in decisions(f, *LAYERS) if "stores" in d.what)
    assert stored.fired
    assert stored.peak_bytes_saved > 3 * B * N * T * T * 2
    loops = [eqn for eqn in jax.make_jaxpr(ag.optimize(f))(*LAYERS).jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(loops) == 2
    assert not any(v.aval.shape[-2:] == (T, T) for eqn in loops for v in eqn.outvars)


def chain(**changes: Any) -> Callable[..., Any]:
    """An attention with one thing done otherwise."""

    def f(q: Any, k: Any, v: Any, *more: Any) -> Any:
        scores = changes.get("scores", lambda s, *_: s)(jnp.einsum("bthd,bshd->bhts", q, k) / 4, *more)
        weights = changes.get("softmax", lambda s: jax.nn.softmax(s, axis=-1))(scores)
        y = jnp.einsum("bhts,bshd->bthd", weights.astype(v.dtype), v)
        return changes.get("result", lambda y, scores, weights: y)(y, scores, weights)

    return f


NOT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "a mask that is given": (chain(scores=lambda s, m: jnp.where(m > 0, s, -1e9)), (*(WHOLE,) * 3, (T, T)), "empties"),
    "a mask above": (
        lambda q, k, v: causal(q, k, v, mask=jnp.triu(jnp.ones((T, T), bool))),
        (WHOLE,) * 3,
        "other dimensions",
    ),
    "a mask below": (
        lambda q, k, v: causal(q, k, v, mask=jnp.tril(jnp.ones((T, T), bool), -1)),
        (WHOLE,) * 3,
        "empties",
    ),
    "a mask of a window": (
        lambda q, k, v: causal(q, k, v, mask=jnp.tri(T, dtype=bool) & jnp.triu(jnp.ones((T, T), bool), -4)),
        (WHOLE,) * 3,
        "empties",
    ),
    "a mask that is not low": (lambda q, k, v: causal(q, k, v, low=-10.0), (WHOLE,) * 3, "no mask"),
    "causal, of more keys": (causal, (WHOLE, (B, 48, N, H), (B, 48, N, H)), "as many queries as keys"),
    "a bias that heads share": (positions, (*(WHOLE,) * 3, (B, 1, T, T)), "may be a mask"),
    "a bias of keys": (positions, (*(WHOLE,) * 3, (1, N, 1, T)), "may be a mask"),
    "a bias before scaling": (
        chain(scores=lambda s, b: (s + b) / 2),
        (*(WHOLE,) * 3, (1, N, T, T)),
        "scaled behind",
    ),
    "weights that are returned": (chain(result=lambda y, s, w: (y, w)), (WHOLE,) * 3, "read elsewhere"),
    "scores that are returned": (chain(result=lambda y, s, w: (y, s.sum())), (WHOLE,) * 3, "read elsewhere"),
    "a gradient beside weights that are learned from": (
        jax.grad(lambda *a: sum((x * x).sum() for x in chain(result=lambda y, s, w: (y, w))(*a))),
        (WHOLE,) * 3,
        "read elsewhere",
    ),
    "a mapped gradient": (
        lambda q, k, v: jax.vmap(jax.grad(total, (0, 1, 2)), (0, None, None))(jnp.stack([q, k]), k, v),
        (WHOLE,) * 3,
        "read elsewhere",
    ),
    "scores that nothing is learned from": (chain(scores=lax.stop_gradient), (WHOLE,) * 3, "`stop_gradient`"),
    "capped scores": (chain(scores=lambda s: 5 * jnp.tanh(s / 5)), (WHOLE,) * 3, "`tanh`"),
    "no maximum": (
        chain(softmax=lambda s: jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True)),
        (WHOLE,) * 3,
        "expected `sub`",
    ),
    "a softmax over queries": (chain(softmax=lambda s: jax.nn.softmax(s, axis=-2)), (WHOLE,) * 3, "over the keys"),
    "a softmax of more": (
        chain(softmax=lambda s: (e := jnp.exp(s - s.max(-1, keepdims=True))) / (1 + e.sum(-1, keepdims=True))),
        (WHOLE,) * 3,
        "expected `reduce_sum`",
    ),
    "an odd depth": (naive, ((B, T, N, 12),) * 3, "multiple of 8"),
    "a large depth": (naive, ((B, T, N, 136),) * 3, "multiple of 8"),
    "values of another depth": (naive, (WHOLE, WHOLE, (B, T, N, 24)), "another depth"),
    "a temperature for each head": (chain(scores=lambda s, t: s * t), (*(WHOLE,) * 3, (N, 1, 1)), "one number"),
    "one query": (naive, ((B, 1, N, H), WHOLE, WHOLE), "one query"),
}


@pytest.mark.parametrize("name", NOT)
def test_stays(name: str) -> None:
    """Near misses stay, and the report says why."""
    f, shapes, reason = NOT[name]
    args = inputs(*shapes)
    found = decisions(f, *args)
    assert found
    assert not any(d.fired for d in found)
    assert reason in found[0].reason, found[0].reason


def test_says_nothing() -> None:
    """What has no softmax before a product is no near miss."""
    args = inputs(*(WHOLE,) * 3)
    assert not decisions(lambda q, k, v: jax.nn.softmax(q, axis=-1) + k + v, *args)
    dropped = chain(
        softmax=lambda s: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, s.shape), jax.nn.softmax(s), 0)
    )
    assert not decisions(dropped, *args)


def test_types() -> None:
    """Only 16 bits have the kernel; scores in 32 bits are welcome."""
    args = inputs(*(WHOLE,) * 3, dtype=jnp.float32)
    (found,) = decisions(naive, *args)
    assert not found.fired
    assert "float32" in found.reason
    half = inputs(*(WHOLE,) * 3, dtype=jnp.float16)
    assert [d.fired for d in decisions(naive, *half)] == [True]
    (found,) = decisions(lambda q, k, v: naive(q, k, v.astype(jnp.float32)), *inputs(*(WHOLE,) * 3))
    assert not found.fired
    assert "more bits" in found.reason
    (found,) = decisions(naive, *half[:2], args[2].astype(jnp.bfloat16))
    assert not found.fired


def test_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not under strict numerics, for small scores, without cuDNN, or on another platform."""
    assert not decisions(naive, *MANY, numerics="strict")
    monkeypatch.setattr(attention_call, "LEAST_BYTES", 4 << 20)
    assert [d.reason for d in decisions(naive, *MANY)] == ["its scores are small"]
    monkeypatch.setattr(attention_call, "LEAST_BYTES", 0)
    monkeypatch.undo()
    monkeypatch.setattr(attention_call, "LEAST_BYTES", 0)
    assert not decisions(naive, *MANY)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    (found,) = decisions(naive, *MANY)
    assert not found.fired
    assert "cuDNN" in found.reason


def test_what_jax_refuses_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own checks, made where the call is traced, are reasons and no failures."""
    monkeypatch.setattr(attention_layout, "IMPLEMENTATION", "cudnn")
    monkeypatch.setattr(_jax, "why_no_cudnn_attention", lambda: None)
    (found,) = decisions(naive, *MANY)
    assert not found.fired
    assert found.reason == "cuDNN does not take it: cuDNN is not detected."


def test_plain_on_other_devices() -> None:
    """What was decided for a GPU and runs elsewhere is the plain form."""
    del mlir._platform_specific_lowerings["cpu"][two_forms_p]
    try:
        args = MANY
        found, plain = (jax.jit(jax.value_and_grad(f))(*args) for f in (ag.optimize(total), total))
        close(found, plain, 0.05)
    finally:
        mlir.register_lowering(two_forms_p, mlir.lower_fun(_fused, multiple_results=True), platform="cpu")


def test_rest() -> None:
    """Nothing is done twice."""
    once = jax.make_jaxpr(ag.optimize(naive))(*MANY)
    assert not decisions(_jax.jaxpr_as_fun(once), *MANY)


def test_cudnns_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for a GPU is cuDNN's forward and backward kernel."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(attention_layout, "IMPLEMENTATION", "cudnn")
    program = jax.make_jaxpr(ag.optimize(ag.value_and_grad(total)))(*MANY)
    called = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "two_forms"]
    names = [[eqn.primitive.name for eqn in call.params["fused"].jaxpr.eqns] for call in called]
    assert len(names) == 2
    assert any("dot_product_attention_fwd" in name for name in names[0])
    assert any("dot_product_attention_bwd" in name for name in names[1])
    assert not any(eqn.primitive.name == "dot_general" for eqn in program.jaxpr.eqns)
    lowered = jax.jit(ag.optimize(ag.value_and_grad(total))).trace(*MANY).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("__cudnn$fmhaSoftmax(") == lowered.count("__cudnn$fmhaSoftmaxBackward(") == 1
    assert "dot_general" not in lowered
