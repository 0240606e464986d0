"""What a step of a loop computes that the step before it has computed: under the name that the next carry has there.

A step that takes a carry c to n and computes f(c) and f(n) computes f of every carry twice, as an integrator does whose
last force of a step is the first one of the next. f(n) is carried on, f(c) read from there, and computed once, before
the loop. Compilers of Fortran call this predictive commoning.
"""

from collections.abc import Iterable

from aerogel._jax import Atom, JaxprEqn, Literal, Var, new_jaxpr

from ..cost import Machine, jaxpr_seconds, nbytes
from ..cost.primitives import KIND, Kind
from ..loop import Loop, strong
from ..loop_copy import LoopCopy
from ..program import copy_equation, is_var, substitute
from ..record import record
from ..residuals.made_there import Made
from ..same import KEPT_APART

MARGIN = 2.0  # times what carrying the values costs that is saved at the least


@record
class Commoning:
    """Values of a step that are read from the step before.

    Attributes:
        ahead: the value of a step that is carried on, for each value that takes it from there.
        dead: the equations that are not computed then, by place.
        seconds: saved in a step, less what carrying costs.
    """

    ahead: dict[Var, Atom]
    dead: frozenset[int]
    seconds: float


def find_commoning(loop: Loop, machine: Machine) -> Commoning | None:
    """What the loop computes once more; None if there is nothing."""
    eqns = loop.body.eqns
    ahead = _ahead(loop)
    shared = [eqn for eqn in eqns if all(v in ahead for v in eqn.outvars)]
    read = {x for eqn in eqns if not all(v in ahead for v in eqn.outvars) for x in eqn.invars if is_var(x)}
    read |= {x for x in loop.body.outvars if is_var(x)}
    taken = {v: ahead[v] for eqn in shared for v in eqn.outvars if v in read and ahead[v] is not v}
    if not taken:
        return None
    dead = frozenset(range(len(eqns))) - _live(loop, taken)
    # As XLA fuses the step: arithmetic between loads that stay is as good as free.
    left = [eqn for k, eqn in enumerate(eqns) if k not in dead]
    step = new_jaxpr(loop.body, [*loop.body.invars, *taken], loop.body.outvars, left, loop.body.constvars)
    saved = jaxpr_seconds(loop.body, machine) - jaxpr_seconds(step, machine)
    cost = sum(2 * nbytes(v.aval) / machine.cache_bytes_per_second + machine.seconds_per_step_kernel for v in taken)
    return Commoning(taken, dead, saved - MARGIN * cost - _seconds_again(loop, taken.values(), machine))


def _seconds_again(loop: Loop, values: Iterable[Atom], machine: Machine) -> float:
    """Time of the kernels that write these values, where that is arithmetic which XLA does once more for each reader.

    The absolute value that a Mandelbrot step tests at its end and at its beginning, as a carry, took 1.35 of the time.
    """
    wanted = [x for x in dict.fromkeys(values) if is_var(x) and x not in loop.body.outvars]
    needed, makers = set(wanted), list[JaxprEqn]()
    for eqn in reversed(loop.body.eqns):
        is_result = any(v in loop.next_carry for v in eqn.outvars)
        if any(v in needed for v in eqn.outvars) and KIND.get(eqn.primitive.name) is Kind.CHEAP and not is_result:
            makers.append(eqn)
            needed.update(x for x in eqn.invars if is_var(x))
    if not makers:
        return 0.0
    made = {v for eqn in makers for v in eqn.outvars}
    reads = dict.fromkeys(x for eqn in makers for x in eqn.invars if is_var(x) and x not in made)
    return jaxpr_seconds(new_jaxpr(loop.body, list(reads), [x for x in wanted if x in made], makers[::-1]), machine)


def _ahead(loop: Loop) -> dict[Var, Atom]:
    """For each value of a step that is one of the step before: which."""
    eqns = [eqn for eqn in loop.body.eqns if not eqn.effects and eqn.primitive.name not in KEPT_APART]
    made = Made(eqns)
    ahead: dict[Var, Atom] = {v: v for v in loop.body_consts}
    ahead.update(zip(loop.body_carry, loop.next_carry, strict=True))
    for eqn in eqns:
        if not all(isinstance(x, Literal) or x in ahead for x in eqn.invars):
            continue
        invars = [substitute(x, ahead) for x in eqn.invars]
        is_same = all(x is y for x, y in zip(invars, eqn.invars, strict=True))
        found = eqn.outvars if is_same else made.find(eqn.replace(invars=invars))
        if [v.aval for v in found] == [strong(v.aval) for v in eqn.outvars]:  # as a carry is
            ahead.update(zip(eqn.outvars, found, strict=True))
    return ahead


def _live(loop: Loop, taken: dict[Var, Atom]) -> set[int]:
    """The equations that a step needs when it is given these values."""
    needed = {x for x in (*loop.body.outvars, *taken.values()) if is_var(x)} - taken.keys()
    live: set[int] = set()
    for k, eqn in reversed(list(enumerate(loop.body.eqns))):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            live.add(k)
            needed.update(x for x in eqn.invars if is_var(x) and x not in taken)
    return live


def commoned(loop: Loop, found: Commoning) -> list[JaxprEqn]:
    """The loop that computes such values once, and what computes them for its first step."""
    copy = LoopCopy(loop)
    first: dict[Var, Atom] = dict(zip((*loop.body_consts, *loop.body_carry), (*loop.consts, *loop.init), strict=True))
    copy.new.before.eqns += [copy_equation(eqn, first) for eqn in _makers(loop, found.ahead)]
    nexts = []
    for v, w in found.ahead.items():
        copy.env[v], set_next, _ = copy.new.carry(substitute(v, first))
        nexts.append((w, set_next))
    given = dict(copy.env)
    for k, eqn in enumerate(loop.body.eqns):
        if k not in found.dead:
            copy.new.body.eqns.append(copy_equation(eqn, copy.env))
            copy.env.update((v, given[v]) for v in eqn.outvars if v in found.ahead)
    for w, set_next in nexts:
        set_next(substitute(w, copy.env))
    copy.finish()
    return copy.new.equations()


def _makers(loop: Loop, values: Iterable[Var]) -> list[JaxprEqn]:
    """The equations of a step that make these values, in order."""
    needed, makers = set(values), list[JaxprEqn]()
    for eqn in reversed(loop.body.eqns):
        if any(v in needed for v in eqn.outvars):
            needed.update(x for x in eqn.invars if is_var(x))
            makers.append(eqn)
    return makers[::-1]
