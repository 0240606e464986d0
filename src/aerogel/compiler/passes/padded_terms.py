"""Padded terms: what a sum pads with zeros in one way is added up first, and padded once.

The derivative of a slice pads, and that of a function which cuts an entry in several places adds up as many padded
arrays: XLA asks each of them, for each number of the result, whether it is inside. See
docs/explanation/padded-terms.md.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.primitives import DEAR
from ..exactness import Exactness
from ..fusion.once import FUSED
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..readers.seams import stored
from ..record import record
from ..report import Decision

NAME = "padded-terms"
WHAT = "what is padded in one way is added up before"
ADDS = frozenset(("add", "add_any"))
# Of more ways to pad it is not asked whether they overlap.
MOST_COMPARED = 64
STORED = (np.float32, np.float64)
Key = tuple[object, ...]


@record
class PaddedTerms:
    """The pass. Bound: each sum is looked at once."""

    # Behind the passes that cut values into blocks and entries: they know what a block of one padded array is.
    after_differentiation: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such terms added up before they are padded, and a decision for each sum."""
        decisions: list[Decision] = []
        return rewrite_levels(program, partial(_level, context=context, decisions=decisions)), decisions


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    counts = Counter(key for eqn in jaxpr.eqns if (key := _key(eqn)) is not None)
    if not counts or max(counts.values()) < 2:
        return jaxpr
    level = Level(jaxpr)
    edits, kept = list[Edit](), set[Var]()
    for place, terms, inner in _sums(level):
        groups = _groups(level, terms)
        if len(groups) == len(terms):
            continue
        eqn = level.eqns[place]
        exactness = Exactness.BITWISE if _are_apart(level, groups) else Exactness.REASSOCIATES
        if exactness not in context.allowed:
            decisions.append(Decision(NAME, WHAT, where(eqn), False, "terms that overlap would change their order"))
            continue
        edits.append(_edit(level, place, groups, inner))
        kept |= _branching(level, place, groups) if context.platform == "cpu" else set()
        reason = f"of {len(terms)} terms {len(groups)} are left"
        decisions.append(Decision(NAME, WHAT, where(eqn), True, reason, exactness=exactness))
    if not edits:
        return jaxpr
    new = apply_edits(jaxpr, edits)[0]
    places = {k for k, eqn in enumerate(new.eqns) if not kept.isdisjoint(eqn.outvars)}
    return stored(new, places) if places else new


def _branching(level: Level, place: int, groups: dict[object, list[Atom]]) -> set[Var]:
    """What is dear to compute and goes into several places of a sum: fewer read it than did, and XLA stores it no more.

    It would compute it for each number of the result (1.5 to 1.7 of plain JAX's time for the stress of an elastic
    solid, whose logarithm of a determinant goes into nine places; stored 0.2). Not so along one dimension alone: a loop
    over a few columns is unrolled, and what each of them is known (three took 1.2 to 1.8 with exponentials stored).
    """
    reached: dict[Var, int] = {}  # by value the groups that it goes into, as bits
    for k, terms in enumerate(groups.values()):
        for eqn in map(level.maker, terms):
            if eqn is not None and _is_entry(eqn) and is_var(eqn.invars[0]):
                reached[eqn.invars[0]] = reached.get(eqn.invars[0], 0) | 1 << k
    paths = Counter[Var]()
    for eqn in reversed(level.eqns[:place]):
        into = reached.get(eqn.outvars[0], 0) if eqn.primitive.name in FUSED else 0
        for x in {x for x in eqn.invars if is_var(x)} if into else ():
            reached[x] = reached.get(x, 0) | into
            paths[x] += 1
    kept, dear = set[Var](), set[Var]()
    for eqn in level.eqns[:place]:
        (v, *_) = eqn.outvars or (None,)
        if v is None or v not in reached or eqn.primitive.name not in FUSED:
            continue
        if eqn.primitive.name in DEAR or any(is_var(x) and x in dear for x in eqn.invars):
            several = paths[v] > 1 and reached[v].bit_count() > 1
            (kept if several and v.aval.dtype in STORED and eqn.primitive.name in ELEMENTWISE else dear).add(v)
    return kept


def _is_entry(eqn: JaxprEqn) -> bool:
    """Whether an equation pads along several dimensions."""
    return eqn.primitive.name == "pad" and sum(bool(low or high) for low, high, _ in eqn.params["padding_config"]) > 1


def _key(eqn: JaxprEqn) -> Key | None:
    """How an equation pads with zeros; None if it does not, or cuts."""
    if eqn.primitive.name != "pad":
        return None
    x, fill = eqn.invars
    aval = eqn.outvars[0].aval
    if not isinstance(fill, Literal) or np.any(fill.val) or np.any(np.signbit(np.real(fill.val))):
        return None
    config = tuple((int(low), int(high), int(inner)) for low, high, inner in eqn.params["padding_config"])
    if not is_var(x) or not _jax.is_number(aval.dtype) or aval.weak_type or any(n < 0 for one in config for n in one):
        return None
    return x.aval.shape, config, aval.shape, aval.dtype


def _sums(level: Level) -> Iterator[tuple[int, list[Atom], frozenset[int]]]:
    """The places of all sums that are no term of another one, their terms, and the places of what they add up with."""
    for place, eqn in enumerate(level.eqns):
        if eqn.primitive.name not in ADDS or not _is_even(eqn) or _is_term(level, place):
            continue
        terms, inner = list[Atom](), {place}
        waiting = list(reversed(eqn.invars))
        while waiting:
            x = waiting.pop()
            at = level.made_by.get(x, -1) if is_var(x) else -1
            if at >= 0 and level.eqns[at].primitive.name in ADDS and _is_even(level.eqns[at]) and _is_term(level, at):
                inner.add(at)
                waiting += reversed(level.eqns[at].invars)
            else:
                terms.append(x)
        yield place, terms, frozenset(inner)


def _is_even(eqn: JaxprEqn) -> bool:
    return all(x.aval == eqn.outvars[0].aval for x in eqn.invars)


def _is_term(level: Level, place: int) -> bool:
    """Whether a sum is read by another one alone, once."""
    (out,) = level.eqns[place].outvars
    readers = level.readers(out)
    if len(readers) != 1 or readers[0] < 0:
        return False
    reader = level.eqns[readers[0]]
    return reader.primitive.name in ADDS and _is_even(reader) and reader.invars.count(out) == 1


def _groups(level: Level, terms: Sequence[Atom]) -> dict[object, list[Atom]]:
    """The terms, those together that are padded in one way and read here only."""
    groups: dict[object, list[Atom]] = {}
    for k, x in enumerate(terms):
        maker = level.maker(x)
        key = None if maker is None else _key(maker)
        alone = is_var(x) and len(level.readers(x)) == 1 and terms.count(x) == 1
        groups.setdefault(key if key is not None and alone else k, []).append(x)
    return groups


def _are_apart(level: Level, groups: dict[object, list[Atom]]) -> bool:
    """Whether no number of the sum is added up of more than one group: then the order stays, and so do all bits."""
    if len(groups) > MOST_COMPARED:
        return False
    makers = [level.maker(one[0]) for one in groups.values()]
    boxes = [None if eqn is None or _key(eqn) is None else _box(eqn) for eqn in makers]
    inside = [box for box in boxes if box is not None]
    return len(inside) == len(boxes) and all(
        any(stop <= other or end <= start for (start, stop), (other, end) in zip(a, b, strict=True))
        for a, b in combinations(inside, 2)
    )


def _box(eqn: JaxprEqn) -> list[tuple[int, int]]:
    """Along each dimension the first place that is not padded, and the one behind the last."""
    shape = eqn.outvars[0].aval.shape
    return [(low, n - high) for (low, high, _), n in zip(eqn.params["padding_config"], shape, strict=True)]


def _edit(level: Level, place: int, groups: dict[object, list[Atom]], inner: frozenset[int]) -> Edit:
    builder = Builder(level.eqns[place])
    total: Atom | None = None
    for terms in groups.values():
        makers = [eqn for x in terms if (eqn := level.maker(x)) is not None]
        term = terms[0] if len(terms) == 1 else _padded_once(builder, makers)
        total = term if total is None else builder.call(lax.add, total, term)[0]
    assert total is not None
    return Edit(place, inner, builder.eqns, {level.eqns[place].outvars[0]: total}, inner)


def _padded_once(builder: Builder, makers: Sequence[JaxprEqn]) -> Atom:
    """What equations pad in one way, added up and padded then."""
    config, dtype = makers[0].params["padding_config"], makers[0].outvars[0].aval.dtype

    def padded(*xs: Any) -> Any:
        return lax.pad(reduce(lax.add, xs), np.zeros((), dtype), config)

    return builder.call(padded, *(eqn.invars[0] for eqn in makers))[0]
