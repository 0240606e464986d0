"""Reroll: a loop that was written in Python, and unrolled by tracing, is a loop again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..excerpts.classes import sums_of_classes
from ..joins import AXES as JOINS
from ..known.structure import structure
from ..level import Level
from ..levels import rewrite_nested
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Builder, Program, is_var, rename, substitute, users, where, with_equations
from ..record import record
from ..report import Decision
from ..rolled.kernels import Kernels
from ..rolled.repeats import Run, runs
from ..rolled.rolled import Rolled, rolled
from ..rolled.rolled_steps import Part, Refused, Settled, Steps
from ..rolled.rolled_sums import begun

NAME = "reroll"
# Steps, and those with a product that waits for the step before: docs/explanation/reroll.md has the measurements.
FEWEST, FEWEST_PRODUCTS = 16, 32
EXACTNESS = Exactness.REASSOCIATES  # of sums in a step, which XLA may compile otherwise in a loop
OFFSETS = 16  # equations among which a step may begin


@record
class Reroll:
    """The pass. Bound: each level is read once, and each of its stretches is tried from a few beginnings."""

    name: str = NAME
    exactness: Exactness = EXACTNESS

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops rolled up, and a decision for each."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new_constants: dict[Var, np.ndarray] = {}

        def level(jaxpr: Jaxpr, around: Sequence[JaxprEqn]) -> Jaxpr:
            by_class = partial(_sums_by_class, jaxpr, around, context)
            return _Level(jaxpr, decisions, None if around else new_constants, by_class).run()

        new = rewrite_nested(program, level)
        if new is program or not new_constants:
            return new, decisions
        jaxpr, values = new.jaxpr, list(new_constants.values())
        whole = _jax.new_jaxpr(jaxpr, jaxpr.invars, jaxpr.outvars, jaxpr.eqns, [*jaxpr.constvars, *new_constants])
        return ClosedJaxpr(whole, [*new.consts, *map(jnp.asarray, values)]), decisions


def _sums_by_class(jaxpr: Jaxpr, around: Sequence[JaxprEqn], context: Context) -> frozenset[Var]:
    """The sums of a level that are no sums of all rows each in the end: `ContractionOrder` takes them together."""
    if context.platform != "cpu" or not any(eqn.primitive.name == "reduce_sum" for eqn in jaxpr.eqns):
        return frozenset()
    edits = sums_of_classes(Level(jaxpr), structure(jaxpr, around), Exactness.FINITE in context.allowed)
    return frozenset(v for edit in edits for v in edit.results)


@dataclass
class _Level:
    """One level, its equations written anew from left to right."""

    jaxpr: Jaxpr
    decisions: list[Decision]
    constants: dict[Var, np.ndarray] | None  # None where a program may hold none
    find_by_class: Callable[[], frozenset[Var]]
    eqns: list[JaxprEqn] = field(default_factory=list)
    env: dict[Var, Atom] = field(default_factory=dict)
    parts: dict[Var, Part] = field(default_factory=dict)
    begun: dict[Var, Atom] = field(default_factory=dict)  # sums of one window: what stands for them outside of loops

    def run(self) -> Jaxpr:
        """The level with its loops; the same object where there are none."""
        done, given = 0, self.jaxpr
        eqns, self.begun = begun(given)
        found = runs(eqns, FEWEST)
        if not found:
            return given
        if self.begun:
            self.jaxpr = with_equations(given, eqns)
        self.by_class = self.find_by_class()
        self.read_by = users(self.jaxpr)
        self.makers = {v: eqn for eqn in self.jaxpr.eqns for v in eqn.outvars}
        for run in found:
            loop, start, stop = self._rolled(run)
            if loop is not None:
                self._keep(self.jaxpr.eqns[done:start])
                for eqn in loop.eqns:  # may read entries of outputs of loops before, as the first value of a carry
                    env = {
                        x: self._read(x, eqn) for x in eqn.invars if is_var(x) and (x in self.parts or x in self.begun)
                    }
                    self.eqns.append(rename(eqn, env))
                self.env.update(loop.results)
                self.parts.update(loop.parts)
                done = stop
        if not done:
            return given
        self._keep(self.jaxpr.eqns[done:])
        outs = [self._read(x, self.eqns[-1]) for x in self.jaxpr.outvars]
        return drop_dead(with_equations(self.jaxpr, self.eqns, outs))

    def _rolled(self, run: Run) -> tuple[Rolled | None, int, int]:
        """The loop of a stretch, if it is one, and the places of the equations that it stands for."""
        reason, best = "", None
        for start, count in self._stretches(run):
            stop = start + count * run.period
            eqns = [rename(eqn, self.env) for eqn in self.jaxpr.eqns[start:stop]]
            steps = Steps([eqns[k : k + run.period] for k in range(0, len(eqns), run.period)], self.makers, self.parts)
            try:
                loop = self._loop(steps, start, stop)
            except Settled as refused:
                reason = str(refused)
                break
            except Refused as refused:
                reason = reason or str(refused)
            else:
                begins_well = not steps.begin_in_another
                if best is None or begins_well:
                    best = loop, start, stop
                if begins_well:
                    break
        if best is None:
            self._decide(run, run.count(0), False, reason)
            return None, 0, 0
        loop, start, stop = best
        if self.constants is not None:
            self.constants.update(loop.constants)
        count = (stop - start) // run.period
        self._decide(run, count, True, f"XLA compiles one of {count} steps")
        return best

    def _stretches(self, run: Run) -> Iterator[tuple[int, int]]:
        """Where the first step may begin, and how many there are: the first, and the last, may be others."""
        beginnings = range(min(run.period, OFFSETS))
        for offset, fewer in product((*beginnings, run.period), (0, 1)):
            count = run.count(offset) - fewer
            if count >= FEWEST:
                yield run.start + offset, count

    def _loop(self, steps: Steps, start: int, stop: int) -> Rolled:
        readers = partial(self._readers, start, stop)
        if any(not self.by_class.isdisjoint(eqn.outvars) for eqn in self.jaxpr.eqns[start:stop]):
            raise Settled("rows are added where their classes say, for all of them at once")
        _judge(steps, Kernels(steps, readers))
        loop = rolled(steps, lambda v: bool(readers(v)))
        if loop.constants and self.constants is None:
            raise Refused("their numbers follow no rule, and a body holds no arrays")
        return loop

    def _readers(self, start: int, stop: int, v: Var) -> list[JaxprEqn | None]:
        """The equations that read a value, but for those from `start` to `stop`; None stands for the results."""
        places = (k for k in self.read_by.get(v, ()) if not start <= k < stop)
        return [self.jaxpr.eqns[k] if k >= 0 else None for k in places]

    def _decide(self, run: Run, steps: int, fired: bool, reason: str) -> None:
        what = f"{steps} times the same {run.period} equation{'s'[: run.period != 1]}"
        what = f"{what} become a loop" if fired else what
        line = where(self.jaxpr.eqns[run.start])
        self.decisions.append(Decision(NAME, what, line, fired, reason, exactness=EXACTNESS.value))

    def _keep(self, eqns: Sequence[JaxprEqn]) -> None:
        """Equations as they are, but for what they read."""
        for eqn in eqns:
            whole = self._joined(eqn)
            if whole is not None:
                self.env[eqn.outvars[0]] = whole
                continue
            if eqn.outvars and eqn.outvars[0] in self.begun:
                self.env[eqn.outvars[0]] = self._read(self.begun[eqn.outvars[0]], eqn)
                continue
            env = {x: self._read(x, eqn) for x in eqn.invars if is_var(x)}
            self.eqns.append(rename(eqn, env))

    def _read(self, x: Atom, reader: JaxprEqn) -> Atom:
        """What stands for a value; an entry of a loop's output is cut out of it."""
        if not is_var(x) or x not in self.parts:
            return substitute(x, self.env)
        part = self.parts.pop(x)
        builder = Builder(reader)
        stop = [a + n for a, n in zip(part.start, part.sizes, strict=True)]
        (self.env[x],) = builder.call(lambda v: lax.squeeze(lax.slice(v, part.start, stop), (0,)), part.array)
        self.eqns += builder.eqns
        return self.env[x]

    def _joined(self, eqn: JaxprEqn) -> Atom | None:
        """What joins entries of loops' outputs, from these outputs; None where it joins hardly any."""
        if eqn.primitive.name not in JOINS:
            return None
        groups = self._groups(eqn)
        if 2 * len(groups) > len(eqn.invars):
            return None
        stacks = eqn.primitive.name == "stack"
        d, shape = eqn.params[JOINS[eqn.primitive.name]], tuple(eqn.outvars[0].aval.shape)
        atoms = [y if count else self._read(y, eqn) for y, _, count, _ in groups]

        def join(*values: Any) -> Any:
            found = []
            for v, (_, first, count, by) in zip(values, groups, strict=True):
                if count:
                    lowest = first + min(0, by * (count - 1))
                    entries = lax.slice_in_dim(v, lowest, lowest + count)
                    moved = jnp.moveaxis(lax.rev(entries, (0,)) if by < 0 else entries, 0, d)
                    found.append(moved if stacks else lax.collapse(moved, d, d + 2))
                else:
                    found.append(lax.expand_dims(v, (d,)) if stacks else v)
            return lax.reshape(lax.concatenate(found, d), shape)

        builder = Builder(eqn)
        (whole,) = builder.call(join, *atoms)
        self.eqns += builder.eqns
        return builder.as_weak_as(eqn.outvars[0], whole)

    def _groups(self, eqn: JaxprEqn) -> list[tuple[Atom, int, int, int]]:
        """The operands, those that are successive entries together.

        The array, the first entry, how many (0 of what is no entry), and the step from one to the next: 1 or -1.
        """
        found: list[tuple[Atom, int, int, int]] = []
        for x in eqn.invars:
            part = self.parts.get(x) if is_var(x) else None
            if part is None:
                found.append((x, 0, 0, 1))
                continue
            place = part.start[0]
            array, first, count, by = found[-1] if found else (None, 0, 0, 1)
            by = place - first if count == 1 else by
            if array is part.array and count and abs(by) == 1 and first + count * by == place:
                found[-1] = (part.array, first, count + 1, by)
            else:
                found.append((part.array, place, 1, 1))
        return found


def _judge(steps: Steps, kernels: Kernels) -> None:
    """Nothing where a loop of the steps pays.

    Raises:
        Refused: it does not.
    """
    again = steps.are_made_again(lambda v: bool(kernels.readers(v)))
    if steps.is_one_kernel and not steps.reads_loops and not again:
        raise Refused("entry by entry they are one kernel, which keeps all values in registers")
    if not steps.has_places and not again:
        raise Settled("each reads what all read: a loop of them is no faster, and its derivative is slower")
    if kernels.is_read_once:
        raise Settled("each is part of the kernel that reads it")
    if kernels.are_wide:
        raise Settled("each computes much of what all read, with little of its own")
    if len(steps.steps) < FEWEST_PRODUCTS and steps.carries_products:
        raise Settled(f"fewer than {FEWEST_PRODUCTS} products that wait for each other cost as much in a loop")
    if not steps.derive_alike:
        raise Refused("a function in them has other derivatives in another step")
