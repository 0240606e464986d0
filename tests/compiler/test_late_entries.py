"""What is linear in rows of zeros, or of one number, with one entry each is done for the entries alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel.compiler.passes.early_picks import EarlyPicks
from compiler.loop_patterns import normal

N, V = 6, 80
Z, W = normal(0, N, V), normal(2, N, V)
T = jnp.array([3, 0, 79, 17, 1, 8])
FAR = jnp.array([3, 80, -81, 17, 1000, 8])
PASSES = (EarlyPicks(),)
LATE = "what is linear in one entry of each row is done for the entry"


def fired(f: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How often the pass does that."""
    reports: list[Any] = []
    jax.eval_shape(ag.optimize(f, passes=PASSES, on_report=reports.append, **options), *args)
    return sum(d.what == LATE for d in reports[0].fired)


def judged(f: Callable[..., Any], *args: Any) -> None:
    """The numbers stay."""
    ours, theirs = jax.jit(ag.optimize(f, passes=PASSES))(*args), jax.jit(f)(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        tol = 3e-2 if a.dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tol, atol=tol)


def whole(f: Callable[..., Any], *args: Any) -> list[str]:
    """The operations on whole arrays."""
    eqns = jax.make_jaxpr(f)(*args).eqns
    return [e.primitive.name for e in eqns if any(x.aval.size == N * V for x in (*e.invars, *e.outvars))]


def label(z: Any, t: Any) -> Any:
    """The logarithm of a label's probability, of the probabilities."""
    return jnp.log(jax.nn.softmax(z))[jnp.arange(len(t)), t].mean()


def focal(z: Any, t: Any) -> Any:
    """The focal loss, of the probability of the label."""
    p = jnp.take_along_axis(jax.nn.softmax(z), t[:, None], 1)[:, 0]
    return ((1 - p) ** 2 * jnp.log(p)).mean()


def focal_one_hot(z: Any, t: Any) -> Any:
    """The same, with one-hot rows."""
    p = jax.nn.log_softmax(z)
    return (jax.nn.one_hot(t, V, dtype=z.dtype) * (1 - jnp.exp(p)) ** 2 * p).sum(-1).mean()


def smooth(z: Any, t: Any) -> Any:
    """Smoothed labels."""
    return ((jax.nn.one_hot(t, V, dtype=z.dtype) * 0.9 + 0.1 / V) * jax.nn.log_softmax(z)).sum(-1).mean()


def smooth_where(z: Any, t: Any) -> Any:
    """The same, chosen."""
    return (jnp.where(jnp.arange(V) == t[:, None], 0.9, 0.1 / V) * jax.nn.log_softmax(z)).sum(-1).mean()


def smooth_terms(z: Any, t: Any) -> Any:
    """The same, in two terms."""
    p = jax.nn.log_softmax(z)
    return (0.9 * jnp.take_along_axis(p, t[:, None], 1)[:, 0] + 0.1 * p.mean(-1)).mean()


def by_hand(z: Any, t: Any) -> Any:
    """The maximum is differentiated, too."""
    d = z - z.max(1, keepdims=True)
    return (d[jnp.arange(len(t)), t] - jnp.log(jnp.exp(d).sum(1))).mean()


LOSSES = [label, focal, focal_one_hot, smooth, smooth_where, smooth_terms, by_hand]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses(loss: Callable[..., Any], dtype: str) -> None:
    """Gradients of cross-entropies: the entries are added to what the probabilities give."""
    f = jax.value_and_grad(loss)
    z = Z.astype(dtype)
    assert fired(f, z, T) >= 1
    judged(f, z, T)


def scattered(z: Any, w: Any, t: Any, mode: str = "fill") -> Any:
    """Entries in zeros, scaled by row and by entry, with a row and an array added, and summed up."""
    zeros = jnp.zeros((N, V), z.dtype).at[jnp.arange(N), t].add(z[:, 0], mode=mode)
    y = -(zeros * w) / (1 + w[:, :1] ** 2) + z[:, 1:2]
    return y.sum(1), y * w - z


# fmt: off
ENTRIES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "all operations": (scattered, (Z, W, T)),
    "out of bounds": (scattered, (Z, W, FAR)),
    "the nearest": (lambda z, w, t: scattered(z, w, t, "clip"), (Z, W, FAR)),
    "taken from": (lambda z, w, t: w - jnp.zeros((N, V)).at[jnp.arange(N), t].add(z[:, 0]) * w, (Z, W, T)),
    "one-hot rows": (lambda z, t: (jax.nn.one_hot(t, V) * z).sum(1), (Z, T)),
    "one-hot, out of bounds": (lambda z, t: ((0.5 * jax.nn.one_hot(t, V) + 0.25) * z).sum(1), (Z, FAR)),
    "one-hot columns": (lambda z, t: (jax.nn.one_hot(t, V, axis=0) * z.T).sum(0), (Z, T)),
    "one-hot, a sum of two": (lambda z, t: (lambda h: (h * z - h * jnp.exp(z)).sum(1))(jax.nn.one_hot(t, V)), (Z, T)),
    "of three dimensions": (lambda z, t: (jax.nn.one_hot(t, V) * z).sum(-1),
                            (normal(1, 3, N, V), jnp.stack([T, FAR, T]))),
    "in a result": (lambda z, t: jax.nn.one_hot(t, V) * jnp.exp(z) * z + z, (Z, T)),
    "in a scan": (lambda z, t: lax.scan(lambda c, t: (c + 1, (jax.nn.one_hot(t, V) * jnp.sin(z + c)).sum(1)), 0.0,
                                        jnp.stack([t, FAR]))[1], (Z, T)),
}
LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "read by something else": (lambda z, w, t: jnp.exp(jnp.zeros((N, V)).at[jnp.arange(N), t].add(z[:, 0]) * w),
                               (Z, W, T)),
    "times what was added beside": (lambda z, t: ((jax.nn.softmax(z) - jax.nn.one_hot(t, V)) * z).sum(1), (Z, T)),
    "divides": (lambda z, t: (z / (1 + jax.nn.one_hot(t, V))).sum(1), (Z, T)),
    "summed up along the other dimension": (lambda z, t: (jax.nn.one_hot(t, V) * z).sum(0), (Z, T)),
    "most of the entries": (lambda z, t: (jax.nn.one_hot(t, 4) * z[:, :4]).sum(1), (Z, T)),
    "added only": (lambda z, t: jax.nn.one_hot(t, V) + z, (Z, T)),
    "of two signs": (lambda z, t: (jnp.where(jnp.arange(V) == t[:, None], 1.0, -1.0) * z).sum(1), (Z, T)),
    "of integers": (lambda z, t: (jax.nn.one_hot(t, V, dtype=int) * (9 * z).astype(int)).sum(1), (Z, T)),
    "the square": (lambda z, t: (jax.nn.one_hot(t, V) * jax.nn.one_hot(t, V)) * z[:, :1] @ z.T, (Z, T)),
}
# fmt: on


@pytest.mark.parametrize("name", ENTRIES)
def test_entries(name: str) -> None:
    """Products, quotients, sums of rows and what is added, in any mode."""
    f, args = ENTRIES[name]
    assert fired(f, *args) >= 1
    judged(f, *args)
    judged(lambda *args: jax.grad(lambda *a: sum(jnp.sum(x**2) for x in jax.tree.leaves(f(*a))))(*args), *args)


@pytest.mark.parametrize("name", LEFT)
def test_near_misses(name: str) -> None:
    """What needs the whole value, or would cancel, or is nothing to gain, stays."""
    f, args = LEFT[name]
    assert fired(f, *args) == 0
    judged(f, *args)


def test_zeros_are_divided_by_nothing() -> None:
    """Where probabilities are 0 in the type, JAX divides 0 by 0; the gradient has these rows, too."""
    z = jnp.asarray(Z).at[:, 5].set(-1e4)
    assert np.isnan(jax.grad(label)(z, T)).any()
    want = jax.grad(lambda z: jax.nn.log_softmax(z)[jnp.arange(N), T].mean())(z)
    np.testing.assert_allclose(jax.jit(ag.optimize(jax.grad(label)))(z, T), want, rtol=1e-5, atol=1e-6)


def test_strict_and_no_rows() -> None:
    """Not in strict mode: it sums up in another order. Of no rows there are no entries."""
    f = jax.value_and_grad(smooth)
    assert fired(f, Z, T, numerics="strict") == 0
    empty = jax.jit(ag.optimize(jax.grad(lambda z, t: smooth(z, t) + label(z, t))))(Z[:0], T[:0])
    assert empty.shape == (0, V)


def test_little_is_left_of_it() -> None:
    """A focal loss makes the exponentials of the softmax, and of the loss nothing as large as the logits."""
    f = jax.value_and_grad(focal_one_hot)
    assert len(whole(f, Z, T)) > 15
    assert len(whole(ag.optimize(f), Z, T)) <= 8


def test_nothing_is_stored() -> None:
    """Gradients of smoothed labels hold nothing of the size of the logits beside the result."""
    z, t = normal(5, 1024, 2048), jnp.arange(1024)

    def loss(z: Any, t: Any) -> Any:
        return -((jax.nn.one_hot(t, 2048) * 0.9 + 0.1 / 2048) * jax.nn.log_softmax(z)).sum(-1).mean()

    f = jax.value_and_grad(loss)
    plain, ours = (jax.jit(g).lower(z, t).compile() for g in (f, ag.optimize(f)))
    temp = [one.memory_analysis().temp_size_in_bytes for one in (plain, ours)]
    assert temp[0] >= 2 * z.nbytes
    assert temp[1] < z.nbytes / 16
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), plain(z, t), ours(z, t))
