"""A choice between a buffer and the same buffer with a part written becomes a masked write of the part.

`vmap` of a `cond` or of a `while` makes such choices: in every step of a loop they go over all of the buffer.
"""

from collections.abc import Sequence

from jax import lax

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..cost import Machine
from ..exactness import Exactness
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..masks.lanes import written_out
from ..masks.updates import WRITES, can_be_masked, covered, masked, written
from ..pipeline import Context
from ..program import Builder, Program, is_var, where, with_equations
from ..record import record
from ..report import Decision

NAME = "in-place"
# A buffer of fewer entries, or with fewer for each that is written, is as fast selected as a whole.
SMALLEST = 32
LEAST_RATIO = 4


@record
class InPlace:
    """The pass. Bound: each round makes a selection less."""

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such writes made in place, and a decision for each."""
        walk = _Walk(_smallest(context.machine))
        return rewrite_levels(program, walk.level), walk.decisions


def _smallest(machine: Machine) -> int:
    """Entries of a buffer that is as fast selected as a whole: on a GPU what moves while a graph is launched.

    A step with a kernel less may even take longer there (`passes/loop_unroll.py`).
    """
    return max(SMALLEST, int(machine.seconds_per_graph * machine.bytes_per_second / 8))


class _Walk:
    def __init__(self, smallest: int):
        self.smallest = smallest
        self.decisions: list[Decision] = []

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = self._loops(jaxpr)
        while any(eqn.primitive.name in WRITES for eqn in jaxpr.eqns):
            level = _Buffers(jaxpr, self.smallest)
            edits, taken = list[Edit](), set[int]()
            for place in range(len(level.eqns)):
                found = level.edit(place)
                if found is not None and not found[0].touched & taken:
                    edits.append(found[0])
                    taken |= found[0].touched
                    self.decisions.append(found[1])
            if not edits:
                break
            jaxpr, _ = apply_edits(jaxpr, edits)
        return jaxpr

    def _loops(self, jaxpr: Jaxpr) -> Jaxpr:
        """Loops of many lanes that stop one by one are written out, where a buffer of theirs can then stay in place."""
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            loop = written_out(eqn)
            if loop is not None:
                trial = _Walk(self.smallest)
                body = loop.params["body_jaxpr"]
                inside = trial.level(body.jaxpr)
                if inside is not body.jaxpr:
                    self.decisions += trial.decisions
                    eqn = loop.replace(params=dict(loop.params, body_jaxpr=ClosedJaxpr(inside, ())))
            eqns.append(eqn)
        return jaxpr if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)) else with_equations(jaxpr, eqns)


@record
class _Chain:
    """Writes one after the other, first to last, that nothing else reads."""

    case: int
    writes: tuple[int, ...]


class _Buffers(Level):
    """A level, and which of its equations write into buffers."""

    def __init__(self, jaxpr: Jaxpr, smallest: int):
        super().__init__(jaxpr)
        self.smallest = smallest

    def edit(self, place: int) -> tuple[Edit, Decision] | None:
        """What stands in place of one equation, if it selects between buffers of which only a part differs."""
        eqn = self.eqns[place]
        if eqn.primitive.name != "select_n":
            return None
        cases = [x for x in eqn.invars[1:] if is_var(x)]
        if len(cases) + 1 < len(eqn.invars):
            return None
        which, dims = self._lanes(eqn.invars[0])
        for base in dict.fromkeys(cases):
            chains = [self._chain(k, x, base, place) for k, x in enumerate(cases) if x is not base]
            found = [chain for chain in chains if chain is not None]
            lanes = [d for d in dims if d is not None]
            if found and len(found) == len(chains) and all(self._pays(i, lanes) for one in found for i in one.writes):
                return self._masked(place, base, found, which, dims)
        return None

    def _masked(
        self, place: int, base: Var, chains: Sequence[_Chain], which: Atom, dims: Sequence[int | None]
    ) -> tuple[Edit, Decision]:
        eqn, builder = self.eqns[place], Builder(self.eqns[place])
        buffer: Atom = base
        lanes, single = [d for d in dims if d is not None], [k for k, d in enumerate(dims) if d is None]
        for chain in chains:
            mask_of = lambda x, k=chain.case: lax.squeeze(lax.eq(x, lax.full_like(x, k)), single)  # noqa: E731
            (mask,) = builder.call(mask_of, which)
            for i in chain.writes:
                write = self.eqns[i]
                one = Builder(write)
                buffer = masked(one, write, buffer, mask, lanes)
                builder.eqns += one.eqns
        out = eqn.outvars[0]
        gone = {place, *(i for chain in chains for i in chain.writes)}
        edit = Edit(place, frozenset(gone), builder.eqns, {out: builder.as_weak_as(out, buffer)}, frozenset(gone))
        what = "a choice between a buffer and the buffer after a write is a write of what was chosen"
        size, part = out.aval.size, sum(written(self.eqns[i]).aval.size for one in chains for i in one.writes)
        reason = f"of {size} entries {part} are written"
        return edit, Decision(NAME, what, where(self.eqns[chains[0].writes[0]]), True, reason)

    def _chain(self, case: int, x: Var, base: Var, reader: int) -> _Chain | None:
        writes: list[int] = []
        while x is not base:
            maker = self.made_by.get(x)
            if maker is None or self.readers(x) != [reader] or self.eqns[reader].invars.count(x) != 1:
                return None
            if self.eqns[maker].primitive.name not in WRITES:
                return None
            buffer = self.eqns[maker].invars[0]
            if not is_var(buffer):
                return None
            writes.insert(0, maker)
            x, reader = buffer, maker
        return _Chain(case, tuple(writes))

    def _pays(self, i: int, lanes: Sequence[int]) -> bool:
        write = self.eqns[i]
        size, part = write.invars[0].aval.size, written(write).aval.size
        if not can_be_masked(write, lanes):
            return False
        return set(lanes) <= covered(write).keys() and size >= max(self.smallest, LEAST_RATIO * part)

    def _lanes(self, which: Atom) -> tuple[Atom, tuple[int | None, ...]]:
        """What a selector repeats, and for each of its dimensions the one of the selector along which it lies.

        None for a dimension of size 1 that is repeated.
        """
        dims: tuple[int | None, ...] = tuple(range(len(which.aval.shape)))
        while is_var(which) and which in self.made_by:
            eqn = self.eqns[self.made_by[which]]
            if eqn.primitive.name != "broadcast_in_dim":
                break
            into, shape = eqn.params["broadcast_dimensions"], which.aval.shape
            which = eqn.invars[0]
            dims = tuple(dims[d] if n == shape[d] else None for d, n in zip(into, which.aval.shape, strict=True))
        return which, dims
