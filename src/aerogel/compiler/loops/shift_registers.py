"""Carries of a loop that are windows of an array: shift registers, what is shifted out of one, and sums of windows.

A step that puts `x[t]` in front of a carry and drops its last entry copies all of it to move it by one. What it holds
is known before the loop: it is a window of the inputs, behind one another. The gradient of that adds to a carry, takes
its front and moves the rest up: what comes out are sums of windows that overlap. The gradient of reading windows adds
each to a carry of the size of the array. Both are one sum of windows after the loop.
"""

import math
from functools import cached_property

from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes.rebind import shape_of
from ..known.facts import Affine, fact_of
from ..level import Level
from ..loop import Loop
from ..program import depends_on, is_var, producers, users
from ..record import record
from .laid_out import LaidOut, Stretch, is_zero_number

SHAPED = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")


@record
class Register:
    """A carry that each step moves by `move` places along `dim`, to make room for an input of its own.

    Attributes:
        carry: which one it is.
        dim: along which it is moved.
        move: by how many places.
        x: which input of the loop comes in.
        in_front: whether that comes first; else last.
    """

    carry: int
    dim: int
    move: int
    x: int
    in_front: bool


@record
class Outlet:
    """A carry to which each step adds something, and which it then moves by `move` places along `dim`.

    Attributes:
        carry: which one it is.
        dim: along which it is moved.
        move: by how many places; as many zeros come in at the other end.
        added: what is added.
        at_front: whether the first places are moved out; else the last.
        total: the carry and what is added to it.
        out: values of the body that are what is moved out, in their shape.
    """

    carry: int
    dim: int
    move: int
    added: Var
    total: Var
    at_front: bool
    out: tuple[Var, ...]


@record
class Sum:
    """A carry to which each step adds a window along `dim`, at `place`.

    Attributes:
        carry: which one it is.
        dim: along which the windows move.
        place: of the first entry along `dim`, as a function of the step.
        added: what is added; it is as large as the carry but for that dimension.
    """

    carry: int
    dim: int
    place: Affine
    added: Var


Carried = Register | Outlet | Sum


class Carries:
    """What the carries of a loop are."""

    def __init__(self, level: Level, loop: Loop, facts: dict[Var, Affine]):
        self.level, self.loop, self.facts = level, loop, facts
        self.body, self.makers, self.readers = loop.body, producers(loop.body), users(loop.body)
        self.outside = dict(zip(loop.body_consts, loop.consts, strict=True))

    def maker(self, x: Atom) -> JaxprEqn | None:
        """The equation of the body that makes a value."""
        place = self.makers.get(x) if is_var(x) else None
        return None if place is None else self.body.eqns[place]

    def constant(self, x: Atom) -> int | None:
        """The one number that a value of integers repeats in every step, if that is known."""
        for _ in range(8):
            if isinstance(x, Literal):
                fact = fact_of(x, {})
                return None if fact is None else fact.offset
            maker = self.maker(x)
            if maker is None and x in self.outside:
                x, maker = self.outside[x], self.level.maker(self.outside[x])
                if isinstance(x, Literal):
                    continue
            if maker is None or maker.primitive.name not in (*SHAPED, "convert_element_type"):
                return None
            x = maker.invars[0]
        return None

    @cached_property
    def found(self) -> list[Carried]:
        """The carries that are windows; none if another carry is more than a sum, or a counter: the loop stays then."""
        found, moving = list[Carried](), list[Var]()
        for k, (var, nxt) in enumerate(zip(self.loop.body_carry, self.loop.next_carry, strict=True)):
            one = self._register(k) or self._outlet(k) or self._sum(k)
            if one is not None:
                found.append(one)
            elif not (nxt is var or var in self.facts or self._is_total(var, nxt)):
                return []
            if one is None or not isinstance(one, Register):
                moving.append(var)
        late = depends_on(self.body, [v for v in moving if v not in self.facts])
        return [] if any(not isinstance(one, Register) and one.added in late for one in found) else found

    def _is_total(self, var: Var, nxt: Atom) -> bool:
        """Whether a carry is only added to."""
        maker = self.maker(nxt)
        if maker is None or maker.primitive.name not in ("add", "add_any") or len(self.readers.get(var, ())) != 1:
            return False
        return sum(x is var for x in maker.invars) == 1

    def _laid_out(self, dim: int) -> LaidOut:
        return LaidOut(dim, self.maker, self.constant, self._is_zeros)

    def _register(self, k: int) -> Register | None:
        var, nxt = self.loop.body_carry[k], self.loop.next_carry[k]
        for dim, size in enumerate(shape_of(var)):
            parts = self._laid_out(dim).of(nxt) if size > 1 else ()
            if len(parts) != 2:
                continue
            kept = [at for at, one in enumerate(parts) if one.source is var]
            if len(kept) != 1:
                continue
            old, new = parts[kept[0]], parts[1 - kept[0]]
            in_front = kept[0] == 1
            x = self._input(new, dim, shape_of(var))
            if x is not None and old.start == (0 if in_front else new.size):
                return Register(k, dim, new.size, x, in_front)
        return None

    def _input(self, new: Stretch, dim: int, shape: tuple[int, ...]) -> int | None:
        """Which input of the loop a stretch is, whole and in its order."""
        source = new.source
        if (
            source is None
            or not is_var(source)
            or new.start
            or source.aval.size * shape[dim] != math.prod(shape) * new.size
        ):
            return None
        wanted = [n for n in (*shape[:dim], new.size, *shape[dim + 1 :]) if n != 1]
        while is_var(source) and source not in self.loop.body_xs:
            maker = self.maker(source)
            if maker is None or maker.primitive.name not in SHAPED or maker.invars[0].aval.size != source.aval.size:
                return None
            if maker.primitive.name == "broadcast_in_dim" and _is_turned(maker):
                return None
            source = maker.invars[0]
        if not is_var(source) or [n for n in shape_of(source) if n != 1] != wanted:
            return None
        where = self.loop.body_xs.index(source)
        return where if is_var(self.loop.xs[where]) else None

    def _outlet(self, k: int) -> Outlet | None:
        var, nxt = self.loop.body_carry[k], self.loop.next_carry[k]
        readers = self.readers.get(var, [])
        total = self.body.eqns[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
        if total is None or total.primitive.name not in ("add", "add_any") or total.invars[0] is total.invars[1]:
            return None
        (added,), u = (x for x in total.invars if x is not var), total.outvars[0]
        if not is_var(added):
            return None
        for dim, size in enumerate(shape_of(var)):
            laid = self._laid_out(dim)
            parts = laid.of(nxt) if size > 1 else ()
            if len(parts) != 2 or {one.source for one in parts} != {u, None}:
                continue
            at_front = parts[0].source is u
            kept, zeros = parts if at_front else parts[::-1]
            if kept.start != (zeros.size if at_front else 0):
                continue
            found = self._moved_out(u, laid, Stretch(u, 0 if at_front else kept.size, zeros.size), nxt)
            out = None if found is None else self._outputs(found)
            if out is not None:
                return Outlet(k, dim, zeros.size, added, u, at_front, out)
        return None

    def _moved_out(self, u: Var, laid: LaidOut, end: Stretch, nxt: Atom) -> tuple[Var, ...] | None:
        """The values that are `end`, if nothing else is read of `u` but what the next carry is made of."""
        found, waiting, seen = list[Var](), [u], {u}
        while waiting:
            value = waiting.pop()
            for place in self.readers.get(value, ()):
                if place < 0 and value is nxt and sum(x is nxt for x in self.body.outvars) == 1:
                    continue
                out = None if place < 0 else self.body.eqns[place].outvars[0]
                if out is None or (len(shape_of(out)) != len(shape_of(u)) and not self._picks(place, laid.dim, end)):
                    return None
                if out in seen:
                    continue
                seen.add(out)
                if len(shape_of(out)) != len(shape_of(u)) or laid.of(out) == (end,):
                    found.append(out)
                elif {one.source for one in laid.of(out)} <= {u, None}:
                    waiting.append(out)
                else:
                    return None
        return tuple(found)

    def _outputs(self, found: tuple[Var, ...]) -> tuple[Var, ...] | None:
        """These values as outputs of the steps, in whatever shape; None where a step computes with one."""
        waiting, outputs = list(found), list[Var]()
        while waiting:
            value = waiting.pop()
            for place in self.readers.get(value, ()):
                if place < 0 and not any(x is value for x in self.loop.next_carry):
                    outputs.append(value)
                elif place >= 0 and _only_shapes(self.body.eqns[place]):
                    waiting.append(self.body.eqns[place].outvars[0])
                else:
                    return None
        return tuple(outputs)

    def _picks(self, place: int, dim: int, end: Stretch) -> bool:
        """Whether a gather reads the one place `end`."""
        eqn = self.body.eqns[place]
        if eqn.primitive.name != "gather" or eqn.invars[0] is not end.source or end.size != 1:
            return False
        shape, p = shape_of(eqn.invars[0]), eqn.params["dimension_numbers"]
        if p.operand_batching_dims or tuple(p.start_index_map) != (dim,) or shape_of(eqn.invars[1]) != (1,):
            return False
        sizes = tuple(1 if d == dim else n for d, n in enumerate(shape))
        return tuple(eqn.params["slice_sizes"]) == sizes and self.constant(eqn.invars[1]) == end.start

    def _sum(self, k: int) -> Sum | None:
        var, total = self.loop.body_carry[k], self.maker(self.loop.next_carry[k])
        if total is None:
            return None
        added = self._added(var, total) if total.primitive.name in ("add", "add_any") else self._added_there(var, total)
        update, starts = added or (None, [])
        if update is None or not is_var(update):
            return None
        shape, size = shape_of(var), shape_of(update)
        moving = [d for d, at in enumerate(starts) if self.constant(at) != 0]
        if len(moving) != 1 or any(n != shape[d] for d, n in enumerate(size) if d != moving[0]):
            return None
        place = fact_of(starts[moving[0]], self.facts)
        if place is None or place.scale == 0 or size[moving[0]] < 2:
            return None
        low, high = place.bounds(self.loop.length)
        inside = low >= 0 and high + size[moving[0]] <= shape[moving[0]]
        return Sum(k, moving[0], place, update) if inside else None

    def _added(self, var: Var, total: JaxprEqn) -> tuple[Atom, list[Atom]] | None:
        """What is written into zeros that are added to the carry, and where."""
        others = [x for x in total.invars if x is not var]
        write = self.maker(others[0]) if len(others) == 1 and len(self.readers[var]) == 1 else None
        if write is None or write.primitive.name != "dynamic_update_slice" or not self._is_zeros(write.invars[0]):
            return None
        return write.invars[1], write.invars[2:]

    def _added_there(self, var: Var, total: JaxprEqn) -> tuple[Atom, list[Atom]] | None:
        """What is added to a part of the carry that is read, and written back; and where that is."""
        if total.primitive.name != "dynamic_update_slice" or total.invars[0] is not var or len(self.readers[var]) != 2:
            return None
        adds = self.maker(total.invars[1])
        if adds is None or adds.primitive.name not in ("add", "add_any") or adds.invars[0] is adds.invars[1]:
            return None
        for part, other in (adds.invars, adds.invars[::-1]):
            read = self.maker(part)
            if read is None or not is_var(part) or read.primitive.name != "dynamic_slice":
                continue
            same = read.invars[0] is var and read.invars[1:] == total.invars[2:]
            if same and len(self.readers[part]) == 1:
                return other, total.invars[2:]
        return None

    def _is_zeros(self, x: Atom) -> bool:
        """Whether a value is zero everywhere, made in a step or before the loop, in however many pieces."""
        while not isinstance(x, Literal):
            x = self.outside.get(x, x)
            maker = self.maker(x) or self.level.maker(x)
            if maker is None or maker.primitive.name not in SHAPED:
                return False
            x = maker.invars[0]
        return is_zero_number(x)


def _only_shapes(eqn: JaxprEqn) -> bool:
    """Whether an equation gives its operand another shape: JAX sums over a dimension of length one to drop it."""
    same = eqn.invars[0].aval.size == eqn.outvars[0].aval.size if eqn.outvars and eqn.invars else False
    return same and eqn.primitive.name in ("reshape", "squeeze", "expand_dims", "reduce_sum")


def _is_turned(eqn: JaxprEqn) -> bool:
    to = list(eqn.params["broadcast_dimensions"])
    return to != sorted(to)
