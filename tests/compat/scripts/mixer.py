import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class MixerBlock(eqx.Module):
    patch_mixer: eqx.nn.MLP
    hidden_mixer: eqx.nn.MLP
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm

    def __init__(self, patches, hidden_size, mix_patch_size, mix_hidden_size, *, key):
        tkey, ckey = jax.random.split(key)
        self.patch_mixer = eqx.nn.MLP(patches, patches, mix_patch_size, depth=1, activation=jax.nn.gelu, key=tkey)
        self.hidden_mixer = eqx.nn.MLP(hidden_size, hidden_size, mix_hidden_size, depth=1, key=ckey)
        self.norm1 = eqx.nn.LayerNorm((hidden_size, patches))
        self.norm2 = eqx.nn.LayerNorm((patches, hidden_size))

    def __call__(self, y):
        y = y + jax.vmap(self.patch_mixer)(self.norm1(y))
        y = jnp.transpose(y)
        y = y + jax.vmap(self.hidden_mixer)(self.norm2(y))
        return jnp.transpose(y)


class Mixer(eqx.Module):
    conv_in: eqx.nn.Conv2d
    conv_out: eqx.nn.ConvTranspose2d
    blocks: list
    norm: eqx.nn.LayerNorm

    def __init__(self, img_size, patch_size, hidden_size, num_blocks, *, key):
        channels, height, width = img_size
        inkey, outkey, *bkeys = jax.random.split(key, 2 + num_blocks)
        patches = (height // patch_size) * (width // patch_size)
        self.conv_in = eqx.nn.Conv2d(channels + 1, hidden_size, patch_size, stride=patch_size, key=inkey)
        self.conv_out = eqx.nn.ConvTranspose2d(hidden_size, channels, patch_size, stride=patch_size, key=outkey)
        self.blocks = [MixerBlock(patches, hidden_size, 5, 6, key=bkey) for bkey in bkeys]
        self.norm = eqx.nn.LayerNorm((hidden_size, patches))

    def __call__(self, t, y):
        _, height, width = y.shape
        y = jnp.concatenate([y, jnp.full((1, height, width), t)])
        y = self.conv_in(y)
        hidden_size, rows, columns = y.shape
        y = y.reshape(hidden_size, rows * columns)
        for block in self.blocks:
            y = block(y)
        return self.conv_out(self.norm(y).reshape(hidden_size, rows, columns))


def batch_loss_fn(model, data, key):
    tkey, nkey = jax.random.split(key)
    t = jax.random.uniform(tkey, data.shape[:1])
    noise = jax.random.normal(nkey, data.shape)
    std = jnp.sqrt(1 - jnp.exp(-t))[:, None, None, None]
    pred = jax.vmap(model)(t, data * jnp.exp(-t / 2)[:, None, None, None] + noise * std)
    return jnp.mean((pred + noise / std) ** 2 * std**2)


@eqx.filter_jit
def make_step(model, data, key, opt_state):
    loss, grads = eqx.filter_value_and_grad(batch_loss_fn)(model, data, key)
    updates, opt_state = opt_update(grads, opt_state)
    key = jax.random.split(key, 1)[0]
    return loss, eqx.apply_updates(model, updates), key, opt_state


key = jax.random.key(3)
data = jnp.cos(jnp.arange(4 * 1 * 8 * 8.0)).reshape(4, 1, 8, 8)
model = Mixer((1, 8, 8), patch_size=4, hidden_size=6, num_blocks=1, key=key)
opt = optax.adabelief(3e-3)
opt_update = opt.update
opt_state = opt.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(5):
    loss, model, key, opt_state = make_step(model, data, key, opt_state)
    print(step, f"{loss:.4f}")
