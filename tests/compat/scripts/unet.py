import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Block(eqx.Module):
    norm: eqx.nn.GroupNorm
    conv: eqx.nn.Conv2d
    time: eqx.nn.Linear
    act: eqx.nn.PReLU

    def __init__(self, into, out, *, key):
        ckey, tkey = jax.random.split(key)
        self.norm = eqx.nn.GroupNorm(2, into)
        self.conv = eqx.nn.Conv2d(into, out, 3, padding="SAME", padding_mode="REFLECT", key=ckey)
        self.time = eqx.nn.Linear("scalar", out, key=tkey)
        self.act = eqx.nn.PReLU()

    def __call__(self, t, x):
        return self.act(self.conv(self.norm(x)) + self.time(t)[:, None, None])


class UNet(eqx.Module):
    first: eqx.nn.Conv2d
    down: Block
    pool: eqx.nn.AvgPool2d
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.ConvTranspose2d
    merge: Block
    last: eqx.nn.WeightNorm

    def __init__(self, channels, *, key):
        keys = iter(jax.random.split(key, 6))
        self.first = eqx.nn.Conv2d(1, channels, 1, key=next(keys))
        self.down = Block(channels, channels, key=next(keys))
        self.pool = eqx.nn.AvgPool2d(2, 2)
        self.attention = eqx.nn.MultiheadAttention(2, channels, key=next(keys))
        self.up = eqx.nn.ConvTranspose2d(channels, channels, 3, 2, 1, 1, key=next(keys))
        self.merge = Block(2 * channels, channels, key=next(keys))
        self.last = eqx.nn.WeightNorm(eqx.nn.Conv2d(channels, 1, 3, padding=1, key=next(keys)))

    def __call__(self, t, x):
        skipped = self.down(t, self.first(x))
        x = self.pool(skipped)
        seq = x.reshape(x.shape[0], -1).T
        x = x + self.attention(seq, seq, seq).T.reshape(x.shape)
        x = self.merge(t, jnp.concatenate([self.up(x), skipped]))
        return self.last(x)


@eqx.filter_jit
def make_step(model, opt_state, t, x, noise):
    def loss(model):
        noisy = jnp.sqrt(1 - t)[:, None, None, None] * x + jnp.sqrt(t)[:, None, None, None] * noise
        return jnp.mean((jax.vmap(model)(t, noisy) - noise) ** 2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, opt_state = optim.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, value


key = jax.random.key(1)
model = UNet(4, key=key)
x = jnp.sin(jnp.arange(3 * 64.0)).reshape(3, 1, 8, 8)
noise = jax.random.normal(key, x.shape)
optim = optax.adam(1e-2)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(4):
    model, opt_state, value = make_step(model, opt_state, jnp.array([0.1, 0.5, 0.9]), x, noise)
    print(step, f"{value:.4f}")
print(model.up.weight.shape, model.up.output_padding, model.last.g.shape, model.first.bias.shape)
