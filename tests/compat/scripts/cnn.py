import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class CNN(eqx.Module):
    layers: eqx.nn.Sequential
    norm: eqx.nn.SpectralNorm
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.layers = eqx.nn.Sequential(
            [
                eqx.nn.Conv2d(1, 4, 3, padding=1, use_bias=False, key=keys[0]),
                eqx.nn.BatchNorm(4, axis_name="batch", momentum=0.9, mode="batch"),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.MaxPool2d(2, 2),
                eqx.nn.Conv2d(4, 4, (3, 2), use_bias=False, key=keys[1]),
                eqx.nn.BatchNorm(4, axis_name="batch", momentum=0.9, mode="ema"),
                eqx.nn.AdaptiveAvgPool2d((2, 1)),
                eqx.nn.Lambda(jnp.ravel),
            ]
        )
        self.norm = eqx.nn.SpectralNorm(eqx.nn.Linear(8, 8, key=keys[2]), "weight", key=keys[3])
        self.drop = eqx.nn.Dropout(0.25)
        self.head = eqx.nn.Linear(8, 3, key=keys[4])

    def __call__(self, x, state, key):
        x, state = self.layers(x, state)
        x, state = self.norm(x, state)
        return self.head(self.drop(x, key=key)), state


def loss_fn(model, state, x, y, key):
    keys = jax.random.split(key, x.shape[0])
    forward = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    scores, state = forward(x, state, keys)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), state


@eqx.filter_jit
def make_step(model, state, opt_state, x, y, key):
    (loss, state), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, state, x, y, key)
    updates, opt_state = optim.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, opt_state, loss


key = jax.random.key(0)
x = jax.random.normal(key, (6, 1, 8, 9))
y = jnp.arange(6) % 3
model, state = eqx.nn.make_with_state(CNN)(key)
optim = optax.sgd(0.1)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))
for step in range(4):
    model, state, opt_state, loss = make_step(model, state, opt_state, x, y, jax.random.fold_in(key, step))
    print(step, f"{loss:.4f}")

inference_model = eqx.nn.inference_mode(model)
predict = eqx.filter_vmap(lambda m, s, x: m(x, s, None)[0], in_axes=(None, None, 0))
print(predict(inference_model, state, x).round(3))
bn = model.layers.layers[1]
print(state.get(bn.batch_counter), state.get(bn.batch_state_index)[0].round(3), bn.mode, bn.input_size)
part = state.substate(model.layers)
print([x.shape for x in jax.tree.leaves(part)], model.layers.is_stateful(), model.layers[2:4].is_stateful())
counter = part.get(bn.batch_counter)
state = state.update(part.set(bn.batch_counter, counter + 1))
print(state.get(bn.batch_counter))
for wrong in (lambda: part.get(bn.batch_counter), lambda: state.set(bn.batch_counter, jnp.ones(3))):
    try:
        wrong()
    except ValueError as error:
        print(type(error) is not Exception)
