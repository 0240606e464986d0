"""Moving the chosen sites of a region into its loop."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Literal, Var

from .accumulate import accumulate, is_hit, keep
from .axes import Axis, Mapped, Reduced, stack_blocks
from .centered import MOMENTS, SOFTMAX
from .choose import Plan
from .dear import written_once
from .level import Edit, Level
from .loop import Loop, LoopBuilder
from .producers import Producers
from .program import is_var
from .region import Joined, Region, Site, Sliced
from .searched import search
from .window import Window


def fuse(level: Level, plan: Plan) -> tuple[Edit, JaxprEqn]:
    """The edit that carries out a plan, and the new loop, which stacks what others still read."""
    return _Fusion(level, plan.region, plan.sites, plan.written, plan.searched).run()


@dataclass
class _Fusion:
    level: Level
    region: Region
    sites: Sequence[Site]
    written: Collection[Var]
    searched: Collection[int]
    blocks: dict[Var, Atom] = field(default_factory=dict)  # a value of the region -> its block in the body
    results: dict[Var, Atom] = field(default_factory=dict)  # a variable of the program -> what replaces it

    def __post_init__(self) -> None:
        loop = self.region.loop
        self.loop = loop
        apart = self.region.block is not None
        self.new = LoopBuilder(loop.eqn, self.region.steps, loop.reverse and not apart)
        self.moved = {k for site in self.sites for k in (site.index, *site.chain)}
        self.producers = Producers(self.level, self.new, self.region.index, self.moved)
        self.derived = derived_sums(self.sites)
        self.totals: dict[tuple[Any, ...], Sequence[Atom]] = {}  # of sums around a late center, which may share them
        self.steps: dict[Var, Atom] = {}  # a stacked value with time in front -> its entry in the body

    def run(self) -> tuple[Edit, JaxprEqn]:
        if self.region.block is None:
            self._copy_body(self.loop)
        for site in self.sites:
            self._place(site)
        self._emit_crossing()
        loop = self.new.equation()
        eqns = [*self.new.before.eqns, loop, *self.new.after.eqns]
        # Chains die by themselves when nobody else reads them.
        gone = {site.index for site in self.sites} | ({self.region.index} if self.region.block is None else set())
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
        for set_next, out in zip(setters, outs[: len(setters)], strict=True):
            set_next(out)
        for y, out in zip(loop.ys, outs[len(setters) :], strict=True):
            self.steps[y] = written_once(self.new, out) if y in self.written else out

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

    def _block(self, x: Atom, axis: Axis | None, window: Window) -> Atom:
        """What a site reads of `x` in one step."""
        if isinstance(x, Literal):
            return x
        if x in self.blocks:
            return self.blocks[x]
        if x in self.steps:
            (block,) = self.new.body.call(lambda v: lax.expand_dims(v, [0]), self.steps[x])
            self.blocks[x] = block
            return block
        if axis is None:
            return self.new.const(x)
        return self.producers.block(x, axis, window)

    def _place(self, site: Site) -> None:
        answer = site.answer
        if isinstance(answer, Joined):
            self._copy_body(answer.loop)
            return
        if isinstance(answer, Sliced):
            self.blocks[site.eqn.outvars[0]] = self._block(site.reads[0], site.places[0], site.window)
            return
        if isinstance(answer, Reduced) and (site.eqn.outvars[0]) in self.derived:
            return  # comes out of another site's accumulators
        if isinstance(answer, Reduced) and site.late and _held(site) in self.totals:
            self._finish(site, answer, self.totals[_held(site)])
            return
        ins = [self._block(x, place, site.window) for x, place in zip(site.reads, site.places, strict=True)]
        index: list[Atom] = [self.new.index()] if answer.uses_start else []

        body = self.new.body
        body.like = site.eqn
        if index and site.window.count != self.new.length:
            window = site.window
            index = body.call(lambda t: lax.div(t - np.int32(window.start), np.int32(window.stride)), *index)
        if isinstance(answer, Reduced) and site.index in self.searched:
            hit = is_hit(self.new, site.window)
            self._finish(site, answer, search(self.new, answer, site.eqn, index[0], ins[0], hit))
            body.like = self.loop.eqn
            return

        def one_step(*values: Any) -> list[Any]:
            start, blocks = (values[0], values[1:]) if answer.uses_start else (np.int32(0), values)
            if site.eqn.primitive.name == "convert_element_type":
                blocks = [_kept_narrow(x, site.eqn.params["new_dtype"]) for x in blocks]
            return list(answer.block(start, 1, *blocks))

        outs = body.call(one_step, *index, *ins)
        if isinstance(answer, Mapped):
            self.blocks.update(zip(site.eqn.outvars, outs, strict=True))
        else:
            self._reduce(site, answer, ins, outs)
        body.like = self.loop.eqn

    def _reduce(self, site: Site, answer: Reduced, ins: Sequence[Atom], parts: Sequence[Atom]) -> None:
        step_size = max((int(np.prod(x.aval.shape)) for x in ins if is_var(x)), default=1)
        totals = accumulate(self.new, answer.monoid, parts, site.window, step_size)
        if site.late and answer.monoid.name in (MOMENTS, SOFTMAX):  # ties are counted in the type of their sum
            self.totals[_held(site)] = totals
        self._finish(site, answer, totals)

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
        for var, stacked in self.region.stacked.items():
            if all(k in self.moved for k in self.level.readers(var)):
                continue
            if var in self.steps:
                self.new.y(self.steps[var], var)
            elif var in self.blocks:
                self._replace(var, self._stack(var, stacked.axis, stacked.window))

    def _replace(self, var: Var, atom: Atom) -> None:
        """Lets `atom` stand for a variable of the program, with its weak type."""
        weak = getattr(var.aval, "weak_type", False)
        if weak != getattr(atom.aval, "weak_type", False):
            (atom,) = self.new.after.call(lambda v: _jax.convert_element_type(v, var.aval.dtype, weak), atom)
        self.results[var] = atom

    def _stack(self, var: Var, axis: Axis, window: Window) -> Atom:
        block = self.blocks[var]
        whole_loop = window.count == self.new.length
        rows = self.new.y(block) if whole_loop else keep(self.new, block, window)
        (whole,) = self.new.after.call(lambda b: stack_blocks(b, axis, window.count), rows)
        return whole


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
            rich.setdefault(_held(site), site)
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
    return site.reads[0], tuple(site.eqn.params["axes"]), site.window, site.answer.monoid.name


def _typed(value: Callable[..., Any], dtype: Any, *totals: Any) -> Any:
    return lax.convert_element_type(value(*totals), dtype)


HELD: dict[str, dict[str, Callable[..., Any]]] = {
    "reduce_sum": {MOMENTS: lambda n, base, mean, squares: n * (base + mean)},
    "reduce_max": {SOFTMAX: lambda m, s: m, "max ties": lambda m, n: m},
    "reduce_min": {"min ties": lambda m, n: m},
}
