"""How the operands of a site could be meant: the Python values that go with them, and which axes are mapped."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..._jax import Atom, JaxprEqn, Literal
from .rule import Rule
from .traces import Map, Reading

MOST_BINDINGS = 64
MOST_READINGS = 32


def bindings(rule: Rule, eqns: Sequence[JaxprEqn], atoms: Sequence[Atom]) -> Iterator[dict[str, Any]]:
    """Values for the parameters of a rule: those of the same type that stand somewhere in the equations of a site.

    For an int also the axes of the operands, for a bool both.
    """
    if not rule.parameters:
        yield {}
        return
    seen = list(_plain_values(eqns))
    axes = list(range(max((len(x.aval.shape) for x in atoms), default=0)))
    choices = [_of_type(default, [*seen, *axes, *_sizes(atoms)]) for default in rule.parameters.values()]
    for values in itertools.islice(itertools.product(*choices), MOST_BINDINGS):
        yield dict(zip(rule.parameters, values, strict=True))


def _of_type(default: Any, values: Iterable[Any]) -> list[Any]:
    if isinstance(default, bool):
        return [default, not default]
    kept = {(type(v), v): v for v in values if type(v) is type(default)}
    if isinstance(default, float):  # 2 * x and 2.0 * x are one program
        kept |= {(float, float(v)): float(v) for v in values if type(v) is int}
    return list(kept.values()) or [default]


def _sizes(atoms: Sequence[Atom]) -> Iterator[int]:
    for x in atoms:
        yield from x.aval.shape


def _plain_values(eqns: Sequence[JaxprEqn]) -> Iterator[Any]:
    for eqn in eqns:
        for x in eqn.invars:
            if isinstance(x, Literal) and not np.shape(x.val):
                yield np.asarray(x.val).item()
        for value in eqn.params.values():
            yield from _plain(value)


def _plain(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        if all(isinstance(x, int | np.integer) for x in value):
            yield tuple(int(x) for x in value)
        for x in value:
            yield from _plain(x)
    elif isinstance(value, bool | int | float):
        yield value
    elif isinstance(value, np.integer):
        yield int(value)


def batched_readings(atoms: Sequence[Atom], results: Sequence[tuple[int, ...]]) -> Iterator[Reading]:
    """The ways in which a site could be the batched form of what a rule is written for.

    One `vmap` over any axes of one size in operands and results, those in front first; then two, of operands' axes in
    front. (JAX's batching rules put the axis of a result where it costs nothing.)
    """
    shapes = [tuple(x.aval.shape) for x in atoms]
    once = list(itertools.islice(_maps(shapes, results), MOST_READINGS))
    for one in once:
        yield Reading((one,))
    for outer in once:
        ins, outs = outer
        if any(a not in (0, None) for a in ins):
            continue
        rest = [shape[:out] + shape[out + 1 :] for shape, out in zip(results, outs, strict=True)]
        for inner in itertools.islice(_maps(Reading((outer,)).example(shapes), rest), MOST_READINGS):
            if all(a in (0, None) for a in inner[0]):
                yield Reading((outer, inner))


def _maps(shapes: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> Iterator[Map]:
    for outs in itertools.product(*(range(len(shape)) for shape in results)):
        sizes = {shape[out] for shape, out in zip(results, outs, strict=True)}
        if len(sizes) != 1:
            continue
        choices = [[*(a for a, n in enumerate(shape) if n in sizes), None] for shape in shapes]
        for ins in itertools.product(*choices):
            if any(a is not None for a in ins):
                yield ins, outs
