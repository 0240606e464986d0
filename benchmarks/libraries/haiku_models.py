"""Haiku: the gradient of stacked recurrent cells, and that of a transformer of three layers."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax


def recurrent(x):
    core = hk.DeepRNN([hk.LSTM(64), jax.nn.relu, hk.GRU(32)])
    out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return hk.BatchApply(hk.Linear(5))(out)


def transformer(tokens):
    h, length = hk.Embed(100, 64)(tokens), tokens.shape[1]
    mask = jnp.tril(jnp.ones((1, 1, length, length)))
    for _ in range(3):
        normed = hk.LayerNorm(-1, True, True)(h)
        h = h + hk.MultiHeadAttention(4, 16, w_init_scale=1.0)(normed, normed, normed, mask=mask)
        h = h + hk.Linear(64)(jax.nn.gelu(hk.Linear(256)(hk.LayerNorm(-1, True, True)(h))))
    return hk.Linear(100)(h)


cells = hk.without_apply_rng(hk.transform(recurrent))
x = jax.random.normal(jax.random.key(0), (60, 16, 8))
params = cells.init(jax.random.key(1), x)
print("cells", optax.global_norm(jax.jit(jax.grad(lambda p: jnp.mean(cells.apply(p, x) ** 2)))(params)))

layers = hk.without_apply_rng(hk.transform(transformer))
tokens = jax.random.randint(jax.random.key(2), (8, 128), 0, 100)


@jax.jit
def loss_and_gradient(p):
    def loss(p):
        logits = layers.apply(p, tokens)[:, :-1]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]))

    return jax.value_and_grad(loss)(p)


loss, grads = loss_and_gradient(layers.init(jax.random.key(3), tokens))
print("transformer", loss, optax.global_norm(grads))
