"""Flax: a step of a small residual network (NNX), and of recurrent layers under attention (Linen)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, before, after, stride, rngs):
        conv = lambda n, k, s: nnx.Conv(n, after, (k, k), s, use_bias=False, rngs=rngs)  # noqa: E731
        self.first, self.second = conv(before, 3, stride), conv(after, 3, 1)
        self.norm_first, self.norm_second = nnx.BatchNorm(after, rngs=rngs), nnx.BatchNorm(after, rngs=rngs)
        self.short = conv(before, 1, stride) if (before, stride) != (after, 1) else None

    def __call__(self, x):
        h = self.norm_second(self.second(nnx.relu(self.norm_first(self.first(x)))))
        return nnx.relu(h + (x if self.short is None else self.short(x)))


class Residual(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(16, 16, 1, rngs), Block(16, 32, 2, rngs), Block(32, 64, 2, rngs)])
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Reader(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        h = nn.RNN(nn.LSTMCell(64))(nn.Embed(50, 32)(tokens))
        h = nn.Bidirectional(nn.RNN(nn.GRUCell(32)), nn.RNN(nn.GRUCell(32)))(h)
        h = h + nn.MultiHeadDotProductAttention(4)(h, h, mask=nn.make_causal_mask(tokens))
        return nn.Dense(50)(nn.LayerNorm()(h))


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@nnx.jit
def residual_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(x), y))(model)
    optimizer.update(model, grads)
    return loss


model = Residual(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
images = jax.random.normal(jax.random.key(0), (32, 32, 32, 3))
print("residual network", residual_step(model, optimizer, images, jnp.arange(32) % 10))

reader, lamb = Reader(), optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3))
tokens = jax.random.randint(jax.random.key(0), (16, 40), 0, 50)
params = reader.init(jax.random.key(1), tokens)


@jax.jit
def reader_step(params, state, tokens):
    loss, grads = jax.value_and_grad(lambda p: cross_entropy(reader.apply(p, tokens)[:, :-1], tokens[:, 1:]))(params)
    updates, state = lamb.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


print("reader", reader_step(params, lamb.init(params), tokens)[2])
