"""Claim: a form of the catalogue costs what its expert form costs in spellings that nobody wrote rules or cases for.

`FIRES` says what must act on each of them; tests/test_spellings.py holds that, and that near misses are left alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)
FIRES: dict[str, str] = {}
CASES: list[Case] = []


def spelt(fires, name, natural, hand, args, grad=(), bounds=BOUNDS):
    """Adds a case, and what must fire in its value, and in its gradient if it has one."""
    FIRES[name] = fires
    CASES.append(Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=bounds, grad_bounds=bounds))


def square(n, *more):
    return lambda: (normal(0, n, n), normal(1, n, n), *more)


def tokens(count, size):
    return jax.random.randint(jax.random.key(7), (count,), 0, size)


TABLE = lambda: (normal(0, 5000, 64), tokens(4096, 5000))  # noqa: E731
DIAGONAL = lambda: (normal(0, 800), normal(1, 800, 800))  # noqa: E731
POINTS = lambda: (normal(0, 200_000, 3),)  # noqa: E731
STEPS = lambda: (normal(0, 2000, 64),)  # noqa: E731
STATE = lambda: (normal(0, 50_000),)  # noqa: E731

# rows 1 to 3: structured operands, orders of chains, parts of products
spelt(
    "contraction",
    "one-hot rows by einsum",
    lambda t, i: jnp.einsum("nv,vd->nd", jax.nn.one_hot(i, 5000), t),
    lambda t, i: t[i],
    TABLE,
    (0,),
)
spelt(
    "contraction",
    "one-hot rows by a comparison",
    lambda t, i: jnp.dot((i[:, None] == jnp.arange(5000)).astype(t.dtype), t),
    lambda t, i: t[i],
    TABLE,
)
spelt(
    "contraction",
    "an identity times a row, times a matrix",
    lambda d, a: (jnp.eye(800) * d) @ a,
    lambda d, a: d[:, None] * a,
    DIAGONAL,
)
spelt(
    "contraction",
    "a diagonal that was written into zeros",
    lambda d, a: jnp.zeros((800, 800)).at[jnp.diag_indices(800)].set(d) @ a,
    lambda d, a: d[:, None] * a,
    DIAGONAL,
    (0, 1),
)
spelt(
    "contraction",
    "three factors in one einsum",
    lambda a, b, x: jnp.einsum("ij,jk,k->i", a, b, x, optimize=False),
    lambda a, b, x: a @ (b @ x),
    lambda: (*square(500)(), normal(2, 500)),
    (0, 1, 2),
)
spelt(
    "contraction",
    "a trace by einsum",
    lambda a, b: jnp.einsum("ii->", a @ b),
    lambda a, b: jnp.sum(a * b.T),
    square(800),
    (0, 1),
)
spelt(
    "contraction",
    "a product times ones",
    lambda a, b: (a @ b) @ jnp.ones(800),
    lambda a, b: a @ jnp.sum(b, 1),
    square(800),
    (0, 1),
)
spelt(
    "contraction",
    "a mean of a layer",
    lambda x, w, b: jnp.mean(x @ w + b, axis=0),
    lambda x, w, b: jnp.mean(x, 0) @ w + b,
    lambda: (normal(0, 4000, 256), normal(1, 256, 256), normal(2, 256)),
    (0, 1, 2),
)
spelt(
    "contraction",
    "linear attention, normalised inside",
    lambda q, k, v: (lambda a: (a / a.sum(-1, keepdims=True)) @ v)(jnp.exp(q) @ jnp.exp(k).T),
    lambda q, k, v: (jnp.exp(q) @ (jnp.exp(k).T @ v)) / (jnp.exp(q) @ jnp.exp(k).sum(0))[:, None],
    lambda: (normal(0, 1024, 64), normal(1, 1024, 64), normal(2, 1024, 64)),
)
spelt(
    "contraction",
    "sums up to each row by a mask",
    lambda x: jnp.where(jnp.arange(1000)[:, None] >= jnp.arange(1000), 1.0, 0.0) @ x,
    lambda x: jnp.cumsum(x, 0),
    lambda: (normal(0, 1000, 64),),
    (0,),
)
spelt("excerpts", "an entry of a product", lambda a, b: (a @ b)[3, 7], lambda a, b: a[3] @ b[:, 7], square(800), (0, 1))
spelt(
    "excerpts",
    "a block of a product",
    lambda a, b: (a @ b)[2:50, 5:90],
    lambda a, b: a[2:50] @ b[:, 5:90],
    square(800),
    (0, 1),
)
spelt("excerpts", "a row of a product", lambda a, b: (a @ b)[17], lambda a, b: a[17] @ b, square(800), (0, 1))
spelt(
    "excerpts",
    "the last token of two layers",
    lambda x, w, v: (jax.nn.gelu(x @ w) @ v)[:, -1],
    lambda x, w, v: jax.nn.gelu(x[:, -1] @ w) @ v,
    lambda: (normal(0, 8, 128, 64), normal(1, 64, 256) / 8, normal(2, 256, 4000) / 16),
    (1, 2),
)
spelt(
    "excerpts",
    "an entry of sorted rows",
    lambda x: jnp.sort(x, 1)[:, :, 3],
    lambda x: jnp.sort(x[:, :, 3], 1),
    lambda: (normal(0, 64, 256, 64),),
    bounds=Bounds(over_hand=1.10, memory_over_hand=None),  # keys and places of one sort in 64 bits: 0.1 of 4.2 MB
)


# row 13: buffers that a loop walks along
def read_back(x):
    return lax.fori_loop(1, 2000, lambda i, y: y.at[i].set(jnp.tanh(y[i - 1] + x[i])), x)


def read_back_by_hand(x):
    return jnp.concatenate([x[:1], lax.scan(lambda c, v: (jnp.tanh(c + v),) * 2, x[0], x[1:])[1]])


def summed_up(x):
    return lax.fori_loop(1, 2000, lambda i, y: y.at[i].add(0.9 * jnp.sin(y[i - 1])), x)


def summed_up_by_hand(x):
    return jnp.concatenate([x[:1], lax.scan(lambda c, v: (v + 0.9 * jnp.sin(c),) * 2, x[0], x[1:])[1]])


def euler(x):
    start = jnp.zeros((2000, 64)).at[0].set(x[0])
    return lax.fori_loop(0, 1999, lambda i, y: y.at[i + 1].set(y[i] + 0.01 * jnp.sin(y[i])), start)


def euler_by_hand(x):
    ys = lax.scan(lambda c, _: (c + 0.01 * jnp.sin(c),) * 2, x[0], None, length=1999)[1]
    return jnp.concatenate([x[:1], ys])


# Forwards XLA's writes in place are as fast: the rows are put together once more.
BACK = Bounds(over_hand=1.25, over_natural=1.10)
spelt("loop-slots", "the row before is read back", read_back, read_back_by_hand, STEPS, (0,), BACK)
spelt("loop-slots", "a running sum in its buffer", summed_up, summed_up_by_hand, STEPS, (0,))
spelt("loop-slots", "Euler's steps in a buffer", euler, euler_by_hand, STEPS, (0,))


# row 10: what is read of a trajectory
def trajectory(x):
    return lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, None, length=200)[1]


def accumulated(x):
    return lax.scan(lambda s, _: ((jnp.sin(s[0]), s[1] + jnp.sin(s[0])), None), (x, 0 * x), None, length=200)[0][1]


def filled(x):
    start = x, jnp.zeros((200, *x.shape))
    return lax.fori_loop(0, 200, lambda i, s: (jnp.sin(s[0]), s[1].at[i].set(jnp.sin(s[0]))), start)[1].mean(0)


spelt(
    "loop-fusion",
    "a mean over time by einsum",
    lambda x: jnp.einsum("tb->b", trajectory(x)) / 200,
    lambda x: accumulated(x) / 200,
    STATE,
    (0,),
)
spelt("loop-fusion", "a mean over a filled buffer", filled, lambda x: accumulated(x) / 200, STATE, (0,))

# rows 7 and 8: small axes and matrices
spelt(
    "small-axes",
    "norms under vmap",
    jax.vmap(jnp.linalg.norm),
    lambda x: jnp.sqrt(sum(x[:, i] ** 2 for i in range(3))),
    POINTS,
)
spelt(
    "small-axes",
    "the smallest of three",
    lambda x: jnp.min(jnp.abs(x), -1),
    lambda x: jnp.minimum(jnp.minimum(jnp.abs(x[:, 0]), jnp.abs(x[:, 1])), jnp.abs(x[:, 2])),
    POINTS,
    (0,),
)
spelt(
    "small-product",
    "small products by einsum",
    lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
    lambda a, b: sum(a[:, :, k, None] * b[:, k, None, :] for k in range(4)),
    lambda: (normal(0, 20_000, 4, 4), normal(1, 20_000, 4, 4)),
    (0, 1),
)
spelt(
    "small-product",
    "products of short vectors by vmap",
    jax.vmap(jnp.dot),
    lambda x, y: sum(x[:, i] * y[:, i] for i in range(3)),
    lambda: (normal(0, 200_000, 3), normal(1, 200_000, 3)),
    (0, 1),
)

# row 34: transforms of real numbers
SIGNALS = lambda: (normal(0, 256, 4096), normal(1, 4096))  # noqa: E731
spelt(
    "half-spectra",
    "a convolution by complex transforms",
    lambda x, k: jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(k)).real,
    lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 4096),
    SIGNALS,
    (0, 1),
)
spelt(
    "half-spectra",
    "a correlation along columns",
    lambda x, k: jnp.real(jnp.fft.ifft(jnp.fft.fft(x.T, axis=0) * jnp.conj(jnp.fft.fft(k))[:, None], axis=0)),
    lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x.T, axis=0) * jnp.conj(jnp.fft.rfft(k))[:, None], 4096, axis=0),
    SIGNALS,
    (0,),
)
spelt(
    "half-spectra",
    "a filter of frequencies",
    lambda x, k: jnp.fft.ifftn(jnp.fft.fftn(x, axes=(1,)) * jnp.exp(-jnp.abs(jnp.fft.fftfreq(4096))), axes=(1,)).real,
    lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.exp(-jnp.fft.rfftfreq(4096)), 4096),
    SIGNALS,
    (0,),
)


# row 27: of log-probabilities one in each row
def cross_entropy(z, t):
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, t[:, None], 1)[:, 0])


LOGITS = lambda: (normal(0, 500, 3000), tokens(500, 3000))  # noqa: E731
spelt(
    "early-picks",
    "a log-softmax, picked by counted rows",
    lambda z, t: -jnp.mean(jax.nn.log_softmax(z)[jnp.arange(500), t]),
    cross_entropy,
    LOGITS,
    (0,),
)
spelt(
    "early-picks",
    "a log-softmax, picked along an axis",
    lambda z, t: -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), t[:, None], 1)),
    cross_entropy,
    LOGITS,
    (0,),
)
spelt(
    "early-picks",
    "the logarithm of a softmax, an example at a time",
    lambda z, t: -jnp.mean(jax.vmap(lambda z, t: jnp.log(jax.nn.softmax(z))[t])(z, t)),
    cross_entropy,
    LOGITS,
)
spelt(
    "early-picks",
    "a log-softmax times one-hot rows",
    lambda z, t: -jnp.mean(jnp.sum(jax.nn.one_hot(t, 3000) * jax.nn.log_softmax(z), -1)),
    cross_entropy,
    LOGITS,
)


# traces of what is no product
def diagonal_of(x):
    return x.reshape(-1)[:: len(x) + 1]


IMAGE = lambda: (normal(0, 1400, 1400),)  # noqa: E731
spelt("diagonal-sum", "a trace", lambda x: jnp.trace(x) ** 2, lambda x: diagonal_of(x).sum() ** 2, IMAGE)
spelt(
    "diagonal-sum",
    "a trace of what is computed",
    lambda x: jnp.where(jnp.eye(1400, dtype=bool), jnp.tanh(x), 0.0).sum(),
    lambda x: jnp.tanh(diagonal_of(x)).sum(),
    IMAGE,
)


# one-hot rows that are written
def written_rows(x, i):
    return jnp.zeros((1500, len(x))).at[jnp.arange(1500), i].set(1.0) @ x


PICKED = lambda: (normal(0, 1200, 300), jnp.arange(1500) * 7 % 1200)  # noqa: E731
spelt("contraction", "rows into which one entry is written", written_rows, lambda x, i: x[i], PICKED)
COUNTERS = np.arange(1200)
spelt(
    "contraction",
    "one-hot rows by an array of counters from outside",
    lambda v, i: (i[:, None] == COUNTERS).astype(v.dtype) @ v,
    lambda v, i: v[i],
    lambda: (normal(0, 1200, 300), jnp.arange(1500) * 7 % 1200),
)
spelt(
    "contraction",
    "a mask on the pairs of a sum of products",
    lambda m, x, y: jnp.sum(jnp.where(m, x[:, None, :] * y[None, :, :], 0.0), -1),
    lambda m, x, y: jnp.where(m, x, 0.0) @ jnp.where(m, y, 0.0).T,
    lambda: (normal(2, 64) > 0, normal(0, 400, 64), normal(1, 500, 64)),
)


# what several entries of a gradient are added up of
def determinants(a):
    """By Sarrus' rule: three products along each of two diagonals."""
    return sum(
        sign * a[:, 0, k] * a[:, 1, (k + sign) % 3] * a[:, 2, (k + 2 * sign) % 3] for k in range(3) for sign in (1, -1)
    )


def cofactors(a):
    return jnp.stack([jnp.cross(a[:, (k + 1) % 3], a[:, (k + 2) % 3]) for k in range(3)], 1)


spelt(
    "padded-terms",
    "the gradient of determinants of nine entries each",
    jax.grad(lambda a: determinants(a).sum()),
    cofactors,
    lambda: (normal(0, 60_000, 3, 3),),
)


def coupled(x):
    return sum((jnp.sin(x[:, k]) * x[:, k - 1]).sum() for k in range(4))


def of_coupled(x):
    columns = [x[:, k] for k in range(4)]
    before, behind = (columns[k:] + columns[:k] for k in (-1, 1))
    terms = zip(before, columns, behind, strict=True)
    return jnp.stack([jnp.cos(x) * a + jnp.sin(b) for a, x, b in terms], 1)


spelt(
    "padded-terms",
    "the gradient of a function of four columns",
    jax.grad(coupled),
    of_coupled,
    lambda: (normal(0, 30_000, 4),),
)


# a kernel of one channel that is long
def by_blocks(x, kernel):
    rows, wide = -(-len(x) // 64), len(kernel) + 63
    places = jnp.arange(64)[:, None] + jnp.arange(len(kernel))
    toeplitz = jnp.zeros((64, wide)).at[jnp.arange(64)[:, None], places].set(kernel[::-1])
    x = jnp.pad(x, (len(kernel) // 2, wide + 64))
    windows = jnp.stack([x[k * 64 : k * 64 + wide] for k in range(rows)])
    return (windows @ toeplitz.T).ravel()


def by_bands(image, stamp):
    """Each row of the stamp is a matrix with a band, which multiplies the rows of the image."""
    size, wide = image.shape[1], stamp.shape[1]
    places = jnp.arange(size)[:, None] + jnp.arange(wide)
    image = jnp.pad(image, wide // 2)

    def of_row(k, total):
        band = jnp.zeros((size, size + wide - 1)).at[jnp.arange(size)[:, None], places].set(stamp[-1 - k, ::-1])
        return total + jax.lax.dynamic_slice_in_dim(image, k, size) @ band.T

    return jax.lax.fori_loop(0, len(stamp), of_row, jnp.zeros((size, size)))


spelt(
    "long-convolution",
    "a moving average with weights, by convolve",
    lambda x, k: jnp.convolve(x, k, "same"),
    by_blocks,
    lambda: (normal(0, 12_800), normal(1, 501)),
)
spelt(
    "long-convolution",
    "an image that is blurred",
    lambda x, k: jax.scipy.signal.convolve2d(x, k, "same"),
    by_bands,
    lambda: (normal(0, 200, 200), normal(1, 31, 31)),
)
# terms that are named in another order than they are stored
spelt(
    "terms-as-stored",
    "heads put together by einsum",
    lambda x, w: jnp.einsum("bthd,hdo->bto", x, w),
    lambda x, w: x.reshape(*x.shape[:2], -1) @ w.reshape(-1, w.shape[-1]),
    lambda: (normal(0, 8, 128, 8, 48), normal(1, 8, 48, 320)),
)
