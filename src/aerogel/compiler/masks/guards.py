"""What of a level is wanted only where a selector takes one of its cases: a branch that a selection computes always.

`vmap` of a `cond` computes both branches and selects, and so does `jnp.where(flag, dear, cheap)`. Where no lane takes a
case, all that leads to that case alone need not be computed. In a gradient, nor need what comes back from it: there it
is zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..cost.primitives import CALLBACKS, COLLECTIVES
from ..fusion.once import FUSED
from ..level import Level
from ..program import is_var
from ..record import record
from ..zeros import is_zero, zeros_made

# Each lane may choose for itself; a mask of more entries than this takes each case somewhere.
MOST_LANES = 4096
_REPEATING = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "copy")
# A `cond` is a branch already, of this pass or of the user.
_NEVER = CALLBACKS | COLLECTIVES | frozenset("cond shard_map pallas_call optimization_barrier".split())


@record
class Case:
    """One case of a selector: where `selector` is `value`."""

    selector: Var
    value: int


@dataclass
class Selections:
    """The selections of a level that take a case, as pairs of a place and the input that is taken."""

    chosen: list[tuple[int, int]] = field(default_factory=list)

    def takes(self, place: int, eqn: JaxprEqn, var: Var) -> bool:
        """Whether an equation reads a value as what is taken in this case, and not otherwise."""
        inputs = [k for k, x in enumerate(eqn.invars) if x is var]
        return all((place, k) in self.chosen for k in inputs)


class Guarded(Level):
    """A level, and what of it waits for a case.

    `fixed` are variables that XLA computes once before the loop that the level is the body of.
    """

    fixed: frozenset[Var] = frozenset()

    @cached_property
    def cases(self) -> dict[Case, Selections]:
        """The cases of all selectors that few lanes share."""
        found: dict[Case, Selections] = {}
        for place, eqn in enumerate(self.eqns):
            if eqn.primitive.name == "select_n":
                for k in range(1, len(eqn.invars)):
                    case = self._case(eqn.invars[0], k - 1)
                    if case is not None and case.selector.aval.size <= MOST_LANES:
                        found.setdefault(case, Selections()).chosen.append((place, k))
        return {case: one for case, one in found.items() if self._is_choice(case, one)}

    def _case(self, which: Atom, value: int) -> Case | None:
        """The selector behind what a selection selects by, and its value there."""
        while is_var(which) and which in self.made_by:
            eqn = self.eqns[self.made_by[which]]
            name, first = eqn.primitive.name, eqn.invars[0] if eqn.invars else which
            boolean = first.aval.dtype == np.bool_
            if name in _REPEATING or (name == "convert_element_type" and boolean and value in (0, 1)):
                which = first
            elif name == "not" and boolean:
                which, value = first, 1 - value
            elif name in ("eq", "ne") and isinstance(eqn.invars[1], Literal) and not eqn.invars[1].aval.shape:
                if not _is_counted(first):
                    break
                wanted, number = value == (name == "eq"), int(eqn.invars[1].val)
                two = boolean or self._is_boolean(first)
                if not (wanted or (two and number in (0, 1))):
                    break
                which, value = first, number if wanted else 1 - number
            else:
                break
        return Case(which, value) if is_var(which) else None

    def _is_boolean(self, x: Atom) -> bool:
        """Whether an integer is a boolean that was converted, repeated or not."""
        while is_var(x) and x in self.made_by:
            eqn = self.eqns[self.made_by[x]]
            if eqn.primitive.name == "convert_element_type":
                return eqn.invars[0].aval.dtype == np.bool_
            if eqn.primitive.name not in _REPEATING:
                return False
            x = eqn.invars[0]
        return False

    def _is_choice(self, case: Case, selections: Selections) -> bool:
        """Whether a case may well be taken nowhere: one of many lanes chooses between values, a mask sets constants."""
        if case.selector.aval.size == 1:
            return True
        for place, k in selections.chosen:
            eqn = self.eqns[place]
            if eqn.outvars[0].aval.size > case.selector.aval.size and not any(
                self._is_constant(x) for j, x in enumerate(eqn.invars) if j not in (0, k)
            ):
                return True
        return False

    def _is_constant(self, x: Atom) -> bool:
        return not is_var(self._repeated(x))

    def _repeated(self, x: Atom) -> Atom:
        """What a value repeats, whatever its type."""
        names = (*_REPEATING, "convert_element_type")
        while is_var(x) and x in self.made_by and self.eqns[self.made_by[x]].primitive.name in names:
            x = self.eqns[self.made_by[x]].invars[0]
        return x

    def waiting(self, case: Case, zeros_count: bool) -> set[int]:
        """The equations whose results matter only where some lane takes a case.

        Args:
            case: one of `cases`.
            zeros_count: whether results that are zeros otherwise may be read elsewhere: 0 times anything is then 0.
        """
        selections = self.cases[case]
        zero = self._zeros(case, selections) if zeros_count else set[Var]()
        heap = [-self.made_by[x] for x in self._taken(selections) if x in self.made_by]
        heap += [-self.made_by[x] for x in zero]
        heapify(heap)
        found, seen = set[int](), self._makers_of(case.selector)
        while heap:
            place = -heappop(heap)
            if place in seen:
                continue
            seen.add(place)
            eqn = self.eqns[place]
            if self._may_wait(eqn) and all(self._waits(v, found, selections, zero) for v in eqn.outvars):
                found.add(place)
                for x in eqn.invars:
                    if is_var(x) and x in self.made_by:
                        heappush(heap, -self.made_by[x])
        return found

    def _makers_of(self, x: Var) -> set[int]:
        """The equations that a value needs."""
        found, stack = set[int](), [x]
        while stack:
            place = self.made_by.get(stack.pop())
            if place is not None and place not in found:
                found.add(place)
                stack += [x for x in self.eqns[place].invars if is_var(x)]
        return found

    def _taken(self, selections: Selections) -> list[Var]:
        taken = (self.eqns[place].invars[k] for place, k in selections.chosen)
        return [x for x in taken if is_var(x)]

    def _waits(self, v: Var, found: set[int], selections: Selections, zero: set[Var]) -> bool:
        if v in zero:
            return True
        return all(
            reader in found or (reader >= 0 and selections.takes(reader, self.eqns[reader], v))
            for reader in self.readers(v)
        )

    def _may_wait(self, eqn: JaxprEqn) -> bool:
        if eqn.effects or eqn.primitive.name in _NEVER or self.fixed.issuperset(eqn.outvars):
            return False
        return not any(_jax.explicit_mesh(v.aval) for v in eqn.outvars)

    def _zeros(self, case: Case, selections: Selections) -> set[Var]:
        """What is zero where no lane takes a case."""
        known = set[Var]()
        heap: list[int] = []
        for place, k in selections.chosen:
            eqn = self.eqns[place]
            if all(self._is_zero(x) for j, x in enumerate(eqn.invars) if j not in (0, k)):
                known.add(eqn.outvars[0])
                heap += [reader for reader in self.readers(eqn.outvars[0]) if reader >= 0]
        heapify(heap)
        while heap:
            eqn = self.eqns[heappop(heap)]
            if known.issuperset(eqn.outvars):
                continue
            always = {x for x in eqn.invars if is_var(x) and self._is_zero(x)}  # as sums in carries begin
            new = {*zeros_made(eqn, known | always)} - known
            known |= new
            for reader in {reader for v in new for reader in self.readers(v) if reader >= 0}:
                heappush(heap, reader)
        return known

    def _is_zero(self, x: Atom) -> bool:
        return is_zero(self._repeated(x), set())

    def selections_of(self, case: Case, places: Sequence[int]) -> dict[Var, tuple[int, int]]:
        """For results of a part that one selection alone reads: its place, and which of its inputs they are.

        With the selection among the part they need not be written, and where no lane takes them it need not be made.
        """
        inside, chosen = set(places), self.cases[case].chosen
        found: dict[Var, tuple[int, int]] = {}
        for place, k in chosen:
            eqn = self.eqns[place]
            x, rest = eqn.invars[k], [v for j, v in enumerate(eqn.invars) if j != k and is_var(v)]
            if (
                place in inside
                or not is_var(x)
                or self.made_by.get(x) not in inside
                or set(self.readers(x)) != {place}
                or x in rest
            ):
                continue
            once = sum(other == place for other, _ in chosen) == 1
            if once and not self._is_for_one(eqn, k) and all(inside.isdisjoint(self._makers_of(v)) for v in rest):
                found[x] = place, k
        return found

    def _is_for_one(self, select: JaxprEqn, k: int) -> bool:
        """Whether what is selected where input `k` is not is computed for that alone: it may wait for another case."""
        other = next(x for j, x in enumerate(select.invars) if j not in (0, k))
        maker = self.maker(other)  # what a branch gives waits already
        return is_var(other) and maker is not None and maker.primitive.name != "cond" and len(self.readers(other)) == 1

    def stages(self, places: set[int]) -> list[list[int]]:
        """`places` in parts that can each run at once: what one gives away, only later ones read again, if any."""
        inside: dict[Var, int] = {}  # the part that makes a value
        outside: dict[Var, int] = {}  # for others, the first part that may read it
        parts: dict[int, list[int]] = {}
        start = min(places, default=0)
        for place in range(start, max(places, default=-1) + 1):
            eqn = self.eqns[place]
            reads: Sequence[Var] = [x for x in eqn.invars if is_var(x)]
            if place in places:
                part = max((inside.get(x, outside.get(x, 0)) for x in reads), default=0)
                inside.update(dict.fromkeys(eqn.outvars, part))
                parts.setdefault(part, []).append(place)
            else:
                after = max((inside[x] + 1 if x in inside else outside.get(x, 0) for x in reads), default=0)
                if after:
                    outside.update(dict.fromkeys(eqn.outvars, after))
        self._sink(parts)
        return [sorted(parts[k]) for k in sorted(parts) if parts[k]]

    def _sink(self, parts: dict[int, list[int]]) -> None:
        """Moves what XLA would compute where it is read into the part that reads it, where that is one part alone."""
        part_of = {place: part for part, those in parts.items() for place in those}
        for place in sorted(part_of, reverse=True):
            eqn, own = self.eqns[place], part_of[place]
            if eqn.primitive.name in FUSED and len(eqn.outvars) == 1:
                reading = {part_of.get(reader) for reader in self.readers(eqn.outvars[0])}
                to = reading.pop() if len(reading) == 1 else None
                if to is not None and to > own:
                    parts[own].remove(place)
                    parts[to].append(place)
                    part_of[place] = to


def _is_counted(x: Atom) -> bool:
    """Whether a value is of booleans or integers."""
    return isinstance(x.aval.dtype, np.dtype) and x.aval.dtype.kind in "biu"
