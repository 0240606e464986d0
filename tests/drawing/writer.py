"""A program being written: typed names in nested scopes, as lines of Python text.

Text, and not closures, because a failure is then read as what it is: a short JAX program. Every value knows its
type and a bound of its magnitude; what would outgrow float16 is squashed on the way, so that most results are finite
and well conditioned.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

FLOATS = ("float32", "bfloat16", "float16")
INTS = ("int32", "int8", "uint8")
KEYS = ("key", "rawkey")
_TOO_LARGE = 16.0


@dataclass(frozen=True)
class Value:
    """A name in scope: its shape, dtype ("key" and "rawkey" for random keys) and a rough bound of its magnitude."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: float = 2.0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS or self.dtype == "float64"

    @property
    def is_int(self) -> bool:
        return self.dtype in INTS

    @property
    def is_key(self) -> bool:
        return self.dtype in KEYS


@dataclass
class Scope:
    """A function body being written. `reverse` and `forward` say which derivative will be taken of it."""

    parent: "Scope | None" = None
    reverse: bool = False
    forward: bool = False
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def visible(self) -> list[Value]:
        """Names of this function, and of those around it (closed-over values)."""
        return self.values + ([] if self.parent is None else self.parent.visible())

    def inner(self, reverse: bool = False, forward: bool = False) -> "Scope":
        """A scope for a function inside this one; derivatives reach into it."""
        return Scope(self, self.reverse or reverse, self.forward or forward)


class Writer:
    """Draws from one `random.Random`; owns the counter of names and the list of what the program contains."""

    def __init__(self, rng: random.Random, dtype: str) -> None:
        self.rng, self.dtype = rng, dtype
        self.features: set[str] = set()
        self.zero_sizes = False
        self._count = 0

    # --- drawing -------------------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def weighted(self, options: Sequence[tuple[float, Any]]) -> Any:
        total = sum(w for w, _ in options)
        mark = self.rng.random() * total
        for weight, option in options:
            mark -= weight
            if mark < 0:
                return option
        return options[-1][1]

    def dim(self) -> int:
        if self.zero_sizes and self.chance(0.25):
            self.note("zero_size")
            return 0
        return self.one_of((1, 2, 3, 3, 4, 5))

    def shape(self, least: int = 0, most: int = 3) -> tuple[int, ...]:
        return tuple(self.dim() for _ in range(self.rng.randint(least, most)))

    def length(self) -> int:
        """A trip count."""
        n = self.one_of((2, 3, 4, 4, 5, 6, 8, 1, 1, 0)) if self.chance(0.4) else self.one_of((3, 4, 5, 7))
        if n < 2:
            self.note(f"scan_length_{n}")
        return n

    def note(self, *features: str) -> None:
        self.features.update(features)

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- writing -------------------------------------------------------------------------------------------------

    def let(
        self, scope: Scope, expression: str, shape: Sequence[int], dtype: str, bound: float = 2.0, name: str = ""
    ) -> Value:
        """A new name for an expression of a known type; squashed where it could grow too large."""
        name = name or self.fresh("v")
        if dtype in FLOATS and bound > _TOO_LARGE:
            expression = self.one_of((f"jnp.tanh({expression})", f"({expression}) / {round(bound)}"))
            bound = 1.0
        scope.lines.append(f"{name} = {expression}")
        value = Value(name, tuple(shape), dtype, bound)
        scope.values.append(value)
        return value

    def line(self, scope: Scope, text: str) -> None:
        """A statement, of one line or more."""
        scope.lines += text.split("\n")

    def function(self, scope: Scope, header: str, inner: Scope, result: str) -> None:
        """Writes a finished inner function into `scope`."""
        scope.lines.append(header)
        scope.lines += [f"    {line}" for line in inner.lines]
        scope.lines.append(f"    return {result}")

    def constant(self, scope: Scope, shape: Sequence[int], dtype: str) -> Value:
        """An array that the program closes over."""
        self.note("closed_over_constant")
        # NumPy has its own rules for small types, and for Python scalars with them.
        own_rules = dtype not in ("float32", "int32", "bool")
        kind = "jnp.asarray" if own_rules or self.chance(0.3) else ""
        text = f"array({tuple(shape)}, {dtype!r}, {self.rng.randrange(100)})"
        return self.let(scope, f"{kind}({text})" if kind else text, shape, dtype)

    # --- choosing ------------------------------------------------------------------------------------------------

    def pick(self, scope: Scope, wanted: Callable[[Value], bool]) -> Value | None:
        """A visible value; later ones are likelier."""
        found = [v for v in scope.visible() if wanted(v)]
        if not found:
            return None
        found.sort(key=lambda v: int(v.name.lstrip("abcdefghijklmnopqrstuvwxyz_") or 0))
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def floating(self, scope: Scope, least: int = 0, most: int = 3) -> Value:
        """A float value of a rank; made if there is none."""
        found = self.pick(scope, lambda v: v.is_float and least <= v.ndim <= most and v.size <= 128)
        if found is not None:
            return found
        anything = self.pick(scope, lambda v: not v.is_key)
        shape = self.shape(least, max(least, min(most, 2)))
        return self.constant(scope, shape, self.dtype) if anything is None else self.coerced(
            scope, anything, shape, self.dtype
        )  # fmt: skip

    def like(self, scope: Scope, shape: Sequence[int], dtype: str) -> Value:
        """A value of exactly this type: an existing one, one bent into the type, or a constant."""
        shape = tuple(shape)
        exact = self.pick(scope, lambda v: v.shape == shape and v.dtype == dtype)
        if exact is not None and self.chance(0.7):
            return exact
        near = self.pick(scope, lambda v: not v.is_key and v.size > 0)
        if near is None or self.chance(0.4):
            return self.constant(scope, shape, dtype)
        return self.coerced(scope, near, shape, dtype)

    def coerced(self, scope: Scope, v: Value, shape: Sequence[int], dtype: str) -> Value:
        """`v` bent into another type."""
        text, bound = self.cast_text(v, dtype), v.bound
        shape = tuple(shape)
        if v.shape == shape:
            pass
        elif _broadcasts(v.shape, shape):
            text = f"jnp.broadcast_to({text}, {shape})"
        elif v.ndim and v.size and self.chance(0.5):
            text = f"jnp.resize({text}, {shape})"
        elif dtype == "bool":
            text = f"jnp.broadcast_to(jnp.any({text}), {shape})"
        else:
            text = f"jnp.broadcast_to(jnp.sum({text}, dtype={dtype!r}), {shape})"
            bound = v.bound * max(v.size, 1)
        return v if text == v.name else self.let(scope, text, shape, dtype, bound)

    def cast_text(self, v: Value, dtype: str) -> str:
        """The expression for `v` in another dtype."""
        if v.dtype == dtype:
            return v.name
        self.note("cast")
        if dtype == "bool":
            return f"({v.name} != 0)" if v.dtype == "complex64" else f"({v.name} > 0)"
        if dtype == "complex64":
            return f"({v.name} * (1 + 0.5j)).astype('complex64')"
        if v.dtype == "complex64":
            return f"jnp.real({v.name}).astype({dtype!r})"
        if v.is_int and dtype in FLOATS:
            return f"({v.name} % 10).astype({dtype!r})"
        if v.is_float and dtype in INTS:
            return f"jnp.clip(jnp.nan_to_num({v.name}) * 10, 0, 100).astype({dtype!r})"
        return f"{v.name}.astype({dtype!r})"


def joined(a: str, b: str) -> str:
    """The dtype of an operation on two dtypes, as JAX's lattice has it."""
    return str(jnp.promote_types(a, b))


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))
