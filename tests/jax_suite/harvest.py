"""JAX's tests as a corpus: each program that they trace is run with readers of its results behind it.

JAX's programs hold every primitive and few of the patterns that the passes look for. So each small program with a loop
or a product gets drawn readers (sums, last steps, heads, second loops, ...), and runs natural and optimised: forward,
under `value_and_grad`, under `vmap`. What differs fails the test that traced it.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import aerogel as ag
from aerogel import _jax
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.judging.agree import compare, float64_reference
from aerogel.compiler.passes.loop_hoist import LoopHoist
from aerogel.compiler.program import count_equations, inner_jaxprs

MOST_EQUATIONS, MOST_ELEMENTS, DRAWS = 300, 20_000, 3
# What cannot run twice, on drawn numbers, in another thread.
LEFT_OUT = frozenset(
    "shard_map pallas_call run_state sharding_constraint custom_partitioning rng_uniform device_put reshard".split()
)
PASSES = {"all": DEFAULT_PASSES, "into loops": tuple(p for p in DEFAULT_PASSES if not isinstance(p, LoopHoist))}


def _weights(y: Any) -> Any:
    return jnp.linspace(-1, 1, y.shape[0]).astype(y.dtype)


def _second_loop(y: Any) -> Any:
    return lax.scan(lambda c, x: (c * jnp.asarray(0.5, y.dtype) + x, c), jnp.zeros_like(y[0]), y)[1][-1]


ANY: dict[str, Callable[[Any], Any]] = {
    "whole": lambda y: y,
    "last": lambda y: y[-1],
    "last two": lambda y: y[-2:],
    "every second": lambda y: y[::2],
}
NUMBERS = ANY | {
    "sum": lambda y: y.sum(),
    "sum over time": lambda y: y.sum(0),
    "sum backwards": lambda y: y[::-1].sum(0),
    "square": lambda y: (y * y).sum(),
    "gram": lambda y: jnp.einsum("t...,t...->...", y, y),
    "sum of all, and all": lambda y: (y, y.sum(0)),
    "transposed": lambda y: jnp.swapaxes(y, 0, -1),
    "product": lambda y: y.prod(0),
    "by index": lambda y: lax.dynamic_index_in_dim(y, 1, 0),
}
ORDERED = NUMBERS | {
    "largest": lambda y: y.max(0),
    "smallest": lambda y: y.min(),
    "place": lambda y: y.argmax(0),
    "largest and sum": lambda y: (y.max(0), y.sum(0)),
    "absolute": lambda y: jnp.where(y > 0, y, -y).sum(0),
    "all positive": lambda y: (y > 0).all(0),
    "sorted": lambda y: jnp.sort(y, 0)[0],
    "running sum": lambda y: jnp.cumsum(y, 0)[-1],
}
FLOATS = ORDERED | {
    "mean": lambda y: y.mean(0),
    "variance": lambda y: y.var(0),
    "logsumexp": lambda y: jax.nn.logsumexp(y, axis=0),
    "weighted": lambda y: jnp.tensordot(_weights(y), y, 1),
    "tanh": lambda y: jnp.tanh(y).sum(0),
    "head": lambda y: (y @ jnp.eye(y.shape[-1], 3, dtype=y.dtype)).sum(0),
    "softmax": lambda y: jax.nn.softmax(y, -1).sum(0),
    "error": lambda y: ((y - 1) ** 2).mean(),
    "second loop": _second_loop,
}


class Harvest:
    """A pass that changes nothing and examines each new program once."""

    name = "harvest"
    exactness = "bitwise"

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, program: Any, context: Any) -> tuple[Any, list[Any]]:
        text = str(program.jaxpr)
        if threading.current_thread().name.startswith(self.name) or text in self.seen or not is_suitable(program.jaxpr):
            return program, []
        self.seen.add(text)
        x64 = bool(jax.config.jax_enable_x64)

        def examine_all() -> list[str]:
            settings = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
            with jax.enable_x64(x64), settings[0], settings[1], jax.enable_checks(False):
                return [line for draw in range(DRAWS) for line in examine(program, draw)]

        # In a thread of its own, outside of the trace that this pass stands in.
        with ThreadPoolExecutor(1, thread_name_prefix=self.name) as thread:
            wrong = thread.submit(examine_all).result()
        assert not wrong, "\n".join([text, *wrong])
        return program, []


def is_suitable(jaxpr: Any) -> bool:
    """Whether a program is small, runs anywhere on any numbers, and holds a loop or a product."""
    names = set(primitive_names(jaxpr))
    if jaxpr.effects or jaxpr.is_high or names & LEFT_OUT or not names & {"scan", "dot_general"}:
        return False
    if count_equations(jaxpr) > MOST_EQUATIONS or any("callback" in name or "ref" in name for name in names):
        return False
    return all(_is_plain(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars))


def primitive_names(jaxpr: Any) -> Iterator[str]:
    """The primitives of a program, at any depth."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from primitive_names(inner)


def _is_plain(aval: Any) -> bool:
    if not all(isinstance(n, int) for n in getattr(aval, "shape", ("none",))) or aval.size > MOST_ELEMENTS:
        return False
    if _jax.explicit_mesh(aval) or _jax.on_many_devices(aval):
        return False
    return _jax.prng_name(aval) is not None or aval.dtype.kind in "biufc" or aval.dtype == jnp.bfloat16


def examine(program: Any, draw: int) -> list[str]:
    """What differs between a program with drawn readers and its optimised forms, on drawn numbers."""
    jaxpr = program.jaxpr
    seed = zlib.crc32(str(jaxpr).encode()) + 7919 * draw
    numbers, choice = np.random.default_rng(seed), random.Random(seed)
    args = [value(v.aval, numbers) for v in jaxpr.invars]
    names = [choice.choice(readers(v.aval)) for v in jaxpr.outvars]

    def read(*xs: Any) -> list[Any]:
        ys = jax.core.eval_jaxpr(jaxpr, program.consts, *xs)
        return jax.tree.leaves([FLOATS[name](jnp.asarray(y)) for name, y in zip(names, ys, strict=True)])

    def loss(*xs: Any) -> Any:
        return sum((jnp.sin(y).astype(jnp.float32).sum() for y in read(*xs) if is_float(y)), jnp.float32(0))

    floats = tuple(i for i, v in enumerate(jaxpr.invars) if is_float(v.aval))
    forms: list[tuple[str, Any, Sequence[Any]]] = [("forward", read, args)]
    if floats:
        forms.append(("gradient", lambda *xs: jax.tree.leaves(jax.value_and_grad(loss, floats)(*xs)), args))
    if args:
        forms.append(("batched", jax.vmap(read), [jnp.stack([x] * 3) for x in args]))
    found = []
    for form, f, xs in forms:
        try:
            want = _jax.original_jit(f)(*xs)
        except (TypeError, ValueError, NotImplementedError, AssertionError):
            continue  # no derivative, or a reader that does not fit
        if not all(bool(jnp.isfinite(y).all()) for y in jax.tree.leaves(want) if _jax.is_number(y.dtype)):
            continue  # rewrites may differ for inf and nan
        for title, passes in PASSES.items():
            got = _jax.original_jit(ag.optimize(f, passes=passes))(*xs)

            def reference(f: Any = f, xs: Any = xs) -> Any:
                closed = jax.make_jaxpr(f)(*xs)
                return float64_reference(closed.jaxpr, closed.consts, xs)

            differing = compare(jax.tree.leaves(got), jax.tree.leaves(want), reference, inputs=xs)
            found += [f"{form}, {title}, {names}: {line}" for line in differing]
    return found


def is_float(x: Any) -> bool:
    """A float array, or the type of one."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def readers(aval: Any) -> list[str]:
    """The readers that a result of this type may have."""
    numbers = _jax.is_number(aval.dtype)
    if aval.ndim == 0 or aval.shape[0] < 2:
        return ["whole", "sum"] if numbers else ["whole"]
    if not numbers:
        return list(ANY)
    kinds = FLOATS if is_float(aval) else NUMBERS if aval.dtype.kind == "c" else ORDERED
    return [name for name in kinds if aval.ndim > 1 or name not in ("head", "softmax")]


def value(aval: Any, numbers: np.random.Generator) -> Any:
    """Numbers of a type: normal floats, small integers, keys."""
    generator = _jax.prng_name(aval)
    if generator is not None:
        keys = jax.random.split(jax.random.key(int(numbers.integers(1 << 30)), impl=generator), max(1, aval.size))
        return keys[: aval.size].reshape(aval.shape)
    if aval.dtype == np.bool_ or jnp.issubdtype(aval.dtype, jnp.integer):
        drawn: Any = numbers.integers(0, 2 if aval.dtype == np.bool_ else 4, aval.shape)
    else:
        drawn = numbers.normal(size=aval.shape)
        if aval.dtype.kind == "c":
            drawn = drawn + 1j * numbers.normal(size=aval.shape)
    return jnp.asarray(np.asarray(drawn).astype(aval.dtype))
