"""An LSTM that forecasts the next solar cycle, with the layers and the training kit of Aerogel.

Data: yearly sunspot numbers since 1700 (statsmodels). After each year the network predicts the next eleven; it is
trained on windows that end before 1930, also on scaled copies of them (cycles have grown since), and tested on the
years after, against the seasonal-naive forecast (the value eleven years before). `sunspots_lstm.py` does the same with
Equinox.

    python examples/sunspots_forecast.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from statsmodels.datasets import sunspots

import aerogel as ag
from aerogel import nn

CYCLE = 11  # years: the length of the solar cycle, of the forecast and of the naive forecast's season
SPLIT = 1930
SCALE = 100.0
AUGMENT = (0.7, 1.0, 1.4, 2.0)


class Forecaster(ag.Module):
    lstm: nn.LSTM
    head: nn.Linear

    def __init__(self, hidden, *, key):
        one, two = jax.random.split(key)
        self.lstm = nn.LSTM(1, hidden, key=one)
        self.head = nn.Linear(hidden, CYCLE, key=two)

    def __call__(self, years):
        """Forecasts `[..., time, CYCLE]` for `[..., time]`: after each year, the `CYCLE` years that follow it."""
        return self.head(self.lstm(years[..., None])[0])


def windows_of(series, length):
    """Histories `[n, length]` and, for each year in them, the `CYCLE` years that follow `[n, length, CYCLE]`."""
    whole = np.lib.stride_tricks.sliding_window_view(series, length + CYCLE)
    futures = np.lib.stride_tricks.sliding_window_view(whole[:, 1:], CYCLE, axis=1)
    return whole[:, :length], futures


def loss(model, batch):
    """Mean squared error over all years but the first of each window, when the state knows too little."""
    histories, futures = batch
    return jnp.square(model(histories) - futures)[:, CYCLE:].mean()


def step(state, batch):
    model, optimizer = state
    value, model, optimizer = optimizer.step(loss)(model, batch)
    return (model, optimizer), value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--history", type=int, default=44, help="years that the network sees before it forecasts")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()

    data = sunspots.load_pandas().data
    years = data["YEAR"].to_numpy(int)
    series = data["SUNACTIVITY"].to_numpy(np.float32) / SCALE
    parts = [windows_of(factor * series[years < SPLIT], args.history) for factor in AUGMENT]
    train = tuple(jnp.concatenate(each) for each in zip(*parts, strict=True))
    first_test = int(np.argmax(years >= SPLIT))
    histories, futures = windows_of(series[first_test - args.history :], args.history)

    model = Forecaster(args.hidden, key=jax.random.key(0))
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, args.steps)))
    running = ag.loop(step, (model, ag.Optimizer(transform).init(model)), (train for _ in range(args.steps)))
    for losses in running:
        if running.step % 100 == 0:
            print(f"step {running.step:4d}  training error {float(losses[0]) ** 0.5 * SCALE:7.2f}")

    def error(forecasts):
        return float(np.sqrt(np.mean(np.square(forecasts - futures[:, -1])))) * SCALE

    lstm, naive = error(ag.jit(running.state[0])(histories)[:, -1]), error(histories[:, -CYCLE:])
    print(f"test error, next {CYCLE} years from {SPLIT} on (root mean square, sunspots)")
    print(f"  LSTM            {lstm:7.2f}")
    print(f"  seasonal naive  {naive:7.2f}")
    print(f"  improvement     {100 * (1 - lstm / naive):7.2f} %")


if __name__ == "__main__":
    main()
