"""Values that are zero outside of an excerpt: the gradient of what only an excerpt was read of.

What is linear in such a value is zero where it is, so it is done for the excerpt alone; a sum over the axis is the
sum over the excerpt.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes import MONOIDS, Axis, Mapped, No, Reduced, along, linear_in, linear_together
from ..known.picks import is_zeros
from ..level import Edit, Level
from ..program import Builder, is_var
from .excerpt import Excerpt, Writer
from .groups import Group, joined


@dataclass
class _Padded:
    """Which values of a level are padded with zeros, found from its start."""

    level: Level
    after_differentiation: bool
    excerpts: dict[Var, Excerpt] = field(default_factory=dict)
    done: dict[int, Mapped | Reduced | None] = field(default_factory=dict)  # None: it pads

    def walk(self) -> None:
        """From the first equation to the last."""
        for place, eqn in enumerate(self.level.eqns):
            part = padding_of(self.level, eqn)
            if part is not None:
                self.done[place] = None
                self.excerpts[eqn.outvars[0]] = part
                continue
            answer = self._answer(eqn)
            if answer is not None:
                self.done[place] = answer
                part = self.part(eqn)
                axes = answer.outs if isinstance(answer, Mapped) else ()
                self.excerpts.update((v, part.on(a)) for v, a in zip(eqn.outvars, axes, strict=False) if a)

    def part(self, eqn: JaxprEqn) -> Excerpt:
        """That of the first padded operand."""
        return next(self.excerpts[x] for x in eqn.invars if is_var(x) and x in self.excerpts)

    def _answer(self, eqn: JaxprEqn) -> Mapped | Reduced | None:
        known = {k: self.excerpts[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in self.excerpts}
        if not known or eqn.effects or not self._is_zero_outside(eqn, set(known)):
            return None
        first = next(iter(known.values()))
        if any(other.on(first.axis) != first for other in known.values()):
            return None
        found = along(
            eqn,
            {k: part.axis for k, part in known.items()},
            first.length,
            after_differentiation=self.after_differentiation,
        )
        if isinstance(found, No) or (isinstance(found, Mapped) and None in found.outs):
            return None
        return None if isinstance(found, Reduced) and found.monoid is not MONOIDS["add"] else found

    def _is_zero_outside(self, eqn: JaxprEqn, padded: set[int]) -> bool:
        """Whether zeros in the operands at `padded` make zeros in the result."""
        if padded & set(linear_in(eqn)):
            return True
        together = linear_together(eqn)
        return bool(together) and all(k in padded or _is_zero(self.level, eqn.invars[k]) for k in together)


def _is_zero(level: Level, x: Atom) -> bool:
    return is_zeros(level, x) or (isinstance(x, Literal) and not np.any(x.val))


def padding_of(level: Level, eqn: JaxprEqn) -> Excerpt | None:
    """Where the operand of a `pad` or `dynamic_update_slice` stands among zeros along one dimension."""
    name = eqn.primitive.name
    if name == "pad" and _is_zero(level, eqn.invars[1]):
        part, starts = eqn.invars[0], [int(low) for low, _, _ in eqn.params["padding_config"]]
        if any(min(one) < 0 or one[2] for one in eqn.params["padding_config"]):
            return None
    elif name == "dynamic_update_slice" and _is_zero(level, eqn.invars[0]):
        part, starts = eqn.invars[1], eqn.invars[2:]
    else:
        return None
    shape, sizes = eqn.outvars[0].aval.shape, part.aval.shape
    dims = [d for d, (n, m) in enumerate(zip(shape, sizes, strict=True)) if n != m]
    if len(dims) != 1 or not sizes[dims[0]]:
        return None
    (dim,) = dims
    start = starts[dim]
    if isinstance(start, Literal):
        start = min(max(int(start.val), 0), shape[dim] - sizes[dim])
    return Excerpt(Axis(dim), shape[dim], start, sizes[dim])


def padding_groups(level: Level, after_differentiation: bool) -> list[Group]:
    """The equations on padded values, by what hangs together, each with the edit that leaves the zeros out."""
    padded = _Padded(level, after_differentiation)
    padded.walk()
    links = [
        (place, level.made_by[x])
        for place in padded.done
        for x in level.eqns[place].invars
        if is_var(x) and x in padded.excerpts and padded.done[place] is not None
    ]
    return [_group(level, padded, places) for places in joined(links)]


def _group(level: Level, padded: _Padded, places: frozenset[int]) -> Group:
    builder = Builder(level.eqns[min(places)])
    writer, results = Writer(builder), dict[Var, Atom]()
    for place in sorted(places):
        eqn, answer = level.eqns[place], padded.done[place]
        if answer is None:
            (out,) = eqn.outvars
            operand = eqn.invars[0 if eqn.primitive.name == "pad" else 1]
            writer.made[out] = operand, padded.excerpts[out]
            continue
        outs = writer.narrowed(eqn, answer, padded.part(eqn))
        if isinstance(answer, Mapped):
            writer.made.update((v, (x, padded.excerpts[v])) for v, x in zip(eqn.outvars, outs, strict=True))
        else:
            whole = outs if answer.alone else builder.call(answer.finish, *outs)
            results.update((v, builder.as_weak_as(v, x)) for v, x in zip(eqn.outvars, whole, strict=True))
    for v, (x, part) in writer.made.items():
        if any(k not in places for k in level.readers(v)):
            results[v] = builder.as_weak_as(v, _padded(writer, x, part, v.aval))
    edit = Edit(max(places), places, builder.eqns, results, places)
    return Group(edit, tuple(level.eqns[k] for k in sorted(places)), tuple(results))


def _padded(writer: Writer, x: Atom, part: Excerpt, aval: Any) -> Atom:
    """The whole value, zeros around an excerpt of it."""
    axis, inner = part.axis, part.axis.inner

    def among_zeros(at: Any, x: Any) -> Any:
        shape = aval.shape
        split = (*shape[: axis.dim], axis.outer, part.length * inner, *shape[axis.dim + 1 :])
        rows = (*split[: axis.dim + 1], part.size * inner, *split[axis.dim + 2 :])
        x = lax.reshape(x, rows)
        if isinstance(at, int):
            sides = [(0, 0, 0)] * len(split)
            sides[axis.dim + 1] = (at * inner, (part.length - part.size - at) * inner, 0)
            x = lax.pad(x, lax.full((), 0, x.dtype), sides)
        else:
            x = lax.dynamic_update_slice_in_dim(lax.full(split, 0, x.dtype), x, at * inner, axis.dim + 1)
        return lax.reshape(x, shape)

    return writer.at(part, among_zeros, x)[0]
