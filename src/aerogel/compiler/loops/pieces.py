"""A loop whose steps read pieces of their inputs, `i, f, o, u = split(x + z, 4)`, reads each piece by itself.

The entry of a step is a slice of all steps at a place that is known when the loop runs. XLA's CPU backend (jaxlib
0.10.2) fuses a piece of it into the arithmetic that reads it, and then computes that arithmetic number by number: two
to five times slower than on vectors. One slice from the whole is as fast as an array of its own, and copies nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..axes.rebind import bind
from ..loop import Loop, LoopBuilder, named
from ..program import copy_equation, is_var, producers, substitute, users
from ..record import record

# Fewer numbers in a step are no vectors; fewer steps are no loop.
SMALLEST_ENTRY = 16
FEWEST_STEPS = 4
SHAPING = ("broadcast_in_dim", "expand_dims", "reshape", "squeeze")
# A result of these is the same piece of its operands.
ENTRYWISE = frozenset(ELEMENTWISE) - {"threefry2x32"}

Box = tuple[tuple[int, int], ...]  # for each dimension where a piece begins and ends


@record
class Pieces:
    """Inputs of a step that only pieces are read of, and what is computed of them before they are cut.

    Attributes:
        inputs: variables of the body.
        whole: these, and what equations make of them entry by entry: nothing reads it but such equations and slices.
        slices: the slices, by their place in the body.
    """

    inputs: frozenset[Var]
    whole: frozenset[Var]
    slices: frozenset[int]


def find_pieces(loop: Loop) -> Pieces | None:
    """The inputs of a loop that its steps only read pieces of; None when there are none."""
    if loop.length < FEWEST_STEPS:
        return None
    eqns, readers = loop.body.eqns, users(loop.body)
    cut: set[Var] = set()  # what is read in pieces only
    for v in [*(v for eqn in reversed(eqns) for v in eqn.outvars), *loop.body_xs]:
        places = readers.get(v, [])
        if places and all(k >= 0 and (_is_piece(eqns[k]) or _keeps_pieces(eqns[k], cut)) for k in places):
            cut.add(v)
    inputs = frozenset(x for x in loop.body_xs if x in cut and x.aval.size >= SMALLEST_ENTRY)
    whole = set(inputs)
    for eqn in eqns:
        if _keeps_pieces(eqn, cut) and any(is_var(x) and x in whole for x in eqn.invars):
            whole.update(eqn.outvars)
    slices = frozenset(k for k, eqn in enumerate(eqns) if _is_piece(eqn) and eqn.invars[0] in whole)
    if any(_is_joined_again(eqns, readers.get(eqns[k].outvars[0], [])) for k in slices):
        return None
    boxes: dict[Var, set[Box]] = {}
    for k in slices:
        (v,) = eqns[k].invars
        assert is_var(v)
        boxes.setdefault(v, set()).add(_box(eqns[k]))
    # Pieces that overlap would be computed twice.
    if any(sum(_size(box) for box in found) > v.aval.size for v, found in boxes.items()):
        return None
    if _repeats(eqns, {*whole, *(eqns[k].outvars[0] for k in slices)}):
        return None
    return Pieces(inputs, frozenset(whole), slices) if slices else None


def _is_joined_again(eqns: Sequence[JaxprEqn], places: Sequence[int]) -> bool:
    """Whether a piece is only moved: rolls of an input that are read piece by piece took 1.08 of their time."""
    return bool(places) and all(k >= 0 and eqns[k].primitive.name in ("concatenate", "pad") for k in places)


def _repeats(eqns: Sequence[JaxprEqn], values: set[Var]) -> bool:
    """Whether something larger is made of one of `values`, or of what it is in another shape, entry by entry.

    XLA would look for a piece's place anew for each number: 1.2 of the time of pulling 300 rows through `jnp.roll`.
    """
    for eqn in eqns:
        shapes = eqn.primitive.name in SHAPING
        read = [x for x in eqn.invars if is_var(x) and x in values]
        if read and (shapes or eqn.primitive.name in ENTRYWISE):
            if any(x.aval.size < eqn.outvars[0].aval.size for x in read):
                return True
            if shapes:
                values.add(eqn.outvars[0])
    return False


def _is_piece(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "slice" and not any(s != 1 for s in eqn.params["strides"] or ())


def _keeps_pieces(eqn: JaxprEqn, cut: set[Var]) -> bool:
    """Whether an equation can be computed piece by piece, and is wanted in pieces only."""
    name = eqn.primitive.name
    return (name in ENTRYWISE or name in ("squeeze", "broadcast_in_dim")) and eqn.outvars[0] in cut


def _box(eqn: JaxprEqn) -> Box:
    return tuple(zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True))


def _shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _size(box: Box) -> int:
    size = 1
    for n in _shape(box):
        size *= n
    return size


def read_pieces(loop: Loop, pieces: Pieces) -> list[JaxprEqn]:
    """The equations of the loop that reads `pieces` one by one."""
    return _Cut(loop, pieces).run()


@dataclass
class _Cut:
    loop: Loop
    pieces: Pieces
    env: dict[Var, Atom] = field(default_factory=dict)
    made: dict[tuple[Var, Box], Atom] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loop = self.loop
        self.new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
        self.makers = producers(loop.body)
        self.stacks = {
            v: x for v, x in zip(loop.body_xs, loop.xs, strict=True) if v in self.pieces.inputs and is_var(x)
        }
        self.env.update({v: self.new.const(c) for v, c in zip(loop.body_consts, loop.consts, strict=True)})
        for v, x in zip(loop.body_xs, loop.xs, strict=True):
            if v not in self.stacks:
                self.env[v] = self.new.x(x) if is_var(x) else x

    def run(self) -> list[JaxprEqn]:
        loop, new = self.loop, self.new
        setters = []
        for init, var, final in zip(loop.init, loop.body_carry, loop.finals, strict=True):
            self.env[var], set_next = new.keep_carry(init, named(final))
            setters.append(set_next)
        for k, eqn in enumerate(loop.body.eqns):
            if k in self.pieces.slices:
                self.env[eqn.outvars[0]] = self._piece(eqn.invars[0], _box(eqn))
            elif not any(v in self.pieces.whole for v in eqn.outvars):
                new.body.eqns.append(copy_equation(eqn, self.env))
        for set_next, x in zip(setters, loop.next_carry, strict=True):
            set_next(substitute(x, self.env))
        for y, v in zip(loop.ys, loop.body_ys, strict=True):
            new.y(substitute(v, self.env), named(y))
        return new.equations()

    def _piece(self, x: Atom, box: Box) -> Atom:
        """The entries of `x` in `box`."""
        if not is_var(x):
            return x
        if (x, box) not in self.made:
            self.made[x, box] = self._make(x, box)
        return self.made[x, box]

    def _make(self, x: Var, box: Box) -> Atom:
        body = self.new.body
        if x in self.stacks:
            body.like = self.loop.eqn
            stack = self.stacks[x]
            operands = self.new.const(stack), self.new.index(), self.new.x(stack)
            (out,) = body.call(lambda all_, t, entry: _read(all_, t, entry, box), *operands)
            return out
        if x not in self.pieces.whole:
            if box == tuple((0, n) for n in x.aval.shape):
                return substitute(x, self.env)
            starts, stops = zip(*box, strict=True)
            (out,) = body.call(lambda v: lax.slice(v, starts, stops), substitute(x, self.env))
            return out
        eqn = self.loop.body.eqns[self.makers[x]]
        ins = [self._piece(a, inner) for a, inner in zip(eqn.invars, _boxes_of_operands(eqn, box), strict=True)]
        body.like = eqn
        (out,) = body.call(lambda *values: _again(eqn, box, values), *ins)
        return out


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _read(all_: Any, t: Any, entry: Any, box: Box) -> Any:
    """A piece of one step's entry, in one slice from all.

    Its derivative is that of a piece of the entry (`jax.grad(jax.jit(ag.optimize(f)))` asks for it): that of a slice
    from all would add an array of all steps in each step.
    """
    starts = (t, *(np.int32(start) for start, _ in box))
    piece = lax.dynamic_slice(all_, starts, (1, *_shape(box)), allow_negative_indices=False)
    return lax.squeeze(piece, [0])


@_read.defjvp
def _read_jvp(box: Box, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _read(*primals, box), lax.slice(tangents[2], *zip(*box, strict=True))


def _boxes_of_operands(eqn: JaxprEqn, box: Box) -> list[Box]:
    """What of each operand makes the piece `box` of the result."""
    if eqn.primitive.name == "squeeze":
        wide = list(box)
        for d in sorted(eqn.params["dimensions"]):
            wide.insert(d, (0, 1))
        return [tuple(wide)]
    if eqn.primitive.name == "broadcast_in_dim":
        into = eqn.params["broadcast_dimensions"]
        return [tuple((0, 1) if n == 1 else box[d] for n, d in zip(eqn.invars[0].aval.shape, into, strict=True))]
    return [tuple((0, 1) if n == 1 else at for n, at in zip(x.aval.shape, box, strict=False)) for x in eqn.invars]


def _again(eqn: JaxprEqn, box: Box, values: Sequence[Any]) -> Any:
    """The equation on pieces of its operands."""
    if eqn.primitive.name == "squeeze":
        return lax.squeeze(values[0], eqn.params["dimensions"])
    if eqn.primitive.name == "broadcast_in_dim":
        return lax.broadcast_in_dim(values[0], _shape(box), eqn.params["broadcast_dimensions"])
    return bind(eqn, values, eqn.params)
