"""What `aerogel calibrate` does: a few programs are timed, and their rates kept for the cost model."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from aerogel import _jax
from aerogel.compiler.cost.calibrated import calibration_file, plausible, write
from aerogel.compiler.cost.machine import Machine, machine, table

SECONDS = 0.5  # for each program, compilation not counted
STEPS = 500
PAUSE = 3e-4  # behind which threads sleep


def calibrate(seconds: float = SECONDS) -> tuple[dict[str, float], str]:
    """Measures the present machine, stores its rates, and returns them with the path of the file."""
    platform = jax.default_backend()
    known = table(platform)
    rates = plausible(_measured(known, seconds), known)
    path = calibration_file(platform)
    write(path, rates)
    machine.cache_clear()
    return rates, str(path)


def _measured(known: Machine, budget: float) -> dict[str, float]:
    def timed(f: Callable[..., Any], *args: Any) -> float:
        return _seconds(f, args, budget)

    def step(body: Callable[[Any], Any], x: Any, steps: int = STEPS) -> float:
        return timed(lambda x: lax.scan(lambda c, _: (body(c), None), x, None, length=steps)[0], x) / steps

    large, square, small = jnp.ones(8 << 20), jnp.ones((512, 512)), jnp.ones(64)
    cached = jnp.ones(known.cache_bytes // 16)
    two_kernels = step(lambda c: c * jnp.sum(c), small) - step(lambda c: c * 1.01, small)
    return {
        "bytes_per_second": large.nbytes / timed(jnp.sum, large),
        "cache_bytes_per_second": 2 * cached.nbytes / step(lambda c: c * 1.01 + 1, cached, 50),
        "flops_per_second": 2 * 512**3 / timed(jnp.matmul, square, square),
        "seconds_per_loop_step": step(lambda c: c + 1, jnp.ones(4), 5000),
        "seconds_per_small_kernel": two_kernels,
        "seconds_to_hand_over": _to_hand_over(budget) if known.seconds_to_hand_over else 0.0,
    }


def _to_hand_over(budget: float) -> float:
    """How much longer a call takes that JAX has another thread run (2,000 additions) than one that it has not."""
    handed, own = (_seconds(lambda x: x + 1, (jnp.ones(n),), budget, PAUSE) for n in (2000, 900))
    return handed - own


def _seconds(f: Callable[..., Any], args: tuple[Any, ...], budget: float, pause: float = 0.0) -> float:
    """The median time of a call: of the compiled program, all by itself, `pause` behind the last one."""
    compiled = _jax.original_jit(f).lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    times: list[float] = []
    until = time.perf_counter() + budget
    while len(times) < 3 or time.perf_counter() < until:
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return median(times)
