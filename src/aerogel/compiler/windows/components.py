"""The entries of a value along one short axis, each as an array of its own, cut at the leaves.

`((p[:, None] - p[None]) ** 2)` of points in space has a last axis of three. XLA's CPU backend runs its innermost loop
over it. Entry k of the value is computed from entry k of what it is made of, down to `p[:, k]`: nothing of rank 3 is
left, and the innermost loop is a long one. Cutting the value itself would keep it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.elementwise import NAMES
from ..axes.rebind import bind, shape_of
from ..cost import nbytes
from ..cost.primitives import DEAR
from ..level import Level
from ..loop import is_float
from ..normal_form.identities import simplify_equation
from ..program import Builder, is_var
from .windowed import Windowed

ELEMENTWISE = frozenset(NAMES) - {"threefry2x32"}
FUSED = ELEMENTWISE | {"broadcast_in_dim", "transpose", "squeeze", "reshape"}
PRODUCTS = frozenset("mul integer_pow square".split())
ADDITIONS = frozenset("add sub add_any".split())
HIGHEST_POWER = 32
PIECES = frozenset("concatenate pad stack".split())
COUNTED = {"concatenate": "dimension", "iota": "dimension", "stack": "axis"}  # whose parameter names their axis
MOST_EQUATIONS = 32  # seen through for one reduction: each is written once for every entry


def asks_for_equals(eqn: JaxprEqn) -> bool:
    """Whether an equation compares floats for being equal, as the derivative of an extremum does."""
    return eqn.primitive.name in ("eq", "ne") and is_float(eqn.invars[0].aval.dtype)


@dataclass
class Components:
    """A value and what it is made of, along one axis.

    Attributes:
        windows: values whose entries along an axis are slices of other arrays.
        is_apart: whether a reduction is made of entries, too.
        leaves: the values that are cut.
        stored: dear values that every entry reads, and that one loop computes and reads now: they would be stored.
        stands: what every entry reads in place of a value that has not the axis.
    """

    level: Level
    value: Atom
    axis: int
    windows: Windowed | None = None
    is_apart: Callable[[JaxprEqn], bool] | None = None
    inside: dict[tuple[Var, int], JaxprEqn] = field(init=False, default_factory=dict)
    leaves: set[Var] = field(init=False, default_factory=set)
    stored: set[Var] = field(init=False, default_factory=set)
    stands: dict[Var, Atom] = field(init=False, default_factory=dict)
    made: dict[tuple[Var, int, int], Atom] = field(init=False, default_factory=dict)
    rows: dict[Var, Atom] = field(init=False, default_factory=dict)
    numbers: dict[Var, Literal] = field(init=False, default_factory=dict)  # that entries repeat

    def __post_init__(self) -> None:
        whole: set[Var] = set()
        while (found := self._look(whole)) - whole:
            whole |= found

    def _look(self, whole: set[Var]) -> set[Var]:
        """Looks through what makes the value, down to `whole`; the shared values below which something dear is met.

        Such a value exists as it is, for its other readers: it is cut, and not computed again from what is dear. So is
        a float that is asked whether it is an extremum: computed again it may be a unit off, and be none.
        """
        self.inside, self.leaves, self.stored, found = {}, set(), set(), set[Var]()
        stack: list[tuple[Atom, int, Var | None]] = [(self.value, self.axis, None)]
        while stack:
            x, axis, shared = stack.pop()
            if not is_var(x) or (x, axis) in self.inside:
                continue
            if shared is None and len(self.level.readers(x)) > 1 and not self._ends_apart(x):
                shared = x
            eqn = None if x in whole else self._seen_through(x, axis)
            if eqn is None:
                self.leaves.add(x)
                continue
            if shared is not None and _is_dear(eqn) and not self._is_made_for_all(x, axis, shared):
                found.add(shared)
            self.inside[x, axis] = eqn
            if asks_for_equals(eqn):
                found |= {v for v in eqn.invars if is_var(v) and self._rounds_in_two_ways(v)}
            for operand, at in self._operands(eqn, axis):
                if at is not None:
                    stack.append((operand, at, shared))
                elif is_var(operand) and shared is None and self._is_dear(operand):
                    self.stored.add(operand)
        return found

    def _rounds_in_two_ways(self, x: Var) -> bool:
        """Whether a product and an addition make `x` entry by entry: one instruction in one kernel, two in another."""
        waiting, seen, names = [x], set[Var](), set[str]()
        while waiting and len(seen) <= MOST_EQUATIONS:
            eqn = self.level.maker(v := waiting.pop())
            if v not in seen and eqn is not None and eqn.primitive.name in FUSED:
                names.add(eqn.primitive.name)
                waiting += filter(is_var, eqn.invars)
            seen.add(v)
        return bool(names & PRODUCTS) and bool(names & ADDITIONS)

    def _seen_through(self, x: Var, axis: int) -> JaxprEqn | None:
        """The equation that makes `x`, where its entries can be computed one by one; else None."""
        place = self.level.made_by.get(x)
        if place is None or len(self.inside) >= MOST_EQUATIONS:
            return None
        eqn = self.level.eqns[place]
        name = eqn.primitive.name
        if eqn.effects or len(eqn.outvars) != 1:
            return None
        if self._is_window(x, axis):
            return eqn
        if name in COUNTED:
            return eqn if eqn.params[COUNTED[name]] == axis else None
        if name == "pad":
            return eqn if _lengthens(eqn, axis) else None
        if name == "dot_general":
            return eqn if self.windows is not None and _is_outer(eqn) else None
        if name in ("reshape", "tile"):
            return eqn if _keeps_last(eqn, axis) else None
        return eqn if name in ELEMENTWISE or name in ("broadcast_in_dim", "transpose", "squeeze") else None

    def _is_window(self, x: Var, axis: int) -> bool:
        return self.windows is not None and self.windows.is_cut_by(x, axis)

    def _is_made_for_all(self, x: Var, axis: int, shared: Var) -> bool:
        """Whether entries of windows, or of what is made of them, are what all readers will read."""
        return self.windows is not None and (self._is_window(x, axis) or self.windows.is_summed(shared))

    def _ends_apart(self, x: Var) -> bool:
        """Whether all that is made of `x` are reductions of its entries, too: they read the same entries."""
        waiting, seen = [x], {x}
        while waiting and self.is_apart is not None and len(seen) <= MOST_EQUATIONS:
            for place in self.level.readers(waiting.pop()):
                if place < 0:
                    return False
                eqn = self.level.eqns[place]
                if self.is_apart(eqn):
                    continue
                if eqn.primitive.name not in ELEMENTWISE or shape_of(eqn.outvars[0]) != shape_of(x):
                    return False
                waiting += [v for v in eqn.outvars if v not in seen]
                seen.update(eqn.outvars)
        return not waiting and self.is_apart is not None

    def _is_dear(self, x: Var) -> bool:
        """Whether `x` is computed by something dear, read by nothing else on the way to it."""
        stack: list[Atom] = [x]
        while stack:
            v = stack.pop()
            if not is_var(v) or v not in self.level.made_by or len(self.level.readers(v)) > 1:
                continue
            eqn = self.level.eqns[self.level.made_by[v]]
            if _is_dear(eqn):
                return True
            stack += eqn.invars if eqn.primitive.name in FUSED else []
        return False

    def _operands(self, eqn: JaxprEqn, axis: int) -> Iterator[tuple[Atom, int | None]]:
        """The operands of an equation that is seen through, and which axis of each is ours; None if none is."""
        name = eqn.primitive.name
        if self._is_window(eqn.outvars[0], axis) or name == "iota":
            return  # they are no entries of its operands
        operand = eqn.invars[0]
        if name == "broadcast_in_dim":
            dims = list(eqn.params["broadcast_dimensions"])
            yield operand, _where_as_long(operand, dims.index(axis) if axis in dims else None, eqn, axis)
        elif name == "transpose":
            yield operand, eqn.params["permutation"][axis]
        elif name in ("reshape", "tile"):
            yield operand, len(shape_of(operand)) - 1
        elif name == "squeeze":
            rest = [d for d in range(len(shape_of(operand))) if d not in eqn.params["dimensions"]]
            yield operand, rest[axis]
        elif name in PIECES:
            for piece in eqn.invars[:1] if name == "pad" else eqn.invars:
                yield piece, None if name == "stack" or shape_of(piece)[axis] == 1 else axis
        elif name == "dot_general":
            of_first = len(shape_of(operand))
            yield operand, axis if axis < of_first else None
            yield eqn.invars[1], axis - of_first if axis >= of_first else None
        else:
            for x in eqn.invars:
                yield x, _where_as_long(x, axis if shape_of(x) else None, eqn, axis)

    @property
    def shared(self) -> set[Var]:
        """What every entry reads: values that have not the axis."""
        found = (
            pair
            for (x, axis), eqn in self.inside.items()
            if not self._is_window(x, axis)
            for pair in self._operands(eqn, axis)
        )
        return {x for x, at in found if at is None and is_var(x) and shape_of(x)}

    def amplify(self, times: int) -> bool:
        """Whether all that is cut is smaller than the value by this factor."""
        size = self.value.aval.size
        return bool(self.inside) and all(times * leaf.aval.size <= size for leaf in self.leaves)

    def stores(self, size: int) -> bool:
        """Whether a value of more than `size` bytes would be stored that is not stored now."""
        return any(nbytes(v.aval) > size for v in self.stored)

    def entry(self, builder: Builder, index: int) -> Atom:
        """The value at one index of the axis, without the axis."""
        return self._entry(builder, self.value, self.axis, index)

    def _entry(self, builder: Builder, x: Atom, axis: int, index: int) -> Atom:
        if not is_var(x) or (x, axis) not in self.inside:
            return self._cut(builder, x, axis, index)
        key = (x, axis, index)
        if key not in self.made:
            self.made[key] = self._computed(builder, self.inside[x, axis], axis, index)
        return self.made[key]

    def _cut(self, builder: Builder, x: Atom, axis: int, index: int) -> Atom:
        """One entry of a leaf.

        Of a last axis it is every third number, say, of rows that are as long. A slice of one column would do, but XLA
        computes in columns, [n, 1], what is computed of it; and where that ends in a sum, its library of reductions
        takes one number at a time, which is up to 16 times as long.
        """
        shape = shape_of(x)
        if not is_var(x) or axis == 0 or axis < len(shape) - 1:
            return builder.call(lambda x: lax.index_in_dim(x, index, axis, False), x)[0]
        if x not in self.rows:
            (self.rows[x],) = builder.call(lambda x: lax.reshape(x, (*shape[:-2], shape[-2] * shape[-1])), x)
        return builder.call(lambda x: lax.slice_in_dim(x, index, None, shape[-1], axis - 1), self.rows[x])[0]

    def _computed(self, builder: Builder, eqn: JaxprEqn, axis: int, index: int) -> Atom:
        name = eqn.primitive.name
        if name in PIECES:
            return self._piece(builder, eqn, axis, index)
        if name == "iota":
            return self._repeated(builder, eqn, axis, _jax.literal(index, _number_type(eqn)))
        if self.windows is not None and self._is_window(eqn.outvars[0], axis):
            return self.windows.entry(builder, eqn.outvars[0], axis, index)
        if name == "dot_general":
            xs = [self._taken(builder, x, at, None, index) for x, at in self._operands(eqn, axis)]
            return builder.call(_outer_product, *xs)[0]
        dims = tuple(eqn.params["broadcast_dimensions"]) if name == "broadcast_in_dim" else ()
        unit = axis if name in ELEMENTWISE else dims.index(axis) if axis in dims else None
        xs = [self._taken(builder, x, at, unit, index) for x, at in self._operands(eqn, axis)]
        if name in ELEMENTWISE:
            return self._entrywise(builder, eqn, axis, xs)
        shape = shape_of(eqn.outvars[0])
        rest = (*shape[:axis], *shape[axis + 1 :])
        number = self._number(xs[0])
        if number is not None:
            return self._repeated(builder, eqn, axis, number)
        if name in ("squeeze", "reshape"):
            return builder.call(lambda x: lax.reshape(x, rest), *xs)[0]
        if name == "tile":
            return builder.call(lambda x: lax.tile(x, eqn.params["reps"][:-1]), *xs)[0]
        order = eqn.params["permutation"] if name == "transpose" else dims
        gone = order[axis] if name == "transpose" else axis
        kept = [d - (d > gone) for d in order if d != gone]
        if name == "transpose":
            return builder.call(lambda x: lax.transpose(x, kept), *xs)[0]
        return builder.call(lambda x: lax.broadcast_in_dim(x, rest, kept), *xs)[0]

    def _entrywise(self, builder: Builder, eqn: JaxprEqn, axis: int, xs: list[Atom]) -> Atom:
        """An entry of an entrywise equation, from those of its operands."""
        numbers = [self._number(x) for x in xs]
        known = [n for n in numbers if n is not None]
        if len(known) == len(xs):
            alone = eqn.replace(invars=known, outvars=[_jax.new_var(_number_type(eqn))])
            found = simplify_equation(alone)
            if isinstance(found, Literal):
                return self._repeated(builder, eqn, axis, found)
        if eqn.primitive.name == "select_n" and numbers[0] is not None:
            chosen, shape = xs[1 + int(numbers[0].val)], shape_of(eqn.outvars[0])
            if shape_of(chosen) == (*shape[:axis], *shape[axis + 1 :]):
                return chosen
        power = _power(numbers[1]) if eqn.primitive.name == "pow" else None
        if power is not None and xs[0].aval.dtype == eqn.outvars[0].aval.dtype:
            return builder.call(lambda x: lax.integer_pow(x, power), xs[0])[0]
        return builder.call(lambda *xs: bind(eqn, xs, eqn.params), *xs)[0]

    def _number(self, x: Atom) -> Literal | None:
        """The number that an entry is, or repeats."""
        if isinstance(x, Literal):
            return x if not shape_of(x) else None
        return self.numbers.get(x)

    def _repeated(self, builder: Builder, eqn: JaxprEqn, axis: int, number: Literal) -> Atom:
        """A number as an entry of what an equation makes."""
        shape = shape_of(eqn.outvars[0])
        rest = (*shape[:axis], *shape[axis + 1 :])
        if not rest:
            return number
        (out,) = builder.call(lambda x: lax.broadcast_in_dim(x, rest, ()), number)
        if is_var(out):
            self.numbers[out] = number
        return out

    def _piece(self, builder: Builder, eqn: JaxprEqn, axis: int, index: int) -> Atom:
        """An entry of what is put together: of the piece that holds it."""
        if eqn.primitive.name == "pad":
            return self._piece_or_number(builder, eqn, axis, index)
        if eqn.primitive.name == "stack":
            return self._taken(builder, eqn.invars[index], None, None, index)
        for piece, at in self._operands(eqn, axis):
            size = shape_of(piece)[axis]
            if index < size:
                return self._taken(builder, piece, at, axis, index)
            index -= size
        raise AssertionError("an index beyond all pieces")

    def _piece_or_number(self, builder: Builder, eqn: JaxprEqn, axis: int, index: int) -> Atom:
        """An entry of a padded array: of the array, or the number around it."""
        ((piece, at),) = self._operands(eqn, axis)
        place = index - eqn.params["padding_config"][axis][0]
        if 0 <= place < shape_of(piece)[axis]:
            return self._taken(builder, piece, at, axis, place)
        number = eqn.invars[1]
        assert isinstance(number, Literal), "others are not seen through"
        return self._repeated(builder, eqn, axis, number)

    def _taken(self, builder: Builder, x: Atom, at: int | None, unit: int | None, index: int) -> Atom:
        """An operand's entry; where a unit dimension stands in place of our axis, it goes."""
        if at is not None:
            return self._entry(builder, x, at, index)
        x = self.stands.get(x, x) if is_var(x) else x
        if unit is None or not shape_of(x):
            return x
        return builder.call(lambda x: lax.squeeze(x, [unit]), x)[0]


def _number_type(eqn: JaxprEqn) -> Any:
    return eqn.outvars[0].aval.update(shape=())


def _power(x: Literal | None) -> int | None:
    """The exponent that a number is, if it is a small whole one: XLA calls a library for others, number by number."""
    value = None if x is None else float(x.val)
    return int(value) if value is not None and value.is_integer() and abs(value) <= HIGHEST_POWER else None


def _is_dear(eqn: JaxprEqn) -> bool:
    """Whether an equation is dear. A quotient by a number is none: XLA multiplies by its inverse."""
    by_number = eqn.primitive.name == "div" and not is_var(eqn.invars[1])
    return eqn.primitive.name in DEAR and not by_number


def _keeps_last(eqn: JaxprEqn, axis: int) -> bool:
    """Whether a reshape, or a repetition, leaves the last dimension as it is, and that is our axis."""
    shape, before = shape_of(eqn.outvars[0]), shape_of(eqn.invars[0])
    return len(eqn.invars) == 1 and axis == len(shape) - 1 > 0 and len(before) > 1 and before[-1] == shape[-1]


def _lengthens(pad: JaxprEqn, axis: int) -> bool:
    """Whether an array is continued with a number along one axis alone."""
    config = pad.params["padding_config"]
    low, high, between = config[axis]
    others = (size for at, sizes in enumerate(config) if at != axis for size in sizes)
    return low >= 0 <= high and not between and not any(others) and isinstance(pad.invars[1], Literal)


def _where_as_long(operand: Atom, at: int | None, eqn: JaxprEqn, axis: int) -> int | None:
    """`at`, if the operand has the axis there, and not a unit dimension that is broadcast."""
    if at is None:
        return None
    return at if shape_of(operand)[at] == shape_of(eqn.outvars[0])[axis] else None


def _is_outer(eqn: JaxprEqn) -> bool:
    """Whether a product adds up nothing."""
    contract, batch = eqn.params["dimension_numbers"]
    same = all(x.aval.dtype == eqn.outvars[0].aval.dtype for x in eqn.invars)
    return same and not contract[0] and not batch[0] and eqn.params["out_sharding"] is None


def _outer_product(x: Any, y: Any) -> Any:
    shape = (*x.shape, *y.shape)
    x = lax.broadcast_in_dim(x, shape, range(x.ndim))
    return x * lax.broadcast_in_dim(y, shape, range(x.ndim - y.ndim, x.ndim))
