"""Terms of a loop's sum that are the same linear function of different values: the function of their sum.

`total += L(u) + L(v)` is `total += L(u + v)`. The backward loop of a gradient holds such terms where a step reads a
parameter several times: of each of the four slopes of a Runge-Kutta step it adds up the trajectories' shares, and puts
the sum in its place among zeros.
"""

from collections.abc import Hashable, Sequence

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from ..cost import Machine
from ..loop import Loop, with_body
from ..normalize import drop_dead
from ..program import Builder, copy_equation, is_var
from ..record import record
from ..same import literal_key, param_key
from .linear_sums import Body, added, step_seconds


@record
class LikeTerms:
    """A carry some of whose terms are made alike.

    Attributes:
        carry: its position.
        total: what a step adds to it.
        dearest: the equation whose repetition takes longest.
        seconds_saved: predicted, for all steps.
    """

    carry: int
    total: "_Total"
    dearest: JaxprEqn
    seconds_saved: float


@record
class _Total:
    """The sum of `plain` and, for each of `made`, of what an equation makes of a sum in place of its input at `k`."""

    plain: tuple[Var, ...]
    made: tuple[tuple[JaxprEqn, int, "_Total"], ...]

    def write(self, new: Builder) -> Atom:
        """The sum, in an order of its own."""
        parts: list[Atom] = list(self.plain)
        for eqn, k, inner in self.made:
            given = eqn.invars[k]
            assert is_var(given)
            env: dict[Var, Atom] = {given: new.as_weak_as(given, inner.write(new))}
            new.eqns.append(copy_equation(eqn, env))
            parts.append(env[eqn.outvars[0]])
        total = parts[0]
        for part in parts[1:]:
            (total,) = new.call(lax.add, total, part)
        return total


def find_like_terms(loop: Loop, machine: Machine) -> list[LikeTerms]:
    """The carries of a loop to which a step adds the same linear function of several values."""
    body, found = Body(loop, machine), list[LikeTerms]()
    for k in range(len(loop.init)):
        terms, adds = added(body, k) or ((), set[int]())
        if not terms:
            continue
        again: list[tuple[float, JaxprEqn]] = []
        total = _total(body, terms, adds, again)
        if again:
            seconds, dearest = sum(s for s, _ in again), max(again, key=lambda one: one[0])[1]
            found.append(LikeTerms(k, total, dearest, loop.length * seconds))
    return found


def _total(body: Body, terms: Sequence[Var], readers: set[int], again: list[tuple[float, JaxprEqn]]) -> _Total:
    """The terms by what makes them, which only the equations at `readers` read; what need not be made joins `again`."""
    groups: dict[Hashable, list[tuple[int, int]]] = {}
    plain, made = list[Var](), list[tuple[JaxprEqn, int, _Total]]()
    terms, readers = _added_up(body, terms, readers)
    for v in terms:
        maker = _maker(body, v, readers)
        if maker is None:
            plain.append(v)
        else:
            key, place, k = maker
            groups.setdefault(key, []).append((place, k))
    for members in groups.values():
        eqns, k = [body.loop.body.eqns[place] for place, _ in members], members[0][1]
        given, inner = [eqn.invars[k] for eqn in eqns], list[tuple[float, JaxprEqn]]()
        total = _total(body, [x for x in given if is_var(x)], {place for place, _ in members}, inner)
        own = (len(eqns) - 1) * _saved(eqns[0], k, body.machine)
        if len(eqns) == 1 or own + sum(s for s, _ in inner) <= 0:
            plain += [eqn.outvars[0] for eqn in eqns]
        else:
            made.append((eqns[0], k, total))
            again += [(own, eqns[0]), *inner]
    return _Total(tuple(plain), tuple(made))


def _added_up(body: Body, terms: Sequence[Var], readers: set[int]) -> tuple[list[Var], set[int]]:
    """The terms of these terms, where they are sums that nothing else reads, and all that may read them."""
    found, waiting, readers = list[Var](), list(terms), set(readers)
    while waiting:
        v = waiting.pop(0)
        place = body.makers.get(v)
        eqn = None if place is None else body.loop.body.eqns[place]
        is_sum = eqn is not None and eqn.primitive.name in ("add", "add_any") and len(body.moving(eqn)) == 2
        if place is None or eqn is None or not is_sum or not _is_read_by(body, v, readers):
            found.append(v)
            continue
        readers.add(place)
        waiting = [x for x in eqn.invars if is_var(x)] + waiting
    return found, readers


def _is_read_by(body: Body, v: Var, readers: set[int]) -> bool:
    """Whether one of these equations reads a value, and nothing else does."""
    return len(body.readers[v]) == 1 and body.readers[v][0] in readers


def _saved(eqn: JaxprEqn, k: int, machine: Machine) -> float:
    """Seconds that one of a step's equations takes more than the addition of what it is applied to."""
    more = eqn.invars[k].aval.size - eqn.outvars[0].aval.size
    return step_seconds(eqn, machine) - more / machine.vector_flops_per_second


def _maker(body: Body, v: Var, readers: set[int]) -> tuple[Hashable, int, int] | None:
    """What makes a term, its place and the position of what differs from step to step; None if that is not linear."""
    place = body.makers.get(v)
    if place is None or not _is_read_by(body, v, readers):
        return None
    eqn = body.loop.body.eqns[place]
    moving = body.moving(eqn)
    if len(moving) != 1 or len(eqn.outvars) != 1 or not body.is_linear(eqn):
        return None
    (k,) = moving
    others = tuple(x if is_var(x) else literal_key(x) for i, x in enumerate(eqn.invars) if i != k)
    given = eqn.invars[k].aval
    types = (given.shape, given.dtype, v.aval.shape, v.aval.dtype)
    try:
        params = tuple((name, param_key(value)) for name, value in sorted(eqn.params.items()))
        key = (eqn.primitive, k, others, types, params, eqn.ctx)
        hash(key)
    except TypeError:
        return None
    return key, place, k


def together(loop: Loop, found: Sequence[LikeTerms]) -> JaxprEqn:
    """The loop with such terms made once each."""
    new, body = Builder(loop.eqn), loop.body
    outs: list[Atom] = list(body.outvars)
    for one in found:
        end = outs[one.carry]
        assert is_var(end)
        (total,) = new.call(lax.add, loop.body_carry[one.carry], one.total.write(new))
        outs[one.carry] = new.as_weak_as(end, total)
    return with_body(
        loop.eqn,
        lambda jaxpr: drop_dead(_jax.new_jaxpr(jaxpr, jaxpr.invars, outs, [*jaxpr.eqns, *new.eqns])),
    )
