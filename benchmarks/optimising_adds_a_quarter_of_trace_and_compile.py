"""Claim: tracing and rewriting add at most a quarter to `jax.jit`'s trace and compile time, and grow linearly.

Generated programs of about 100, 1,000 and 10,000 equations: straight-line, with many small loops, twenty loops of
large bodies, a network with its gradient, nested `vmap`s of matrix-vector products. Each round makes a new function and
traces, lowers and compiles it, under `jax.jit` and under `jax.jit(ag.optimize(...))`. *added* is the extra time of
tracing and lowering, *whole* all of the time, compilation included (rewriting may well save some of that); both over
the whole time of plain `jax.jit`.

XLA may take more than ten minutes to compile 10,000 equations. Such programs are compiled once, each form in a process
of its own, which is ended after `COMPILE_LIMIT_S`: a compilation that ran out counts as that long, and the row says so.
*added* is then larger than the truth, and *whole* says nothing about the compilation.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag

from ._finding import Finding
from ._timing import Quartiles

BOUND_ADDED = 0.25
BOUND_WHOLE = 1.25
BOUND_LINEAR = 1.5  # added seconds per equation, at 10,000 equations over at 1,000
ROUNDS = {100: 10, 1_000: 4, 10_000: 3}
COMPILED = {100: 10, 1_000: 3, 10_000: 0}  # in so many of the rounds; what is compiled in none, in a process apart
COMPILE_LIMIT_S = 20.0


def straight(equations: int) -> Callable:
    """A deep network, no two layers alike, of about `equations` equations."""

    def f(w, b, x):
        for i in range(equations // 9):
            x = jax.nn.relu(x @ w + b * (0.5 + i))
            x = x / (1.0 + jnp.max(x, axis=-1, keepdims=True))
        return jnp.mean(x)

    return f


def loops(equations: int) -> Callable:
    """Scans whose outputs are reduced, one after another: about `equations` equations, loop bodies included."""

    def f(w, b, x):
        total = jnp.zeros(())
        for i in range(equations // 10):

            def body(c, _, i=i):
                c = jnp.tanh(c @ w + b * (0.5 + i))
                return c, c * c

            x, ys = lax.scan(body, x, None, length=8)
            total = total + jnp.mean(ys) - jnp.max(x)
        return total

    return f


def bodies(equations: int) -> Callable:
    """Twenty scans of long bodies, of whose outputs the mean is taken."""

    def f(w, b, x):
        for k in range(20):

            def body(c, _, k=k):
                for i in range(max(1, equations // 120)):
                    c = jnp.tanh(c @ w + b * (0.5 + i)) * (0.3 + k)
                return c, c * c

            x, ys = lax.scan(body, x, None, length=8)
            x = x + jnp.mean(ys)
        return jnp.mean(x)

    return f


def gradient(equations: int) -> Callable:
    """Value and gradient of a residual network, no two layers alike."""

    def loss(w, b, x):
        for i in range(equations // 25):
            x = jnp.sin(x + jnp.tanh(x @ w + b * (0.5 + i))) * (0.5 + i)
        return jnp.mean((x - 1.0) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))


def vmaps(equations: int) -> Callable:
    """Matrix times vector under two `vmap`s, one layer after the other, whose batches stand in three ways."""

    def matvec(w, x):
        return w @ x

    layers = (
        jax.vmap(jax.vmap(matvec, (None, 0)), (None, 0)),
        jax.vmap(jax.vmap(matvec, (None, 0)), (None, 1), 1),
        lambda w, x: jnp.moveaxis(jax.vmap(jax.vmap(matvec, (None, 0), 1), (None, 1), 2)(w, x), 0, -1).swapaxes(0, 1),
    )

    def f(w, b, x):
        x = jnp.stack([x, x + 1.0, x + 2.0], 1)
        for i in range(equations // 6):
            x = jnp.tanh(layers[i % 3](w, x) + b * (0.5 + i))
        return jnp.mean(x)

    return f


PROGRAMS = {"straight-line": straight, "loops": loops, "bodies": bodies, "gradient": gradient, "nested vmaps": vmaps}


@dataclass
class Seconds:
    """Of tracing and lowering, round by round, and of the compilation after it, where there was one."""

    trace: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    ran_out: bool = False  # the compilation was ended after `COMPILE_LIMIT_S`

    @property
    def whole(self) -> np.ndarray:
        """Of both, in the rounds with a compilation."""
        return np.array(self.trace[: len(self.compile)]) + np.array(self.compile)

    def add(self, f: Callable, args: tuple, compiled: bool) -> None:
        """Times one more round; what the last one left is collected before."""
        gc.collect()
        start = time.perf_counter()
        lowered = jax.jit(f).lower(*args)
        traced = time.perf_counter()
        self.trace.append(traced - start)
        if compiled:
            lowered.compile()
            self.compile.append(time.perf_counter() - traced)


def compile_apart(kind: str, size: int, form: str) -> tuple[float, bool]:
    """Seconds that XLA takes for a program in a process of its own, and whether it was ended after the limit."""
    command = [sys.executable, "-m", __name__, kind, str(size), form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "lowered\n", f"the process of {kind}, {size}, {form} failed"
        try:
            seconds, _ = child.communicate(timeout=COMPILE_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return COMPILE_LIMIT_S, True
        return float(seconds), False


def main() -> None:
    """The process apart: lowers a program, says so, compiles it and prints the seconds of that."""
    kind, size, form = sys.argv[1:]
    lowered = jax.jit(FORMS[form](PROGRAMS[kind](int(size)))).lower(*arguments())
    print("lowered", flush=True)
    start = time.perf_counter()
    lowered.compile()
    print(time.perf_counter() - start, flush=True)


def count(jaxpr) -> int:
    """Equations of a jaxpr, those of inner ones included."""
    inner = (getattr(p, "jaxpr", p) for eqn in jaxpr.eqns for p in eqn.params.values())
    return len(jaxpr.eqns) + sum(count(p) for p in inner if hasattr(p, "eqns"))


FORMS: dict[str, Callable] = {"plain": lambda f: f, "optimised": ag.optimize}


def arguments() -> tuple:
    return jnp.ones((16, 16)) / 16, jnp.ones(16), jnp.ones((4, 16))


def compare(kind: str, size: int, rounds: int, compiled: int) -> tuple[int, Seconds, Seconds]:
    """Equations of the program, and the times of both forms; who goes first alternates."""
    make, args = PROGRAMS[kind], arguments()
    times = {form: Seconds() for form in FORMS}
    for round_ in range(rounds):
        for form in [*FORMS][:: 1 if round_ % 2 else -1]:
            times[form].add(FORMS[form](make(size)), args, round_ < compiled)
    if not compiled:
        for form, of_form in times.items():
            seconds, of_form.ran_out = compile_apart(kind, size, form)
            of_form.compile.append(seconds)
    plain, optimised = times["plain"], times["optimised"]
    return count(jax.make_jaxpr(make(size))(*args).jaxpr), plain, optimised


def describe(name: str, times: Seconds) -> str:
    ended = f" (ended after {COMPILE_LIMIT_S:.0f} s)" if times.ran_out else ""
    return f"{name}: trace {np.median(times.trace):.3f} s, compile {np.median(times.compile):.3f} s{ended}"


def findings(quick: bool = False) -> list[Finding]:
    """Two ratios per program and size, and one on linearity per kind of program."""
    return [found for kind in PROGRAMS for found in findings_of(kind, quick)]


def findings_of(kind: str, quick: bool) -> list[Finding]:
    """Those of one kind of program."""
    found = []
    compare(kind, 100, 2, 2)  # JAX imports and caches on first use
    added_per_equation = {}
    for size, rounds in ROUNDS.items():
        if quick and size > 1_000:
            continue
        few = (2, 2) if quick else (rounds, COMPILED[size])
        equations, plain, optimised = compare(kind, size, *few)
        before = np.median(plain.whole)
        added = np.array(optimised.trace) - np.array(plain.trace)
        added_per_equation[size] = float(np.median(added)) / equations
        name = f"{kind}, {equations} equations"
        details = f"{describe('plain', plain)}; {describe('optimised', optimised)}"
        found.append(Finding(name, "added", Quartiles.of(added / before), BOUND_ADDED, details))
        found.append(Finding(name, "whole", Quartiles.of(optimised.whole / before), BOUND_WHOLE))
    if 10_000 in added_per_equation:
        small, large = added_per_equation[1_000], added_per_equation[10_000]
        ratio = Quartiles(large / small, large / small, large / small)
        details = f"{small * 1e6:.0f} and {large * 1e6:.0f} microseconds per equation"
        found.append(Finding(kind, "per equation, 10,000 over 1,000", ratio, BOUND_LINEAR, details))
    return found


if __name__ == "__main__":
    main()
