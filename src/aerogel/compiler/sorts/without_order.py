"""Writing what reads a sort without it: on the operands as they stand, with masks of ranks, and with picked entries."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes import MONOIDS, Mapped
from ..axes.rebind import bind, shape_of
from ..known.picks import is_zeros
from ..level import Edit
from ..program import Builder, copy_equation, substitute
from ..rules.places import sort_key
from ..rules.ranks import Ranked, highest_rank, lowest_rank, next_rank, of_rank, value_of, within
from ..rules.selection import extremum, few_places
from .in_order import InOrder, Ordered
from .order_plan import MASKED, Plan, Term, known_ranks, returned_along

_OVER = dict(zip(MASKED, ("add", "mul", "max", "min", "and", "or"), strict=True))


def without_order(plan: Plan) -> Edit:
    """The edit that serves all readers of a sort, which goes."""
    written = _Writer(plan)
    results = written.results()
    found = plan.found
    exits = {*plan.sums, *plan.returns, *plan.picks, *plan.parts}
    gone = frozenset({found.place, *found.moved, *exits})
    return Edit(max((found.place, *exits)), gone, written.builder.eqns, results, gone)


class _Writer:
    def __init__(self, plan: Plan):
        self.plan, self.found = plan, plan.found
        self.builder = Builder(plan.found.sort)
        self.ranked: dict[int, tuple[Atom, Atom]] = {}
        self.made: dict[object, Any] = {}
        self.before: dict[Var, Atom] = dict(zip(self.found.sort.outvars, self.found.sort.invars, strict=True))
        if plan.needs_ranks:
            (self.keys,) = self.builder.call(sort_key, self.found.sort.invars[0])
        for rank in sorted(plan.ranks):
            self.ranked[rank] = self._ranked(rank)
        for k, answer in self.found.moved.items():
            self._move(self.found.level.eqns[k], answer)

    def results(self) -> dict[Var, Atom]:
        """What stands for each variable that is read elsewhere."""
        eqns, plan, results = self.found.level.eqns, self.plan, dict[Var, Atom]()
        for k in plan.sums:
            self._put(results, eqns[k].outvars[0], self._sum(eqns[k]))
        for k, terms in plan.returns.items():
            self._put(results, eqns[k].outvars[0], self._returned(eqns[k], terms))
        for k, ranks in plan.picks.items():
            self._put(results, eqns[k].outvars[0], self._picked(eqns[k], ranks))
        for k in plan.parts:
            self._put(results, eqns[k].outvars[0], self._part(eqns[k]))
        for v in plan.whole:
            known = self.found.values[v]
            self._put(results, v, self._taken(v, self._places(known.start, known.stop, known.back), known))
        return results

    def _put(self, results: dict[Var, Atom], v: Var, atom: Atom) -> None:
        results[v] = self.builder.as_weak_as(v, atom)

    def _move(self, eqn: JaxprEqn, answer: Mapped | None) -> None:
        """What an equation makes, of all entries and in the order before."""
        (out,) = eqn.outvars
        if eqn.primitive.name in ("slice", "rev") and answer is None:
            self.before[out] = self.before[eqn.invars[0]]  # pyright: ignore[reportArgumentType]
            return
        if eqn.primitive.name == "pad" and answer is None:
            self.before[out] = self._or_zeros(eqn.invars[0])
            return
        if answer is None:  # a gather by the sorted places
            at = self.found.values[out].dims.index(self.found.axis)
            (dim,) = eqn.params["dimension_numbers"].start_index_map
            rows = bool(eqn.params["dimension_numbers"].operand_batching_dims)
            self.before[out] = eqn.invars[0] if rows else self._with_axis_at(eqn.invars[0], int(dim), at)
            return
        known, n = self.found.values[out], self.found.length
        if (known.start, known.stop) == (0, n):
            self.builder.eqns.append(copy_equation(eqn, self.before))
            return
        operands = []
        for x, axis in zip(eqn.invars, answer.ins, strict=True):
            moved = substitute(x, self.before)
            operands.append(self._even(x, axis.dim, n) if moved is x and axis is not None else moved)
        (self.before[out],) = self.builder.call(lambda *xs: answer.block(0, n, *xs), *operands)

    def _or_zeros(self, x: Any) -> Atom:
        """The entries of a part, before it was ordered, and zeros for all others."""
        known, value = self.found.values[x], self.before[x]
        return self._masked(self._mask(known.start, known.stop, known.dims, shape_of(value)), value)

    def _masked(self, mask: Atom | None, x: Atom) -> Atom:
        if mask is None:
            return x
        return self.builder.call(lambda mask, x: lax.select(mask, x, lax.full_like(x, 0)), mask, x)[0]

    def _even(self, x: Atom, dim: int, n: int) -> Atom:
        """A value whose entries along a dimension are equal, with so many of them."""

        def spread(v: Any) -> Any:
            shape = tuple(n if d == dim else size for d, size in enumerate(v.shape))
            one = lax.slice_in_dim(v, 0, 1, axis=dim)
            return lax.broadcast_in_dim(one, shape, tuple(range(v.ndim)))

        return self.builder.call(spread, x)[0]

    def _with_axis_at(self, x: Atom, source: int, to: int) -> Atom:
        if source == to:
            return x
        return self.builder.call(lambda v: jnp.moveaxis(v, source, to), x)[0]

    def _ranked(self, rank: int) -> tuple[Atom, Atom]:
        axis, n = self.found.axis, self.found.length

        def pair(one: Ranked) -> tuple[Any, Any]:
            return one.key, one.place

        if rank == 0:
            made = self.builder.call(lambda keys: pair(lowest_rank(keys, axis)), self.keys)
        elif rank == n - 1:
            made = self.builder.call(lambda keys: pair(highest_rank(keys, axis)), self.keys)
        elif rank - 1 in self.ranked:
            before = self.ranked[rank - 1]
            made = self.builder.call(lambda keys, *r: pair(next_rank(keys, Ranked(*r), axis)), self.keys, *before)
        else:
            made = self.builder.call(lambda keys: pair(of_rank(keys, jnp.int32(rank), axis)), self.keys)
        return made[0], made[1]

    def _unknown(self, index: Atom) -> list[Atom]:
        """The places of entries at ranks that an index says."""
        if ("at", index) not in self.made:
            axis, n = self.found.axis, self.found.length

            def ranked(keys: Any, i: Any) -> list[Any]:
                found = [of_rank(keys, rank, axis) for rank in _ranks_of(i, n)]
                return [x for one in found for x in (one.key, one.place)]

            def behind(keys: Any, i: Any, low: Any, *found: Any) -> list[Any]:
                pairs = zip(_ranks_of(i, n), _ranks_of(low, n), found[::2], found[1::2], strict=True)
                return [
                    x
                    for high, rank, key, place in pairs
                    for x in (
                        key,
                        lax.select(
                            lax.broadcast(lax.eq(high, rank), place.shape), place, _next(keys, key, place, axis)
                        ),
                    )
                ]

            low = self.plan.behind.get(index)
            if low is None:
                self.made["at", index] = self.builder.call(ranked, self.keys, index)
            else:
                self._unknown(low)
                self.made["at", index] = self.builder.call(behind, self.keys, index, low, *self.made["at", low])
        return self.made["at", index][1::2]

    def _places_at(self, index: Atom, ranks: Sequence[int] | None) -> list[Atom]:
        return self._unknown(index) if ranks is None else [self.ranked[rank][1] for rank in ranks]

    def _places(self, start: int, stop: int, back: bool = False) -> Atom:
        """The places of the entries of some ranks, in their order, along the axis."""
        if (start, stop) not in self.made:
            axis = self.found.axis
            if (start, stop) in self.plan.selected:
                x = self.found.sort.invars[0]
                made = self.builder.call(lambda x: few_places(x, axis, start, stop), x)
            else:
                found = [self.ranked[rank][1] for rank in range(start, stop)]
                made = self.builder.call(lambda *xs: lax.concatenate(xs, axis), *found) if len(found) > 1 else found
            self.made[start, stop] = made[0]
        places = self.made[start, stop]
        return self.builder.call(lambda x: lax.rev(x, (self.found.axis,)), places)[0] if back else places

    def _ends(self, v: Var, start: int, known: Ordered) -> Atom | None:
        """The entry of one rank of what is sorted by, if its place is not asked for; None of others."""
        x, rows, axis, n = self.found.sort.invars[0], range(len(self.found.shape)), self.found.axis, self.found.length
        if self.before[v] is not x or known.dims != tuple(rows) or self.plan.returns or start not in self.ranked:
            return None
        if start in (0, n - 1) and jnp.issubdtype(x.aval.dtype, jnp.floating):
            return self.builder.call(lambda x: extremum(x, axis, start > 0), x)[0]

        def value(x: Any, key: Any) -> Any:
            return value_of(x, key, lambda x: of_rank(sort_key(x), jnp.int32(start), axis).place, axis)

        return self.builder.call(value, x, self.ranked[start][0])[0]

    def _taken(self, v: Var, places: Atom, known: Ordered) -> Atom:
        """What stands at places, in a value that has rows of the sort and the axis where `known` says."""
        at, dims = known.dims.index(self.found.axis), known.dims
        alone = len(self.found.shape) == 1

        def take(x: Any, places: Any) -> Any:
            if alone:
                return jnp.take(x, places, axis=at, mode="clip")
            return jnp.take_along_axis(x, _laid_out(places, dims), at, mode="promise_in_bounds")

        return self.builder.call(take, self.before[v], places)[0]

    def _mask(self, start: int, stop: int, dims: tuple[int | None, ...], shape: tuple[int, ...]) -> Atom | None:
        """Which entries of a value are of some ranks; None where all of them are."""
        low, high = self.plan.bounds(start, stop)
        if low is None and high is None:
            return None
        key = ("mask", start, stop, dims, shape)
        if key not in self.made:
            axis, bounds = self.found.axis, [self.ranked[r] for r in (low, high) if r is not None]

            def mask(keys: Any, *found: Any) -> Any:
                ranked = [Ranked(*found[k : k + 2]) for k in range(0, len(found), 2)]
                lowest = ranked.pop(0) if low is not None else None
                inside = within(keys, lowest, ranked.pop(0) if ranked else None, axis)
                return lax.broadcast_in_dim(_laid_out(inside, dims), shape, tuple(range(len(shape))))

            self.made[key] = self.builder.call(mask, self.keys, *(x for pair in bounds for x in pair))[0]
        return self.made[key]

    def _sum(self, eqn: JaxprEqn) -> Atom:
        known = next(one for x in eqn.invars if (one := self.found.known(x)) is not None)
        self.builder.like = eqn
        if (known.start, known.stop) == (0, self.found.length):
            env = dict(self.before)
            self.builder.eqns.append(copy_equation(eqn, env))
            return env[eqn.outvars[0]]
        x, over = self.before[eqn.invars[0]], MONOIDS[_OVER[eqn.primitive.name]]  # pyright: ignore[reportArgumentType]
        mask = self._mask(known.start, known.stop, known.dims, shape_of(x))
        assert mask is not None, "it is a part"

        def masked(mask: Any, x: Any) -> Any:
            (nothing,) = over.identity([x])
            return bind(eqn, [lax.select(mask, x, nothing)], eqn.params)[0]

        return self.builder.call(masked, mask, x)[0]

    def _part(self, eqn: JaxprEqn) -> Atom:
        v: Any = eqn.invars[0]
        known = self.found.values[v]
        at = known.dims.index(self.found.axis)
        start, stop = known.ranks(*(int(eqn.params[side][at]) for side in ("start_indices", "limit_indices")))
        alone = self._ends(v, start, known) if stop - start == 1 else None
        return self._taken(v, self._places(start, stop, known.back), known) if alone is None else alone

    def _picked(self, eqn: JaxprEqn, ranks: Sequence[int] | None) -> Atom:
        v: Any = eqn.invars[0]
        axis, known, out = self.found.axis, self.found.values[v], shape_of(eqn.outvars[0])
        if eqn.primitive.name == "dynamic_slice":
            return self._taken(v, self._places_at(eqn.invars[1 + axis], ranks)[0], known)
        places = self._places_at(eqn.invars[1], ranks)
        found = [None] * len(places) if ranks is None else [self._ends(v, rank, known) for rank in ranks]
        taken = [self._taken(v, place, known) if x is None else x for x, place in zip(found, places, strict=True)]
        offset = [int(d) for d in eqn.params["dimension_numbers"].offset_dims]
        free = [d for d in range(len(out)) if d not in offset]

        def placed(*xs: Any) -> Any:
            joined = jnp.stack([lax.squeeze(x, (axis,)) for x in xs])
            joined = lax.reshape(joined, (*(out[d] for d in free), *joined.shape[1:]))
            return lax.transpose(
                joined, [free.index(d) if d in free else len(free) + offset.index(d) for d in range(len(out))]
            )

        return self.builder.call(placed, *taken)[0]

    def _returned(self, eqn: JaxprEqn, terms: Sequence[Term]) -> Atom:
        """What a scatter adds to its operand, at the places that the entries came from."""
        operand, index, _ = eqn.invars
        known = self.found.known(index)
        assert known is not None, "it was planned so"
        at = returned_along(self.found, eqn, known)
        dim = int(eqn.params["dimension_numbers"].scatter_dims_to_operand_dims[0])
        assert at is not None, "it was planned so"
        self.builder.like = eqn
        shape = shape_of(operand)
        dims = (
            tuple(range(len(shape)))
            if len(self.found.shape) > 1
            else tuple(0 if d == dim else None for d in range(len(shape)))
        )
        total = None if is_zeros(self.found.level, operand) else operand
        for term in terms:
            for one in self._term(eqn, term, at, dim, dims):
                total = one if total is None else self.builder.call(lax.add, total, one)[0]
        assert total is not None, "a scatter adds something"
        return total

    def _term(self, eqn: JaxprEqn, term: Term, at: int, dim: int, dims: tuple[int | None, ...]) -> list[Atom]:
        shape = shape_of(eqn.invars[0])
        if term.kind == "at":
            assert term.index is not None, "it is at ranks"
            places = self._places_at(term.index, known_ranks(self.plan, term.index))
            return self._at_places(term, places, dim)
        if term.kind == "part":
            places = self._places(term.start, term.stop, term.back)
            if (term.start, term.stop) not in self.plan.selected:
                ranks = range(term.start, term.stop)[:: -1 if term.back else 1]
                return self._at_places(term, [self.ranked[r][1] for r in ranks], dim)

            def scattered(places: Any, value: Any) -> Any:
                indices = lax.convert_element_type(lax.expand_dims(places, (places.ndim,)), eqn.invars[1].aval.dtype)
                return bind(eqn, [lax.full(shape, 0, value.dtype), indices, value], eqn.params)[0]

            return self.builder.call(scattered, places, term.value)
        value = self.before[term.value] if term.kind == "all" else self._even(term.value, at, shape[dim])  # type: ignore[index]
        value = self._with_axis_at(value, at, dim)
        mask = self._mask(term.start, term.stop, dims, shape)
        return [self._masked(mask, value)]

    def _at_places(self, term: Term, places: Sequence[Atom], dim: int) -> list[Atom]:
        """Entries at one place of each row, and zeros."""
        whole, windows = self.found.shape, term.windows
        by_rank = term.kind == "part"

        def spread(value: Any, *places: Any) -> list[Any]:
            if not by_rank:
                free = [d for d in range(value.ndim) if d not in windows]
                rows = [n for d, n in enumerate(whole) if d != dim]
                value = lax.reshape(lax.transpose(value, (*free, *windows)), (len(places), *rows))
                value = jnp.moveaxis(value, 0, dim)
            counts = lax.broadcasted_iota(np.int32, whole, dim)
            found = []
            for k, place in enumerate(places):
                here = lax.eq(counts, lax.broadcast_in_dim(place, whole, tuple(range(len(whole)))))
                one = lax.broadcast_in_dim(lax.slice_in_dim(value, k, k + 1, axis=dim), whole, tuple(range(len(whole))))
                found.append(lax.select(here, one, lax.full_like(one, 0)))
            return found

        return self.builder.call(spread, term.value, *places)


def _ranks_of(index: Any, n: int) -> list[Any]:
    """The ranks that an index says, of n entries."""
    wide = index if index.dtype.itemsize >= 4 else lax.convert_element_type(index, np.int32)
    wide = lax.reshape(wide, (wide.size,))
    ranks = lax.clamp(np.asarray(0, wide.dtype), wide, np.asarray(n - 1, wide.dtype)).astype(np.int32)
    return [lax.index_in_dim(ranks, j, 0, False) for j in range(ranks.size)]


def _next(keys: Any, key: Any, place: Any, axis: int) -> Any:
    return next_rank(keys, Ranked(key, place), axis).place


def _laid_out(x: Any, dims: tuple[int | None, ...]) -> Any:
    """An array with the dimensions of a sort, its dimensions moved to where `dims` says; others have the length one."""
    x = lax.transpose(x, [d for d in dims if d is not None])
    return lax.expand_dims(x, [k for k, d in enumerate(dims) if d is None])


def key_refusal(found: InOrder) -> str | None:
    """Why ranks of a sort's entries cannot be found; None if they can."""
    dtype = np.dtype(found.sort.invars[0].aval.dtype)
    if found.sort.params["num_keys"] != 1:
        return f"it has {found.sort.params['num_keys']} keys"
    if dtype.kind == "c" or dtype.itemsize > 4 or not (jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_):
        return f"a key of {dtype} has no ranks of 32 bits"
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 2:
        return f"a key of {dtype} has no ranks of 32 bits"
    return None
