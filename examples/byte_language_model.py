"""A byte-level recurrent language model, trained on the source text of Python's standard library.

Plain JAX and Optax: an embedding, a gated recurrent unit scanned over time, an output head over the 256 bytes, mean
cross-entropy. Modules are split into training and held-out files; the result is bits per byte on the held-out ones,
next to what zlib needs for them.

    python examples/byte_language_model.py
    aerogel run examples/byte_language_model.py
"""

import argparse
import sysconfig
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

BYTES = 256


def init_params(key, embed_size, hidden_size):
    keys = jax.random.split(key, 4)

    def dense(key, n_in, n_out):
        return jax.random.normal(key, (n_in, n_out)) / n_in**0.5

    return {
        "embed": jax.random.normal(keys[0], (BYTES, embed_size)),
        "input": dense(keys[1], embed_size, 3 * hidden_size),
        "recurrent": dense(keys[2], hidden_size, 3 * hidden_size),
        "bias": jnp.zeros(3 * hidden_size),
        "head": dense(keys[3], hidden_size, BYTES),
    }


def gru(params, h, x):
    """One step of a gated recurrent unit (Cho et al. 2014) for a batch of states `h` and inputs `x`."""
    x_update, x_reset, x_new = jnp.split(x @ params["input"] + params["bias"], 3, axis=-1)
    h_update, h_reset, h_new = jnp.split(h @ params["recurrent"], 3, axis=-1)
    update = jax.nn.sigmoid(x_update + h_update)
    new = jnp.tanh(x_new + jax.nn.sigmoid(x_reset + h_reset) * h_new)
    return update * h + (1 - update) * new


def logits_fn(params, tokens):
    """Logits `[time, batch, 256]` for the byte after each byte of `tokens` `[time, batch]`."""

    def step(h, x):
        h = gru(params, h, x)
        return h, h

    h0 = jnp.zeros((tokens.shape[1], params["recurrent"].shape[0]))
    _, hidden = lax.scan(step, h0, params["embed"][tokens])
    return hidden @ params["head"]


@jax.jit
def loss_fn(params, tokens):
    """Mean cross-entropy in nats of each byte given the ones before it in its window."""
    logits = logits_fn(params, tokens[:-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[1:]).mean()


def read_library(limit):
    """Bytes of training files and of held-out files (every eighth), `limit` bytes in all."""
    train, held_out, size = [], [], 0
    for i, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        text = path.read_bytes()
        (held_out if i % 8 == 7 else train).append(text)
        size += len(text)
        if size > limit and held_out:
            break
    return b"".join(train), b"".join(held_out)


def batch_of(data, rng, time, batch):
    """Random windows of `time + 1` bytes, time first."""
    starts = rng.integers(0, len(data) - time - 1, batch)
    return jnp.asarray(data[starts[None] + np.arange(time + 1)[:, None]].astype(np.int32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--embed", type=int, default=64)
    parser.add_argument("--time", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--bytes", type=int, default=1_500_000, help="how much source text to read")
    args = parser.parse_args()

    train, held_out = read_library(args.bytes)
    print(f"{len(train)} bytes for training, {len(held_out)} held out")
    train_data, test_data = (np.frombuffer(text, np.uint8) for text in (train, held_out))

    params = init_params(jax.random.key(0), args.embed, args.hidden)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, args.steps)))
    opt_state = optimiser.init(params)

    @jax.jit
    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    rng = np.random.default_rng(0)
    for step in range(args.steps):
        params, opt_state, loss = train_step(params, opt_state, batch_of(train_data, rng, args.time, args.batch))
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  training loss {float(loss) / np.log(2):.3f} bits per byte")

    rng = np.random.default_rng(1)
    losses = [float(loss_fn(params, batch_of(test_data, rng, args.time, args.batch))) for _ in range(20)]
    print(f"held-out files: {np.mean(losses) / np.log(2):.3f} bits per byte")
    print(f"zlib needs      {8 * len(zlib.compress(held_out, 9)) / len(held_out):.3f} bits per byte")


if __name__ == "__main__":
    main()
