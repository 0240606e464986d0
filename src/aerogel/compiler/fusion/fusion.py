"""Moving the chosen sites of a region into its loop."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, Onto, Reduced, stack_blocks
from ..level import Edit, Level
from ..loop import Loop, LoopBuilder, with_body
from ..program import is_var
from .accumulate import accumulate, chosen, is_hit, keep
from .centered import SOFTMAX, TIES
from .choose import Plan
from .delays import Delays
from .entrywise_sums import by_entry
from .moments import COVARIANCES, MOMENTS
from .producers import Producers
from .region import Joined, Region, Site, Sliced, is_view
from .searched import search
from .site_seconds import is_put
from .unit_dimensions import without_unit_dimensions
from .window import Window, position


def fuse(level: Level, plan: Plan) -> tuple[Edit, JaxprEqn]:
    """The edit that carries out a plan, and the new loop, which stacks what others still read."""
    return _Fusion(level, plan.region, plan.sites, plan.searched, plan.by_entry, plan.shares, plan.flat).run()


@dataclass
class _Fusion:
    level: Level
    region: Region
    sites: Sequence[Site]
    searched: Collection[int]
    by_entry: Collection[int]
    shares: bool
    flat: bool
    blocks: dict[Var, Atom] = field(default_factory=dict)  # a value of the region -> its block in the body
    results: dict[Var, Atom] = field(default_factory=dict)  # a variable of the program -> what replaces it

    def __post_init__(self) -> None:
        loop = self.region.loop
        self.loop = loop
        apart = self.region.block is not None
        self.new = LoopBuilder(loop.eqn, self.region.steps, loop.reverse and not apart)
        self.moved = {k for site in self.sites for k in (site.index, *site.chain)}
        for site in reversed(self.sites):
            if is_view(self.region, site) and not all(k in self.moved for k in self.level.readers(site.eqn.outvars[0])):
                self.moved.remove(site.index)  # it is read after the loop too: there it shows the whole
        self.producers = Producers(self.level, self.new, self.region.index, self.moved, self.shares)
        self.derived = derived_sums(self.sites)
        self.delays = Delays(self.new, self.region, self.sites)
        self.totals: dict[tuple[Any, ...], Sequence[Atom]] = {}  # of sums around a late center, which may share them
        self.steps: dict[Var, Atom] = {}  # a stacked value with time in front -> its entry in the body
        self.entries: dict[Atom, Atom] = {}  # a block of the body -> the entry that it holds

    def run(self) -> tuple[Edit, JaxprEqn]:
        if self.region.block is None:
            self._copy_body(self.loop)
        for site in self.sites:
            self._place(site)
        self._emit_crossing()
        loop = with_body(self.new.equation(), without_unit_dimensions)
        eqns = [*self.new.before.eqns, loop, *self.new.after.eqns]
        # Chains die by themselves when nobody else reads them.
        gone = {site.index for site in self.sites if site.index in self.moved}
        gone |= {self.region.index} if self.region.block is None else set()
        # What the steps make themselves reads what its equation read: that must not go in the same round.
        touched = self.moved | {self.region.index} | self.producers.made
        return Edit(self.region.index, frozenset(gone), eqns, self.results, frozenset(touched)), loop

    def _copy_body(self, loop: Loop) -> None:
        """Runs a loop's body in the new one; its carries go on, its outputs are at hand step by step."""
        ins: list[Atom] = [self.new.const(c) for c in loop.consts]
        setters = []
        for init, final in zip(loop.init, loop.finals, strict=True):
            var, set_next = self.new.keep_carry(init, self._own(final))
            ins.append(var)
            setters.append(set_next)
        ins += [self._step_of(x) for x in loop.xs]
        outs = self.new.body.inline(loop.body, ins)
        self.steps.update(zip(loop.ys, outs[len(setters) :], strict=True))
        for set_next, out in zip(setters, outs[: len(setters)], strict=True):
            set_next(out)
        for carry, nxt in zip(ins[len(loop.consts) :], loop.next_carry, strict=False):
            for y, out in zip(loop.ys, loop.body_ys, strict=True):
                if out is nxt:
                    self.delays.is_before(y, carry)

    def _copy_waiting(self, site: Site, loop: Loop) -> None:
        """Runs a second loop's body in the new one; at steps that are not its own, its carries stay as they are."""
        new = self.new
        ins: list[Atom] = [new.const(c) for c in loop.consts]
        carries = [new.keep_carry(x, self._own(final)) for x, final in zip(loop.init, loop.finals, strict=True)]
        ins += [var for var, _ in carries]
        for k, x in enumerate(loop.xs, start=len(ins)):
            block = self._block(x, Axis(0), site.window, site.delay(k))
            ins += new.body.call(lambda b: lax.squeeze(b, [0]), block)
        outs = new.body.inline(loop.body, ins)
        hit = is_hit(new, site.window)
        for (var, set_next), out in zip(carries, outs, strict=False):
            set_next(out if hit is None else new.body.call(chosen, hit, out, var)[0])
        for y, out in zip(loop.ys, outs[len(carries) :], strict=True):
            (self.blocks[y],) = new.body.call(lambda v: lax.expand_dims(v, [0]), out)

    def _own(self, var: Var) -> Var:
        return _jax.new_var(var.aval) if isinstance(var, _jax.DropVar) else var

    def _step_of(self, x: Atom) -> Atom:
        """The entry, in the body, of a value with time in front."""
        assert is_var(x)
        if x in self.steps:
            return self.steps[x]
        if x in self.blocks:
            (step,) = self.new.body.call(lambda b: lax.squeeze(b, [0]), self.blocks[x])
            return step
        return self.producers.step(x)

    def _block(self, x: Atom, axis: Axis | None, window: Window, delay: int = 0) -> Atom:
        """What a site reads of `x` in one step, or read of it `delay` steps ago."""
        if delay:
            assert is_var(x)
            maker = self.delays.remade(x)
            if maker is None:
                return self.delays.read(x, self._block(x, axis, window), delay)
            assert isinstance(maker.answer, Mapped)
            return self._run_step(maker, maker.answer, self._reads(maker, delay))[0]
        if isinstance(x, Literal):
            return x
        if x in self.blocks:
            return self.blocks[x]
        if x in self.steps:
            entry = self.steps[x]
            (block,) = self.new.body.call(lambda v: lax.expand_dims(v, [0]), entry)
            self.blocks[x] = block
            if is_var(entry):
                self.entries[block] = entry
            return block
        if axis is None:
            return self.new.const(x)
        return self.producers.block(x, axis, window)

    def _place(self, site: Site) -> None:
        answer = site.answer
        if isinstance(answer, Joined):
            if site.window.is_all(self.loop.length) and not site.delays:
                self._copy_body(answer.loop)
            else:
                self._copy_waiting(site, answer.loop)
            return
        if isinstance(answer, Sliced):
            self.blocks[site.eqn.outvars[0]] = self._block(site.reads[0], site.places[0], site.window)
            return
        if isinstance(answer, Reduced) and (site.eqn.outvars[0]) in self.derived:
            return  # comes out of another site's accumulators
        if isinstance(answer, Reduced) and site.late and _held(site) in self.totals:
            self._finish(site, answer, self.totals[_held(site)])
            return
        ins = self._reads(site)
        if isinstance(answer, Reduced) and site.index in self.searched:
            body = self.new.body
            body.like = site.eqn
            totals = search(self.new, answer, site.eqn, self._place_in_window(site), ins[0], site.window)
            self._finish(site, answer, totals)
            body.like = self.loop.eqn
            return
        if isinstance(answer, Reduced) and site.index in self.by_entry:
            self._finish(site, answer, by_entry(self.new, answer, ins[0], site.window, self.flat))
            return
        if isinstance(answer, Reduced) and answer.onto is not None and is_put(self.loop, site):
            self._put(site, answer, answer.onto, ins)
            return
        outs = self._run_step(site, answer, ins)
        if isinstance(answer, Mapped):
            self.blocks.update(zip(site.eqn.outvars, outs, strict=True))
        else:
            self._reduce(site, answer, ins, outs)

    def _reads(self, site: Site, ago: int = 0) -> list[Atom]:
        """What a site reads in one step, or read some steps ago."""
        blocks = []
        for k, (x, place) in enumerate(zip(site.reads, site.places, strict=True)):
            delay = site.delay(k) + ago if is_var(x) and x in self.region.stacked else 0
            blocks.append(self._block(x, place, site.window, delay))
        return blocks

    def _place_in_window(self, site: Site) -> Atom:
        """The number of the present step among those of a site's window."""
        (place,) = self.new.body.call(lambda t: position(t, site.window, self.new.length), self.new.index())
        return place

    def _run_step(self, site: Site, answer: Mapped | Reduced, ins: Sequence[Atom]) -> list[Atom]:
        """What one step of a site makes."""
        body = self.new.body
        body.like = site.eqn
        index = [self._place_in_window(site)] if answer.uses_start else []

        def one_step(*values: Any) -> list[Any]:
            start, blocks = (values[0], values[1:]) if answer.uses_start else (np.int32(0), values)
            if site.eqn.primitive.name == "convert_element_type":
                blocks = [_kept_narrow(x, site.eqn.params["new_dtype"]) for x in blocks]
            return list(answer.block(start, 1, *blocks))

        outs = body.call(one_step, *index, *ins)
        body.like = self.loop.eqn
        return outs

    def _reduce(self, site: Site, answer: Reduced, ins: Sequence[Atom], parts: Sequence[Atom]) -> None:
        step_size = max((int(np.prod(x.aval.shape)) for x in ins if is_var(x)), default=1)
        self.new.body.like = site.eqn
        totals = accumulate(self.new, answer.monoid, parts, site.window, step_size, self.flat)
        self.new.body.like = self.loop.eqn
        if site.late and answer.monoid.name not in TIES:  # ties are counted in the type of their sum
            self.totals[_held(site)] = totals
        self._finish(site, answer, totals)

    def _put(self, site: Site, answer: Reduced, onto: Onto, ins: Sequence[Atom]) -> None:
        """Puts what each step gives to a site where it belongs in the whole: a carry, which is updated in place."""
        self.new.before.like = self.new.body.like = site.eqn
        (start,) = self.new.before.call(lambda x: lax.convert_element_type(x, onto.dtype), site.reads[onto.operand])
        whole, set_next, total = self.new.carry(start)
        (after,) = self.new.body.call(onto.put, whole, *ins)
        set_next(after)
        self.new.before.like = self.new.body.like = self.loop.eqn
        self._finish(site, answer, [total])

    def _finish(self, site: Site, answer: Reduced, totals: Sequence[Atom]) -> None:
        """Lets what the steps accumulated stand for the results of a site."""
        self.new.after.like = site.eqn
        outs = self.new.after.call(answer.finish, *totals, *site.late)
        for var, out in zip(site.eqn.outvars, outs, strict=True):
            self._replace(var, out)
        for other, from_totals in self._derived_from(site):
            (value,) = self.new.after.call(from_totals, *totals)
            self._replace(other, value)

    def _derived_from(self, site: Site) -> list[tuple[Var, Callable[..., Any]]]:
        """Other sums of the same values over the same dimensions that the accumulators of `site` hold already."""
        return [(var, how) for var, (source, how) in self.derived.items() if source is site]

    def _emit_crossing(self) -> None:
        """Stacks what stands in the body and is read outside."""
        views = {site.eqn.outvars[0] for site in self.sites if site.index not in self.moved}
        for var, stacked in self.region.stacked.items():
            if all(k in self.moved for k in self.level.readers(var)) or var in views:
                continue
            if var in self.steps:
                self.new.y(self.steps[var], var)
            elif var in self.blocks:
                self._replace(var, self._stack(var, stacked.axis, stacked.window))

    def _replace(self, var: Var, atom: Atom) -> None:
        """Lets `atom` stand for a variable of the program, with its weak type."""
        self.results[var] = self.new.after.as_weak_as(var, atom)

    def _stack(self, var: Var, axis: Axis, window: Window) -> Atom:
        block = self.blocks[var]
        if window.is_all(self.new.length):
            rows = self.new.y(block)
        else:
            rows = self._outermost(block, window) or keep(self.new, block, window)
        (whole,) = self.new.after.call(lambda b: stack_blocks(b, axis, window.count), rows)
        return whole

    def _outermost(self, block: Atom, window: Window) -> Atom | None:
        """The value of `block` in the one step that is wanted, `[1, *block]`; None if that is not the first or last."""
        if window.count > 1 or window.start not in (0, self.new.length - 1):
            return None
        is_last = (window.start == 0) == self.new.reverse
        value = self.entries.get(block, block)
        found, builder = (self.new.last(value), self.new.after) if is_last else (self.new.first(value), self.new.before)
        return None if found is None else builder.call(lambda v: lax.reshape(v, (1, *block.aval.shape)), found)[0]


def _kept_narrow(x: Any, to: Any) -> Any:
    """`x` by way of int32, when it is a byte that becomes a float.

    XLA's CPU kernels for reductions (jaxlib 0.10.2, "ynn_fusion") drop the cast float -> int8 -> float when they see
    both ends; the stacked array kept the two apart.
    """
    narrow = x.dtype in (np.int8, np.uint8) and np.dtype(to).kind not in "biu"
    return lax.convert_element_type(x, np.int32) if narrow else x


Derived = dict[Var, tuple[Site, Callable[..., Any]]]


def derived_sums(sites: Sequence[Site]) -> Derived:
    """The sums and maxima that need no accumulator: a variance carries its mean, a logsumexp its maximum."""
    found: Derived = {}
    rich: dict[tuple[Any, ...], Site] = {}
    for site in sites:
        if isinstance(site.answer, Reduced) and site.late:
            rich.setdefault((site.reads[0], site.over[0], site.window, site.answer.monoid.name), site)
    for site in sites:
        name, out = site.eqn.primitive.name, site.eqn.outvars[0]
        if not isinstance(site.answer, Reduced) or name not in HELD or site.late:
            continue
        for monoid, value in HELD[name].items():
            source = rich.get((site.reads[0], tuple(site.eqn.params["axes"]), site.window, monoid))
            if source is not None:
                found[out] = (source, partial(_typed, value, out.aval.dtype))
    return found


def _held(site: Site) -> tuple[Any, ...]:
    """What the accumulators of a site around a late center are of: sites for which it is the same can share them."""
    assert isinstance(site.answer, Reduced)
    return site.reads, site.over, site.window, site.answer.monoid.name, site.eqn.outvars[0].aval.dtype


def _typed(value: Callable[..., Any], dtype: Any, *totals: Any) -> Any:
    return lax.convert_element_type(value(*totals), dtype)


HELD: dict[str, dict[str, Callable[..., Any]]] = {
    "reduce_sum": dict.fromkeys((MOMENTS, *COVARIANCES.values()), lambda n, base, rest, *_: n * (base + rest)),
    "reduce_max": {SOFTMAX: lambda m, s: m, "max ties": lambda m, n: m},
    "reduce_min": {"min ties": lambda m, n: m},
}
