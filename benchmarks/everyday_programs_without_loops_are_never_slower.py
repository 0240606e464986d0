"""Claim: everyday programs without loops that hold short axes, thin products or few sines are never slower.

Each was up to 16 times slower than plain JAX once: a sum over all points of what is computed over a short axis,
densities that a maximum reads too, batches of thin products whose layout was turned, functions of a few thousand
numbers, products turned for the sake of short rows, what others read shifted.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ._case import Bounds, Case, normal

# Calls of 50 us: a twentieth of that is noise.
NEVER_SLOWER = Bounds(over_hand=None, over_natural=1.05, memory_over_hand=None)
BOX = 10.0


def case(name, natural, hand, *shapes, grad=()):
    args = functools.partial(drawn, shapes)
    return Case(name, natural, {"by hand": hand}, args, grad=grad, bounds=NEVER_SLOWER, grad_bounds=NEVER_SLOWER)


def drawn(shapes):
    return tuple(normal(k, *shape) for k, shape in enumerate(shapes))


def mean_distance(x, y):
    return jnp.mean(jnp.sqrt(jnp.sum((x - y) ** 2, -1)))


def mean_distance_by_hand(x, y):
    return jnp.mean(jnp.sqrt(sum((x[:, k] - y[:, k]) ** 2 for k in range(x.shape[1]))))


def mixture(x, m, s):
    y = -0.5 * ((x[:, None] - m) / jnp.exp(s)) ** 2 - s
    return -jnp.mean(jax.nn.logsumexp(y, -1))


def mixture_by_hand(x, m, s):
    y = [-0.5 * ((x - m[k]) / jnp.exp(s[k])) ** 2 - s[k] for k in range(len(m))]
    top = functools.reduce(jnp.maximum, y)
    return -jnp.mean(jnp.log(sum(jnp.exp(one - top) for one in y)) + top)


def bfloat16_product(x, y):
    x, y = x.astype("bfloat16"), y.astype("bfloat16")
    return jnp.sum(x[..., None] * y, 1)


def bfloat16_product_by_hand(x, y):
    return x.astype("bfloat16") @ y.astype("bfloat16")


def forces(x):
    d = x[:, None] - x[None]
    d = d - BOX * jnp.round(d / BOX)
    return jnp.sum(jnp.exp(-jnp.sum(d**2, -1))[..., None] * d, 1)


def forces_by_hand(x):
    parts = [x[:, None, k] - x[None, :, k] for k in range(x.shape[1])]
    parts = [d - BOX * jnp.round(d / BOX) for d in parts]
    weights = jnp.exp(-sum(d * d for d in parts))
    return jnp.stack([jnp.sum(weights * d, 1) for d in parts], -1)


def ensemble(w, b, v, x):
    return jax.vmap(lambda w, b, v: jnp.tanh(x @ w + b) @ v)(w, b, v)


def ensemble_by_hand(w, b, v, x):
    return jnp.tanh(jnp.einsum("nd,kdh->knh", x, w) + b[:, None]) @ v


def relative_scores(x, r):
    i = jnp.arange(x.shape[1])
    return jnp.einsum("btd,tsd->bts", x, r[i[:, None] - i + len(i) - 1])


def relative_scores_by_hand(x, r):
    n = x.shape[1]
    i = jnp.arange(n)
    return jnp.take_along_axis(x @ r.T, (i[:, None] - i + n - 1)[None], -1)


def contrastive(x, y):
    """Pictures and their captions, both ways."""
    logits = 10 * unit(x) @ unit(y).T
    return -sum(jnp.diag(jax.nn.log_softmax(side)).mean() for side in (logits, logits.T))


def contrastive_by_hand(x, y):
    x, y = unit(x), unit(y)
    logits = 10 * x @ y.T
    far = sum(jax.nn.logsumexp(logits, axis).mean() for axis in (0, 1))
    return far - 20 * jnp.sum(x * y) / len(x)


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def wave(t):
    return jnp.sin(2 * t) * jnp.exp(-t * t) + jnp.sin(5 * t)


def distances(x):
    return jnp.sum(jnp.abs(x) ** 1.5)


def distances_by_hand(x):
    return jnp.sum(jnp.abs(x) * jnp.sqrt(jnp.abs(x)))


def soft_roots(x):
    return (x * x + 1) ** 0.25


def soft_roots_by_hand(x):
    return jnp.sqrt(jnp.sqrt(x * x + 1))


def slopes(x, y):
    """Of GELU, weighted and summed: four sums, which read what XLA computes once for all."""
    return jnp.sum(jax.vmap(jax.grad(lambda x, y: jax.nn.gelu(x) * y))(x, y))


def slopes_by_hand(x, y):
    a, b = (2 / jnp.pi) ** 0.5, 0.044715
    t = jnp.tanh(a * (x + b * x**3))
    return jnp.sum(y * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * b * x**2)))


def class_losses(x, w):
    """Of points, for their first class of five."""
    logits = x @ w
    return jax.nn.logsumexp(logits, -1) - logits[:, 0]


def class_losses_by_hand(x, w):
    logits = x @ w
    rows = [logits[:, k] for k in range(w.shape[1])]
    top = functools.reduce(jnp.maximum, rows)
    return jnp.log(sum(jnp.exp(row - top) for row in rows)) + top - rows[0]


def springs(x, k):
    """Energy of springs between all points, and of what holds them near the origin."""
    lengths = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + 1e-3)
    return jnp.sum(k * (lengths - 1) ** 2) + 1e-3 * jnp.sum((x @ x.T) ** 2)


def springs_by_hand(x, k):
    lengths = jnp.sqrt(sum((x[:, None, d] - x[None, :, d]) ** 2 for d in range(x.shape[1])) + 1e-3)
    return jnp.sum(k * (lengths - 1) ** 2) + 1e-3 * jnp.sum((x @ x.T) ** 2)


def two_peaks(x):
    return jnp.logaddexp(-2 * jnp.sum((x - 2) ** 2, -1), -2 * jnp.sum((x + 2) ** 2, -1))


def two_peaks_by_hand(x):
    return jnp.logaddexp(*(-2 * ((x[..., 0] + c) ** 2 + (x[..., 1] + c) ** 2) for c in (-2, 2)))


def exchange(density, x, swap):
    """A step of parallel tempering: walkers move, and some change places with those of the next temperature."""
    moved = x + 0.5 * jax.random.normal(jax.random.key(0), x.shape)
    accepted = jnp.where((density(moved) > density(x))[..., None], moved, x)
    up = jnp.where(swap[..., None] > 0, jnp.roll(accepted, -1, 0), accepted)
    return up, density(up)


def labels_of_rows(z, labels):
    """The mean cross-entropy of integer labels, as Optax writes it."""
    picked = jnp.take_along_axis(z, labels[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(z, -1) - picked)


def means_of_images(x):
    """Average pooling as wide as the images."""
    return lax.reduce_window(x, 0.0, lax.add, (1, 7, 7, 1), (1, 7, 7, 1), "VALID") / 49


def means_of_images_by_hand(x):
    return x.mean((1, 2), keepdims=True)


def legendre(x, c):
    """A sum of ten polynomials, one made of the two before."""
    found = [jnp.ones_like(x), x]
    for n in range(2, 10):
        found.append(((2 * n - 1) * x * found[-1] - (n - 1) * found[-2]) / n)
    return jnp.stack(found, -1) @ c


def soft_targets(z, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(z) * jax.nn.sigmoid(y), -1))


def entropy(z):
    return -jnp.mean(jnp.sum(jax.nn.softmax(z) * jax.nn.log_softmax(z), -1))


def kurtosis(x):
    return jnp.mean(((x - x.mean(-1, keepdims=True)) / jnp.std(x, -1, keepdims=True)) ** 4, -1)


def energy(r):
    """Of Lennard and Jones: two divisions of each entry."""
    return 4 * (r**-12 - r**-6)


def energy_of_one_division(r):
    sixth = 1 / r**6
    return 4 * (sixth * sixth - sixth)


CASES = (
    Case(
        "labels of 500 rows",
        labels_of_rows,
        {"by hand": labels_of_rows},
        lambda: (normal(0, 500, 3000), jnp.arange(500) * 5),
        grad=(0,),
        bounds=NEVER_SLOWER,
        grad_bounds=NEVER_SLOWER,
    ),
    case("means of whole images", means_of_images, means_of_images_by_hand, (32, 7, 7, 2048)),
    case("means of whole images, 64 channels", means_of_images, means_of_images_by_hand, (128, 7, 7, 64), grad=(0,)),
    case("ten polynomials", legendre, legendre, (500,), (10,), grad=(0, 1)),
    case("soft targets of 8,192 rows", soft_targets, soft_targets, (8192, 1000), (8192, 1000)),
    case("entropies of 40,000 rows", entropy, entropy, (40_000, 150)),
    case("kurtosis of rows", kurtosis, kurtosis, (20_000, 400)),
    case(
        "expectations under a softmax",
        lambda z, y: (jax.nn.softmax(z) * y).sum(-1),
        lambda z, y: (jax.nn.softmax(z) * y).sum(-1),
        (4500, 2001),
        (4500, 2001),
    ),
    case("mean distance of points", mean_distance, mean_distance_by_hand, (100_000, 3), (100_000, 3)),
    case("mixture of eight densities", mixture, mixture_by_hand, (20_000,), (8,), (8,), grad=(1, 2)),
    case("forces in a periodic box", forces, forces_by_hand, (300, 3)),
    case("ensemble of small networks", ensemble, ensemble_by_hand, (5, 8, 64), (5, 64), (5, 64, 1), (256, 8)),
    case(
        "scores of relative positions", relative_scores, relative_scores_by_hand, (4, 128, 64), (255, 64), grad=(0, 1)
    ),
    case("contrastive loss", contrastive, contrastive_by_hand, (256, 32), (256, 32), grad=(0,)),
    case("sines of 2,500 numbers", wave, wave, (2_500,)),
    case(
        "powers of 2,100 numbers", lambda x: jnp.abs(x) ** 1.7, lambda x: jnp.exp(1.7 * jnp.log(jnp.abs(x))), (2_100,)
    ),
    case("powers of 1.5", distances, distances_by_hand, (300_000,), grad=(0,)),
    case("powers of a quarter", soft_roots, soft_roots_by_hand, (300_000,), grad=(0,)),
    case("slopes of GELU, summed", slopes, slopes_by_hand, (1_000_000,), (1_000_000,)),
    case("losses of five classes", class_losses, class_losses_by_hand, (50_000, 16), (16, 5)),
    case("softmax of eight classes", jax.nn.softmax, jax.nn.softmax, (20_000, 8), grad=(0,)),
    case("log-softmax of six classes", jax.nn.log_softmax, jax.nn.log_softmax, (1_500, 6), grad=(0,)),
    case("a product in bfloat16, as a sum", bfloat16_product, bfloat16_product_by_hand, (256, 128), (128, 256)),
    case("springs between points", springs, springs_by_hand, (500, 3), (500, 500), grad=(0,)),
    case(
        "exchanged walkers",
        functools.partial(exchange, two_peaks),
        functools.partial(exchange, two_peaks_by_hand),
        (16, 200, 2),
        (16, 200),
    ),
    case(
        "energy of two negative powers",
        lambda x: energy(0.8 + jnp.abs(x)),
        lambda x: energy_of_one_division(0.8 + jnp.abs(x)),
        (300_000,),
    ),
)
