"""Random typed JAX programs: every one is a few lines of Python text, the same for the same seed.

`draw_program(seed)` writes a program with nothing but `random.Random`; `programs()` is the same as a hypothesis
strategy, which shrinks. About half of all programs hold a scan whose outputs are consumed (`drawing/patterns.py`),
under gradients, vmap, cond, scan and jit: that is what the optimiser rewrites. New primitives and fields are added
here in the change that adds them.
"""

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from drawing import control, patterns
from drawing.rule_sites import SITES, Operands
from drawing.writer import Scope, Value, Writer

_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e4, -1e4, 0.0, 1e-6)


@dataclass(frozen=True)
class Program:
    """One drawn program.

    Attributes:
        seed: what it was drawn from.
        source: the text of `def f(...)`.
        arguments: the text of each argument, in order.
        features: what it contains, e.g. "scan_reverse", "bfloat16", "zero_size".
        reverse: whether every part has a reverse-mode derivative (a `while_loop` has none).
    """

    seed: int
    source: str
    arguments: tuple[str, ...]
    features: frozenset[str]
    reverse: bool

    def __str__(self) -> str:
        return f"# program {self.seed}\n{self.source}\nargs = ({', '.join(self.arguments)},)"

    def function(self) -> Callable[..., Any]:
        """A new function object."""
        scope = {**_NAMES}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), scope)
        return scope["f"]

    def args(self) -> tuple[Any, ...]:
        """The arguments: NumPy arrays, keys, Python scalars, None, and containers of these."""
        return tuple(eval(text, {**_NAMES}) for text in self.arguments)


def array(shape: tuple[int, ...], dtype: str, seed: int, special: bool = False) -> np.ndarray:
    """Values of order one (integers: some of the whole range); with `special`, some nan, inf, -0 and large ones too."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if dtype in ("int32", "int8", "uint8"):
        info = np.iinfo(dtype)
        # The whole range, so that sums and products overflow, in every third array.
        low, high = (info.min, int(info.max) + 1) if seed % 3 == 0 else (max(info.min, -6), 7)
        return rng.integers(low, high, shape).astype(dtype)
    values = np.asarray(rng.uniform(-2, 2, shape))
    if special:
        values = np.where(rng.random(shape) < 0.2, rng.choice(_SPECIAL, shape), values)
    if dtype == "complex64":
        return (values + 1j * rng.uniform(-2, 2, shape)).astype(dtype)
    return values.astype(jnp.dtype(dtype))


_NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "array": array, "reduce": functools.reduce}


def draw_program(seed: int, rng: random.Random | None = None) -> Program:
    """The program of this seed (or drawn from `rng`, then `seed` is only its name)."""
    rng = rng or random.Random(f"aerogel-{seed}")  # a string is hashed by SHA-512, not by PYTHONHASHSEED
    dtype = ("float32",) * 7 + ("bfloat16", "bfloat16", "float16")
    w = Writer(rng, dtype[rng.randrange(len(dtype))])
    w.zero_sizes = w.chance(0.12)
    w.note(w.dtype)
    scope = Scope(reverse=not w.chance(0.15))
    special = w.chance(0.08)
    if special:
        w.note("special_values")
    parameters, arguments = _arguments(w, scope, special)
    main: list[Value] = []
    if w.chance(0.55):
        for _ in range(w.rng.randint(0, 2)):
            control.statement(w, scope)
        main = patterns.wrapped_pattern(w, scope)
        if w.chance(0.25):
            control.statement(w, scope)
    else:
        control.block(w, scope, 7)
    result = _results(w, scope, main)
    body = "\n".join(f"    {line}" for line in scope.lines)
    source = f"def f({', '.join(parameters)}):\n{body}\n    return {result}\n"
    return Program(seed, source, tuple(arguments), frozenset(w.features), "while" not in w.features or scope.reverse)


def draw_site(seed: int, x64: bool = False) -> Program:
    """A program around a place where rules and passes of the catalogue fire (`drawing/rule_sites.py`), or nearly do.

    With `x64`, half of them are of float64; JAX must be told to have it.
    """
    rng = random.Random(f"aerogel-site-{seed}")
    dtypes = ("float32", "float64") if x64 else ("float32",) * 6 + ("bfloat16", "float16")
    w = Writer(rng, dtypes[rng.randrange(len(dtypes))])
    kind = w.weighted([
        (5, "bare"), (3, "grad"), (1, "value_and_grad"), (2.5, "vmap"), (0.7, "cond"), (1.5, "scan"), (0.7, "jit"),
        (0.5, "checkpoint"), (0.7, "jvp"), (1, "vmap_grad"), (0.7, "scan_grad"),
    ])  # fmt: skip
    scope = Scope(reverse=True)
    inner = scope.inner(reverse=kind.endswith("grad"), forward=kind == "jvp")
    o = Operands(w, inner, w.dtype)
    site = w.weighted(SITES)
    found = site(o)
    while w.chance(0.15):
        site = w.weighted(SITES)
        found += site(o)
    readers = ("{y}", "{y}", "{y} * 2", "jnp.tanh({y})", "{y} * -1", "jnp.sum({y})", "{y} + 1")
    lines = [*(o.one_of(*readers).format(y=f"({y})") for y in found), *o.middle]
    outs = [w.fresh("y") for _ in lines]
    inner.lines += [f"{name} = {text}" for name, text in zip(outs, lines, strict=True)]
    params = [p for p in o.params if re.search(rf"\b{p.name}\b", "\n".join(inner.lines))] or o.params[:1]
    types = jax.eval_shape(_bodied(params, inner, f"({', '.join(outs)},)"), *(_type(p) for p in params))
    results = [Value(name, x.shape, str(x.dtype)) for name, x in zip(outs, types, strict=True)]
    # LAPACK's singular values (`pinv`) of a matrix with an infinite entry never end, in plain JAX neither.
    ends = not any("pinv" in line for line in inner.lines)
    special = ", special=True" if w.chance(0.1) and ends else ""
    arguments = [f"array({p.shape}, {p.dtype!r}, {rng.randrange(1000)}{special})" for p in params]
    if kind == "bare":
        scope, args = inner, params
    else:
        args = [Value(w.fresh("a"), p.shape, p.dtype) for p in params]
        results = patterns.surrounded(w, scope, kind, inner, args, params, results)
    body = "\n".join(f"    {line}" for line in scope.lines)
    source = f"def f({control.names(args)}):\n{body}\n    return ({control.names(results)},)\n"
    return Program(seed, source, tuple(arguments), frozenset((kind, site.__name__, w.dtype)), True)


def _type(p: Value) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(p.shape, p.dtype)


def _bodied(params: list[Value], inner: Scope, result: str) -> Callable[..., Any]:
    """The function of a scope, for its types."""
    body = "\n".join(f"    {line}" for line in (*inner.lines, f"return {result}"))
    scope = {**_NAMES}
    exec(f"def f({control.names(params)}):\n{body}", scope)
    return scope["f"]


def _arguments(w: Writer, scope: Scope, special: bool) -> tuple[list[str], list[str]]:
    """Draws the parameters: texts of the parameter list and of the arguments."""
    parameters, arguments = [], []
    for k in range(w.rng.randint(1, 4)):
        name = "abcd"[k]
        kind = w.weighted(
            [(9, "array"), (1.5, "integer"), (1, "scalar"), (1, "key"), (0.7, "none"), (1, "pair"), (0.5, "bool"),
             (0.5, "complex"), (0.7, "other_float")]
        )  # fmt: skip
        w.note(f"argument_{kind}")
        seed, shape = w.rng.randrange(1000), w.shape(0, 3)
        parameters.append(name)
        if kind == "none":
            arguments.append("None")
            continue
        if kind == "key":
            dtype = w.one_of(("key", "rawkey"))
            scope.values.append(Value(name, (), dtype))
            arguments.append(f"jax.random.{'key' if dtype == 'key' else 'PRNGKey'}({seed})")
            continue
        if kind == "scalar":
            w.note("weak_type")
            number, dtype = w.one_of((("0.75", "float32"), ("-2", "int32"), ("True", "bool"), ("1.5", "float32")))
            scope.values.append(Value(name, (), dtype))
            arguments.append(number)
            continue
        dtype = {"integer": w.one_of(("int32", "int8", "uint8")), "bool": "bool", "complex": "complex64",
                 "other_float": w.one_of(("float32", "bfloat16", "float16"))}.get(kind, w.dtype)  # fmt: skip
        w.note(dtype)
        extra = ", special=True" if special and dtype not in ("bool", "int32", "int8", "uint8") else ""
        texts = [f"array({shape}, {dtype!r}, {seed}{extra})"]
        if kind == "pair":
            w.note("container")
            texts.append(f"array({shape}, {dtype!r}, {seed + 1})")
            parts = [Value(w.fresh("v"), shape, dtype) for _ in texts]
            scope.lines.append(f"{parts[0].name}, {parts[1].name} = {name}['x'], {name}['y'][0]")
            scope.values += parts
            arguments.append(f"{{'x': {texts[0]}, 'y': ({texts[1]}, None)}}")
            continue
        scope.values.append(Value(name, shape, dtype))
        arguments.append(texts[0])
    if w.chance(0.15):
        w.note("unused_input")
        parameters.append("unused")
        arguments.append("array((2,), 'float32', 1)")
    return parameters, arguments


def _results(w: Writer, scope: Scope, main: list[Value]) -> str:
    """What the program returns: a pattern's results and late values mostly; now and then an input, a constant, a None.

    What a loop stacked (names in y) is returned less often than anything else, or no loop could be fused.
    """
    late = [v for v in scope.values if v.name[0] != "y" or w.chance(0.1)][-8:] or [w.floating(scope)]
    chosen = [v.name for v in main] or [late[-1].name]
    chosen += [w.one_of(late).name for _ in range(w.rng.randint(0, 1 if main else 3))]
    integers = [v.name for v in late if v.is_int]
    if integers and w.chance(0.5):
        w.note("integer_output")
        text = w.one_of(("{v} * 77 + 3", "{v} * {v}", "jnp.sum({v})", "{v}"))  # most of them overflow
        chosen.append(text.format(v=integers[-1]))
    if len(set(chosen)) < len(chosen):
        w.note("duplicate_output")
    if w.chance(0.1) and scope.values:
        w.note("forwarded_input")
        chosen.append(scope.values[0].name)
    if w.chance(0.1):
        w.note("constant_output")
        chosen.append(w.one_of(("jnp.arange(3)", "np.float32(2.5)", "1.5", "jnp.zeros((2, 0))")))
    if w.chance(0.1):
        w.note("none_output")
        chosen.append("None")
    if len(chosen) == 1:
        return chosen[0]
    if w.chance(0.3):
        w.note("dict_output")
        return "{" + ", ".join(f"'k{i}': {c}" for i, c in enumerate(chosen)) + "}"
    return f"({', '.join(chosen)})"


@functools.lru_cache(maxsize=1)
def programs() -> st.SearchStrategy[Program]:
    """Programs as a hypothesis strategy; every draw is hypothesis's own, so that failures shrink."""
    return st.randoms(use_true_random=False).map(lambda rng: draw_program(-1, rng))
