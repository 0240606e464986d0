"""An axis followed through the equations of a jaxpr, and these equations for some of its indices."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerogel._jax import Atom, Jaxpr, Literal, Var

from ..axes import Axis, Mapped, No, Reduced, along, along_output
from ..program import Builder, copy_equation, is_var, producers, substitute, users


class Whole(Exception):
    """Something needs the whole of an axis; says what."""


@dataclass
class Through:
    """An axis through a jaxpr.

    Attributes:
        jaxpr: the equations.
        length: of the axis.
        where: where it stands in the values that have it.
        answers: by place, what each equation that has to do with it is along it.
    """

    jaxpr: Jaxpr
    length: int
    where: dict[Var, Axis] = field(default_factory=dict)
    answers: dict[int, Mapped | Reduced] = field(default_factory=dict)

    def cut(
        self, builder: Builder, env: dict[Var, Atom], low: int, size: int, *, finish: bool = True
    ) -> dict[int, list[Atom]]:
        """Adds the equations for `size` indices from `low` on to `builder`, and what they make to `env`.

        `env` holds what stands for the inputs, cut along the axis where they have it. Without `finish`, reductions of
        the axis stay partial results: these are returned, by place, and `env` lacks their ends.
        """
        partial: dict[int, list[Atom]] = {}
        for place, eqn in enumerate(self.jaxpr.eqns):
            answer = self.answers.get(place)
            if answer is None:
                builder.eqns.append(copy_equation(eqn, env))
                continue
            builder.like = eqn
            reads = [substitute(x, env) for x in eqn.invars]
            outs = builder.call(lambda *xs, a=answer: list(a.block(low, size, *xs)), *reads)
            if isinstance(answer, Reduced):
                if not finish:
                    partial[place] = outs
                    continue
                outs = builder.call(answer.finish, *outs)
            env.update((v, builder.as_weak_as(v, out)) for v, out in zip(eqn.outvars, outs, strict=True))
        return partial


def through(jaxpr: Jaxpr, seed: Var, axis: Axis, tied: Sequence[tuple[Var, Atom]] = ()) -> Through:
    """The axis that stands at `axis`, which is plain, in a value of a jaxpr; `tied` values have it in the same place.

    Raises:
        Whole: an equation needs it as a whole.
    """
    found = Through(jaxpr, seed.aval.shape[axis.dim])
    makers, readers = producers(jaxpr), users(jaxpr)
    waiting: list[tuple[Atom, Axis]] = [(seed, axis)]
    while waiting:
        v, at = waiting.pop()
        if not is_var(v):
            raise Whole("a step starts anew from a number")
        if v in found.where:
            if found.where[v] != at:
                raise Whole("a value has it along two axes")
            continue
        found.where[v] = at
        for one, other in tied:
            if v is one or v is other:
                waiting.append((other if v is one else one, at))
        for place in [*readers.get(v, ()), makers.get(v, -1)]:
            waiting += _asked(found, place) if place >= 0 else ()
    return found


def _asked(found: Through, place: int) -> list[tuple[Atom, Axis]]:
    """Where an equation has the axis, as far as it is known now."""
    eqn = found.jaxpr.eqns[place]
    ins = {k: found.where[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in found.where}
    outs = {k: found.where[v] for k, v in enumerate(eqn.outvars) if v in found.where}
    answer = along(eqn, ins, found.length, after_differentiation=True) if ins else None
    if answer is None:
        answer = along_output(eqn, outs, found.length)
    if isinstance(answer, No):
        raise Whole(answer.reason)
    found.answers[place] = answer
    known: list[tuple[Atom, Axis | None]] = list(zip(eqn.invars, answer.ins, strict=True))
    if isinstance(answer, Mapped):
        known += zip(eqn.outvars, answer.outs, strict=True)
    elif outs:
        raise Whole(f"`{eqn.primitive.name}` reduces it, and its result has it")
    return [(x, axis) for x, axis in known if axis is not None and not isinstance(x, Literal)]
