"""Rebuilding a loop with part of its body outside: once before it, or for all steps before or after it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jax import lax

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..loop import Loop, LoopBuilder, named
from ..normalize import drop_dead
from ..program import Builder, copy_equation, is_var, rename, substitute, with_equations
from ..record import record
from .hoistable import batched


@record
class Outside:
    """Which equations of a body, by index, run outside the loop.

    Attributes:
        once: before the loop, as they are; they read constants only.
        before: before the loop, for all steps; they read no carry.
        after: after the loop, for all steps; only stacked outputs read them.
    """

    once: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()


@dataclass
class Replacement:
    """What takes a loop's place; `results` are what stands for the old loop's results."""

    eqns: list[JaxprEqn]
    results: dict[Var, Atom] = field(default_factory=dict)

    def apply(self, jaxpr: Jaxpr, index: int) -> Jaxpr:
        """`jaxpr` with the equation at `index` replaced, without what is dead then."""
        eqns = [*jaxpr.eqns[:index], *self.eqns, *(rename(eqn, self.results) for eqn in jaxpr.eqns[index + 1 :])]
        return drop_dead(with_equations(jaxpr, eqns, [substitute(x, self.results) for x in jaxpr.outvars]))


def move_out(loop: Loop, outside: Outside) -> Replacement:
    """The loop with `outside` outside."""
    return _Move(loop, outside).run()


@dataclass
class _Values:
    """Values of the body that exist outside the loop: an atom, and whether it holds all steps."""

    atoms: dict[Var, tuple[Atom, bool]]

    def compute(self, builder: list[JaxprEqn], eqn: JaxprEqn) -> None:
        """Runs an equation of the body on them."""
        ins = [(x, False) if isinstance(x, Literal) else self.atoms[x] for x in eqn.invars]
        one = Builder(eqn)
        if any(stacked for _, stacked in ins):
            outs = one.call(batched(eqn, [stacked for _, stacked in ins]), *(atom for atom, _ in ins))
            self.atoms.update({v: (out, True) for v, out in zip(eqn.outvars, outs, strict=True)})
        else:
            env: dict[Var, Atom] = {x: atom for x, (atom, _) in zip(eqn.invars, ins, strict=True) if is_var(x)}
            one.eqns.append(copy_equation(eqn, env))
            self.atoms.update({v: (env.get(v, v), False) for v in eqn.outvars})
        builder += one.eqns


class _Move:
    def __init__(self, loop: Loop, outside: Outside):
        self.loop, self.outside = loop, outside
        self.new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
        atoms: dict[Var, tuple[Atom, bool]] = {}
        atoms.update({v: (c, False) for v, c in zip(loop.body_consts, loop.consts, strict=True)})
        atoms.update({v: (x, True) for v, x in zip(loop.body_xs, loop.xs, strict=True)})
        self.values = _Values(atoms)
        self.stacked: dict[Var, Var] = {}

    def run(self) -> Replacement:
        loop, new, where = self.loop, self.new, self.outside
        eqns = loop.body.eqns
        early = where.once | where.before
        # what the moved equations need of the constants' arithmetic is computed on both sides
        for i in sorted(early | self._needed(early | where.after, where.after)):
            self.values.compute(new.before.eqns, eqns[i])
        inside = self._body([i for i in range(len(eqns)) if i not in early and i not in where.after])
        moved = {v for i in early | where.after for v in eqns[i].outvars}
        stays = [(y, v) for y, v in zip(loop.ys, loop.body_ys, strict=True) if not (is_var(v) and v in moved)]
        for y, v in stays:
            stacked = new.y(substitute(v, inside), named(y))
            if is_var(v):
                self.stacked.setdefault(v, stacked)
        values = self._after(inside)
        results: dict[Var, Atom] = {}
        for y, v in zip(loop.ys, loop.body_ys, strict=True):
            if is_var(v) and v in moved:
                results[y] = self._whole(*values.atoms[v])
        rest = [new.equation()] if loop.init or stays or self.stacked else []
        return Replacement([*new.before.eqns, *rest, *new.after.eqns], results)

    def _after(self, inside: dict[Var, Atom]) -> _Values:
        """Runs what runs after the loop on the stacked values that it reads."""
        eqns = self.loop.body.eqns
        values = _Values(dict(self.values.atoms))
        for i in sorted(self.outside.after):
            for x in eqns[i].invars:
                if is_var(x) and x not in values.atoms:
                    if x not in self.stacked:
                        self.stacked[x] = self.new.y(substitute(x, inside))
                    values.atoms[x] = (self.stacked[x], True)
            values.compute(self.new.after.eqns, eqns[i])
        return values

    def _body(self, kept: Sequence[int]) -> dict[Var, Atom]:
        loop, new = self.loop, self.new
        env: dict[Var, Atom] = {}
        setters = []
        for init, var, final in zip(loop.init, loop.body_carry, loop.finals, strict=True):
            env[var], set_next = new.keep_carry(init, named(final))
            setters.append(set_next)
        made = {v for i in kept for v in loop.body.eqns[i].outvars}
        reads = [x for i in kept for x in loop.body.eqns[i].invars]
        for x in [*reads, *loop.body.outvars]:
            if not is_var(x) or x in made or x in env or x not in self.values.atoms:
                continue
            atom, stacked = self.values.atoms[x]
            env[x] = new.x(atom) if stacked and is_var(atom) else new.const(atom)
        for i in kept:
            new.body.eqns.append(copy_equation(loop.body.eqns[i], env))
        for set_next, x in zip(setters, loop.next_carry, strict=True):
            set_next(substitute(x, env))
        return env

    def _needed(self, moved: Iterable[int], late: Iterable[int]) -> set[int]:
        """Equations on constants that moved ones need and that do not move themselves."""
        eqns = self.loop.body.eqns
        makers = {v: i for i, eqn in enumerate(eqns) for v in eqn.outvars}
        fixed = constant_equations(self.loop)
        found: set[int] = set()
        stack = [x for i in moved for x in eqns[i].invars]
        while stack:
            x = stack.pop()
            i = makers.get(x) if is_var(x) else None
            if i is not None and i in fixed and i not in found and i not in late:
                found.add(i)
                stack += eqns[i].invars
        return found

    def _whole(self, atom: Atom, stacked: bool) -> Atom:
        if stacked:
            return atom
        length = self.loop.length
        (out,) = self.new.after.call(lambda v: lax.broadcast(v, (length,)), atom)
        return out


def constant_equations(loop: Loop) -> set[int]:
    """The equations of a body that read neither carries nor inputs of the step, directly or not."""
    moving: set[Var] = {*loop.body_carry, *loop.body_xs}
    fixed: set[int] = set()
    for i, eqn in enumerate(loop.body.eqns):
        if eqn.effects or any(is_var(x) and x in moving for x in eqn.invars):
            moving.update(eqn.outvars)
        else:
            fixed.add(i)
    return fixed
