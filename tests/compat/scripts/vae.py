import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class VAE(eqx.Module):
    encoder: eqx.nn.Sequential
    mean: eqx.nn.Linear
    log_std: eqx.nn.Linear
    decoder: eqx.nn.MLP

    def __init__(self, size, latent, *, key):
        ekey, mkey, skey, dkey = jax.random.split(key, 4)
        self.encoder = eqx.nn.Sequential(
            [
                eqx.nn.Lambda(lambda x: x[None]),
                eqx.nn.Conv1d(1, 3, 3, stride=2, padding="SAME", key=ekey),
                eqx.nn.Lambda(jax.nn.silu),
                eqx.nn.AdaptiveMaxPool1d(4),
                eqx.nn.Lambda(jnp.ravel),
            ]
        )
        self.mean = eqx.nn.Linear(12, latent, key=mkey)
        self.log_std = eqx.nn.Linear(12, latent, key=skey)
        self.decoder = eqx.nn.MLP(latent, size, 8, 3, jax.nn.softplus, scan=True, key=dkey)

    def __call__(self, x, key):
        h = self.encoder(x)
        mean, log_std = self.mean(h), self.log_std(h)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        kl = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_std) - 1) - jnp.sum(log_std)
        return self.decoder(z), kl


@eqx.filter_jit(donate="all-except-first")
def make_step(x, model, opt_state, key):
    @eqx.filter_value_and_grad
    def loss(model):
        out, kl = jax.vmap(model)(x, jax.random.split(key, len(x)))
        return jnp.mean(jnp.sum((out - x) ** 2, -1) + 0.1 * kl)

    value, grads = loss(model)
    updates, opt_state = optim.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, value


key = jax.random.key(2)
x = jnp.sin(jnp.arange(8)[:, None] + 0.3 * jnp.arange(12))
model = VAE(12, 2, key=key)
optim = optax.adam(1e-2)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(6):
    model, opt_state, value = make_step(x, model, opt_state, jax.random.fold_in(key, step))
    print(step, f"{value:.4f}")
frozen = jax.tree.map(lambda _: False, model)
frozen = eqx.tree_at(lambda m: m.decoder.layers[-1].weight, frozen, True)
chosen, rest = eqx.partition(model, frozen)
print([leaf.shape for leaf in jax.tree.leaves(chosen)], eqx.combine(chosen, rest).decoder.layers[1].weight.shape)
