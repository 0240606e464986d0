"""Dear work that a selection takes in few cases, or in none, stands in a branch: it runs where some lane takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var

from ..cost import equation_seconds
from ..exactness import Exactness
from ..fusion.once import FUSED, READERS
from ..hoisting.hoistable import crossing_seconds
from ..level import Edit, apply_edits
from ..levels import Around, rewrite_nested
from ..loop import as_loop
from ..masks.guards import Case, Guarded
from ..pipeline import Context
from ..program import Builder, Program, copy_equation, depends_on, is_var, substitute, where
from ..record import record
from ..report import Decision

NAME = "branch-guard"
# A branch must take this long, and this many times as long as it costs to have one and to write down what it gives.
LEAST_SECONDS = 3e-5
LEAST_RATIO = 30.0
# What XLA fuses with those who read it.
MAKERS = READERS | {"gather"}
# A branch that is asked for on the device, and one that waits for it.
SECONDS = {"cpu": 1e-6}
SECONDS_ELSEWHERE = 3e-5


@record
class BranchGuard:
    """The pass. It runs after those that look at products and loops: they do not see through a branch."""

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such work in branches, and a decision for each piece of it that is dear."""
        walk = _Walk(context)
        return rewrite_nested(program, walk.level), walk.decisions


@dataclass
class _Piece:
    """Equations that run at once where a case is taken, what they read, and what others read of them."""

    places: list[int]
    ins: list[Var]
    outs: list[Var]
    written: list[Var]  # those of `outs` that XLA would not write down without a branch, but fuse into their readers
    selections: dict[Var, tuple[int, int]]  # those of `outs` that one selection alone reads (`Guarded.selections_of`)
    seconds: float


class _Walk:
    def __init__(self, context: Context):
        self.context = context
        self.decisions: list[Decision] = []

    def level(self, jaxpr: Jaxpr, around: Around) -> Jaxpr:
        """A level with what is dear and seldom wanted in branches."""
        inside = any(eqn.primitive.name in ("scan", "while") for eqn in around)
        if inside and self.context.before_differentiation:  # its gradient would be a branch in every step
            return jaxpr
        guarded = any(eqn.primitive.name == "cond" for eqn in around)  # by this pass, say
        if guarded or all(eqn.primitive.name != "select_n" for eqn in jaxpr.eqns):
            return jaxpr
        fixed, done = _constants(jaxpr, around), set[Case]()
        while True:
            level = Guarded(jaxpr)
            level.fixed = fixed
            case = next((case for case in level.cases if case not in done), None)
            if case is None:
                return jaxpr
            done.add(case)
            jaxpr = self._guard(level, case)

    def _guard(self, level: Guarded, case: Case) -> Jaxpr:
        finite = Exactness.FINITE in self.context.allowed
        if self.context.before_differentiation and not finite:  # a branch that is not taken has no gradient, not nan
            return level.jaxpr
        places = level.waiting(case, zeros_count=finite)
        if sum(self._seconds(level.eqns[i]) for i in places) < LEAST_SECONDS:
            return level.jaxpr
        edits: list[Edit] = []
        for part in level.stages(places):
            piece = _piece(level, case, part, self._seconds)
            if piece.seconds < LEAST_SECONDS:
                continue
            dearest = max((level.eqns[i] for i in part), key=self._seconds)
            reason = self._refusal(piece, case)
            what = f"`{dearest.primitive.name}` and what it is for run only where {_lanes(case)} a selection takes"
            fired = reason is None
            exactness = Exactness.FINITE if self.context.before_differentiation else self._exactness(level, case, part)
            said = reason or f"the branch takes {1e6 * piece.seconds:.0f} us, and one of its cases is all that reads it"
            self.decisions.append(Decision(NAME, what, where(dearest), fired, said, exactness=exactness))
            if fired:
                edits.append(_branch(level, case, piece, dearest))
        return apply_edits(level.jaxpr, edits)[0] if edits else level.jaxpr

    def _exactness(self, level: Guarded, case: Case, part: Sequence[int]) -> Exactness:
        """Bit for bit, if nothing of a part counts on zeros."""
        return Exactness.BITWISE if set(part) <= level.waiting(case, zeros_count=False) else Exactness.FINITE

    def _seconds(self, eqn: JaxprEqn) -> float:
        return equation_seconds(eqn, self.context.machine)

    def _refusal(self, piece: _Piece, case: Case) -> str | None:
        """Why a piece stays where it is."""
        machine = self.context.machine
        if any(_jax.prng_name(v.aval) is not None for v in piece.outs):
            return "it makes keys"
        moved = sum(crossing_seconds(v, 1, machine) for v in (*piece.written, case.selector))
        price = moved + SECONDS.get(self.context.platform, SECONDS_ELSEWHERE)
        if piece.seconds < LEAST_RATIO * price:
            return f"it takes {1e6 * piece.seconds:.0f} us; asking, and writing down what it makes, {1e6 * price:.0f}"
        return None


def _lanes(case: Case) -> str:
    return "a lane of what" if case.selector.aval.shape else "it is what"


def _constants(jaxpr: Jaxpr, around: Around) -> frozenset[Var]:
    """What is the same in every step of the loop whose body a level is: XLA computes it once, but not in a branch."""
    loop = as_loop(around[-1]) if around else None
    if loop is None:
        return frozenset()
    consts = len(loop.consts)
    moving = depends_on(jaxpr, jaxpr.invars[consts:])
    return frozenset(v for eqn in jaxpr.eqns for v in eqn.outvars if v not in moving)


def _piece(level: Guarded, case: Case, part: list[int], seconds: Callable[[JaxprEqn], float]) -> _Piece:
    made = {v for i in part for v in level.eqns[i].outvars}
    inside = set(part)
    reads = dict.fromkeys(x for i in part for x in level.eqns[i].invars if is_var(x) and x not in made)
    outs = [v for v in made if not isinstance(v, DropVar) and any(r not in inside for r in level.readers(v))]
    order = {v: k for k, v in enumerate(v for i in part for v in level.eqns[i].outvars)}
    outs.sort(key=order.__getitem__)
    fused = {v: all(r >= 0 and level.eqns[r].primitive.name in FUSED for r in level.readers(v)) for v in outs}
    selections = level.selections_of(case, part)
    written = [v for v in outs if fused[v] and level.eqns[level.made_by[v]].primitive.name in MAKERS]
    return _Piece(part, list(reads), outs, written, selections, sum(seconds(level.eqns[i]) for i in part))


def _branch(level: Guarded, case: Case, piece: _Piece, like: JaxprEqn) -> Edit:
    """A `cond` in place of a piece; what it gives where it does not run is zeros, which nobody looks at."""
    builder = Builder(like)
    value = case.value
    (index,) = builder.call(
        lambda x: lax.convert_element_type(lax.reduce_or(lax.eq(x, lax.full_like(x, value)), range(x.ndim)), np.int32),
        case.selector,
    )
    selections = piece.selections
    read = [x for one in selections.values() for x in (level.eqns[one[0]].invars[0], _instead(level, one))]
    ins = list(dict.fromkeys((*piece.ins, *(x for x in read if is_var(x)))))
    inner = dict[Var, Atom]((v, _jax.new_var(v.aval)) for v in ins)
    env, given = dict(inner), [inner[v] for v in ins]
    body = [copy_equation(level.eqns[i], env) for i in piece.places]
    outs: list[Atom] = []
    for v in piece.outs:
        if v in selections:
            body.append(_selection(level, selections[v], v, env))
        outs.append(body[-1].outvars[0] if v in selections else env[v])
    taken = _jax.new_jaxpr(level.jaxpr, given, outs, body)
    others = dict[Var, Atom]((v, _jax.new_var(v.aval)) for v in ins)
    nothing, left = Builder(like), list[Atom]()
    for v in piece.outs:
        if v in selections:
            left.append(substitute(_instead(level, selections[v]), others))
        else:  # what nobody looks at
            (zeros,) = nothing.call(lambda v=v: lax.full(v.aval.shape, 0, v.aval.dtype))
            left.append(nothing.as_weak_as(v, zeros))
    not_taken = _jax.new_jaxpr(level.jaxpr, [others[v] for v in ins], left, nothing.eqns)
    builder.call(lambda i: lax.switch(i, (lambda: np.float32(0), lambda: np.float32(1))), index)
    cond = next(eqn for eqn in builder.eqns if eqn.primitive.name == "cond")
    builder.eqns = builder.eqns[: builder.eqns.index(cond)]
    made = {v: _jax.new_var(v.aval) for v in piece.outs}
    params = dict(cond.params, branches=(ClosedJaxpr(not_taken, ()), ClosedJaxpr(taken, ())))
    builder.eqns.append(cond.replace(invars=[cond.invars[0], *ins], outvars=[*made.values()], params=params))
    results: dict[Var, Atom] = {v: x for v, x in made.items() if v not in selections}
    for v, (place, k) in selections.items():
        results |= _selected(level, place, k, made[v], builder)
    places = frozenset((*piece.places, *(place for place, _ in selections.values())))
    return Edit(max(places), places, builder.eqns, results, places)


def _instead(level: Guarded, selection: tuple[int, int]) -> Atom:
    """What a selection selects in another case."""
    place, k = selection
    return next(x for j, x in enumerate(level.eqns[place].invars) if j not in (0, k))


def _selection(level: Guarded, selection: tuple[int, int], taken: Var, env: dict[Var, Atom]) -> JaxprEqn:
    """A selection between what is taken in one case, and what is selected in another one, in all others."""
    place, k = selection
    eqn, other = level.eqns[place], _instead(level, selection)
    invars = [x if j == 0 else taken if j == k else other for j, x in enumerate(eqn.invars)]
    return eqn.replace(invars=[substitute(x, env) for x in invars], outvars=[_jax.new_var(eqn.outvars[0].aval)])


def _selected(level: Guarded, place: int, k: int, made: Var, builder: Builder) -> dict[Var, Atom]:
    """What stands for a selection of which two cases are made: these, or a selection between them and the others."""
    eqn, other = level.eqns[place], _instead(level, (place, k))
    if len(eqn.invars) == 3:
        return {eqn.outvars[0]: made}
    invars = [x if j == 0 else made if j == k or x is other else x for j, x in enumerate(eqn.invars)]
    if all(x is made for x in invars[1:]):
        return {eqn.outvars[0]: made}
    out = _jax.new_var(eqn.outvars[0].aval)
    builder.eqns.append(eqn.replace(invars=invars, outvars=[out]))
    return {eqn.outvars[0]: out}
