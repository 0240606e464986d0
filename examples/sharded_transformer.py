"""A small byte-level transformer on one device, on several, or on several processes: one program, equal losses.

    python examples/sharded_transformer.py                                     # one device
    python examples/sharded_transformer.py --simulate 8 --mesh 2 4             # eight, as CPU devices of one process
    python examples/sharded_transformer.py --simulate 4 --mesh 2 4 --processes 2 --process 0 &
    python examples/sharded_transformer.py --simulate 4 --mesh 2 4 --processes 2 --process 1

It reads the source of the Python that runs it. With `--checkpoint FILE` it saves all of its state after every step, and
goes on from there when it is started again, on whatever mesh.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import aerogel as ag
from aerogel import nn

# Matrices are split over "model" as in Megatron: first by what comes out, then by what goes in, so that one sum over
# devices closes each pair. What no rule before it means is spread over "data" along its largest axis. The patterns
# fit the moments of the optimiser as well, whose paths end like those of the parameters.
RULES = {
    "**.attention.output_proj.weight": {"in": "model", "out": "data"},
    "**.attention.*.weight": {"out": "model", "in": "data"},
    "**.up": {"out": "model"},
    "**.down.weight": {"in": "model", "out": "data"},
    "**.table": {"vocab": "model", "embed": "data"},
    "**": "data",
}


class Transformer(ag.Module):
    """Logits [..., time, 256] of the next byte."""

    table: nn.Embedding
    blocks: nn.Stack[nn.TransformerBlock]
    norm: nn.LayerNorm

    def __init__(self, layers: int, size: int, *, key: jax.Array) -> None:
        keys = jax.random.split(key)
        rotary = nn.RotaryPositionalEmbedding(size // 4)
        self.table = nn.Embedding(256, size, init=jax.nn.initializers.normal(0.02), key=keys[0])
        self.blocks = nn.Stack(
            lambda key: nn.TransformerBlock(4, size, is_causal=True, rotary=rotary, key=key), layers, key=keys[1]
        )
        self.norm = nn.LayerNorm(size)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.table.attend(self.norm(self.blocks(self.table(tokens))))


class Run(ag.Module):
    """All that a run is, and so all that a checkpoint holds."""

    model: Transformer
    state: Any
    step: jax.Array


def bits_per_byte(model: Transformer, tokens: jax.Array) -> jax.Array:
    """What the model needs for each byte but the first of [batch, time]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])
    return jnp.mean(losses) / jnp.log(2.0)


def train(args: argparse.Namespace, mesh: Mesh) -> list[float]:
    """The losses of the steps that were still to be done."""
    optimizer = optax.adamw(args.rate)

    def make() -> Run:
        model = Transformer(args.layers, args.size, key=jax.random.key(0))
        return Run(model, optimizer.init(model), jnp.int32(0))

    @ag.jit(donate="state")
    def step(run: Run, tokens: jax.Array) -> tuple[Run, jax.Array]:
        loss, grads = ag.value_and_grad(bits_per_byte)(run.model, tokens)
        updates, state = optimizer.update(grads, run.state, run.model)
        new = Run(optax.apply_updates(run.model, updates), state, run.step + 1)
        return ag.shard(new, mesh, RULES), loss  # else XLA decides where results are

    if args.checkpoint and os.path.exists(args.checkpoint):
        run = ag.load(args.checkpoint, like=ag.shard(jax.eval_shape(make), mesh, RULES))
    else:
        run = ag.shard_init(make, mesh, RULES)
    text = np.frombuffer(Path(os.__file__).read_bytes(), np.uint8)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    losses = []
    for k in range(int(run.step), args.steps):
        starts = np.random.default_rng(k).integers(0, len(text) - args.time, args.batch)
        batch = np.stack([text[start : start + args.time] for start in starts])
        # Each process makes the rows of its own devices.
        tokens = jax.make_array_from_callback(batch.shape, rows, lambda index, batch=batch: batch[index])
        run, loss = step(run, tokens)
        losses.append(float(loss))
        print(f"step {k}: {losses[-1]:.6f} bits per byte", flush=True)
        if args.checkpoint:
            ag.save(args.checkpoint, run)
    return losses


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulate", type=int, help="CPU devices of this process")
    parser.add_argument("--mesh", type=int, nargs=2, default=(1, 1), help="devices along data and model")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--address", default="localhost:12321", help="where process 0 waits for the others")
    parser.add_argument("--checkpoint", help="a file that all processes reach")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--time", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=3e-3)
    return parser.parse_args(given)


def main(args: argparse.Namespace) -> list[float]:
    """Sets up devices and processes, and trains."""
    if args.simulate:
        jax.config.update("jax_num_cpu_devices", args.simulate)
    if args.processes > 1:
        jax.distributed.initialize(args.address, args.processes, args.process)
    devices = jax.devices()[: args.mesh[0] * args.mesh[1]]
    return train(args, jax.make_mesh(args.mesh, ("data", "model"), (AxisType.Auto,) * 2, devices=devices))


if __name__ == "__main__":
    main(arguments())
