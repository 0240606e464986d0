"""What is subtracted from all entries and cancels has no gradient: the extremum in a softmax, or in `logsumexp`.

`e = exp(x - x.max())` and `e / e.sum()`, or `x.max() + log(e.sum())`, do not depend on the maximum. JAX's derivative
adds up its cotangent from all entries, which rounding leaves near zero, and shares it among the entries that are the
maximum: two passes over the array more, and often a copy of it. Where the terms of the cotangent cancel in exact
arithmetic, it is zero.
"""

from collections.abc import Iterator
from typing import ClassVar

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..exactness import Exactness
from ..level import Level
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Builder, Program, substitute, where
from ..record import record
from ..report import Decision
from ..residuals.cancelling import Cancelling, Terms, total
from ..zeros import without_zeros

NAME = "cancelled-extrema"
WHAT = "the cotangent of an extremum is zero: what it was subtracted from does not depend on it"
EXTREMA = ("reduce_max", "reduce_min")
ARRANGING = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")
LONGEST_CHAIN = 30


@record
class CancelledExtrema:
    """The pass. Bound: for each extremum, each value is read once for each place in its frame, 400 at most."""

    after_differentiation: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program without such cotangents, and a decision for each extremum."""
        if Exactness.FINITE not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    if all(eqn.primitive.name not in EXTREMA for eqn in jaxpr.eqns):
        return jaxpr
    level, zeros = Level(jaxpr), set[Var]()
    for eqn in jaxpr.eqns:
        for extremum, ties in _ties(level, eqn):
            found = _cancelled(level, extremum, ties)
            if found is not None:
                zeros |= found
                left = "its terms cancel in exact arithmetic" if found else "its terms do not cancel"
                decisions.append(Decision(NAME, WHAT, where(extremum), bool(found), left))
    if not zeros:
        return jaxpr
    builder = Builder(jaxpr.eqns[0])
    env = without_zeros(jaxpr, zeros, builder)
    outs = [substitute(x, env) for x in jaxpr.outvars]
    return drop_dead(_jax.new_jaxpr(jaxpr, jaxpr.invars, outs, builder.eqns, jaxpr.constvars))


def _ties(level: Level, eqn: JaxprEqn) -> Iterator[tuple[JaxprEqn, Var]]:
    """The extremum, if an equation asks which entries are it, and their indicators as numbers."""
    if eqn.primitive.name != "eq":
        return
    for x, other in (eqn.invars, eqn.invars[::-1]):
        extremum = _arranged(level, other)
        if extremum is not None and extremum.primitive.name in EXTREMA and extremum.invars[0] is x:
            for k in level.readers(eqn.outvars[0]):
                if k >= 0 and level.eqns[k].primitive.name == "convert_element_type":
                    yield extremum, level.eqns[k].outvars[0]


def _arranged(level: Level, x: Atom) -> JaxprEqn | None:
    """The equation that makes a value, what only arranges or repeats it looked past."""
    eqn = level.maker(x)
    for _ in range(LONGEST_CHAIN):
        if eqn is None or eqn.primitive.name not in ARRANGING:
            break
        eqn = level.maker(eqn.invars[0])
    return eqn


def _cancelled(level: Level, extremum: JaxprEqn, ties: Var) -> set[Var] | None:
    """The products with indicators of an extremum whose sum is zero; None if there are no such products."""
    shape = tuple(ties.aval.shape)
    frame = Cancelling(level, shape, frozenset(int(d) for d in extremum.params["axes"]))
    ends: dict[int, list[tuple[Var, Terms, int]]] = {}
    for k in level.readers(ties):
        eqn = level.eqns[k] if k >= 0 else None
        if eqn is None or eqn.primitive.name != "mul":
            continue
        others = [x for x in eqn.invars if x is not ties]
        (out,) = eqn.outvars
        if len(others) != 1 or out.aval.shape != shape or others[0].aval.shape not in ((), shape):
            continue
        end, sign = _added_to(level, out)
        if others[0].aval.shape == shape:
            ends.setdefault(end, []).append((out, frame.read(others[0]), sign))
    if not ends:
        return None
    found = set[Var]()
    for terms in ends.values():
        alone = [out for out, one, _ in terms if not one]
        together = not total([(one, sign) for _, one, sign in terms])
        found.update([out for out, *_ in terms] if together else alone)
    return found


def _added_to(level: Level, x: Var) -> tuple[int, int]:
    """The place of the last of the sums that a value is added to, and with which sign."""
    end, sign = level.made_by[x], 1
    for _ in range(LONGEST_CHAIN):
        readers = level.readers(x)
        if len(readers) != 1 or readers[0] < 0:
            break
        eqn = level.eqns[readers[0]]
        if eqn.primitive.name not in ("add", "add_any", "sub", "neg") or eqn.outvars[0].aval.shape != x.aval.shape:
            break
        if eqn.invars.count(x) != 1:
            break
        sign = -sign if eqn.primitive.name == "neg" or (eqn.invars.index(x) and eqn.primitive.name == "sub") else sign
        end, (x,) = readers[0], eqn.outvars
    return end, sign
