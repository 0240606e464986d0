"""Loops that carry a value and its tangents in one: the loop of the values first, the tangents in a second one.

`jax.jacfwd` of a loop carries both. What is linear is then a loop of its own, which others may run again.
"""

from collections.abc import Iterable

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var, scan_counts

from ..hoisting.hoist import named
from ..loop import SHAPING, Loop, LoopBuilder, as_loop
from ..normalize import drop_dead
from ..program import copy_equation, is_var, producers, substitute, with_equations
from .basis_rows import BasisRows


def with_loops_in_two(rows: BasisRows) -> Jaxpr:
    """The level with each loop that makes rows as two: one that makes no rows, and one that reads what it stacks."""
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(rows.level.eqns):
        made = rows.made.get(place)
        late = () if made is None else (k for k, axis in enumerate(made.ins) if axis is not None)
        eqns += [eqn] if made is None or eqn.primitive.name != "scan" else in_two(eqn, late)
    return drop_dead(with_equations(rows.level.jaxpr, eqns))


def in_two(scan: JaxprEqn, late: Iterable[int]) -> list[JaxprEqn]:
    """A loop whose operands at `late` are tangents, as two; as it is where it carries nothing else."""
    loop = as_loop(scan)
    if loop is None:
        return [scan]
    consts, carries = scan_counts(scan.params)
    seeds = set(late)
    while True:
        body, made = _inside(loop.body, {loop.body.invars[k] for k in seeds})
        more = {consts + j for j, x in enumerate(body.outvars[:carries]) if is_var(x) and x in made}
        if more <= seeds:
            break
        seeds |= more
    if all(consts + j in seeds for j in range(carries)) or not any(consts + j in seeds for j in range(carries)):
        return [scan]
    return _Two(loop, body, made).run()


def _inside(body: Jaxpr, late: set[Var]) -> tuple[Jaxpr, set[Var]]:
    """A body with its own such loops in two, and all that is made of `late` in it."""
    eqns: list[JaxprEqn] = []
    made = set(late)
    for eqn in body.eqns:
        read = [k for k, x in enumerate(eqn.invars) if is_var(x) and x in made]
        new = in_two(eqn, read) if read and eqn.primitive.name == "scan" else [eqn]
        eqns += new
        if read:
            made.update(new[-1].outvars)
    return with_equations(body, eqns), made


class _Two:
    """A loop as one that makes nothing of `late`, and one that does."""

    def __init__(self, loop: Loop, body: Jaxpr, late: set[Var]):
        self.loop, self.body, self.late = loop, body, late
        self.makers = producers(body)
        self.first, self.second = (LoopBuilder(loop.eqn, loop.length, loop.reverse) for _ in range(2))
        self.known: dict[Var, Atom] = {}  # in the first loop
        self.env: dict[Var, Atom] = {}  # in the second
        self.stacks: dict[Var, Var] = {}

    def run(self) -> list[JaxprEqn]:
        loop = self.loop
        for builder, env in ((self.first, self.known), (self.second, self.env)):
            env |= {v: builder.const(c) for v, c in zip(loop.body_consts, loop.consts, strict=True)}
            env |= {v: builder.x(x) if is_var(x) else x for v, x in zip(loop.body_xs, loop.xs, strict=True)}
        self._part(self.first, self.known, [eqn for eqn in self.body.eqns if not self._is_late(eqn)])
        self._part(self.second, self.env, [eqn for eqn in self.body.eqns if self._is_late(eqn)])
        return [*self.first.equations(), *self.second.equations()]

    def _is_late(self, eqn: JaxprEqn) -> bool:
        return any(v in self.late for v in eqn.outvars)

    def _part(self, new: LoopBuilder, env: dict[Var, Atom], eqns: list[JaxprEqn]) -> None:
        loop, is_second = self.loop, new is self.second
        setters = []
        for v, init, final, after in zip(loop.body_carry, loop.init, loop.finals, self.body.outvars, strict=False):
            if (v in self.late) == is_second:
                env[v], set_next = new.keep_carry(init, named(final))
                setters.append((set_next, after))
        for eqn in eqns:
            self._read(new, eqn.invars)
            new.body.eqns.append(copy_equation(eqn, env))
        self._read(new, [after for _, after in setters])
        for set_next, after in setters:
            set_next(substitute(after, env))
        for y, v in zip(loop.ys, self.body.outvars[len(loop.init) :], strict=True):
            if (is_var(v) and v in self.late) == is_second:
                new.y(substitute(v, env), named(y))

    def _read(self, new: LoopBuilder, atoms: Iterable[Atom]) -> None:
        if new is self.second:
            for x in atoms:
                self._known(x)

    def _known(self, x: Atom) -> None:
        """Makes sure that the second loop has a value that the first one makes: made again if that is a view."""
        if not is_var(x) or x in self.env:
            return
        eqn = self.body.eqns[self.makers[x]] if x in self.makers else None
        if eqn is not None and eqn.primitive.name in SHAPING and eqn.primitive.name != "reduce_sum":
            for operand in eqn.invars:
                self._known(operand)
            self.second.body.eqns.append(copy_equation(eqn, self.env))
            return
        if x not in self.stacks:
            self.stacks[x] = self.first.y(self.known[x])
        self.env[x] = self.second.x(self.stacks[x])
