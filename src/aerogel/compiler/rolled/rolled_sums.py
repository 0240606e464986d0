"""Sums of steps that each add at a place of its own: the derivative of slices.

JAX adds arrays that are zero but for a slice, one for each slice that was read. As the carry of a loop such a sum
would be gone over in every step; what is added, stacked by the steps, is put in its places at once.
"""

from collections.abc import Callable, Sequence

from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..program import Builder, is_var, producers, users
from ..record import record
from ..zeros import is_zero
from .rolled_steps import ADDS, Carried, Inner, Place, Steps
from .strips import Strip, strip_of

# Windows that lie over each other are so many arrays to add; where there are more, each step adds its own to the sum.
MOST_LAYERS = 4
Read = tuple[type[Inner] | type[Carried], Place]


@record
class Sum:
    """A carry to which steps add windows.

    Attributes:
        carry: what is carried.
        init: what it is before; None for zeros.
        pads: the equations of a step that put windows among zeros, once for each time one is added.
        adds: the equations that add them.
        strips: where the windows of all steps lie, for each of `pads`.
        falls: whether each step's window lies before that of the last one.
    """

    carry: Place
    init: Atom | None
    pads: tuple[int, ...]
    adds: tuple[int, ...]
    strips: tuple[Strip, ...]
    falls: bool

    @property
    def is_carried(self) -> bool:
        """Whether steps add to the array: too many windows lie over each other."""
        return max(strip.layers for strip in self.strips) > MOST_LAYERS


def sums(steps: Steps, is_read: Callable[[Var], bool]) -> list[Sum]:
    """Those carries; `is_read` says whether a value is read by anything but the steps."""
    readers: dict[Read, list[int]] = {}
    for e, operands in enumerate(steps.operands):
        for x in operands:
            if isinstance(x, (Inner, Carried)):
                readers.setdefault((type(x), x.place), []).append(e)
    found = (_sum(steps, place, readers, is_read) for place in steps.carries)
    return [one for one in found if one is not None]


def _sum(steps: Steps, carry: Place, readers: dict[Read, list[int]], is_read: Callable[[Var], bool]) -> Sum | None:
    pads, adds = list[int](), list[int]()
    now: Read = Carried, carry
    while now != (Inner, carry):
        read = readers.get(now, [])
        if len(read) != 1 or steps.steps[0][read[0]].primitive.name not in ADDS:
            return None
        (e,) = read
        (other,) = [x for x in steps.operands[e] if not isinstance(x, now[0]) or x.place != now[1]]
        if not isinstance(other, Inner) or not _is_padded(steps, other.place[0]):
            return None
        pads.append(other.place[0])
        adds.append(e)
        now = Inner, (e, 0)
    last = len(steps.steps) - 1
    values = ((r, e) for r in range(last + 1) for e in (*pads, *adds) if (r, e) != (last, adds[-1]))
    if now in readers or any(is_read(steps.steps[r][e].outvars[0]) for r, e in values):
        return None
    if any(set(readers[Inner, (e, 0)]) - set(adds) for e in pads):
        return None
    windows = [steps.steps[0][e].invars[0].aval.shape for e in pads]
    strips = [strip_of(*steps.moving[e], sizes, last + 1) for e, sizes in zip(pads, windows, strict=True)]
    falls = {min(steps.moving[e][1]) < 0 for e in pads}
    found = tuple(strip for strip in strips if strip is not None)
    if len(falls) != 1 or len(found) < len(strips):
        return None
    init = steps.carries[carry]
    return Sum(carry, None if steps.is_zeros(init) else init, tuple(pads), tuple(adds), found, falls.pop())


def _is_padded(steps: Steps, e: int) -> bool:
    eqn = steps.steps[0][e]
    return e in steps.moving and is_padding(eqn) and steps.operands[e][1] is eqn.invars[1]


def is_padding(eqn: JaxprEqn | None) -> bool:
    """Whether an equation puts an array among zeros."""
    if eqn is None or eqn.primitive.name != "pad" or is_var(eqn.invars[1]) or not is_zero(eqn.invars[1], set()):
        return False
    return all(low >= 0 and high >= 0 and not inner for low, high, inner in eqn.params["padding_config"])


def begun(jaxpr: Jaxpr) -> tuple[Sequence[JaxprEqn], dict[Var, Atom]]:
    """The equations with sums of like terms begun at zeros, so that all terms are added alike.

    And what stands for the results that were added to zeros.
    """
    found = _Begun(jaxpr)
    for k, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name in ADDS:
            found.begin(k, eqn)
        elif eqn.primitive.name == "mul":
            found.begin_doubled(k, eqn)
    return found.equations(), found.same


class _Begun:
    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self.makers, self.readers = producers(jaxpr), users(jaxpr)
        self.same: dict[Var, Atom] = {}
        self._zeros: dict[tuple[object, ...], Atom] = {}
        self._before: list[JaxprEqn] = []
        self._changed: dict[int, JaxprEqn] = {}
        self._behind: dict[int, JaxprEqn] = {}

    def begin(self, k: int, eqn: JaxprEqn) -> None:
        """Adds the earlier one of two like terms to zeros, if the sum goes on."""
        makers = [self._maker(x) for x in eqn.invars]
        after = self._next(eqn.outvars[0])
        if after is None or after.primitive is not eqn.primitive or eqn.invars[0] is eqn.invars[1]:
            return
        if makers[0] is None or makers[1] is None or makers[0].primitive is not makers[1].primitive:
            return
        first, second = sorted(eqn.invars, key=lambda x: self.makers[x] if is_var(x) else 0)
        if is_var(first) and self.readers[first] == [k]:
            seat = _seat(eqn.outvars[0], after)
            self._changed[k] = eqn.replace(invars=_pair(seat, self._added(first, after, seat), second))

    def begin_doubled(self, k: int, eqn: JaxprEqn) -> None:
        """The same of a window that is added twice."""
        (x, two), after = eqn.invars, self._next(eqn.outvars[0])
        if after is None or after.primitive.name != "add_any" or is_var(two) or two.aval.shape or two.val != 2:
            return
        if is_var(x) and is_padding(self._maker(x)) and self.readers[x] == [k]:
            seat = _seat(eqn.outvars[0], after)
            pair = _pair(seat, self._added(x, after, seat), x)
            self._changed[k] = after.replace(invars=pair, outvars=eqn.outvars)

    def equations(self) -> Sequence[JaxprEqn]:
        """All of them."""
        if not self._behind:
            return self.jaxpr.eqns
        eqns = list(self._before)
        for k, eqn in enumerate(self.jaxpr.eqns):
            eqns.append(self._changed.get(k, eqn))
            if k in self._behind:
                eqns.append(self._behind[k])
        return eqns

    def _maker(self, x: Atom) -> JaxprEqn | None:
        place = self.makers.get(x) if is_var(x) else None
        return None if place is None else self.jaxpr.eqns[place]

    def _next(self, x: Var) -> JaxprEqn | None:
        """What alone reads a value, once, and adds something to it."""
        readers = self.readers.get(x, [])
        eqn = self.jaxpr.eqns[readers[0]] if len(readers) == 1 and readers[0] >= 0 else None
        return eqn if eqn is not None and eqn.primitive.name in ADDS and eqn.invars[0] is not eqn.invars[1] else None

    def _added(self, x: Var, like: JaxprEqn, seat: int) -> Var:
        """`x`, added to zeros where it is made."""
        key = x.aval.shape, x.aval.dtype
        if key not in self._zeros:
            builder = Builder(like)
            (zeros,) = builder.call(lambda: lax.full(x.aval.shape, 0, x.aval.dtype))
            self._zeros[key] = zeros
            self._before += builder.eqns
        out = _jax.new_var(like.outvars[0].aval)
        self._behind[self.makers[x]] = like.replace(invars=_pair(seat, self._zeros[key], x), outvars=[out])
        self.same[out] = x
        return out


def _seat(x: Var, reader: JaxprEqn) -> int:
    """Which operand of its reader a value is."""
    return next(k for k, y in enumerate(reader.invars) if y is x)


def _pair(seat: int, first: Atom, second: Atom) -> list[Atom]:
    return [second, first] if seat else [first, second]
