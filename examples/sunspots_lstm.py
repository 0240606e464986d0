"""An LSTM that forecasts the next solar cycle, written with Equinox and Optax.

Data: yearly sunspot numbers since 1700 (statsmodels). After each year the network predicts the next eleven; it is
trained on windows that end before 1930, also on scaled copies of them (cycles have grown since), and tested on
the years after, against the seasonal-naive forecast (the value eleven years before).

    python examples/sunspots_lstm.py
    aerogel run examples/sunspots_lstm.py
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from statsmodels.datasets import sunspots

CYCLE = 11  # years: the length of the solar cycle, of the forecast and of the naive forecast's season
SPLIT = 1930
SCALE = 100.0
AUGMENT = (0.7, 1.0, 1.4, 2.0)


class Forecaster(eqx.Module):
    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __init__(self, hidden_size, *, key):
        cell_key, head_key = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(1, hidden_size, key=cell_key)
        self.head = eqx.nn.Linear(hidden_size, CYCLE, key=head_key)

    def __call__(self, years):
        """Forecasts of shape `[time, CYCLE]`: after each year, the `CYCLE` years that follow it."""

        def step(state, year):
            state = self.cell(year[None], state)
            return state, state[0]

        zeros = jnp.zeros(self.cell.hidden_size)
        _, hidden = lax.scan(step, (zeros, zeros), years)
        return jax.vmap(self.head)(hidden)


def windows_of(series, length):
    """Histories `[n, length]` and, for each year in them, the `CYCLE` years that follow `[n, length, CYCLE]`."""
    count = len(series) - length - CYCLE + 1
    histories = np.stack([series[i : i + length] for i in range(count)])
    futures = np.stack([[series[i + t + 1 : i + t + 1 + CYCLE] for t in range(length)] for i in range(count)])
    return jnp.asarray(histories), jnp.asarray(futures)


def loss_fn(model, histories, futures, warm_up):
    """Mean squared error over all years but the first `warm_up` of each window, when the state knows too little."""
    forecasts = jax.vmap(model)(histories)
    return jnp.mean(jnp.square(forecasts - futures)[:, warm_up:])


def root_mean_square(error):
    return float(np.sqrt(np.mean(np.square(error)))) * SCALE


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--history", type=int, default=33, help="years that the network sees before it forecasts")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    data = sunspots.load_pandas().data
    years = data["YEAR"].to_numpy(int)
    series = data["SUNACTIVITY"].to_numpy(np.float32) / SCALE
    augmented = [windows_of(factor * series[years < SPLIT], args.history) for factor in AUGMENT]
    train_histories, train_futures = (jnp.concatenate(parts) for parts in zip(*augmented, strict=True))
    first_test = int(np.argmax(years >= SPLIT))
    test_histories, test_futures = windows_of(series[first_test - args.history :], args.history)

    model = Forecaster(args.hidden, key=jax.random.key(0))
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, args.steps)))
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def train_step(model, opt_state, histories, futures):
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, histories, futures, CYCLE)
        updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    @eqx.filter_jit
    def forecast_last(model, histories):
        return jax.vmap(model)(histories)[:, -1]

    for step in range(args.steps):
        model, opt_state, loss = train_step(model, opt_state, train_histories, train_futures)
        if step % 100 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  training error {float(loss) ** 0.5 * SCALE:7.2f}")

    actual = test_futures[:, -1]
    lstm = root_mean_square(forecast_last(model, test_histories) - actual)
    naive = root_mean_square(test_histories[:, -CYCLE:] - actual)
    print(f"test error, next {CYCLE} years from {SPLIT} on (root mean square, sunspots)")
    print(f"  LSTM            {lstm:7.2f}")
    print(f"  seasonal naive  {naive:7.2f}")
    print(f"  improvement     {100 * (1 - lstm / naive):7.2f} %")


if __name__ == "__main__":
    main()
