"""A variational autoencoder (Kingma and Welling 2014) of handwritten digits: 8 x 8 pixels of 0 to 16, scikit-learn's.

Each pixel is a binomial of 16 trials whose probability the decoder tells. The bound on the log-likelihood of held-out
images is compared with a model that has one probability for each pixel, and so knows no digits.

    python examples/digits_vae.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import aerogel as ag
from aerogel import nn

LEVELS = 16


class VAE(ag.Module):
    encoder: nn.MLP
    decoder: nn.MLP

    def __init__(self, hidden, latent, *, key):
        one, two = jax.random.split(key)
        self.encoder = nn.MLP(64, 2 * latent, hidden, 1, key=one)
        self.decoder = nn.MLP(latent, 64, hidden, 1, key=two)

    def bound(self, images, key):
        """A lower bound on the log-likelihood of each of `images` `[..., 64]`, by one draw of the code."""
        mean, log_scale = jnp.split(self.encoder(images / LEVELS), 2, axis=-1)
        code = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
        divergence = 0.5 * (jnp.square(mean) + jnp.exp(2 * log_scale) - 1) - log_scale
        return log_binomial(images, self.decoder(code)).sum(-1) - divergence.sum(-1)


def log_binomial(counts, logits):
    """Log-probability of `counts` of `LEVELS` trials."""
    lgamma = jax.lax.lgamma
    ways = lgamma(LEVELS + 1.0) - lgamma(counts + 1) - lgamma(LEVELS + 1 - counts)
    return ways + counts * jax.nn.log_sigmoid(logits) + (LEVELS - counts) * jax.nn.log_sigmoid(-logits)


def loss(model, images, key):
    return -model.bound(images, key).mean()


def step(state, images):
    model, optimizer, average, key = state
    key, own = jax.random.split(key)
    value, model, optimizer = optimizer.step(loss)(model, images, own)
    return (model, optimizer, average.update(model), key), value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    images = load_digits().data.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = images[order[:360]], images[order[360:]]

    def batches():
        for epoch in range(args.epochs):
            shuffled = np.random.default_rng(epoch).permutation(train)
            yield from (shuffled[i : i + args.batch] for i in range(0, len(train) - args.batch + 1, args.batch))

    model = VAE(args.hidden, args.latent, key=jax.random.key(0))
    optimizer = ag.Optimizer(optax.adam(3e-3)).init(model)
    state = model, optimizer, ag.EMA(0.99).init(model), jax.random.key(1)
    running = ag.loop(step, state, ag.prefetch(batches()), steps_per_call=22)
    for i, losses in enumerate(running):
        if i % 5 == 0:
            print(f"step {running.step:5d}  {float(losses.mean()):.2f} nats per image")

    model, _, average, key = running.state
    bound = jax.jit(lambda model, key: model.bound(test, key).mean())
    smooth = average.model(model)
    mean = np.mean([bound(smooth, k) for k in jax.random.split(key, 20)])
    share = np.clip(train.mean(0) / LEVELS, 1e-3, 1 - 1e-3)
    plain = float(log_binomial(test, np.log(share / (1 - share))).sum(-1).mean())
    print(f"held-out images        {-mean:.2f} nats per image")
    print(f"independent pixels     {-plain:.2f} nats per image")


if __name__ == "__main__":
    main()
