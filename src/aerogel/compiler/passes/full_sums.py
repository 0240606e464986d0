"""Full sums: what does not vary along a sum leaves it, and what is summed is summed once for all sums that need it."""

import heapq
from collections.abc import Sequence

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..apart import cost_of
from ..cost import equation_seconds
from ..disjoint import DisjointSets
from ..exactness import Exactness
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..networks.polynomials import SUMMED, Expansion, Polynomial
from ..normalize import normalize
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..record import record
from ..report import Decision
from ..streams.whole_rows import is_in_one_call

NAME = "full-sums"
WHAT = "sums of a polynomial of few large values"
# What is stored for several sums is priced as if nothing else went through the caches: of 100,000 entries, four sums
# of a gradient of GELU were predicted to take 0.7 of the time of one, and take 1.5.
MARGIN = 0.65
LEAST_SECONDS = 2e-6
FEWEST = 1024  # entries of each sum; below, starting a kernel is what it costs


@record
class FullSums:
    """The pass. Bound: each value is read once for each shape of sums that it may be part of, at most 100 deep."""

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such sums distributed, and a decision for each family of them."""
        decisions: list[Decision] = []
        new = rewrite_levels(program, lambda jaxpr: _level(jaxpr, context, decisions))
        return (program if new is program else normalize(new)[0]), decisions


@record
class _Family:
    """Sums over the same dimensions of polynomials of the same values.

    Attributes:
        places: of the sums, in order.
        bases: those values.
        spreads: how many values, other than numbers, are spread over what is summed.
    """

    places: tuple[int, ...]
    bases: tuple[Var, ...]
    spreads: int


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name == "reduce_sum" and _is_candidate(eqn):
            key = eqn.invars[0].aval.shape, tuple(eqn.params["axes"]), eqn.invars[0].aval.dtype
            groups.setdefault(key, []).append(place)
    if not groups:
        return jaxpr
    level, edits = Level(jaxpr), list[Edit]()
    facts = structure(jaxpr)

    def expansion(place: int, places: Sequence[int], family: Sequence[int] = ()) -> Expansion:
        eqn = jaxpr.eqns[place]
        (x,), axes = eqn.invars, tuple(eqn.params["axes"])
        others = (jaxpr.eqns[k] for k in places if k not in family)
        sums = {one.invars[0]: one.outvars[0] for one in others if is_var(one.invars[0]) and _is_plain(one)}
        return Expansion(level, facts, tuple(x.aval.shape), axes, Builder(eqn), sums=sums)

    for places in groups.values():
        for family in _families(expansion(places[0], places), places):
            made = _distributed(expansion(family.places[0], places, family.places), family)
            decision = _judged(level, family, made, context)
            if decision is not None:
                decisions.append(decision)
                edits += made if decision.fired else []
    return apply_edits(jaxpr, sorted(edits, key=lambda edit: edit.place))[0] if edits else jaxpr


def _is_candidate(eqn: JaxprEqn) -> bool:
    (x,), (out,) = eqn.invars, eqn.outvars
    if str(x.aval.dtype) not in SUMMED or out.aval.dtype != x.aval.dtype:
        return False
    return x.aval.size >= FEWEST * max(out.aval.size, 1)


def _is_plain(eqn: JaxprEqn) -> bool:
    return eqn.params.get("out_sharding") is None and not eqn.outvars[0].aval.weak_type


def _families(expansion: Expansion, places: Sequence[int]) -> list[_Family]:
    """The sums by the values that they share; those that are sums of one product already are left out."""
    found: dict[int, Polynomial] = {}
    joined = DisjointSets()
    spreads: dict[int, set[Var]] = {}
    for place in places:
        expansion.spreads = set()
        (x,) = expansion.level.eqns[place].invars
        polynomial = expansion.read(x)
        if polynomial is None or not expansion.is_apart(polynomial):
            continue
        found[place], spreads[place] = polynomial, expansion.spreads
        for base in {base for monomial in polynomial for base in monomial}:
            joined.join(place, base)
    families: dict[object, list[int]] = {}
    for place in found:
        families.setdefault(joined.find(place), []).append(place)
    return [
        _Family(
            tuple(family),
            tuple(dict.fromkeys(base for place in family for monomial in found[place] for base in monomial)),
            len(set().union(*(spreads[place] for place in family))),
        )
        for family in families.values()
    ]


def _distributed(expansion: Expansion, family: _Family) -> list[Edit]:
    """The sums anew, in order: what a later one shares with an earlier one is made with the earlier one."""
    edits: list[Edit] = []
    for place in family.places:
        eqn, start = expansion.level.eqns[place], len(expansion.builder.eqns)
        expansion.builder.like = eqn
        (x,), (out,) = eqn.invars, eqn.outvars
        polynomial = expansion.read(x)
        assert polynomial is not None, "what could be read was read before"
        total = expansion.builder.as_weak_as(out, expansion.summed(polynomial, x.aval.dtype))
        here = frozenset((place,))
        edits.append(Edit(place, here, expansion.builder.eqns[start:], {out: total}, here))
    return edits


def _judged(level: Level, family: _Family, made: Sequence[Edit], context: Context) -> Decision | None:
    """Whether a family pays; None where the setting of numerics leaves no choice."""
    root = level.eqns[family.places[0]]
    exactness = _exactness(root)
    if exactness not in context.allowed:
        return None
    outs: list[Atom] = [level.eqns[place].outvars[0] for place in family.places]
    results = [result for edit in made for result in edit.results.values()]
    # What makes the values is part of both: XLA computes it in one sum, or stores it for several.
    nearest = {level.made_by[base] for base in family.bases if base in level.made_by}
    places = sorted(nearest.union(_dying(level, family.places)))
    before = [level.eqns[k] for k in places]
    after = [*_makers(before, family.bases), *(eqn for edit in made for eqn in edit.eqns)]
    was, now = (cost_of(level, eqns, out, context.machine) for eqns, out in ((before, outs), (after, results)))
    then, seconds = was.seconds or 0.0, now.seconds or 0.0
    if context.before_differentiation:
        # The gradient of what is spread over a sum is a sum of its own, over an array that was stored.
        then += family.spreads * equation_seconds(root, context.machine)
    whole = context.platform == "cpu" and not context.before_differentiation and _is_one_call(level, family)
    fires = seconds < MARGIN * then and then - seconds > LEAST_SECONDS and not whole
    reason = f"{_time(then)} become {_time(seconds)}"
    if whole:
        reason = "one call makes what is summed, of sums of the same values"
    elif not fires:
        reason = f"distributed they would take {_time(seconds)}, and they take {_time(then)}"
    saved = (was.flops - now.flops, was.bytes_moved - now.bytes_moved, was.peak_bytes - now.peak_bytes)
    return Decision(NAME, WHAT, where(root), fires, reason, *(saved if fires else ()), exactness=exactness)


def _is_one_call(level: Level, family: _Family) -> bool:
    """Whether a library makes values, their other sums and this one in one pass over the rows (`whole_rows.py`).

    `(softmax(z) * y).sum(-1)` as a quotient of two sums took 2.3 times as long, for 4,500 rows of 2,001.
    """
    own = frozenset(family.places)
    summed = (k for base in family.bases for k in level.readers(base) if k >= 0 and k not in own)
    others = any(level.eqns[k].primitive.name == "reduce_sum" for k in summed)
    return others and all(is_in_one_call(level, base) for base in family.bases if base in level.made_by)


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"


def _exactness(root: JaxprEqn) -> Exactness:
    """Integers wrap around, in any order; of inf, a sum of products may be nan where the product of a sum is none."""
    return Exactness.BITWISE if root.invars[0].aval.dtype.kind in "iu" else Exactness.FINITE


def _dying(level: Level, roots: Sequence[int]) -> list[int]:
    """The places of what nobody reads when some equations go, these included, in order."""
    dying: set[int] = set()
    waiting = [-place for place in roots]
    heapq.heapify(waiting)
    while waiting:
        place = -heapq.heappop(waiting)
        eqn = level.eqns[place]
        if place in dying or (place not in roots and not _goes(level, eqn, dying)):
            continue
        dying.add(place)
        for x in eqn.invars:
            maker = level.made_by.get(x) if isinstance(x, Var) else None
            if maker is not None:
                heapq.heappush(waiting, -maker)
    return sorted(dying)


def _makers(eqns: Sequence[JaxprEqn], values: Sequence[Var]) -> list[JaxprEqn]:
    """Those of some equations that values are made by, however far back, in order."""
    read: set[Atom] = set(values)
    makers: list[JaxprEqn] = []
    for eqn in reversed(eqns):
        if not read.isdisjoint(eqn.outvars):
            makers.append(eqn)
            read.update(x for x in eqn.invars if isinstance(x, Var))
    return makers[::-1]


def _goes(level: Level, eqn: JaxprEqn, dying: set[int]) -> bool:
    return not eqn.effects and all(k in dying for v in eqn.outvars for k in level.readers(v))
