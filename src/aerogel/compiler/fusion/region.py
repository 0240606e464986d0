"""What stands downstream of a loop and could run inside it: the region of its stacked outputs.

A *site* is one equation (or a short chain of them) that works on stacked outputs entry by entry along time, or that
reduces over time. Growing a region decides nothing: `cut.py` chooses which sites move, `fusion.py` moves them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from aerogel._jax import Atom, Jaxpr, JaxprEqn, Literal, Var

from ..axes import Axis, Mapped, No, Reduced, along
from ..level import After, Level
from ..loop import Loop, as_loop
from ..program import Readers, bodies, is_var, remembered
from ..record import record
from .centered import Centered, centered_sum, next_centered
from .covariances import centered_product
from .window import Window

# Values of this many steps ago are kept at most, and no more than a third of all.
LONGEST_DELAY = 32
# Elements of a second loop's carries that may wait in a step, for each that it reads.
WAITING = 4


@record
class Stacked:
    """Where time stands in a value, and which steps of the loop it holds."""

    axis: Axis
    window: Window


@record
class Joined:
    """A second loop over the outputs of the first, in the same order: one loop can run both bodies."""

    loop: Loop


@record
class Sliced:
    """A slice over time, or its reversal: nothing to compute, fewer steps to keep or another order of them."""


@record
class Site:
    """Equations that could move into the loop.

    Attributes:
        eqn: the equation whose results this site makes.
        index: its place in the program.
        answer: how it runs on one step.
        reads: what a step of it reads, in the order of `answer.block`'s inputs.
        places: where time stands in each of `reads`; None for what does not vary with time.
        window: the steps that it works on.
        delays: for each of `reads`, how many steps ago the loop ran the step that is read; 0 for what is no output.
        late: values that are known only after the loop; `answer.finish` takes them last.
        chain: places of further equations that the site stands for.
        over: with `late`, the dimensions of each of `reads` that the sum goes over.
    """

    eqn: JaxprEqn
    index: int
    answer: Mapped | Reduced | Joined | Sliced
    reads: tuple[Atom, ...]
    places: tuple[Axis | None, ...]
    window: Window
    late: tuple[Atom, ...] = ()
    chain: tuple[int, ...] = ()
    delays: tuple[int, ...] = ()
    over: tuple[tuple[int, ...], ...] = ()

    def delay(self, k: int) -> int:
        """The delay of read `k`."""
        return self.delays[k] if self.delays else 0


@dataclass
class Region:
    """All sites of one loop, and what is known about the values between them.

    With a `block`, the sites run in a loop of their own after it, `block` steps of the first at a time.
    """

    loop: Loop
    index: int
    late: After
    block: int | None = None
    stacked: dict[Var, Stacked] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)  # why an equation that reads a stacked value stays

    @property
    def steps(self) -> int:
        """How many steps the sites' loop takes."""
        return self.loop.length // (self.block or 1)


def grow(
    level: Level, index: int, loop: Loop, permitted: Callable[[Site], str | None], block: int | None = None
) -> Region:
    """The region of the loop at `index`. `permitted(site)` may refuse a site with a reason.

    A block of steps is one index of a shorter time, each of which holds `block` neighbours.
    """
    region = Region(loop, index, After(level, index), block)
    everything = Window(0, 1, region.steps)
    centered: dict[Var, Centered] = {}
    waiting: list[int] = []
    for y in loop.ys:
        region.stacked[y] = Stacked(Axis(0, inner=block or 1), everything)
        waiting += level.readers(y)
    heapify(waiting)
    seen = {-1}
    while waiting:
        i = heappop(waiting)
        if i in seen:
            continue
        seen.add(i)
        eqn = level.eqns[i]
        site = _site(region, centered, level.read_by, eqn, i)
        refusal = permitted(site) if isinstance(site, Site) else None
        site = No(refusal) if refusal else site
        if isinstance(site, No):
            region.refusals[i] = site.reason
            continue
        if isinstance(site, Site):
            region.sites.append(site)
            _note_outputs(region, site)
        else:
            centered[eqn.outvars[0]] = site
        for v in eqn.outvars:
            if v in region.stacked or v in centered:
                for reader in level.readers(v):
                    heappush(waiting, reader)
    return region


def _site(
    region: Region, centered: dict[Var, Centered], readers: Readers, eqn: JaxprEqn, index: int
) -> Site | Centered | No:
    found = _around_late(region, centered, readers, eqn, index)
    if found is not None:
        return found
    # What has effects may have no results.
    link = None if eqn.effects else next_centered(eqn, index, centered, region.stacked, region.late)
    if link is not None:
        return link
    read = {k: region.stacked[x] for k, x in enumerate(eqn.invars) if is_var(x) and x in region.stacked}
    if not read or _needs_the_end(region, eqn):
        return No("it needs a result of the whole loop")
    window = _latest(region, [value.window for value in read.values()])
    if isinstance(window, No):
        return window
    ins = {k: value.axis for k, value in read.items()}
    sliced = _view_of_time(eqn, ins, window)
    if sliced is not None:
        return Site(eqn, index, Sliced(), tuple(eqn.invars), tuple(ins.values()), sliced)
    if any(value.window != window for value in read.values()):
        delays = tuple(abs(window.start - read[k].window.start) if k in read else 0 for k in range(len(eqn.invars)))
        if any(delays[k] and not isinstance(eqn.invars[k].aval.dtype, np.dtype) for k in read):
            return No("it joins values of different steps that are no numbers")
    else:
        delays = ()
    if eqn.primitive.name == "scan":
        return _joined(region, eqn, index, ins, window, delays)
    answer = _in_steps(eqn, ins, window.count)
    if isinstance(answer, No):
        return answer
    return Site(eqn, index, answer, tuple(eqn.invars), answer.ins, window, delays=delays)


def _around_late(
    region: Region, centered: dict[Var, Centered], readers: Readers, eqn: JaxprEqn, index: int
) -> Site | None:
    """The site of a sum or a product around a center that is known after the loop."""
    product = centered_product(eqn, index, centered, region.stacked, readers)
    if product is not None:
        answer, operands, chain = product
        known = [region.stacked[op.value] for op in operands]
        return Site(
            eqn,
            index,
            answer,
            tuple(op.value for op in operands),
            tuple(value.axis for value in known),
            known[0].window,
            tuple(op.center for op in operands if op.center is not None),
            chain,
            over=tuple(op.terms for op in operands),
        )
    found = centered_sum(eqn, centered, region.stacked, readers)
    if found is not None:
        reduced, link = found
        window = region.stacked[link.value].window
        axis = region.stacked[link.value].axis
        late = (link.center, *(f.atom for f in link.factors if f.atom is not None))
        over = (tuple(eqn.params["axes"]),)
        return Site(eqn, index, reduced, (link.value,), (axis,), window, late, link.chain, over=over)
    return None


def _in_steps(eqn: JaxprEqn, ins: dict[int, Axis], length: int) -> Mapped | Reduced | No:
    answer = along(eqn, ins, length)
    if isinstance(answer, Mapped) and None in answer.outs:  # a barrier, which also holds back other values
        return No("it gives results beside those of the steps")
    return answer


def _latest(region: Region, windows: Sequence[Window]) -> Window | No:
    """The window at whose steps values of all `windows` are known, position by position.

    Those of other windows were known the same few steps before: `ys[1:] - ys[:-1]` joins each output with the one
    before it.
    """
    last = (min if region.loop.reverse else max)(windows, key=lambda w: w.start)
    if all(w == last for w in windows):
        return last
    if region.block is not None or any((w.stride, w.count) != (last.stride, last.count) for w in windows):
        return No("it joins values of different steps")
    longest = max(abs(w.start - last.start) for w in windows)
    if longest > min(LONGEST_DELAY, region.loop.length // 3):
        return No(f"it joins values of steps that are {longest} apart")
    return last


def _needs_the_end(region: Region, eqn: JaxprEqn) -> bool:
    return any(is_var(x) and x in region.late and x not in region.stacked for x in eqn.invars)


def _view_of_time(eqn: JaxprEqn, ins: dict[int, Axis], window: Window) -> Window | None:
    """The steps that a `slice` along time keeps, or a `rev` puts in another order; None for any other equation."""
    if eqn.primitive.name == "rev" and ins[0].is_plain and tuple(eqn.params["dimensions"]) == (ins[0].dim,):
        return window.turned()
    if eqn.primitive.name != "slice" or not ins[0].is_plain:
        return None
    p, dim = eqn.params, ins[0].dim
    strides = p["strides"] or (1,) * len(p["start_indices"])
    count = eqn.outvars[0].aval.shape[dim]
    whole = all(
        p["start_indices"][d] == 0 and size == eqn.outvars[0].aval.shape[d]
        for d, size in enumerate(eqn.invars[0].aval.shape)
        if d != dim
    )
    if not whole or count == 0 or count == window.count:
        return None
    return window.narrowed(p["start_indices"][dim], strides[dim], count)


def _joined(
    region: Region, eqn: JaxprEqn, index: int, ins: dict[int, Axis], window: Window, delays: tuple[int, ...]
) -> Site | No:
    second = as_loop(eqn)
    first = region.loop
    if second is None:
        return No("the second loop has effects")
    if region.block is not None:
        return No("the second loop does not run in blocks")
    leading = len(eqn.invars) - len(second.xs)
    if any(k < leading or axis != Axis(0) for k, axis in ins.items()):
        return No("the second loop reads the first one's outputs as a whole")
    same_way = (second.reverse == first.reverse) == (window.stride > 0)
    if not same_way and second.init:
        return No("the second loop runs in the other direction")
    if not window.is_all(first.length):
        # At the steps outside of the window its carries wait.
        if has_while(second.body):
            return No("the second loop might not end at steps that it does not take")
        if sum(x.aval.size for x in second.init) > WAITING * sum(x.aval.size // second.length for x in second.xs):
            return No("the second loop would copy its carries in every step")
    places = tuple(None if k < leading else Axis(0) for k in range(len(eqn.invars)))
    return Site(eqn, index, Joined(second), tuple(eqn.invars), places, window, delays=delays)


@remembered
def has_while(jaxpr: Jaxpr) -> bool:
    """Whether a `while` stands anywhere in a jaxpr."""
    return any(eqn.primitive.name == "while" or any(map(has_while, held)) for eqn, held in bodies(jaxpr))


def _note_outputs(region: Region, site: Site) -> None:
    answer = site.answer
    if isinstance(answer, Mapped):
        for var, axis in zip(site.eqn.outvars, answer.outs, strict=True):
            if axis is not None:
                region.stacked[var] = Stacked(axis, site.window)
    elif isinstance(answer, Sliced):
        (axis,) = (p for p in site.places if p is not None)
        region.stacked[site.eqn.outvars[0]] = Stacked(axis, site.window)
    elif isinstance(answer, Joined):
        for y in answer.loop.ys:
            region.stacked[y] = Stacked(Axis(0), site.window)


def is_view(region: Region, site: Site) -> bool:
    """Whether a site only shows most of a stacked value: what others read of it, they read of the whole."""
    x = site.reads[0]
    return isinstance(site.answer, Sliced) and is_var(x) and 2 * site.window.count >= region.stacked[x].window.count


def stacked_reads(region: Region, site: Site) -> list[Var]:
    """The values of the region that a site reads."""
    return [x for x in site.reads if not isinstance(x, Literal) and x in region.stacked]
