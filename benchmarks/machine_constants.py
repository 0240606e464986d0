"""Measures the CPU constants of `aerogel.compiler.cost.machine` on the present machine, and prints both.

    python -m benchmarks.machine_constants

Each is the minimum over repeats, less the price of an empty call where that matters. On a shared machine expect a
factor of 2; a constant that is off by more than 3 everywhere deserves a new number in the table. XLA may use all cores
here, the table is for one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel.compiler.cost import Machine, machine
from benchmarks._timing import describe_machine, measure

N = 10_000  # elements of cached vectors: below the size at which XLA splits kernels among threads
TIMED_ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    f.__name__: f
    for f in (
        *(lax.exp, lax.exp2, lax.log, lax.log1p, lax.expm1, lax.tanh, lax.logistic, lax.erf, lax.erf_inv, lax.sqrt),
        *(lax.rsqrt, lax.cbrt, lax.sin, lax.cos, lax.tan, lax.lgamma, lax.digamma, lax.asin, lax.acos, lax.atan),
        *(lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp),
    )
}


def seconds(f: Callable[..., Any], *args: Any) -> float:
    """The shortest call of `f` as a compiled program."""
    return float(measure({"f": f}, args, min_rounds=5, budget_s=0.3).seconds["f"].min())


def per_step(body: Callable[[Any], Any], x: jax.Array, steps: int = 500) -> float:
    """Seconds of one step of a scan with this body."""
    return seconds(lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=steps)[0], x) / steps


def normal(*shape: int) -> jax.Array:
    """Random numbers, the same each time."""
    return jax.random.normal(jax.random.key(0), shape)


def constants(table: Machine) -> Iterator[tuple[str, float, float]]:
    """Name, measured value and the table's value of each constant."""
    call = seconds(lambda x: x + 1, normal(8))
    large, square, vector = normal(32 << 20), normal(1024, 1024), normal(N)
    yield "bytes_per_second", large.nbytes / seconds(jnp.sum, large), table.bytes_per_second
    cached = normal(table.cache_bytes // 16)
    step = per_step(lambda c: c * 1.01 + 1, cached)
    yield "cache_bytes_per_second", 2 * cached.nbytes / step, table.cache_bytes_per_second
    yield "flops_per_second", 2 * 1024**3 / seconds(jnp.matmul, square, square), table.flops_per_second
    fresh = seconds(lambda x: x + 1, large) - 2 * large.nbytes / table.bytes_per_second
    yield "seconds_per_fresh_byte", max(0.0, fresh) / large.nbytes, table.seconds_per_fresh_byte
    yield "seconds_per_loop_step", per_step(lambda c: c + 1, normal(4), 5000), table.seconds_per_loop_step
    two = per_step(lambda c: c * jnp.sum(c), normal(64)) - per_step(lambda c: c * 1.01, normal(64))
    yield "seconds_per_small_kernel", two, table.seconds_per_small_kernel
    two = per_step(lambda c: c * jnp.sum(c), vector) - per_step(lambda c: c * 1.01, vector)
    yield "seconds_per_kernel", two - vector.nbytes / table.cache_bytes_per_second, table.seconds_per_kernel
    dots = seconds(jnp.matmul, normal(5000, 4, 4), normal(5000, 4, 4)) - call
    yield "seconds_per_batched_dot", dots / 5000, table.seconds_per_batched_dot
    tiny = seconds(jnp.matmul, normal(100_000, 3), normal(3, 3)) - call
    yield "tiny_flops_per_second", 18 * 100_000 / tiny, table.tiny_flops_per_second
    eye = jnp.broadcast_to(jnp.eye(3), (5000, 3, 3))
    yield "seconds_per_matrix", (seconds(lax.linalg.cholesky, eye) - call) / 5000, table.seconds_per_matrix
    w, rows = normal(64, 64, 16), normal(512, 64)
    rows_by_rows = seconds(lambda w, x, y: jnp.tensordot(x[:, :, None] * y[:, None], w, 2), w, rows, rows)
    written = seconds(lambda w, x: jnp.tensordot(x, w, 2), w, normal(512, 64, 64))
    yield "merged_axes_seconds", (rows_by_rows - written) / (512 * 64 * 64), table.merged_axes_seconds
    short = seconds(lambda x: x.sum(-1), normal(100_000, 3)) - call
    yield "short_axis_seconds", short / 300_000, table.short_axis_seconds
    yield from _elements(table, jnp.abs(vector) * 0.9, call)


def _elements(table: Machine, x: jax.Array, call: float) -> Iterator[tuple[str, float, float]]:
    prices = table.element_seconds
    for name, f in TIMED_ELEMENTWISE.items():
        yield f"element_seconds[{name}]", (seconds(f, x) - call) / x.size, prices[name]
    yield "element_seconds[pow]", (seconds(lax.pow, x, x) - call) / x.size, prices["pow"]
    yield "element_seconds[argmax]", (seconds(jnp.argmax, x) - call) / x.size, prices["argmax"]
    compares = x.size * (x.size - 1).bit_length()
    yield "element_seconds[sort]", (seconds(jnp.sort, x) - call) / compares, prices["sort"]
    order = jnp.argsort(x)
    yield "element_seconds[gather]", (seconds(lambda x, i: x[i], x, order) - call) / x.size, prices["gather"]
    added = seconds(lambda x, i: jnp.zeros_like(x).at[i].add(x), x, order) - call
    yield "element_seconds[scatter-add]", added / x.size, prices["scatter-add"]
    bits = seconds(lambda k: jax.random.bits(k, (100_000,)), jax.random.key(0)) - call
    yield "element_seconds[random_bits]", bits / 100_000, prices["random_bits"]


def main() -> None:
    """Prints the table."""
    table = machine("cpu")
    about = describe_machine()
    print(f"jax {about['jax']}, {about['processor']}, {about['cores']} cores")
    print(f"{'constant':34s} {'here':>10s} {'table':>10s} {'here/table':>11s}")
    for name, here, there in constants(table):
        print(f"{name:34s} {here:10.2e} {there:10.2e} {here / there:11.2f}")


if __name__ == "__main__":
    main()
