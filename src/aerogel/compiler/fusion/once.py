"""What XLA's CPU backend computes more than once in a step of a loop, and the step that computes it once.

XLA fuses elementwise work into everything that reads it, and repeats it there: a cosine that is accumulated in two
carries is computed twice, once more if its result is stacked. What stays in memory anyway (a carry, an operand of a
product) is read from there only if it has two operands of its own size; with one (`0.1 + cos(c)`) XLA computes it
again, because that reads no more, however dear it is. What is computed again from the state before keeps that state
alive: a carry is then copied in every step.

So it does with what is read at several places, shifted: the sum of `roll(f(c), 1)` and `roll(f(c), -1)` computes `f`
twice for each entry, and the gradient of a stencil does so with its cotangents; beside the seams, as scalar code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from aerogel._jax import JaxprEqn, Var

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost import Machine, nbytes
from ..cost.primitives import DEAR, REDUCE
from ..cost.vector_code import SINES, is_branch_of_sines, seconds_at_last
from ..loop import Loop, is_float
from ..program import inner_jaxprs, is_var, producers, users
from ..record import record
from .step_threads import KernelWork, bits, seconds_apart, works

# XLA computes these for each of their readers. (Reductions over axes of length one are reshapes.)
FUSED = frozenset((*ELEMENTWISE, "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"))
# These are fused with what they read.
READERS = FUSED | frozenset("dynamic_update_slice dynamic_slice slice pad concatenate rev".split())
CALLS = frozenset("jit closed_call core_call custom_jvp_call custom_vjp_call".split())
# States of these sizes, in bytes, are copied slowly: smaller ones stay in the cache, larger ones wait for memory.
COPIED = range(2**17, 2**20)
# Nothing is written for less a step, nor where it saves less than so many times what writing costs: one or two
# of `tanh` (0.3 ns an entry) are cheaper than a kernel more, a cosine (6 ns) is not.
LEAST_SECONDS = 1e-6
MARGIN = 16.0
# A shift is two slices. An operation on one element that is computed again for one: 0.25 ns and more were measured of
# stencils in one to three dimensions and their gradients (jaxlib 0.10.2).
FEWEST_SLICES = 4
SHIFTED_SECONDS = 2e-10
MOST_SHIFTED = 64  # operations that are counted


@record
class Repeated:
    """A value of a step that is computed for several arrays.

    Attributes:
        value: in the body.
        arrays: how many; slices of it that are read at other places count.
        seconds: of a step, saved when it is computed once.
    """

    value: Var
    arrays: int
    seconds: float


def repeated(loop: Loop, machine: Machine, carried_only: bool = False) -> list[Repeated]:
    """The values of a loop's step that are better computed once, in the order in which they are made.

    Args:
        loop: whose steps they are of.
        machine: prices.
        carried_only: whether those are left that would take a new carry.
    """
    return list(_Step(loop, machine, carried_only).worth_once())


@dataclass
class _Step:
    """Sets are bits of integers: of kernels, and of dear equations by their place in the body."""

    loop: Loop
    machine: Machine
    carried_only: bool
    kernels: dict[Var, int] = field(default_factory=dict)  # those that a value is computed in
    stacks: int = 0  # the kernels that write to what exists after the loop, or to a buffer
    extremes: set[Var] = field(default_factory=set)  # values of which a running maximum or minimum is made
    kept: set[Var] = field(default_factory=set)
    count: int = 0

    def __post_init__(self) -> None:
        body = self.loop.body
        self.eqns = body.eqns
        self.makers, self.readers = producers(body), users(body)
        self.carried = {x for x in self.loop.next_carry if is_var(x)}
        self.stacked = {x for x in self.loop.body_ys if is_var(x)}
        self.carries = set(self.loop.body_carry)
        for eqn in reversed(self.eqns):
            for v in eqn.outvars:
                self.kernels[v] = self._kernels_of(eqn, v)

    def _kernel(self) -> int:
        self.count += 1
        return 1 << (self.count - 1)

    def _kernels_of(self, eqn: JaxprEqn, v: Var) -> int:
        """The kernels that compute `v`; all of its readers are known."""
        readers = [self.eqns[k] for k in self.readers.get(v, []) if k >= 0]
        two, into, exists = self._has_two_operands(eqn), 0, v in self.carried
        for reader in readers:
            if _is_read_by(reader):
                into |= self.kernels[reader.outvars[0]]
            elif two or reader.primitive.name not in REDUCE:  # a kernel that reads what exists
                exists = True
            # What a product or a reduction makes exists: it is not computed again of what went in.
            if self._is_extreme(reader) or (_is_read_by(reader) and reader.outvars[0] in self.extremes):
                self.extremes.add(v)
        if v in self.stacked:
            into |= (stack := self._kernel())
            self.stacks |= stack
        if self._is_branch(eqn):  # nobody computes it again
            return self._kernel()
        if not exists:
            return into
        own = self._kernel()
        if eqn.primitive.name == "dynamic_update_slice" or eqn.primitive.name in CALLS:
            self.stacks |= own
        return own if two else own | into

    def _is_branch(self, eqn: JaxprEqn) -> bool:
        """Whether a rule makes a branch of it when all passes are done."""
        if eqn.primitive.name not in SINES or self.carried_only:
            return False
        taken = sum(nbytes(x.aval) for x in (*self.loop.eqn.invars, *self.loop.eqn.outvars))
        return is_branch_of_sines(eqn.outvars[0].aval, taken)

    def _is_extreme(self, eqn: JaxprEqn) -> bool:
        name = eqn.primitive.name
        if name in ("max", "min"):
            return any(x in self.carries for x in eqn.invars if is_var(x))
        return name in ("reduce_max", "reduce_min") and not _is_reshape(eqn)

    def _has_two_operands(self, eqn: JaxprEqn) -> bool:
        size = eqn.outvars[0].aval.size
        large = {x for x in eqn.invars if is_var(x) and x.aval.size == size and not self._is_spread(x)}
        return len(large) >= 2

    def _is_spread(self, x: Var) -> bool:
        """Whether a value repeats a smaller one."""
        maker = self.eqns[self.makers[x]] if x in self.makers else None
        return (
            maker is not None and maker.primitive.name == "broadcast_in_dim" and maker.invars[0].aval.size < x.aval.size
        )

    def worth_once(self) -> Iterator[Repeated]:
        """What is better computed once, in program order."""
        dear: dict[Var, int] = {}
        for k, eqn in enumerate(self.eqns):
            if eqn.primitive.name not in FUSED and not _is_reshape(eqn):
                continue
            v = eqn.outvars[0]
            work = (1 << k) if eqn.primitive.name in DEAR and not self._is_branch(eqn) else 0
            for x in eqn.invars:
                work |= dear.get(x, 0) if is_var(x) else 0
            arrays = self.kernels[v].bit_count()
            free = v in self.carried or not self.carried_only
            if arrays > 1 and free and self._branches(v):
                seconds = self._saved(v, work, arrays)
                if self._pays(v, seconds) or self._is_copied(eqn) or self._is_compared(v):
                    yield Repeated(v, arrays, seconds)
                    self._keep(v)
                    work = 0
            elif not self.carried_only and v not in self.carried:
                slices = self._slices(v)
                seconds = self._shifted_seconds(v, slices)
                if seconds > LEAST_SECONDS + 2 * self._written(v):
                    yield Repeated(v, slices, seconds)
                    self._keep(v)
                    work = 0
            # What has two operands and exists is not computed again.
            dear[v] = 0 if (arrays == 1 and v in self.carried) or self._is_branch(eqn) else work

    def _branches(self, v: Var) -> bool:
        """Whether it is not one reader alone that `v` is computed for: that one would be the value to keep."""
        if v in self.carried or v in self.stacked:
            return True
        readers = [self.kernels[eqn.outvars[0]] for eqn in self._fused_readers(v)]
        return readers != [self.kernels[v]]

    def _fused_readers(self, v: Var) -> Iterable[JaxprEqn]:
        return (self.eqns[k] for k in self.readers.get(v, []) if k >= 0 and _is_read_by(self.eqns[k]))

    def _seconds(self, work: int) -> float:
        places = (k for k in range(work.bit_length()) if work >> k & 1)
        return sum(seconds_at_last(self.eqns[k], self.machine) for k in places)

    def _saved(self, v: Var, work: int, arrays: int) -> float:
        """Of a step, by computing a value once; kernels that several cores work on lose less by computing it again."""
        seconds = self._seconds(work) * (arrays - 1)
        if not self._pays(v, seconds):
            return seconds
        return min(seconds, seconds_apart(self._made_for(v), self._works_of(v), self.machine))

    def _works_of(self, v: Var) -> list[KernelWork]:
        return [self._works[k] for k in bits(self.kernels[v])]

    def _keep(self, v: Var) -> None:
        """From now on `v` is computed once."""
        made = self._made_for(v)
        for work in self._works_of(v):
            work.do_without(made)
        self.kept.add(v)

    @cached_property
    def _works(self) -> dict[int, KernelWork]:
        return works(self.eqns, self.kernels, self.machine)

    def _pays(self, v: Var, seconds: float) -> bool:
        return seconds > max(LEAST_SECONDS, MARGIN * self._written(v))

    def _written(self, v: Var) -> float:
        """Seconds to have a value in memory."""
        written = nbytes(v.aval) / self.machine.cache_bytes_per_second
        return written if v in self.carried else 2 * written + self.machine.seconds_per_step_kernel

    def _slices(self, v: Var) -> int:
        """How many parts of a value are read, each for another place of what reads it."""
        return sum(eqn.primitive.name in ("slice", "pad") for eqn in self._fused_readers(v))

    def _shifted_seconds(self, v: Var, slices: int) -> float:
        """Of a step, lost by computing a value for each shift that reads it; one operation costs what reading does."""
        if slices < FEWEST_SLICES:
            return 0.0
        shifts = min(slices // 2, self._times_read(v))
        shifts -= all(eqn.primitive.name in ("slice", "pad") for eqn in self._fused_readers(v))
        return shifts * (self._operations(v) - 1) * v.aval.size * SHIFTED_SECONDS

    def _times_read(self, v: Var) -> int:
        """How often the parts that are read make up the whole; every sixth entry of six of them does once."""
        cuts = [eqn for eqn in self._fused_readers(v) if eqn.primitive.name in ("slice", "pad")]
        sizes = (min(v.aval.size, eqn.outvars[0].aval.size) for eqn in cuts)
        return round(sum(sizes) / max(1, v.aval.size))

    def _operations(self, v: Var) -> int:
        """How many operations XLA does for an element, from what exists on. Constant factors are one."""
        made = self._made_for(v)
        factors = {eqn.outvars[0] for eqn in made if _is_factor(eqn)}
        again = sum(_is_factor(eqn) and any(is_var(x) and x in factors for x in eqn.invars) for eqn in made)
        return sum(eqn.primitive.name in ELEMENTWISE for eqn in made) - again

    def _made_for(self, v: Var) -> list[JaxprEqn]:
        """What XLA does again where it computes `v` again: from what exists on."""
        waiting, found = [v], set[int]()
        while waiting and len(found) < MOST_SHIFTED:
            x = waiting.pop()
            k = self.makers.get(x, -1)
            exists = x is not v and (x in self.carried or x in self.kept)
            if k < 0 or k in found or exists or not _is_read_by(self.eqns[k]):
                continue
            found.add(k)
            waiting += [y for y in self.eqns[k].invars if is_var(y)]
        return [self.eqns[k] for k in sorted(found)]

    def _is_copied(self, eqn: JaxprEqn) -> bool:
        """Whether a carry that is computed again keeps the one before alive; what is dear itself XLA may well share."""
        (v,) = eqn.outvars
        return v in self.carried and nbytes(v.aval) in COPIED and eqn.primitive.name not in DEAR

    def _is_compared(self, v: Var) -> bool:
        """Whether a maximum of a value is kept, and the value too: they may meet after the loop, as in a gradient.

        Computed twice, they may differ in the last bit, and no gradient would flow to what was the largest.
        """
        return v in self.extremes and bool(self.kernels[v] & self.stacks) and is_float(v.aval.dtype)


def _is_read_by(eqn: JaxprEqn) -> bool:
    """Whether XLA fuses an equation with what it reads."""
    name = eqn.primitive.name
    if name in CALLS:
        return all(_is_read_by(one) for inner in inner_jaxprs(eqn) for one in inner.eqns) and len(eqn.outvars) == 1
    return (name in READERS or _is_reshape(eqn)) and len(eqn.outvars) == 1


def _is_factor(eqn: JaxprEqn) -> bool:
    """Whether an equation multiplies by a constant: XLA multiplies by two of them at once."""
    name = eqn.primitive.name
    return name == "neg" or (name in ("mul", "div") and any(not is_var(x) for x in eqn.invars))


def _is_reshape(eqn: JaxprEqn) -> bool:
    """Whether an equation is a reduction over axes of length one."""
    is_small = eqn.primitive.name in REDUCE and len(eqn.outvars) == 1
    return is_small and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
