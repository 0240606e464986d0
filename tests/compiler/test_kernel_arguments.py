"""Kernels take arguments that XLA knows: it sets them into the kernel, and aborts if an argument is used nowhere."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aerogel as ag
from aerogel._jax import KNOWS_KERNELS
from aerogel.compiler.passes import loop_kernel

pytestmark = pytest.mark.skipif(not KNOWS_KERNELS, reason="of this jaxlib it is not known what it makes of the mark")
PATHS = [str(Path(__file__).parents[2] / name) for name in ("src", "tests")]
SHAPE = (32, 3, 40)
ROWS = np.linspace(-1.0, 1.0, 32 * 120, dtype=np.float32).reshape(SHAPE)
KNOWN = {
    "closed over": lambda: jnp.asarray(ROWS),
    "numpy": lambda: ROWS,
    "counted": lambda: jnp.arange(32 * 120, dtype=jnp.float32).reshape(SHAPE) / 120,
    "one number": lambda: jnp.full(SHAPE, 0.5),
    "an identity": lambda: jnp.broadcast_to(jnp.eye(3, 40), SHAPE),
    "chosen": lambda: jnp.where(jnp.asarray(ROWS) > 0, jnp.sin(jnp.asarray(ROWS)), 0),
}


def slope(x):
    """Of the Lorenz system: rows of their own, so that a step is several kernels."""
    return jnp.stack([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])


def stepped(x, z):
    """A step of Heun's method, pushed by `z`."""
    a = slope(x)
    return x + 0.01 * (a + slope(x + 0.02 * a)) + 0.1 * z


def of_each_step(known, x):
    """A loop whose steps take a row of both."""
    return lax.scan(lambda c, xs: (stepped(c, xs[0]) + 0.1 * jnp.sin(xs[1]), c), x[0], (x, known()))[1]


def of_one(known, x):
    """A loop that carries a state, with all that is known in each step."""
    return lax.scan(lambda c, z: (stepped(c, known()[0] * z), c), x[0], x)


def started(known, x):
    """A loop that starts from what is known."""
    return lax.scan(lambda c, z: (stepped(c, z), None), known()[0], x)[0]


def in_a_loop(known, x):
    """Such a loop in the steps of another, which adds to it."""
    return lax.fori_loop(0, 3, lambda i, c: started(known, c + i)[None] + 0.1 * x, x)


def chosen(known, x):
    """One of two such loops."""
    return lax.cond(x[0, 0, 0] > 0, lambda x: of_one(known, x)[0], lambda x: started(known, x), x)


LOOPS = (of_each_step, of_one, started, in_a_loop, chosen)


def always(*_):
    """A price at which whatever can be one kernel is one."""
    return loop_kernel.Price(kernels=1.0, inside=0.0)


def judge(loop, known):
    """Fails unless value and gradient are those of plain JAX."""
    x = jnp.cos(jnp.asarray(ROWS))

    def value(x):
        return loop(KNOWN[known], x)

    def gradient(x):
        return jax.grad(lambda x: sum(jnp.mean(y**2) for y in jax.tree.leaves(value(x))))(x)

    for f in (value, gradient):
        with mock.patch.object(loop_kernel, "price", always):
            got = jax.jit(ag.optimize(f))(x)
        want = jax.jit(f)(x)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), got, want)


def kernels(f, *args):
    """How many kernels the optimised program holds."""
    with mock.patch.object(loop_kernel, "price", always):
        return jax.jit(ag.optimize(f)).lower(*args).as_text().count("xla_cpu_small_call")


@pytest.mark.parametrize("known", KNOWN)
def test_a_kernel_takes_what_xla_knows(known):
    """In a process of its own: XLA's abort would end the tests."""
    script = f"from compiler import test_kernel_arguments as t\nfor f in t.LOOPS: t.judge(f, {known!r})\nprint('ended')"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "ended\n", run.stderr[-1000:]


@pytest.mark.parametrize("loop", LOOPS)
def test_such_loops_are_kernels(loop):
    """The loops of this file become kernels: otherwise it tests nothing."""
    assert kernels(lambda x: loop(KNOWN["numpy"], x), jnp.asarray(ROWS))
