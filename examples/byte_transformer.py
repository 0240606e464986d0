"""A byte-level transformer that learns the source of Python's standard library, for a given time, on a CPU.

Each byte is embedded together with the few bytes before it, by hashing these into tables (Pagnoni et al. 2024): what
stands nearby costs a look-up, and the transformer has the rest to do. One module in twenty is held out; the result is
bits per byte on these, next to what lzma needs for them, one by one and all in one.

    python examples/byte_transformer.py --minutes 10
"""

import argparse
import lzma
import sysconfig
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import aerogel as ag
from aerogel import nn

BYTES = 256
TESTS = {"test", "tests", "idlelib", "lib2to3", "site-packages"}


class Model(ag.Module):
    byte: nn.Embedding
    grams: list[nn.Embedding]  # of the last 2, 3, ... bytes, by their hash
    blocks: nn.Stack
    norm: nn.RMSNorm
    head: nn.Linear

    def __init__(self, size, depth, heads, table, longest, *, key):
        byte, grams, blocks, head = jax.random.split(key, 4)
        small = jax.nn.initializers.normal(0.02)
        rotary = nn.RotaryPositionalEmbedding(size // heads)

        def block(key):
            return nn.TransformerBlock(
                heads, size, is_causal=True, use_bias=False, rotary=rotary, norm=nn.RMSNorm, init=small, key=key
            )

        self.byte = nn.Embedding(BYTES, size, init=small, key=byte)
        self.grams = [nn.Embedding(table, size, init=small, key=k) for k in jax.random.split(grams, longest - 1)]
        self.blocks = nn.Stack(block, depth, key=blocks)
        self.norm = nn.RMSNorm(size)
        self.head = nn.Linear(size, BYTES, init=small, key=head)

    def __call__(self, tokens):
        """Scores `[..., time, 256]` for the byte after each of `tokens` `[..., time]`."""
        x = self.byte(tokens)
        hashed = tokens.astype(jnp.uint32)
        for back, table in enumerate(self.grams, 1):
            before = jnp.roll(tokens, back, axis=-1).astype(jnp.uint32)
            hashed = (hashed * 0x1E3779B1 ^ (before + 1) * 0x45EBCA77) * 0x42B2AE3D
            index = (hashed >> 7) % table.num_embeddings
            # The first bytes of a window have too few before them.
            x = x + jnp.where(jnp.arange(tokens.shape[-1])[:, None] < back, 0, table(index.astype(jnp.int32)))
        return self.head(self.norm(self.blocks(x)))


def nats(model, windows):
    """Cross-entropy of each byte of `windows` but the first, `[..., time]`."""
    windows = windows.astype(jnp.int32)
    return optax.softmax_cross_entropy_with_integer_labels(model(windows[..., :-1]), windows[..., 1:])


def scale_by_rate():
    """Updates times a learning rate that the step is given: here it follows the clock."""

    def update(updates, state, params=None, *, rate, **_):
        return jax.tree.map(lambda u: -rate * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def read_library():
    """Modules for training, and every twentieth, held out."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_bytes() for path in sorted(root.rglob("*.py")) if not TESTS & set(path.parts)]
    return b"".join(text for i, text in enumerate(texts) if i % 20), texts[::20]


def windows_of(text, length, size, seconds, steps):
    """Random windows with the share of the time, or of the steps, that has passed, until it is over."""
    data, rng, start = np.frombuffer(text, np.uint8), np.random.default_rng(0), time.monotonic()
    for step in range(steps):
        share = max((time.monotonic() - start) / seconds, step / steps)
        if share >= 1:
            return
        starts = rng.integers(0, len(data) - length, size)
        yield {"windows": data[starts[:, None] + np.arange(length + 1)], "share": np.float32(share)}


def held_out_bits(model, text, length):
    """Bits per byte of a text. Each byte is given half a window before it, or all that there is."""
    half = length // 2
    data = np.frombuffer(text, np.uint8)
    data = np.pad(data, (half + 1, -len(data) % half))
    windows = np.lib.stride_tricks.sliding_window_view(data, length + 1)[::half]
    scored = ag.jit(lambda model, windows: nats(model, windows)[:, -half:])
    losses = np.concatenate([scored(model, part).ravel() for part in np.array_split(windows, len(windows) // 32 + 1)])
    return losses[: len(text)].mean() / np.log(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=10**6, help="how many steps at most")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--table", type=int, default=2**15, help="entries of a table of hashed bytes")
    parser.add_argument("--longest", type=int, default=6, help="how many bytes are hashed together at most")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--held-out", type=int, default=10**9, help="how many bytes to measure at the end")
    args = parser.parse_args()

    train, held_out = read_library()
    held_out = [text for i, text in enumerate(held_out) if sum(map(len, held_out[: i + 1])) <= args.held_out]
    joined = b"".join(held_out)
    print(f"{len(train)} bytes for training, {len(joined)} held out")
    model = Model(args.size, args.depth, args.heads, args.table, args.longest, key=jax.random.key(0))
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.98), scale_by_rate())
    optimizer = ag.Optimizer(transform).init(model)
    print(f"{ag.count_params(model)} parameters")

    def step(state, batch):
        model, optimizer = state
        loss, grads = ag.value_and_grad(lambda model: nats(model, batch["windows"]).mean())(model)
        share = batch["share"]
        rate = args.rate * jnp.minimum(1, share * 30) * (1 - share)
        return optimizer.update(model, grads, rate=rate), loss

    batches = windows_of(train, args.window, args.batch, 60 * args.minutes, args.steps)
    running, recent = ag.loop(step, (model, optimizer), batches), ag.RunningMean(0.95)
    start = time.monotonic()
    for losses in running:
        recent = recent.update(losses[-1] / np.log(2))
        if running.step % 50 == 0:
            passed, seen = time.monotonic() - start, running.step * args.batch * args.window
            print(f"step {running.step:5d}  {float(recent.value()):.3f} bits per byte, {seen / passed:.0f} bytes/s")

    bits = held_out_bits(running.state[0], joined, args.window)
    whole = 8 * len(lzma.compress(joined, preset=9 | lzma.PRESET_EXTREME)) / len(joined)
    each = 8 * sum(len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in held_out)
    print(f"steps done              {running.step}")
    print(f"held-out files          {bits:.3f} bits per byte")
    print(f"lzma, all files in one  {whole:.3f} bits per byte")
    print(f"lzma, file by file      {each / len(joined):.3f} bits per byte")


if __name__ == "__main__":
    main()
