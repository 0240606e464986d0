"""Who reads an argument, and in what order to what takes its place.

XLA lets the new value of a donated argument, or of a loop's carry, take the memory of the old one if it knows that
whoever reads the old one does so first. It knows that where the new one is computed from what the reader makes. The
weights of a layer are read by the product that carries the gradient on to the layer before, from which their own new
value is not computed: so XLA copies them at every step of a training. See docs/explanation/late-writes.md.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, ShapedArray, Var

from ..axes.elementwise import NAMES
from ..cost import nbytes
from ..fusion.site_seconds import UNFUSED
from ..level import Level
from ..orders.orders import REDUCTIONS
from ..program import Builder, Cyclic, is_var, rename, schedule, with_equations
from ..record import record

LEAST_BYTES = 1 << 14  # of an argument: less is copied in the time that a kernel takes to start
LEAST_WEIGHTS = 1 << 17  # the same, of a carry
MOST_READERS = 64  # that are looked at around one argument
MOST_ON_THE_WAY = 16  # from a reader to a sum of what it makes
VIEWS = frozenset("transpose reshape squeeze expand_dims broadcast_in_dim slice rev".split())
PRODUCTS = ("dot_general", "conv_general_dilated")
BARRIER = "optimization_barrier"  # is gone when XLA looks at who is overwritten
FUSED = frozenset(NAMES) | VIEWS  # XLA may make these again wherever their result is read; and operations of our own
# These have a kernel of their own, whoever reads what they make. For sums alone nothing is put in order: XLA joins them
# with what reads them, and a sum that is waited for is a pass over memory of its own.
APART = UNFUSED | {"one_kernel", "select_and_scatter_add", "reduce_window", "reduce_window_max", "reduce_window_sum"}


@record
class LateWrite:
    """An argument that is to be overwritten behind its last reader.

    Attributes:
        writers: places of the equations with which the computation of the new value begins to read it.
        readers: places of those that read it, and that XLA does not see to come before, or of what is made of them.
    """

    argument: Var
    writers: tuple[int, ...]
    readers: tuple[int, ...]


def late_writes(level: Level, pairs: Sequence[tuple[Var, Atom]], *, in_loop: bool = False) -> list[LateWrite]:
    """Those among pairs of an argument and the result that may take its memory; in a loop those of weights alone."""
    around = [_Around(level, old, new) for old, new in pairs if _may_be_one(old, new)]
    marked = sorted({place for one in around for place in (*one.heads, *one.ends)})
    behind = _Behind(level, marked) if marked else None
    found = (one.late_write(behind) for one in around if behind is not None and one.ends)
    return [one for one in found if one is not None and (not in_loop or _is_weights(level, one))]


def _is_weights(level: Level, one: LateWrite) -> bool:
    """Whether products alone read a large carry. Of others a copy costs less than order: 0.8 to 1.1 of the time."""
    large = nbytes(one.argument.aval) >= LEAST_WEIGHTS
    return large and all(level.eqns[k].primitive.name in PRODUCTS for k in one.readers)


def updates(level: Level) -> list[tuple[Var, Atom]]:
    """Pairs of an argument of a program and a result of its type that is made of it entry by entry."""
    free = dict.fromkeys(x for x in level.jaxpr.invars if _is_large(x))
    found: list[tuple[Var, Atom]] = []
    for new in level.jaxpr.outvars if free else ():
        if not is_var(new) or new not in level.made_by or not _is_large(new):
            continue
        read = (passed(level, x) for k in entrywise(level, new) for x in level.eqns[k].invars if is_var(x))
        old = next((x for x in read if x in free and _may_be_one(x, new)), None)
        if old is not None:
            del free[old]
            found.append((old, new))
    return found


def entrywise(level: Level, new: Var) -> list[int]:
    """Places of what makes a value entry by entry, the last first: into what it reads there XLA may write it."""
    found: dict[int, None] = {}
    waiting = deque([new])
    while waiting and len(found) < MOST_READERS:
        x = waiting.popleft()
        eqn = level.maker(x)
        if eqn is None or level.made_by[x] in found:
            continue
        if eqn.primitive.name == BARRIER:
            operands: Sequence[Atom] = [eqn.invars[eqn.outvars.index(x)]]
        elif eqn.primitive.name in NAMES:
            operands = eqn.invars
            found[level.made_by[x]] = None
        else:
            continue
        waiting += [y for y in operands if is_var(y) and y.aval.shape == new.aval.shape]
    return list(found)


def ordered(level: Level, chosen: Sequence[LateWrite]) -> tuple[Jaxpr, Sequence[LateWrite]]:
    """The level with these in order, and which: fewer, where all together would wait for each other."""
    while chosen:
        try:
            return with_equations(level.jaxpr, schedule(_waiting(level, chosen))), chosen
        except Cyclic:
            assert len(chosen) > 1, "what waits for a reader is not read by it"
            chosen = chosen[: len(chosen) // 2]
    return level.jaxpr, chosen


def _waiting(level: Level, chosen: Sequence[LateWrite]) -> list[JaxprEqn]:
    at: dict[int, list[LateWrite]] = {}
    for one in chosen:
        for place in one.writers:
            at.setdefault(place, []).append(one)
    eqns: list[JaxprEqn] = []
    for place, eqn in enumerate(level.eqns):
        if place not in at:
            eqns.append(eqn)
            continue
        builder, env = Builder(eqn), dict[Var, Atom]()
        for one in at[place]:
            made = [level.eqns[k].outvars[0] for k in one.readers]
            for x in dict.fromkeys(x for x in eqn.invars if is_var(x) and passed(level, x) is one.argument):
                (env[x],) = builder.call(behind_all, x, *made)
        eqns += [*builder.eqns, rename(eqn, env)]
    return eqns


def behind_all(x: Array, *made: Array) -> Array:
    """`x`, computed from an entry of each of `made`: what is subtracted is zero, which XLA does not find out.

    It is no barrier, since XLA's CPU backend drops those before it decides who is overwritten. `x` keeps its
    derivative, and bits have none. As -0.0 - 0.0 is -0.0, no number changes.
    """
    for one in made:
        first = lax.slice(one, (0,) * one.ndim, (1,) * one.ndim)
        bits = lax.bitcast_convert_type(lax.reshape(first, ()), jnp.dtype(f"uint{8 * one.dtype.itemsize}"))
        zero = lax.shift_right_logical(bits, lax.full((), 8 * one.dtype.itemsize, bits.dtype))
        x = x - lax.convert_element_type(zero, x.dtype)
    return x


def passed(level: Level, x: Atom) -> Any:
    """What a value is in front of barriers."""
    while is_var(x):
        eqn = level.maker(x)
        if eqn is None or eqn.primitive.name != BARRIER:
            break
        x = eqn.invars[eqn.outvars.index(x)]
    return x


def place_of(level: Level, x: Atom) -> int:
    """Of the equation that makes a value; -1 where there is none."""
    found = passed(level, x)
    return level.made_by.get(found, -1) if is_var(found) else -1


def names_of(level: Level, x: Var) -> list[Var]:
    """A value, and what it is called behind barriers."""
    found = [x]
    for one in found:
        for k in level.readers(one):
            if k >= 0 and level.eqns[k].primitive.name == BARRIER:
                found += _made_of(level.eqns[k], one)
    return found


def _made_of(eqn: JaxprEqn, x: Var) -> list[Var]:
    if eqn.primitive.name != BARRIER:
        return list(eqn.outvars)
    return [out for out, y in zip(eqn.outvars, eqn.invars, strict=True) if y is x]


def _may_be_one(old: Var, new: Atom) -> bool:
    alike = old.aval.shape == new.aval.shape and old.aval.dtype == new.aval.dtype
    return is_var(new) and new is not old and alike and _is_large(old)


def _is_large(x: Var) -> bool:
    aval = x.aval
    is_array = isinstance(aval, ShapedArray) and aval.shape and jnp.issubdtype(aval.dtype, jnp.number)
    return bool(is_array) and nbytes(aval) >= LEAST_BYTES


class _Around:
    """What reads an argument.

    Attributes:
        heads: places of its readers on ways, of equations that work entry by entry, to its new value.
        ends: places of the first equations on all ways that XLA makes once, and in a kernel of their own.
    """

    def __init__(self, level: Level, old: Var, new: Atom):
        self.level, self.old = level, old
        self.maker = place_of(level, new)
        places = set(entrywise(level, new)) if is_var(new) else set[int]()
        self.heads = tuple(k for x in names_of(level, old) for k in level.readers(x) if k in places)
        self.ends = self._ends() if self.heads else ()

    def _ends(self) -> tuple[int, ...]:
        found, seen, waiting = set[int](), {self.old}, [self.old]
        while waiting:
            if len(seen) > MOST_READERS:
                return ()
            x = waiting.pop()
            for place in self.level.readers(x):
                eqn = self.level.eqns[place] if place >= 0 else None
                if eqn is None:
                    continue
                if not _is_fused(eqn) and eqn.primitive.name != BARRIER:
                    found.add(place)
                    continue
                new = [v for v in _made_of(eqn, x) if v not in seen]
                seen.update(new)
                waiting += new
        return tuple(sorted(found))

    def late_write(self, behind: "_Behind") -> LateWrite | None:
        """What is to be put in order; None where everything is."""
        heads = tuple(k for k in self.heads if behind(self.maker, k))
        late = [k for k in self.ends if not behind(self.maker, k) and not any(behind(k, head) for head in heads)]
        if not any(self.level.eqns[k].primitive.name in APART for k in late):
            return None
        readers = tuple(self._witness(k, behind, heads) for k in late if _can_be_waited_for(self.level.eqns[k]))
        return LateWrite(self.old, heads, readers) if heads and readers else None

    def _witness(self, place: int, behind: "_Behind", heads: Sequence[int]) -> int:
        """Of a reader, or of a sum of what it makes: to wait for that keeps no large array."""
        waiting = list(self.level.eqns[place].outvars)
        for x in waiting:
            for k in self.level.readers(x) if len(waiting) <= MOST_ON_THE_WAY else ():
                eqn = self.level.eqns[k] if k >= 0 else None
                if eqn is None or any(behind(k, head) for head in heads):
                    continue
                if eqn.primitive.name in REDUCTIONS and _can_be_waited_for(eqn):
                    return k
                waiting += eqn.outvars if _is_fused(eqn) else ()
        return place


def _is_fused(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in FUSED or eqn.primitive.name in _jax.OURS


def _can_be_waited_for(eqn: JaxprEqn) -> bool:
    """Whether an entry of an equation's first result can stand for all that it does."""
    return not eqn.effects and bool(eqn.outvars) and stands_for_all(eqn.outvars[0].aval)


def stands_for_all(aval: Any) -> bool:
    """Whether a value has an entry, whose bits fill a word."""
    if not getattr(aval, "size", 0):
        return False
    for kind, about in ((jnp.floating, jnp.finfo), (jnp.integer, jnp.iinfo)):
        if jnp.issubdtype(aval.dtype, kind):
            return about(aval.dtype).bits == 8 * aval.dtype.itemsize  # numbers of 4 bits have no words of their own
    return False


class _Behind:
    """Whether an equation is computed from a marked one, or is that one."""

    def __init__(self, level: Level, marked: Sequence[int]):
        self._bits = {place: 1 << k for k, place in enumerate(marked)}
        self._found: list[int] = []
        for place, eqn in enumerate(level.eqns):
            bits = self._bits.get(place, 0)
            for x in () if eqn.primitive.name == BARRIER else eqn.invars:
                made = place_of(level, x)
                bits |= self._found[made] if made >= 0 else 0
            self._found.append(bits)

    def __call__(self, place: int, marked: int) -> bool:
        return bool(self._found[place] & self._bits[marked])
