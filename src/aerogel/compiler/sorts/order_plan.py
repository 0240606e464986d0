"""What is left of a sort when nobody needs its order: sums over all entries, masks of ranks, and few picked entries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import log2, prod
from typing import Any

import numpy as np

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import Reduced
from ..axes.rebind import shape_of
from ..program import is_var
from ..record import record
from .folded import folded
from .in_order import InOrder, Ordered, is_even

FEW = 4  # entries that are picked by rank
# Reductions whose parts are those of all entries, in which others count for nothing.
MASKED = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")
# Nanoseconds per entry, two hyperthreads of an Intel Xeon: a search by halves takes 9 to 14, a sort 3 * log2(n) and
# more.
SEARCH, SORT = 13.0, 2.4
# Entries, for a search: 4,096 are sorted in 0.7 of the time of two, 10,000 in 1.6 (jaxlib 0.10.2).
FEWEST = 8192
# Entries, for extrema and `top_k`, in rows of any length or in long ones: 256 rows of 16 are sorted in 0.6 of the time.
FEWEST_OF_ENDS, FEWEST_OF_LONG, LONG = 1 << 15, 1024, 32


@record
class Term:
    """A summand of what goes back to the places that entries came from.

    Attributes:
        kind: "all" (an array in the order before), "even" (the same for each entry of some ranks), "part" (entries of
            some ranks) or "at" (entries at ranks that are indices).
        value: of it, in the order of the sort.
        start: the first rank.
        stop: the rank behind the last.
        index: of the ranks; of "at" alone.
        windows: the dimensions of such a value that are rows of the sort.
        back: whether the value is in the order the other way round.
    """

    kind: str
    value: Atom
    start: int = 0
    stop: int = 0
    index: Atom | None = None
    windows: tuple[int, ...] = ()
    back: bool = False


@dataclass
class Plan:
    """How each reader of what stands in the order of a sort is served.

    Attributes:
        found: the sort.
        constants: what the program closes over.
        sums: the places of reductions over the axis.
        returns: the places of scatters to where entries came from, with what they add.
        picks: the places of gathers of entries of few ranks, with these ranks, or the index where they are not known.
        parts: the places of slices of few entries.
        whole: what is read in its order, all of it: few entries.
        ranks: those that are searched.
        unknown: indices that say ranks, and how many each says.
        selected: ranges of ranks, taken by `top_k`.
        behind: indices that say the same ranks as other ones, or those behind them.
    """

    found: InOrder
    constants: Mapping[Var, Any]
    sums: list[int] = field(default_factory=list)
    returns: dict[int, list[Term]] = field(default_factory=dict)
    picks: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    parts: list[int] = field(default_factory=list)
    whole: list[Var] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    unknown: dict[Atom, int] = field(default_factory=dict)
    selected: set[tuple[int, int]] = field(default_factory=set)
    behind: dict[Atom, Atom] = field(default_factory=dict)

    @property
    def needs_ranks(self) -> bool:
        """Whether ranks of entries have to be found at all."""
        return bool(self.ranks or self.unknown or self.selected)

    @property
    def searches(self) -> int:
        """How many ranks are searched: the lowest, the highest and those behind another one are reductions."""
        ends = (0, self.found.length - 1)
        return sum(r not in ends and r - 1 not in self.ranks for r in self.ranks) + sum(
            count for index, count in self.unknown.items() if index not in self.behind
        )

    @property
    def steps(self) -> int:
        """How many ranks are those behind another one, as far as nothing is known of them."""
        return sum(self.unknown[index] for index in self.behind)

    def bounds(self, start: int, stop: int) -> tuple[int | None, int | None]:
        """The ranks that a part of the order is bounded by."""
        return (start if start > 0 else None), (stop - 1 if stop < self.found.length else None)

    def mask(self, start: int, stop: int) -> None:
        """Notes that the entries of some ranks are told from others."""
        self.ranks.update(rank for rank in self.bounds(start, stop) if rank is not None)

    def take(self, start: int, stop: int) -> bool:
        """Notes that the places of some ranks are asked for; False if those are too many."""
        if is_selected(self.found, start, stop):
            self.selected.add((start, stop))
        elif stop - start <= FEW:
            self.ranks.update(range(start, stop))
        else:
            return False
        return True


def is_selected(found: InOrder, start: int, stop: int) -> bool:
    """Whether the entries of some ranks are those that `top_k` gives in less time than a search takes."""
    n, few = found.length, stop - start
    if found.sort.invars[0].aval.dtype != np.float32 or few < 2 or (start > 0 and stop < n):
        return False
    return 16 * few <= n and 4 * few * log2(few + 1) <= n


def plan_of(found: InOrder, constants: Mapping[Var, Any]) -> Plan | str:
    """How all that reads a sort is served without it; or the reason why that cannot be."""
    plan = Plan(found, constants)
    for k in found.moved:
        if found.level.eqns[k].primitive.name == "pad":
            known = found.values[found.level.eqns[k].invars[0]]  # pyright: ignore[reportArgumentType]
            plan.mask(known.start, known.stop)
    for k, read in found.exits.items():
        eqn = None if k < 0 else found.level.eqns[k]
        if eqn is not None and (_sum(plan, k, eqn) or _return(plan, k, eqn) or _pick(plan, k, eqn)):
            continue
        if eqn is not None and eqn.primitive.name == "slice" and _slice(plan, k, eqn):
            continue
        for v in read:
            known = found.values[v]
            if not plan.take(known.start, known.stop):
                what = "the program returns it" if eqn is None else f"`{eqn.primitive.name}` reads it"
                return f"the order of {known.stop - known.start} entries is needed: {what}"
            plan.whole += [v] if v not in plan.whole else []
    return plan


def _sum(plan: Plan, k: int, eqn: JaxprEqn) -> bool:
    """A reduction over the axis, in which each row is summed up by itself."""
    found = plan.found
    answer = found.along(eqn)
    if not isinstance(answer, Reduced) or answer.uses_start or eqn.primitive.name.startswith("scatter"):
        return False
    known = [one for x in eqn.invars if (one := found.known(x)) is not None]
    rows = [d for d, n in enumerate(found.shape) if d != found.axis and n != 1]
    if len(known) > 1 and not all(found.row(eqn, row) is not None for row in rows):
        return False
    start, stop = known[0].start, known[0].stop
    if (start, stop) != (0, found.length):
        if eqn.primitive.name not in MASKED:
            return False
        plan.mask(start, stop)
    plan.sums.append(k)
    return True


def _slice(plan: Plan, k: int, eqn: JaxprEqn) -> bool:
    """A slice of few entries."""
    known = plan.found.values[eqn.invars[0]]  # pyright: ignore[reportArgumentType]
    at = known.dims.index(plan.found.axis)
    p, shape = eqn.params, shape_of(eqn.invars[0])
    start, stop = int(p["start_indices"][at]), int(p["limit_indices"][at])
    full = all(
        (a, b) == (0, n)
        for d, (a, b, n) in enumerate(zip(p["start_indices"], p["limit_indices"], shape, strict=False))
        if d != at
    )
    if not full or any(n != 1 for n in p["strides"] or ()) or start == stop:
        return False
    if not plan.take(*known.ranks(start, stop)):
        return False
    plan.parts.append(k)
    return True


def _return(plan: Plan, k: int, eqn: JaxprEqn) -> bool:
    """Entries that are added where they came from."""
    found = plan.found
    known = found.known(eqn.invars[1]) if eqn.primitive.name == "scatter-add" else None
    if known is None or not known.counts or found.known(eqn.invars[0]) is not None:
        return False
    at = returned_along(found, eqn, known)
    if at is None:
        return False
    terms = list(_terms(plan, eqn.invars[2], at, known, bool(eqn.params["dimension_numbers"].update_window_dims)))
    if None in terms:
        return False
    plan.returns[k] = [term for term in terms if term is not None]
    return all(_note(plan, term) for term in plan.returns[k])


def _note(plan: Plan, term: Term) -> bool:
    """Notes the ranks that a summand needs; False if those are too many."""
    if term.kind == "at":
        assert term.index is not None, "it is at ranks"
        return True
    if term.kind == "part":
        return plan.take(term.start, term.stop)
    plan.mask(term.start, term.stop)
    return True


def returned_along(found: InOrder, eqn: JaxprEqn, known: Ordered) -> int | None:
    """The dimension of the updates that is the axis, where a scatter puts rows of the sort back; else None."""
    p = eqn.params["dimension_numbers"]
    shape, index, updates = (shape_of(x) for x in eqn.invars)
    if len(p.scatter_dims_to_operand_dims) != 1 or tuple(p.inserted_window_dims) != tuple(
        p.scatter_dims_to_operand_dims
    ):
        return None
    (dim,), rank = map(int, p.scatter_dims_to_operand_dims), len(found.shape)
    if shape[dim] != found.length or known.dims != (*range(rank), None) or index[-1] != 1:
        return None
    rows = [d for d in range(rank) if d != found.axis]
    if rank == 1 and not p.operand_batching_dims:
        (at,) = (d for d in range(len(updates)) if d not in p.update_window_dims)
        full = [n for d, n in enumerate(updates) if d != at] == [n for d, n in enumerate(shape) if d != dim]
        return at if full else None
    whole = dim == found.axis and shape == found.shape and not p.update_window_dims
    batched = [*p.operand_batching_dims] == rows and [*p.scatter_indices_batching_dims] == rows
    return found.axis if whole and batched else None


def _terms(plan: Plan, x: Atom, at: int, index: Ordered, windows: bool) -> Iterator[Term | None]:
    """The summands of updates that have the axis in dimension `at`; None among them for what is none."""
    found, known = plan.found, plan.found.known(x)
    if known is not None:
        same = known.part == index.part and known.dims.index(found.axis) == at
        rows = all(known.dims[d] == row for d, row in enumerate(range(len(found.shape)))) or len(found.shape) == 1
        yield Term("all", x, index.start, index.stop) if same and rows else None
        return
    if is_even(found.level, x, at):
        yield Term("even", x, index.start, index.stop)
        return
    maker = found.level.maker(x)
    if maker is None or windows or index.part != (0, found.length, False):
        yield None
        return
    name = maker.primitive.name
    if name in ("add", "add_any"):
        for y in maker.invars:
            yield from _terms(plan, y, at, index, windows)
    elif name == "rev" and tuple(maker.params["dimensions"]) == (at,):
        yield from (_reversed(found, term) for term in _terms(plan, maker.invars[0], at, index, windows))
    elif name == "pad":
        yield _padded(plan, maker, at)
    elif name == "scatter-add" and _is_at_ranks(found, maker, at):
        yield from _terms(plan, maker.invars[0], at, index, windows)
        yield from _at_ranks(plan, maker)
    else:
        yield None


def _padded(plan: Plan, eqn: JaxprEqn, at: int) -> Term | None:
    value, filling = eqn.invars
    padded = [d for d, edges in enumerate(eqn.params["padding_config"]) if any(edges)]
    low, high, inside = eqn.params["padding_config"][at]
    if is_var(filling) or np.any(filling.val) or padded != [at] or min(low, high) < 0 or inside:
        return None
    start, stop = int(low), int(low) + shape_of(value)[at]
    few = stop - start <= FEW or is_selected(plan.found, start, stop)
    return Term("even" if not few and is_even(plan.found.level, value, at) else "part", value, start, stop)


def _reversed(found: InOrder, term: Term | None) -> Term | None:
    if term is None or term.kind not in ("even", "part"):
        return None
    n = found.length
    return replace(term, start=n - term.stop, stop=n - term.start, back=not term.back)


def _is_at_ranks(found: InOrder, eqn: JaxprEqn, at: int) -> bool:
    """Whether a scatter adds whole entries of few ranks."""
    p, shape, updates = eqn.params["dimension_numbers"], shape_of(eqn.invars[0]), shape_of(eqn.invars[2])
    alone = tuple(p.scatter_dims_to_operand_dims) == tuple(p.inserted_window_dims) == (at,)
    windows = [updates[d] for d in p.update_window_dims]
    return alone and not p.operand_batching_dims and windows == [n for d, n in enumerate(shape) if d != at]


def _at_ranks(plan: Plan, eqn: JaxprEqn) -> Iterator[Term | None]:
    windows = tuple(map(int, eqn.params["dimension_numbers"].update_window_dims))
    term = Term("at", eqn.invars[2], index=eqn.invars[1], windows=windows)
    yield None if isinstance(_named(plan, eqn), bool) else term


def _named(plan: Plan, eqn: JaxprEqn) -> tuple[int, ...] | bool | None:
    """The ranks that the index of a gather or scatter says; None where they are not known, False where none are."""
    index = eqn.invars[1]
    count = prod(shape_of(index)[:-1])
    if not 1 <= count <= FEW or shape_of(index)[-1] != 1 or "FILL" in str(eqn.params["mode"]):
        return False
    ranks = known_ranks(plan, index)
    _ask(plan, ranks, index, count)
    return ranks


def known_ranks(plan: Plan, index: Atom) -> tuple[int, ...] | None:
    """The ranks that an index says, if they are known before the program runs."""
    value = folded(plan.found.level, index, plan.constants)
    return None if value is None else tuple(int(r) for r in np.clip(value.reshape(-1), 0, plan.found.length - 1))


def _pick(plan: Plan, k: int, eqn: JaxprEqn) -> bool:
    """A gather of the entries of few ranks, or a slice that starts at one."""
    found, known = plan.found, plan.found.known(eqn.invars[0]) if eqn.invars else None
    if known is None or known.dims != tuple(range(len(found.shape))) or known.part != (0, found.length, False):
        return False
    if any(found.known(x) is not None for x in eqn.invars[1:]):
        return False
    if eqn.primitive.name == "dynamic_slice":
        sizes = tuple(1 if d == found.axis else n for d, n in enumerate(found.shape))
        if tuple(eqn.params["slice_sizes"]) != sizes:
            return False
        start = eqn.invars[1 + found.axis]
        plan.picks[k] = known_ranks(plan, start)
        _ask(plan, plan.picks[k], start, 1)
        return True
    if eqn.primitive.name != "gather":
        return False
    p = eqn.params["dimension_numbers"]
    sizes = tuple(1 if d == found.axis else n for d, n in enumerate(found.shape))
    if tuple(p.start_index_map) != (found.axis,) or tuple(p.collapsed_slice_dims) != (found.axis,):
        return False
    if p.operand_batching_dims or tuple(eqn.params["slice_sizes"]) != sizes:
        return False
    ranks = _named(plan, eqn)
    if isinstance(ranks, bool):
        return False
    plan.picks[k] = ranks
    return True


def _ask(plan: Plan, ranks: tuple[int, ...] | None, index: Atom, count: int) -> None:
    if ranks is not None:
        plan.ranks.update(ranks)
    elif index not in plan.unknown:
        for other in plan.unknown:
            if plan.unknown[other] == count and _is_next(plan, other, index):
                plan.behind[index] = other
        plan.unknown[index] = count


def _is_next(plan: Plan, low: Atom, high: Atom) -> bool:
    """Whether two indices are a number rounded down and up, as those of the entries on both sides of a quantile are."""
    sides = [_rounded(plan, index) for index in (low, high)]
    return None not in sides and sides[0] == ("floor", *sides[1][1:]) and sides[1][0] == "ceil"  # type: ignore[index]


def _rounded(plan: Plan, index: Atom) -> tuple[object, ...] | None:
    """How an index is rounded, to what it is clamped, and what is rounded."""
    said, x = list[object](), index
    for _ in range(8):
        maker = plan.found.level.maker(x)
        if maker is None:
            return None
        name = maker.primitive.name
        if name in ("floor", "ceil"):
            return (name, *said, maker.invars[0])
        if name == "clamp":
            low, x, high = maker.invars
            if is_var(low) or is_var(high):
                return None
            said += [float(low.val), float(high.val)]
        elif name in ("broadcast_in_dim", "reshape", "convert_element_type"):
            said.append((name, shape_of(maker.outvars[0]), str(maker.outvars[0].aval.dtype)))
            x = maker.invars[0]
        else:
            return None
    return None
