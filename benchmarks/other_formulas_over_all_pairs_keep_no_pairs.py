"""Claim: other formulas over all pairs of 8192 things keep no array of pairs, nor do their gradients.

Memory of XLA's plan: at most 1/30 of plain JAX's for the value, 1/15 for value and gradient (issue 5), where plain JAX
keeps an array of pairs. Nothing is run; times of some stand in docs/explanation/streaming.md. Written without a look at
what streams; then Sinkhorn's steps, the mask of causal attention, that of a Cox likelihood, sines and the overlaps of
boxes were worked on, and the `ot` forms were added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

import aerogel as ag

from ._case import value_and_grad
from ._finding import Finding
from ._timing import Quartiles

N = 8192
LEAST = 20e6  # what takes less in plain JAX has no array of pairs
FORMULAS: list[tuple[str, Callable[..., Any], Callable[[], Any], tuple[int, ...] | None]] = []


def formula(args, grad):
    """Notes a formula with its arguments, and by which of them it is differentiated."""

    def note(f):
        FORMULAS.append((f.__name__.replace("_", " "), f, args, grad))
        return f

    return note


def key(k):
    return jax.random.PRNGKey(k)


def pts(k, n=N, d=3):
    return jax.random.normal(key(k), (n, d))


def vec(k, n=N):
    return jax.random.normal(key(k), (n,))


def xyv():
    return pts(1), pts(2), vec(3)


def xy():
    return pts(1), pts(2)


def cost(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def potentials(C, e=0.1):
    """The means of what ten of Sinkhorn's steps end with."""

    def step(c, _):
        f, g = c
        f = -e * jax.nn.logsumexp((g[None] - C) / e, 1)
        g = -e * jax.nn.logsumexp((f[:, None] - C) / e, 0)
        return (f, g), None

    (f, g), _ = lax.scan(step, (jnp.zeros(len(C)), jnp.zeros(len(C[0]))), length=10)
    return f.mean() + g.mean()


@formula(xyv, (0, 1, 2))
def laplacian_kernel_vmap(x, y, v):
    def k(a, b):
        return jnp.exp(-jnp.linalg.norm(a - b + 1e-06))

    return jax.vmap(lambda a: jax.vmap(lambda b: k(a, b))(y))(x) @ v


@formula(xyv, (0, 1, 2))
def matern32(x, y, v):
    d = jnp.sqrt(jnp.sum((x[:, None, :] - y[None, :, :]) ** 2, axis=-1) + 1e-12)
    s = jnp.sqrt(3.0) * d
    return (1 + s) * jnp.exp(-s) @ v


@formula(xyv, (0, 1, 2))
def multiquadric_einsum(x, y, v):
    d = x[:, None] - y[None]
    r2 = jnp.einsum("ijk,ijk->ij", d, d)
    return jnp.einsum("ij,j->i", 1 / jnp.sqrt(1 + r2), v)


@formula(lambda: (pts(1), pts(2), pts(4, N, 5)), (0, 1, 2))
def kernel_times_matrix(x, y, V):
    K = jnp.exp(-0.5 * jnp.sum((x[:, None] - y) ** 2, -1))
    return K @ V


@formula(xyv, (0, 1, 2))
def nadaraya_watson(x, y, v):
    w = jnp.exp(-jnp.sum((x[:, None] - y[None]) ** 2, -1) / 0.5)
    return w @ v / w.sum(1)


@formula(xyv, (0, 1, 2))
def nw_softmax(x, y, v):
    return jax.nn.softmax(-jnp.sum((x[:, None] - y[None]) ** 2, -1), axis=1) @ v


@formula(xy, (0, 1))
def kde_lse(x, y):
    d2 = jax.vmap(lambda a: jax.vmap(lambda b: jnp.dot(a - b, a - b))(y))(x)
    return logsumexp(-d2 / 2, axis=1) - jnp.log(len(y))


@formula(xy, (0, 1))
def mmd(x, y):
    def k(a, b):
        return jnp.exp(-((a[:, None] - b[None]) ** 2).sum(-1)).mean()

    return k(x, x) + k(y, y) - 2 * k(x, y)


@formula(xy, (0, 1))
def energy_distance(x, y):
    def d(a, b):
        return jnp.mean(jnp.sqrt(((a[:, None] - b[None]) ** 2).sum(-1) + 1e-09))

    return 2 * d(x, y) - d(x, x) - d(y, y)


@formula(xy, (0, 1))
def hausdorff(x, y):
    d = jnp.sqrt(jnp.sum(jnp.square(x[:, None] - y[None]), -1) + 1e-09)
    return jnp.maximum(d.min(0).max(), d.min(1).max())


@formula(xyv, (0, 1, 2))
def sinkhorn_step(x, y, g):
    C = ((x[:, None] - y[None]) ** 2).sum(-1)
    f = -0.1 * logsumexp((g[None, :] - C) / 0.1, axis=1)
    return -0.1 * logsumexp((f[:, None] - C) / 0.1, axis=0)


@formula(xyv, (0, 1, 2))
def sinkhorn_10(x, y, g):
    C = ((x[:, None] - y[None]) ** 2).sum(-1)

    def step(c, _):
        f, g = c
        f = -0.1 * logsumexp((g[None, :] - C) / 0.1, axis=1)
        g = -0.1 * logsumexp((f[:, None] - C) / 0.1, axis=0)
        return ((f, g), None)

    (f, g), _ = lax.scan(step, (jnp.zeros_like(g), g), None, length=10)
    return f.mean() + g.mean()


@formula(lambda: (pts(1, N, 3), vec(3)), (0, 1))
def nbody(x, m):
    d = x[None] - x[:, None]
    r = (d**2).sum(-1) + 0.01
    return ((m / r**1.5)[..., None] * d).sum(1)


@formula(lambda: (pts(1, N, 3), vec(3)), (0, 1))
def nbody_vmap(x, m):

    def force(a, b, mb):
        d = b - a
        return mb * d / (jnp.sum(d * d) + 0.01) ** 1.5

    return jax.vmap(lambda a: jnp.sum(jax.vmap(lambda b, mb: force(a, b, mb))(x, m), 0))(x)


@formula(lambda: (pts(1, N, 3), vec(3)), (0, 1))
def coulomb_energy(x, q):
    d = jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 0.01)
    i = jnp.arange(len(x))
    return jnp.sum(jnp.where(i[:, None] < i[None, :], q[:, None] * q[None, :] / d, 0.0))


@formula(lambda: (pts(1, N, 3),), (0,))
def lennard_jones(x):
    r2 = ((x[:, None] - x[None]) ** 2).sum(-1) + jnp.eye(len(x))
    s = (0.1 / r2) ** 3
    e = 4 * (s * s - s)
    return 0.5 * jnp.sum(jnp.where(jnp.eye(len(x)) == 1, 0.0, e))


@formula(lambda: (pts(1, N, 2), vec(3)), (0, 1))
def lj_cut_pbc(x, eps):
    d = x[:, None] - x[None]
    d = d - jnp.round(d)
    r2 = jnp.sum(d * d, -1) + 0.1
    u = jnp.where(r2 < 0.25, 1 / r2**3 - 2 / r2, 0)
    return (eps * u.sum(1)).sum()


@formula(xy, None)
def knn_topk(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    v, i = lax.top_k(-d, 5)
    return (-v, i)


@formula(xy, (0,))
def knn_sort(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return jnp.sort(d, axis=1)[:, :5].mean(1)


@formula(xy, None)
def nearest_label(x, y):
    lab = jnp.arange(len(y)) % 10
    d = jax.vmap(lambda a: jnp.sum((y - a) ** 2, axis=1))(x)
    return lab[jnp.argmin(d, axis=1)]


@formula(xy, None)
def range_count(x, y):
    return (((x[:, None] - y[None]) ** 2).sum(-1) < 0.5).sum(1)


@formula(lambda: (vec(1), vec(2)), None)
def kendall_concordant(a, b):
    return jnp.sum(jnp.sign(a[:, None] - a[None]) * jnp.sign(b[:, None] - b[None]))


@formula(lambda: (vec(1), vec(2)), (0,))
def pairwise_rank_hinge(s, y):
    m = y[:, None] > y[None]
    return jnp.sum(jnp.where(m, jax.nn.relu(1 - (s[:, None] - s[None])), 0.0)) / m.sum()


@formula(lambda: (vec(1),), (0,))
def ranks_soft(s):
    return jax.nn.sigmoid((s[None] - s[:, None]) / 0.1).sum(1)


@formula(lambda: (pts(1, N, 64) * 0.3, pts(2, N, 64) * 0.3), (0, 1))
def clip_loss(a, b):
    a = a / jnp.linalg.norm(a, axis=1, keepdims=True)
    b = b / jnp.linalg.norm(b, axis=1, keepdims=True)
    logits = a @ b.T / 0.07
    i = jnp.arange(len(a))
    l1 = -jax.nn.log_softmax(logits, 1)[i, i].mean()
    l2 = -jax.nn.log_softmax(logits, 0)[i, i].mean()
    return (l1 + l2) / 2


@formula(lambda: (pts(1, N, 64) * 0.3,), (0,))
def ntxent(z):
    n = len(z)
    z = z / jnp.linalg.norm(z, axis=1, keepdims=True)
    s = z @ z.T / 0.5
    s = jnp.where(jnp.eye(n, dtype=bool), -jnp.inf, s)
    t = (jnp.arange(n) + n // 2) % n
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(s, -1), t[:, None], 1))


@formula(lambda: (pts(1, N, 64) * 0.3,), (0,))
def supcon(z):
    lab = jnp.arange(len(z)) % 17
    s = z @ z.T
    m = (lab[:, None] == lab[None]) & ~jnp.eye(len(z), dtype=bool)
    lp = s - logsumexp(s, axis=1, keepdims=True)
    return -(jnp.where(m, lp, 0).sum(1) / m.sum(1)).mean()


@formula(lambda: (pts(1, N, 64) * 0.3, pts(2, N, 64) * 0.3, pts(3, N, 64) * 0.3), (0, 1, 2))
def attention_plain(q, k, v):
    return jax.nn.softmax(q @ k.T / 8) @ v


@formula(lambda: tuple(jax.random.normal(key(i), (2, N, 4, 32)) * 0.3 for i in range(3)), (0, 1, 2))
def attention_heads_causal_einsum(q, k, v):
    s = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(32.0)
    m = jnp.tril(jnp.ones((q.shape[1],) * 2, bool))
    s = jnp.where(m, s, -1000000000.0)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(s, -1), v)


@formula(lambda: tuple(jax.random.normal(key(i), (N, 32)) * 0.3 for i in range(3)), (0, 1, 2))
def attention_alibi(q, k, v):
    i = jnp.arange(len(q))
    s = q @ k.T / jnp.sqrt(32.0) - 0.01 * jnp.abs(i[:, None] - i[None])
    p = jnp.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return p @ v


@formula(lambda: tuple(jax.random.normal(key(i), (N, 32)) * 0.3 for i in range(3)), (0, 1, 2))
def attention_softcap_window(q, k, v):
    i = jnp.arange(len(q))
    s = 30 * jnp.tanh(q @ k.T / jnp.sqrt(32.0) / 30)
    s = jnp.where((i[:, None] >= i[None]) & (i[:, None] - i[None] < 1024), s, -jnp.inf)
    return jax.nn.softmax(s, -1) @ v


@formula(lambda: (*tuple(jax.random.normal(key(i), (N, 32)) * 0.3 for i in range(3)), key(9)), (0, 1, 2))
def attention_dropout(q, k, v, r):
    p = jax.nn.softmax(q @ k.T / jnp.sqrt(32.0), -1)
    keep = jax.random.bernoulli(r, 0.9, p.shape)
    return jnp.where(keep, p / 0.9, 0) @ v


@formula(lambda: tuple(jax.random.normal(key(i), (N, 32)) * 0.3 for i in range(3)), (0, 1, 2))
def sigmoid_attention(q, k, v):
    return jax.nn.sigmoid(q @ k.T / jnp.sqrt(32.0) - 9) @ v


@formula(lambda: tuple(jax.random.normal(key(i), (N, 32)) * 0.3 for i in range(3)), (0, 1, 2))
def retention(q, k, v):
    i = jnp.arange(len(q))
    d = i[:, None] - i[None]
    D = jnp.where(d >= 0, 0.99**d, 0.0)
    return q @ k.T * D @ v


@formula(lambda: (pts(1, N, 4), pts(2, N, 4), vec(3)), (0, 1, 2))
def gmm_large_vmap(x, mu, lw):
    lw = jax.nn.log_softmax(lw)

    def one(a):
        return logsumexp(jax.vmap(lambda m, w: w - 0.5 * jnp.sum((a - m) ** 2))(mu, lw))

    return jax.vmap(one)(x).mean()


@formula(lambda: (pts(1, N, 64) * 0.1, pts(2, 64, N) * 0.1), (0, 1))
def lm_loss(h, W):
    t = jnp.arange(len(h)) * 7 % W.shape[1]
    return jnp.mean(logsumexp(h @ W, 1) - jnp.take_along_axis(h @ W, t[:, None], 1)[:, 0])


@formula(lambda: (pts(1, N, 64) * 0.1, pts(2, N, 64) * 0.1), (0, 1))
def lm_loss_onehot(h, E):
    t = jnp.arange(len(h)) * 7 % len(E)
    lg = jnp.einsum("td,vd->tv", h, E)
    return -(jax.nn.one_hot(t, len(E)) * jax.nn.log_softmax(lg)).sum(-1).mean()


@formula(lambda: (vec(1, 64) * 0.1, pts(2, N, 64), vec(3)), None)
def per_example_norms(w, x, y):
    g = jax.vmap(jax.grad(lambda w, x, y: (jnp.tanh(x @ w) - y) ** 2), (None, 0, 0))(w, x, y)
    return jnp.linalg.norm(g, axis=1)


@formula(lambda: (jax.random.normal(key(1), (64, 256)) * 0.1, pts(2, N, 64), jax.random.normal(key(3), (N, 256))), None)
def per_example_variance(w, x, y):
    g = jax.vmap(jax.grad(lambda w, x, y: ((jnp.tanh(x @ w) - y) ** 2).sum()), (None, 0, 0))(w, x, y)
    return g.var(0)


@formula(lambda: (vec(1), vec(2)), (0,))
def jacfwd_vec(x, v):
    return jax.jacfwd(lambda x: jnp.sin(x) * jnp.roll(x, 1))(x) @ v


@formula(lambda: (vec(1, 4096), vec(2, 4096)), (0,))
def hessian_vec(x, v):
    return jax.hessian(lambda x: jnp.sum(jnp.sin(x) * jnp.roll(x, 1) ** 2))(x) @ v


@formula(xyv, (0, 1, 2))
def laxmap_kernel(x, y, v):
    return lax.map(lambda a: jnp.exp(-((a - y) ** 2).sum(-1)) @ v, x)


@formula(lambda: (vec(1), vec(2)), (0, 1))
def cross_correlogram(a, b):
    d = a[:, None] - b[None]
    edges = jnp.linspace(-1, 1, 9)
    return jnp.stack(
        [
            jnp.sum(jax.nn.sigmoid(50 * (d - low)) - jax.nn.sigmoid(50 * (d - high)))
            for low, high in itertools.pairwise(edges)
        ]
    )


@formula(lambda: (pts(1, N, 16), pts(2, N, 16)), (0, 1))
def hsic(x, y):
    K = jnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 16)
    L = jnp.exp(-((y[:, None] - y[None]) ** 2).sum(-1) / 16)
    Kc = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    return (Kc * L).sum() / len(x) ** 2


@formula(lambda: (pts(1, N, 16),), (0,))
def vicreg_offdiag_gram(x):
    G = x @ x.T
    return ((G - jnp.diag(jnp.diag(G))) ** 2).sum()


@formula(lambda: (pts(1, N, 2), pts(2, N, 3)), (0,))
def stress_mds(z, x):
    D = jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-09)
    d = jnp.sqrt(((z[:, None] - z[None]) ** 2).sum(-1) + 1e-09)
    return ((D - d) ** 2).sum()


@formula(lambda: (pts(1, N, 2),), (0,))
def tsne_q(z):
    q = 1 / (1 + ((z[:, None] - z[None]) ** 2).sum(-1))
    q = q * (1 - jnp.eye(len(z)))
    return -jnp.log(q.sum())


@formula(lambda: (pts(1, N, 3), pts(2, N, 3)), (0, 1))
def chamfer_sqrt_vmap(a, b):
    d = jax.vmap(lambda p: jax.vmap(lambda q: jnp.linalg.norm(p - q))(b))(a)
    return d.min(0).mean() + d.min(1).mean()


@formula(lambda: (pts(1, N, 3), vec(2)), (0, 1))
def gp_matvec_noise(x, v):
    K = jnp.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) + 0.1 * jnp.eye(len(x))
    return K @ v


@formula(lambda: (pts(1, N, 3) * 0.3, pts(2, N, 3) * 0.3), (0, 1))
def soft_nearest_margin(x, y):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return jnp.mean(jax.nn.relu(1 + jnp.diag(d) - jnp.min(d + 1000.0 * jnp.eye(len(x)), 1)))


@formula(lambda: (pts(1, N, 3), pts(2, N, 3), vec(3), vec(4)), (0, 1, 2))
def svgd(x, g, w, u):
    h = 1.0
    K = jnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / h)
    gradK = -2 / h * (x[:, None] - x[None]) * K[..., None]
    return (K @ g + gradK.sum(0)) / len(x)


@formula(xy, (0, 1))
def ot_plan_loss(x, y):
    C = cost(x, y)
    e = 0.1
    n = len(x)
    f = jnp.zeros(n)
    g = jnp.zeros(n)

    def step(i, c):
        f, g = c
        f = -e * logsumexp((g[None] - C) / e, 1) - e * jnp.log(n)
        g = -e * logsumexp((f[:, None] - C) / e, 0) - e * jnp.log(n)
        return (f, g)

    f, g = lax.fori_loop(0, 10, step, (f, g))
    P = jnp.exp((f[:, None] + g[None] - C) / e)
    return jnp.sum(P * C)


@formula(xy, (0, 1))
def ot_dual_unused_plan(x, y):
    return potentials(cost(x, y))


@formula(xy, (0, 1))
def ot_softmin_vmap(x, y):
    C = jax.vmap(lambda a: jax.vmap(lambda b: jnp.vdot(a - b, a - b))(y))(x)
    e = 0.1
    mu = jnp.full(len(x), -jnp.log(len(x)))

    def softmin(M):
        return -e * jax.nn.logsumexp(mu - M / e, axis=1)

    def body(c, _):
        f, g = c
        ft = softmin(C - g[None])
        gt = softmin(C.T - f[None])
        return (((f + ft) / 2, (g + gt) / 2), None)

    (f, g), _ = lax.scan(body, (jnp.zeros(len(x)), jnp.zeros(len(y))), None, length=8)
    return f.mean() + g.mean()


@formula(xy, (0, 1))
def ot_product_cost(x, y):
    return potentials((x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T)


@formula(lambda: (pts(1, N, 2), pts(3, N, 2)), (0,))
def gradient_flow(x, y):

    def step(x, _):
        d = x[:, None] - x[None]
        k = jnp.exp(-(d**2).sum(-1))
        return (x + 0.01 * (k[..., None] * d).sum(1) / len(x), None)

    x, _ = lax.scan(step, x, None, length=5)
    return (x**2).sum()


@formula(lambda: (pts(1, N, 3), pts(2, N, 3)), (0, 1))
def mean_shift(x, y):

    def step(z, _):
        w = jax.nn.softmax(-cost(z, y), axis=1)
        return (w @ y, None)

    z, _ = lax.scan(step, x, None, length=5)
    return z


@formula(lambda: (pts(1, N, 64) * 0.3, pts(2, N, 64) * 0.3), (0, 1))
def info_nce(q, k):
    q = q / jnp.linalg.norm(q, axis=1, keepdims=True)
    k = k / jnp.linalg.norm(k, axis=1, keepdims=True)
    likely = jax.nn.log_softmax(q @ k.T / 0.1, axis=-1)
    return -jnp.take_along_axis(likely, jnp.arange(len(q))[:, None], axis=-1).mean()


@formula(lambda: (*(pts(k, N, 32) * 0.3 for k in range(3)), pts(4, 64, 32) * 0.3), (0, 1, 2, 3))
def attention_relative_positions(q, k, v, table):
    i = jnp.arange(len(q))
    apart = jnp.clip(i[None] - i[:, None], -31, 32) + 31
    s = (q @ k.T + jnp.take_along_axis(q @ table.T, apart, axis=1)) / jnp.sqrt(32.0)
    return jax.nn.softmax(s, -1) @ v


@formula(lambda: (vec(1), vec(2)), (0,))
def cox_likelihood(risk, time):
    at_risk = time[None] >= time[:, None]
    return jnp.mean(risk - logsumexp(jnp.where(at_risk, risk[None], -jnp.inf), axis=1))


@formula(lambda: (vec(1), vec(2)), (0, 1))
def coupled_oscillators(phase, speed):
    return jnp.sum((speed + jnp.mean(jnp.sin(phase[None] - phase[:, None]), 1)) ** 2)


@formula(lambda: (pts(1, N, 2), jnp.abs(pts(2, N, 2)) * 0.02), (0, 1))
def overlaps_of_boxes(centre, half):
    low, high = centre - half, centre + half
    sides = jnp.clip(jnp.minimum(high[:, None], high[None]) - jnp.maximum(low[:, None], low[None]), 0)
    inside, area = jnp.prod(sides, -1), jnp.prod(high - low, -1)
    return jnp.sum(jnp.triu(inside / (area[:, None] + area[None] - inside), 1))


@formula(lambda: (jnp.sort(vec(1)) * 100, jnp.ones(()), jnp.ones(())), (1, 2))
def hawkes_likelihood(t, jump, decay):
    since = t[:, None] - t[None]
    kernel = jnp.where(since > 0, jump * decay * jnp.exp(-decay * jnp.maximum(since, 0)), 0.0)
    return jnp.sum(jnp.log(0.1 + kernel.sum(1))) - jump * jnp.sum(1 - jnp.exp(-decay * (t[-1] - t)))


@formula(lambda: (pts(1, N, 2), vec(2)), (0,))
def variogram(x, z):
    apart = jnp.linalg.norm(x[:, None] - x[None] + 1e-6, axis=-1)
    differ = 0.5 * (z[:, None] - z[None]) ** 2
    rings = [(apart >= a) & (apart < a + 0.3) for a in (0.0, 0.3, 0.6, 0.9)]
    return jnp.stack([jnp.sum(jnp.where(ring, differ, 0)) / (1 + jnp.sum(ring)) for ring in rings]).sum()


@formula(lambda: (pts(1, N, 4), pts(2, N, 4)), (0, 1))
def distance_correlation(x, y):
    def centred(x):
        a = jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-9)
        return a - a.mean(0, keepdims=True) - a.mean(1, keepdims=True) + a.mean()

    a, b = centred(x), centred(y)
    return (a * b).mean() / jnp.sqrt((a * a).mean() * (b * b).mean())


@formula(lambda: (pts(1, N, 8),), (0,))
def hardest_triplets(z):
    labels = jnp.arange(len(z)) % 10
    d = jnp.sqrt(jnp.maximum(((z[:, None] - z[None]) ** 2).sum(-1), 1e-12))
    same = labels[:, None] == labels[None]
    nearest_other = jnp.min(jnp.where(same, jnp.inf, d), 1)
    return jax.nn.relu(jnp.max(jnp.where(same, d, -jnp.inf), 1) - nearest_other + 0.2).mean()


@formula(lambda: (pts(1, N, 2), pts(2, N, 2)), (0,))
def boids(x, v):
    apart = x[None] - x[:, None]
    squares = (apart**2).sum(-1)
    near = (squares < 0.25) & (squares > 0)
    count = near.sum(1)[:, None] + 1e-3
    together = (near[..., None] * apart).sum(1) / count
    alike = (near[..., None] * (v[None] - v[:, None])).sum(1) / count
    away = -(jnp.where((squares < 0.04) & (squares > 0), 1 / (squares + 1e-3), 0)[..., None] * apart).sum(1)
    return jnp.sum((v + 0.1 * together + 0.1 * alike + 0.01 * away) ** 2)


@formula(lambda: (jnp.abs(pts(1)) * 10, vec(2)), (0,))
def screened_charges_in_a_periodic_box(x, q):
    apart = x[:, None] - x[None]
    apart = apart - 10.0 * jnp.round(apart / 10.0)
    r = jnp.sqrt((apart**2).sum(-1) + jnp.eye(len(x)))
    energy = jax.scipy.special.erfc(0.8 * r) / r * q[:, None] * q[None]
    return 0.5 * jnp.sum(jnp.where(r < 4.0, energy, 0) * (1 - jnp.eye(len(x))))


@formula(lambda: (pts(1), pts(2)), (0, 1))
def dependence_of_kernels(x, y):
    k, likewise = jnp.exp(-cost(x, x)), jnp.exp(-cost(y, y))
    centred = k - k.mean(0) - k.mean(1)[:, None] + k.mean()
    return jnp.sum(centred * likewise) / len(x) ** 2


def findings(quick: bool = False) -> list[Finding]:
    """Memory of each formula and of its gradient, of plain JAX's."""
    return [found for one in FORMULAS[: 3 if quick else None] for found in findings_of(*one)]


def findings_of(name, f, args, grad) -> list[Finding]:
    """Those of one formula."""
    types = jax.eval_shape(args)
    forms = [("value", f, 1 / 30)] + ([("value and gradient", value_and_grad(f, grad), 1 / 15)] if grad else [])
    return [_finding(name, what, g, bound, types) for what, g, bound in forms]


def _finding(name, what, f, bound, types) -> Finding:
    plain, ours = (_bytes(g, types) for g in (f, ag.optimize(f)))
    ratio = Quartiles(*(3 * [ours / max(plain, 1)]))
    details = f"{plain / 1e6:.2f} MB become {ours / 1e6:.2f}"
    return Finding(name, f"memory of the {what}", ratio, bound if plain >= LEAST else None, details)


def _bytes(f, types) -> int:
    return jax.jit(f).lower(*types).compile().memory_analysis().temp_size_in_bytes
