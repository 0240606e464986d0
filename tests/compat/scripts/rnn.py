import equinox as eqx
import jax
import jax.numpy as jnp
import optax


def spirals(key, count=32, length=8):
    t = jnp.linspace(0, 2 * jnp.pi, length)
    shift = jax.random.uniform(key, (count, 1), maxval=2 * jnp.pi)
    turn = jnp.where(jnp.arange(count) < count // 2, 1.0, -1.0)[:, None]
    x = jnp.stack([jnp.cos(turn * t + shift), jnp.sin(turn * t + shift)], axis=-1) / (1 + t[:, None])
    return x, (turn[:, 0] > 0).astype(jnp.float32)


class RNN(eqx.Module):
    hidden_size: int
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, in_size, out_size, hidden_size, *, key):
        ckey, lkey = jax.random.split(key)
        self.hidden_size = hidden_size
        self.cell = eqx.nn.GRUCell(in_size, hidden_size, key=ckey)
        self.linear = eqx.nn.Linear(hidden_size, out_size, use_bias=False, key=lkey)
        self.bias = jnp.zeros(out_size)

    def __call__(self, xs):
        def f(carry, x):
            return self.cell(x, carry), None

        out, _ = jax.lax.scan(f, jnp.zeros((self.hidden_size,)), xs)
        return jax.nn.sigmoid(self.linear(out) + self.bias)


@eqx.filter_value_and_grad
def compute_loss(model, x, y):
    pred = jax.vmap(model)(x)
    return -jnp.mean(y * jnp.log(pred[:, 0]) + (1 - y) * jnp.log(1 - pred[:, 0]))


@eqx.filter_jit
def make_step(model, x, y, opt_state):
    loss, grads = compute_loss(model, x, y)
    updates, opt_state = optim.update(grads, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


dkey, mkey = jax.random.split(jax.random.key(5678))
xs, ys = spirals(dkey)
model = RNN(2, 1, 8, key=mkey)
optim = optax.adam(3e-2)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(12):
    loss, model, opt_state = make_step(model, xs, ys, opt_state)
    print(step, f"{loss:.4f}")

stack = eqx.filter_vmap(lambda key: eqx.nn.LSTMCell(2, 3, key=key))(jax.random.split(mkey, 2))
h, c = eqx.filter_vmap(lambda cell, x: cell(x, (jnp.zeros(3), jnp.ones(3))))(stack, xs[:2, 0])
print(stack.hidden_size, h.round(3), c.round(3))
