"""Claim: a module is built within 3 times a frozen dataclass; its attributes and methods cost those of a plain class.

Four fields, two of them arrays; a layer as most are, with an activation and a tuple; and a single field, where what
does not depend on fields weighs most. The dataclass and the module have the `__init__` that is written for them, or
both one of their own (where a frozen dataclass must say `object.__setattr__`). The bounds are the issue's.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import aerogel as ag

from ._finding import Finding
from ._models import ratio


class Plain:
    """A class as Python has them."""

    def __init__(self, weight: Any, bias: Any, width: int, name: str) -> None:
        self.weight = weight
        self.bias = bias
        self.width = width
        self.name = name

    def __call__(self) -> int:
        """As little as possible."""
        return self.width


@dataclass(frozen=True)
class Frozen:
    """The same fields."""

    weight: Any
    bias: Any
    width: int
    name: str


class OwnFrozen(Frozen):
    """With an `__init__` of its own."""

    def __init__(self, weight: Any, bias: Any, width: int, name: str) -> None:
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "name", name)


class Written(ag.Module):
    """The same fields."""

    weight: jax.Array
    bias: jax.Array
    width: int
    name: str

    def __call__(self) -> int:
        """As little as possible."""
        return self.width


class Own(Written):
    """With an `__init__` of its own."""

    def __init__(self, weight: Any, bias: Any, width: int, name: str) -> None:
        self.weight = weight
        self.bias = bias
        self.width = width
        self.name = name


@dataclass(frozen=True)
class FrozenOne:
    """A single field."""

    weight: Any


class OwnFrozenOne(FrozenOne):
    """With an `__init__` of its own."""

    def __init__(self, weight: Any) -> None:
        object.__setattr__(self, "weight", weight)


class One(ag.Module):
    """The same field."""

    weight: jax.Array


class OwnOne(One):
    """With an `__init__` of its own."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight


def seconds(calls: list[Callable[[], Any]], rounds: int, number: int) -> list[np.ndarray]:
    """Seconds per call, by round, for each of several."""
    found = np.array([[timeit.timeit(call, number=number) / number for call in calls] for _ in range(rounds)])
    return list(found.T)


def findings(quick: bool = False) -> list[Finding]:
    """Ratios of times, a module's over those of Python's own objects."""
    rounds, number = (10, 2000) if quick else (100, 5000)
    values = (jnp.ones(2), jnp.ones(2), 3, "layer")
    found = []

    def compare(name: str, measure: str, ours: Callable[[], Any], theirs: Callable[[], Any], bound: float) -> None:
        mine, other = seconds([ours, theirs], rounds, number)
        details = f"{np.median(mine) * 1e9:.0f} and {np.median(other) * 1e9:.0f} ns"
        found.append(Finding(name, measure, ratio(mine, other), bound, details))

    compare("construction", "over a frozen dataclass", partial(Written, *values), partial(Frozen, *values), 3.0)
    own = partial(Own, *values), partial(OwnFrozen, *values)
    compare("construction, own `__init__`", "over a frozen dataclass", *own, 3.0)
    layer = (jnp.ones(2), jnp.ones(2), (3, 3), jax.nn.relu)
    compare(
        "construction of a layer", "over a frozen dataclass", partial(Written, *layer), partial(Frozen, *layer), 3.0
    )
    one = jnp.ones(2)
    compare("construction, one field", "over a frozen dataclass", partial(One, one), partial(FrozenOne, one), 3.0)
    own = partial(OwnOne, one), partial(OwnFrozenOne, one)
    compare("construction, one field, own `__init__`", "over a frozen dataclass", *own, 3.0)
    module, plain = Written(*values), Plain(*values)
    compare("reading an attribute", "over a plain class", lambda: module.weight, lambda: plain.weight, 1.1)
    compare("a call of a method", "over a plain class", lambda: module(), lambda: plain(), 1.1)
    return found
