"""Claim: a sum of products costs its cheapest order, however it is written: chains, traces, one-hot rows, diagonals.

The hand-written forms are those of the catalogue of issue 4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._case import Bounds, Case, normal

BOUNDS = Bounds(over_hand=1.10)
TWICE = Bounds(over_hand=1.10, speedup=2.0)


def tokens(count, size):
    return jax.random.randint(jax.random.key(7), (count,), 0, size)


def case(name, natural, hand, args, grad=(), bounds=TWICE, grad_bounds=TWICE, notes=""):
    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=bounds, grad_bounds=grad_bounds, notes=notes)


def gradient_norms(w, xs):
    def norm(x):
        g = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        return jnp.sum(g * g)

    return jax.vmap(norm)(xs)


def gradient_norms_by_hand(w, xs):
    t = jnp.tanh(xs @ w)
    d = 2 * t * (1 - t * t)
    return jnp.sum(xs * xs, 1) * jnp.sum(d * d, 1)


def jacobian(w, x):
    return jax.jacfwd(lambda x: jnp.tanh(w @ x))(x)


def jacobian_by_hand(w, x):
    return (1 - jnp.tanh(w @ x) ** 2)[:, None] * w


def attention(q, k, v):
    return (q @ jnp.swapaxes(k, 1, 2) / 8) @ v


def ten_products(a, x):
    for _ in range(10):
        x = a @ x
    return x


def steps(a, b, xs):
    return jax.lax.scan(lambda c, x: (jnp.tanh(c + a @ b @ x),) * 2, jnp.zeros(200), xs)[1]


def steps_by_hand(a, b, xs):
    return jax.lax.scan(lambda c, x: (jnp.tanh(c + a @ (b @ x)),) * 2, jnp.zeros(200), xs)[1]


def edges(h, e, w):
    shape = (*e.shape[:2], h.shape[1])
    ends = jnp.broadcast_to(h[:, None], shape), jnp.broadcast_to(h[None], shape)
    return jnp.concatenate([*ends, e], -1) @ w


def edges_by_hand(h, e, w):
    n = h.shape[1]
    return (h @ w[:n])[:, None] + (h @ w[n : 2 * n])[None] + e @ w[2 * n :]


def repeated_edges(h, w):
    n = len(h)
    return jnp.concatenate([jnp.repeat(h, n, axis=0), jnp.tile(h, (n, 1))], 1) @ w


def repeated_edges_by_hand(h, w):
    n = h.shape[1]
    return ((h @ w[:n])[:, None] + h @ w[n:]).reshape(-1, w.shape[1])


def normalised(a):
    d = jnp.diag(1 / jnp.sqrt(jnp.sum(jnp.abs(a), 1)))
    return d @ a @ d


def normalised_by_hand(a):
    d = 1 / jnp.sqrt(jnp.sum(jnp.abs(a), 1))
    return d[:, None] * a * d


def centred(k):
    h = jnp.eye(len(k)) - jnp.ones((len(k), len(k))) / len(k)
    return h @ k @ h


def centred_by_hand(k):
    k = k - jnp.mean(k, 0)
    return k - jnp.mean(k, 1, keepdims=True)


def alignment(centre):
    return lambda k, m: jnp.sum(centre(k) * centre(m)) / jnp.sqrt(jnp.sum(centre(k) ** 2) * jnp.sum(centre(m) ** 2))


def mixture_of_experts(h, w, c):
    return jnp.einsum("ted,te->td", jnp.einsum("tef,efd->ted", h, w), c)


def features(x):
    return jax.nn.elu(x) + 1


def normalised_attention(q, k, v):
    weights = features(q) @ features(k).T
    return (weights / jnp.sum(weights, 1, keepdims=True)) @ v


def normalised_attention_by_hand(q, k, v):
    q, k = features(q), features(k)
    return (q @ (k.T @ v)) / (q @ jnp.sum(k, 0))[:, None]


def weighted_rows(x, y, w):
    def step(total, row):
        return total + row[2] * jnp.outer(row[0], row[1]), None

    return jax.lax.scan(step, jnp.zeros((x.shape[1], y.shape[1])), (x, y, w))[0]


def weighted_rows_by_hand(x, y, w):
    return (w[:, None] * x).T @ y


def outer_norms(x, y):
    return jax.vmap(lambda x, y: jnp.linalg.norm(jnp.outer(x, y)))(x, y)


def outer_norms_by_hand(x, y):
    return jnp.sqrt(jnp.sum(x * x, 1) * jnp.sum(y * y, 1))


def cross_by_hand(x, y):
    (a, b, c), (d, e, f) = x.T, y.T
    return jnp.stack([b * f - c * e, c * d - a * f, a * e - b * d], 1)


def rotated(q, v):
    """Rows turned by unit quaternions, as a textbook has it."""
    w, u = q[:, :1], q[:, 1:]
    t = 2 * jnp.cross(u, v)
    return v + w * t + jnp.cross(u, t)


def rotated_by_hand(q, v):
    w, u = q[:, :1], q[:, 1:]
    t = 2 * cross_by_hand(u, v)
    return v + w * t + cross_by_hand(u, t)


def bilinear(w, x, y):
    return jnp.einsum("bi,oij,bj->bo", x, w, y)


def bilinear_by_hand(w, x, y):
    rows = (x[:, :, None] * y[:, None]).reshape(len(x), -1)
    return rows @ w.reshape(len(w), -1).T


def square(n, *more):
    return lambda: (normal(0, n, n), normal(1, n, n), *more)


CASES = (
    case(
        "A B x",
        lambda a, b, x: a @ b @ x,
        lambda a, b, x: a @ (b @ x),
        lambda: (*square(500)(), normal(2, 500)),
        (0, 1, 2),
    ),
    case(
        "low rank times a matrix",
        lambda a, b, c: a @ b @ c,
        lambda a, b, c: a @ (b @ c),
        lambda: (normal(0, 1000, 20), normal(1, 20, 1000), normal(2, 1000, 20)),
        (0, 1, 2),
    ),
    case(
        "linear attention",
        attention,
        lambda q, k, v: q @ (jnp.swapaxes(k, 1, 2) @ v) / 8,
        lambda: tuple(normal(i, 8, 1024, 64) for i in range(3)),
        (0, 1, 2),
    ),
    case(
        "normalised linear attention",
        normalised_attention,
        normalised_attention_by_hand,
        lambda: tuple(normal(i, 1024, 64) for i in range(3)),
        (0, 1, 2),
    ),
    case(
        "weighted outer products in a scan",
        weighted_rows,
        weighted_rows_by_hand,
        lambda: (normal(0, 500, 64), normal(1, 500, 64), normal(2, 500)),
        grad=(0, 1, 2),
        bounds=BOUNDS,
    ),
    case(
        "norms of outer products",
        outer_norms,
        outer_norms_by_hand,
        lambda: (normal(0, 256, 100), normal(1, 256, 120)),
        (0, 1),
    ),
    case(
        "embeddings in factors",
        lambda e, w, t: (e @ w)[t],
        lambda e, w, t: e[t] @ w,
        lambda: (normal(0, 5000, 64), normal(1, 64, 256), tokens(512, 5000)),
        (0, 1),
    ),
    case(
        "an entry of each row of a product",
        lambda a, b, t: (a @ b)[jnp.arange(500), t],
        lambda a, b, t: jnp.sum(a * b.T[t], 1),
        lambda: (normal(0, 500, 400), normal(1, 400, 600), tokens(500, 600)),
        (0, 1),
    ),
    case(
        "entries along an axis of a product",
        lambda a, b, t: jnp.take_along_axis(a @ b, t[:, None], 1)[:, 0],
        lambda a, b, t: jnp.sum(a * b.T[t], 1),
        lambda: (normal(0, 500, 400), normal(1, 400, 600), tokens(500, 600)),
        (0, 1),
    ),
    case(
        "a power times a vector",
        lambda a, x: jnp.linalg.matrix_power(a, 16) @ x,
        lambda a, x: jax.lax.fori_loop(0, 16, lambda i, x: a @ x, x),
        lambda: (normal(0, 400, 400) / 20, normal(1, 400)),
    ),
    case(
        "squares of squares times a vector",
        lambda a, x: jnp.linalg.matrix_power(a, 10) @ x,
        ten_products,
        lambda: (normal(0, 300, 300) / 17, normal(1, 300)),
        (0, 1),
    ),
    case(
        "blocks on a diagonal",
        lambda x, a, b, c: jax.scipy.linalg.block_diag(a, b, c) @ x,
        lambda x, a, b, c: jnp.concatenate([a @ x[:100], b @ x[100:200], c @ x[200:]]),
        lambda: (normal(0, 300, 50), *(normal(k, 100, 100) for k in (1, 2, 3))),
        (0, 1, 2, 3),
    ),
    case(
        "A B x in a scan",
        steps,
        steps_by_hand,
        lambda: (normal(0, 200, 200) / 200, normal(1, 200, 200), normal(2, 50, 200)),
    ),
    case("trace of a product", lambda a, b: jnp.trace(a @ b), lambda a, b: jnp.sum(a * b.T), square(800), (0, 1)),
    case("diagonal of a product", lambda a, b: jnp.diag(a @ b), lambda a, b: jnp.sum(a * b.T, 1), square(800), (0, 1)),
    case(
        "sum of a product", lambda a, b: jnp.sum(a @ b), lambda a, b: jnp.sum(a, 0) @ jnp.sum(b, 1), square(800), (0, 1)
    ),
    case("row sums of a product", lambda a, b: jnp.sum(a @ b, 1), lambda a, b: a @ jnp.sum(b, 1), square(800), (0, 1)),
    case(
        "quadratic forms",
        lambda x, s: jnp.diag(x @ s @ x.T),
        lambda x, s: jnp.sum((x @ s) * x, 1),
        lambda: (normal(0, 2000, 200), normal(1, 200, 200)),
        (0, 1),
    ),
    case(
        "norms of per-example gradients",
        gradient_norms,
        gradient_norms_by_hand,
        lambda: (normal(0, 256, 128) / 16, normal(1, 512, 256)),
    ),
    case("rows and columns centred", centred, centred_by_hand, lambda: (normal(0, 800, 800),), (0,)),
    case("centred kernel alignment", alignment(centred), alignment(centred_by_hand), square(500), (0,)),
    case(
        "diagonal times a matrix",
        lambda d, a: jnp.diag(d) @ a,
        lambda d, a: d[:, None] * a,
        lambda: (normal(0, 800), normal(1, 800, 800)),
        (0, 1),
    ),
    case(
        "diagonal between two matrices",
        lambda d, a: a.T @ jnp.diag(d) @ a,
        lambda d, a: (a.T * d) @ a,
        lambda: (normal(0, 800), normal(1, 800, 800)),
        (0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    case(
        "a written diagonal times a matrix",
        lambda d, a: jnp.diagflat(d) @ a,
        lambda d, a: d[:, None] * a,
        lambda: (normal(0, 800), normal(1, 800, 800)),
        (0, 1),
    ),
    case(
        "a masked matrix times a matrix",
        lambda a, b: (a * jnp.eye(800)) @ b,
        lambda a, b: jnp.diagonal(a)[:, None] * b,
        lambda: (normal(0, 800, 800), normal(1, 800, 800)),
        (0, 1),
    ),
    case(
        "identity times a matrix",
        lambda a: jnp.eye(800) @ a,
        lambda a: a,
        lambda: (normal(0, 800, 800),),
        bounds=BOUNDS,
    ),
    case(
        "a repeated row times a matrix",
        lambda x, b: jnp.broadcast_to(x, (800, 800)) @ b,
        lambda x, b: jnp.broadcast_to(x @ b, (800, 800)),
        lambda: (normal(0, 800), normal(1, 800, 800)),
        (0, 1),
    ),
    case(
        "Kronecker product times a vector",
        lambda a, b, x: jnp.kron(a, b) @ x,
        lambda a, b, x: (a @ x.reshape(40, 50) @ b.T).ravel(),
        lambda: (normal(0, 40, 40), normal(1, 50, 50), normal(2, 2000)),
        (0, 1, 2),
    ),
    case("Jacobian of a layer", jacobian, jacobian_by_hand, lambda: (normal(0, 400, 400) / 20, normal(1, 400))),
    case(
        "one-hot rows times a table",
        lambda table, t: jax.nn.one_hot(t, 5000) @ table,
        lambda table, t: table[t],
        lambda: (normal(0, 5000, 64), tokens(4096, 5000)),
        (0,),
    ),
    case(
        "one-hot rows pick an entry each",
        lambda z, t: jnp.sum(z * jax.nn.one_hot(t, 5000), -1),
        lambda z, t: jnp.take_along_axis(z, t[:, None], 1)[:, 0],
        lambda: (normal(0, 4096, 5000), tokens(4096, 5000)),
        (0,),
        grad_bounds=BOUNDS,
    ),
    case(
        "multiplied and summed",
        lambda x, w: jnp.sum(x[:, :, None] * w[None], 1),
        lambda x, w: x @ w,
        lambda: (normal(0, 512, 256), normal(1, 256, 384)),
        (0, 1),
        bounds=BOUNDS,
    ),
    case(
        "edges of a graph: both ends joined, times weights",
        edges,
        edges_by_hand,
        lambda: (normal(0, 128, 32), normal(1, 128, 128, 16), normal(2, 80, 64)),
        (0, 1, 2),
        bounds=BOUNDS,
    ),
    case(
        "edges of a graph: rows repeated and tiled, times weights",
        repeated_edges,
        repeated_edges_by_hand,
        lambda: (normal(0, 90, 24), normal(2, 48, 32)),
        (0, 1),
    ),
    case("a graph's matrix, normalised", normalised, normalised_by_hand, lambda: (normal(0, 500, 500),), (0,)),
    case(
        "a mixture of experts, weighted",
        mixture_of_experts,
        lambda h, w, c: jnp.einsum("tef,efd->td", h * c[..., None], w),
        lambda: (normal(0, 512, 8, 256), normal(1, 8, 256, 128), normal(2, 512, 8)),
        bounds=BOUNDS,
    ),
    case(
        "a bilinear layer",
        bilinear,
        bilinear_by_hand,
        lambda: (normal(0, 16, 32, 32), normal(1, 128, 32), normal(2, 128, 32)),
        (0, 1, 2),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    case(
        "a bilinear layer of many weights",
        bilinear,
        bilinear_by_hand,
        lambda: (normal(0, 64, 128, 128), normal(1, 32, 128), normal(2, 32, 128)),
        (0, 1, 2),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    case(
        "sine of a row of a product",
        lambda a, b: jnp.sin((a @ b)[7]),
        lambda a, b: jnp.sin(a[7] @ b),
        lambda: (normal(0, 350, 300), normal(1, 300, 350)),
        (0, 1),
    ),
    case(
        "sine of an entry of a product",
        lambda a, b: jnp.sin((a @ b)[5, 9]),
        lambda a, b: jnp.sin(a[5] @ b[:, 9]),
        lambda: (normal(0, 350, 300), normal(1, 300, 350)),
        (0, 1),
    ),
    case(
        "bilinear forms by broadcasts",
        lambda x, w, y: jnp.sum(x[:, :, None, None] * w * y[:, None, :, None], (1, 2)),
        lambda x, w, y: jnp.einsum("ni,ijk,nj->nk", x, w, y),
        lambda: (normal(0, 60, 30), normal(1, 30, 30, 20), normal(2, 60, 30)),
        (0, 1, 2),
        grad_bounds=Bounds(over_hand=1.10, speedup=2.0, memory_over_hand=1.25),
    ),
    case(
        "few columns of many rows",
        lambda x, w: x @ w,
        lambda x, w: jnp.stack([sum(x[:, k] * w[k, j] for k in range(5)) for j in range(4)], 1),
        lambda: (normal(0, 20_000, 5), normal(1, 5, 4)),
        (0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    case(
        "cross products of rows",
        jnp.cross,
        cross_by_hand,
        lambda: (normal(0, 20_000, 3), normal(1, 20_000, 3)),
        (0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
    case(
        "rows turned by quaternions",
        rotated,
        rotated_by_hand,
        lambda: (normal(0, 20_000, 4), normal(1, 20_000, 3)),
        (0, 1),
        bounds=BOUNDS,
        grad_bounds=BOUNDS,
    ),
)
