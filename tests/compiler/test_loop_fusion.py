"""Loop fusion: every pattern of stacked outputs, in every place, is recovered from its natural form."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import aerogel as ag
from aerogel.compiler.agree import compare, float64_reference
from aerogel.compiler.exactness import Exactness
from compiler.loop_patterns import (
    INTEGER,
    LANGUAGE,
    LENGTH,
    PATTERNS,
    REDUCED,
    SURROUNDINGS,
    Pattern,
    made,
    plain,
    stacked,
    with_gradient,
)

# Loops that are written without a direction (`lax.map`, `fori_loop`) run in their own.
DIRECTIONS = {pattern.name: (False,) if pattern.name in ("lax.map", "filled buffer") else (False, True)
              for pattern in PATTERNS}  # fmt: skip


def variants(pattern: Pattern) -> list[tuple[bool, bool]]:
    """With and without inputs of the steps, forward and reversed."""
    return list(itertools.product((False, True), DIRECTIONS[pattern.name]))


def program(f: Callable[..., Any], args: Any) -> Any:
    """The jaxpr of a function."""
    return jax.make_jaxpr(f)(*args).jaxpr


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_the_stacked_array_is_never_made(pattern: Pattern, surrounding: str) -> None:
    """The natural program makes an array over all steps; the optimised one makes none of that size anywhere."""
    for with_xs, reverse in variants(pattern):
        f, args = SURROUNDINGS[surrounding](pattern.function(reverse)), pattern.args(with_xs)
        assert made(program(f, args), pattern.size)
        assert made(program(ag.optimize(f), args), pattern.size) == []
