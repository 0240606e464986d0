"""The table of mapped axes, against numbers and against `vmap`."""

import itertools
from typing import Any

import numpy as np
import pytest

from .axes_cases import CASES, Case, draw
from .axes_judge import judge_every_axis, judge_vmapped


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_hold_on_numbers(case: Case, rng: np.random.Generator) -> None:
    """Along every axis of every input, plain or merged, blocks give the blocks of the result, or its parts."""
    judge_every_axis(case.fun, [draw(rng, *t) for t in case.types])


@pytest.mark.parametrize("case", [c for c in CASES if c.note not in ("cut", "empty")], ids=str)
def test_gives_back_what_vmap_batched(case: Case, rng: np.random.Generator) -> None:
    """`vmap` of a one-index equation, along every combination of input axes, is that equation once per index."""
    length = 3
    for in_axes in _in_axes(case, rng):
        args = [
            draw(rng, _with(shape, at, length), dtype) for (shape, dtype), at in zip(case.types, in_axes, strict=True)
        ]
        judge_vmapped(case.fun, args, in_axes, length)


def _in_axes(case: Case, rng: np.random.Generator) -> list[tuple[int | None, ...]]:
    if case.in_axes is not None:
        return list(case.in_axes)
    every = itertools.product(*([None, *range(len(shape) + 1)] for shape, _ in case.types))
    useful = [axes for axes in every if any(at is not None for at in axes)]
    chosen = rng.permutation(len(useful))[:4]
    return [useful[i] for i in sorted(chosen)]


def _with(shape: Any, at: int | None, length: int) -> tuple[int, ...]:
    return tuple(shape) if at is None else (*shape[:at], length, *shape[at:])
