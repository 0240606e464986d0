"""Streaming: what is large inside a formula only is computed block by block, and need not exist.

Around the large values of a program a stream is grown along each axis they have (`streams.py`); the one that is
predicted to cost least, if any pays, becomes loops over blocks (`streaming.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var, new_jaxpr

from ..cost import nbytes
from ..cost.account import jaxpr_cost
from ..exactness import Exactness
from ..fusion.canonical import canonical
from ..hoisting.open_steps import with_open_steps
from ..hoisting.sunk_constants import Sunk, with_constants_inside
from ..hoisting.sunk_sums import with_sum_inside
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..normalize import drop_dead
from ..pipeline import Context, broken_limit
from ..program import Program, inner_jaxprs, is_var, where
from ..record import record
from ..report import Decision
from ..streams.direct_broadcasts import with_direct_broadcasts
from ..streams.filled_diagonals import with_filled_diagonals
from ..streams.masked_parts import with_masked_parts
from ..streams.own_copies import with_own_copies
from ..streams.stream_plan import Form, Left, Sizes, best, seconds_in_blocks, sizes_of, written
from .loop_segments import judged, pair_at
from .stored_sums import stored_for_sums
from .windows import read_by_windows

NAME = "streaming"
# Steps that make a large constant again in their blocks may be predicted to take so many times as long: what they then
# do not read from memory costs more than a prediction says. (Of the gradient of Sinkhorn's steps for 4096 points in a
# plane 1.5 was predicted, and 0.7 measured.)
MADE_AGAIN = 1.6
# The same where what the loops hold and make takes so much. (Sinkhorn's gradient, 10 steps for points in space, of the
# time with distances in memory: 8,192 points 1.83 predicted, 1.33 measured, 13 MB for 1,344; 4,096 points 1.5 measured,
# 0.71 of plain JAX's, 12 MB for 336; 2,304 points 1.9 and 1.1, 10 MB for 107.)
MUCH = 1 << 28
MADE_AGAIN_OF_MUCH = 2.0
# A mask of bytes that is so much smaller than what is large hides half of scores that are, in each of many heads.
LESS_OF_MASKS = 16
NEARLY_AS_FAST = 1.1


@record
class Streaming:
    """The pass. Bound: a level is looked at once, each large value of it once along each of its axes.

    Attributes:
        sizes: what is large; as the machine has it, unless given.
    """

    sizes: Sizes | None = None
    name: str = NAME
    exactness: Exactness = Exactness.REASSOCIATES

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with its large values in blocks, and a decision for each group of them."""
        limit = broken_limit(program, context)
        walk = _Walk(context, self.sizes or sizes_of(context.machine, limit))
        return rewrite_levels(program, walk.level), walk.decisions


@dataclass
class _Walk:
    """One walk over the levels of a program."""

    context: Context
    sizes: Sizes
    decisions: list[Decision] = field(default_factory=list)
    ours: set[Var] = field(default_factory=set)  # what the bodies of our own loops make

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        """A level with its large values in blocks; the same object if none is."""
        if not any(nbytes(v.aval) >= self.sizes.least_bytes for eqn in jaxpr.eqns for v in eqn.outvars):
            return jaxpr
        inside = any(v in self.ours for eqn in jaxpr.eqns for v in eqn.outvars)
        jaxpr = self._with_constants_inside(jaxpr)
        new = self._in_blocks(jaxpr, inside)
        return new if new is jaxpr else self._with_masks_inside(new, {v for eqn in jaxpr.eqns for v in eqn.outvars})

    def _in_blocks(self, jaxpr: Jaxpr, inside: bool) -> Jaxpr:
        """The same with the constants of its loops where they are; `inside`: the level is a block of ours itself."""
        least = self.sizes.least_bytes
        whole = with_filled_diagonals(with_direct_broadcasts(canonical(jaxpr), least), least)
        whole = with_own_copies(whole, least)
        sums = Exactness.REASSOCIATES in self.context.allowed
        parts, masked = with_masked_parts(whole, least, sums=sums)
        level = Level(parts)
        edits, decisions = self._edits(level, inside)
        gone = frozenset().union(*(edit.gone for edit in edits))
        if any(level.made_by[v] not in gone for v in masked):  # a mask of what exists is worth nothing
            level = Level(whole)
            edits, decisions = self._edits(level, inside)
        elif masked and sums:  # a part's sum is one over the whole
            decisions = [replace(d, exactness=Exactness.REASSOCIATES) if d.fired else d for d in decisions]
        self.decisions += decisions
        if not edits:
            return jaxpr
        new, _ = apply_edits(level.jaxpr, edits)
        self.ours.update(v for eqn in new.eqns if eqn.primitive.name == "scan" for v in _made_in(eqn))
        return new

    def _with_masks_inside(self, jaxpr: Jaxpr, before: set[Var]) -> Jaxpr:
        """The level with what all examples and heads share, a mask, made in our own loops."""
        level, least = Level(jaxpr), self.sizes.least_bytes // LESS_OF_MASKS
        ours = {k for k, eqn in enumerate(level.eqns) if before.isdisjoint(eqn.outvars)}
        pays = partial(self._is_better, former={}, shared=False, slower=NEARLY_AS_FAST)
        sunk = with_constants_inside(level, least, pays, among=ours)
        if sunk is None:
            return jaxpr
        self.decisions += [_made_inside(level, v) for v in sunk.values]
        return sunk.jaxpr

    def _with_constants_inside(self, jaxpr: Jaxpr) -> Jaxpr:
        """The level with large constants of its loops made in their steps, where these make them in blocks.

        So are large sums of which little is wanted; the constants alone, where that is not better.
        """
        given = jaxpr
        if not self.context.before_differentiation:
            jaxpr = with_open_steps(jaxpr, self.sizes.least_bytes)
        sums, former = self._with_sums_inside(jaxpr)
        for form in (sums, jaxpr) if former else (jaxpr,):
            before = former if form is not jaxpr else {}
            for shared in (False, True):
                pays = partial(self._is_better, former=before, shared=shared)
                sunk = with_constants_inside(Level(form), self.sizes.least_bytes, pays, shared)
                if sunk is not None:
                    self.decisions += [_made_inside(Level(form), v) for v in sunk.values]
                    return sunk.jaxpr
        return given

    def _with_sums_inside(self, jaxpr: Jaxpr) -> tuple[Jaxpr, dict[Var, JaxprEqn]]:
        """The level with large sums in the steps of its loops, and what each such loop was, by its first result."""
        former: dict[Var, JaxprEqn] = {}
        place = 0
        while Exactness.REASSOCIATES in self.context.allowed and place < len(jaxpr.eqns):
            level = Level(jaxpr)
            edit = with_sum_inside(level, place, self.sizes.least_bytes)
            if edit is None:
                place += 1
                continue
            old = level.eqns[place]
            (new,) = (eqn for eqn in edit.eqns if eqn.primitive.name == "scan")
            former[new.outvars[0]] = former.pop(old.outvars[0], old)
            jaxpr, _ = apply_edits(jaxpr, [edit])
        return jaxpr, former

    def _is_better(self, sunk: Sunk, former: dict[Var, JaxprEqn], shared: bool, slower: float | None = None) -> bool:
        """Whether loops make nothing large in their steps, nor others what they share, in hardly more time.

        Args:
            sunk: the loops with constants inside.
            former: the loops that add up other sums than the program's, as they were.
            shared: whether others read the constants, too.
            slower: so many times as long they may take; as many as `MADE_AGAIN` says, unless given.
        """
        if not former.keys() <= {old.outvars[0] for old, _ in sunk.loops}:
            return False
        olds = [self._alone(former.get(old.outvars[0], old)) for old, _ in sunk.loops]
        news = [self._alone(new) for _, new in sunk.loops]
        bodies = (body for jaxpr in news for loop in jaxpr.eqns for body in inner_jaxprs(loop))
        made = (v for body in bodies for eqn in body.eqns for v in eqn.outvars)
        if any(nbytes(v.aval) >= self.sizes.least_bytes for v in made):
            return False
        if shared and not self._is_without(sunk):
            return False
        held = sum(nbytes(v.aval) for v in sunk.values) + max(jaxpr_cost(jaxpr).peak_bytes for jaxpr in olds)
        seconds, new_seconds = (sum(seconds_in_blocks(jaxpr, self.context) for jaxpr in form) for form in (olds, news))
        slower = slower or (MADE_AGAIN_OF_MUCH if held > MUCH else MADE_AGAIN)
        return self.sizes.at_any_price or new_seconds <= slower * seconds

    def _alone(self, eqn: JaxprEqn) -> Jaxpr:
        """A loop as a program of its own, with what it makes in blocks."""
        read = dict.fromkeys(x for x in eqn.invars if is_var(x))
        alone = drop_dead(new_jaxpr(eqn.params["jaxpr"].jaxpr, list(read), eqn.outvars, [eqn], ()))
        return rewrite_levels(ClosedJaxpr(alone, ()), _Walk(self.context, self.sizes).level).jaxpr

    def _is_without(self, sunk: Sunk) -> bool:
        """Whether what else reads constants that loops now make for themselves makes them in blocks, too."""
        left = _Walk(self.context, self.sizes)._in_blocks(sunk.jaxpr, False)
        return not any(v in sunk.values for eqn in left.eqns for v in eqn.outvars)

    def _edits(self, level: Level, inside: bool) -> tuple[list[Edit], list[Decision]]:
        """The loops that pay, and a decision for each large value that was looked at."""
        least = self.sizes.least_bytes
        edits: list[Edit] = []
        decisions: list[Decision] = []
        seen: set[Var] = set()  # values that were looked at, or belong to a stream
        taken: set[int] = set()  # equations that do
        alone, windows = self._for_sums(level, inside), self._for_windows(level)
        for seed in written(level, least, self.context.machine):
            if seed in seen:
                continue
            found = self._in_segments(level, seed)
            if seed in alone:
                found = Left("a sum alone reads it, which goes in smaller blocks", alone)
            if seed in windows:
                found = Left("windows alone read it, which are added up as slices", windows)
            found = found or best(level, seed, frozenset(taken), self.context, self.sizes, inside)
            decisions.append(_decision(level, seed, found))
            seen.update(found.looked_at)
            if isinstance(found, Form):
                edits.append(found.edit)
                taken |= found.edit.gone
        return edits, decisions

    def _for_sums(self, level: Level, inside: bool) -> frozenset[Var]:
        """The values that are left to `stored-sums`: its blocks stay in a core's own cache.

        (A Huber loss of 40 MB took 1.4 times as long in blocks of 2 MB, a quantile loss 1.7 times.)
        """
        if inside or self.context.before_differentiation or self.sizes.at_any_price or self.context.platform != "cpu":
            return frozenset()
        return stored_for_sums(level, self.context)

    def _for_windows(self, level: Level) -> frozenset[Var]:
        """The values that are left to `windows`: what it makes of them is as small as the array."""
        if self.context.before_differentiation or self.sizes.at_any_price:
            return frozenset()
        return read_by_windows(level, self.context)

    def _in_segments(self, level: Level, seed: Var) -> Left | None:
        """Why what a loop stores for another one is left to `loop-segments`, where that will run the steps again.

        In blocks of examples each loop runs as often as there are blocks, with little to do in a step: of 8 states of
        64 x 64 the gradient of a linear attention took 1.2 to 1.6 times as long as in segments.
        """
        if self.context.before_differentiation or self.sizes.at_any_price:
            return None
        pair = pair_at(level, level.made_by[seed], self.context.machine)
        if pair is None or seed not in pair[0].residuals or not judged(level, *pair, self.context.machine)[1].fired:
            return None
        return Left("the loop that makes it runs again in segments", frozenset((seed,)))


def _made_inside(level: Level, v: Var) -> Decision:
    eqn = level.eqns[level.made_by[v]]
    what = f"{v.aval.str_short(True)} of `{eqn.primitive.name}` is made in the steps of loops"
    saved = nbytes(v.aval)
    return Decision(NAME, what, where(eqn), True, "they make it in blocks", 0, 2 * saved, peak_bytes_saved=saved)


def _made_in(scan: JaxprEqn) -> Iterator[Var]:
    return (v for inner in inner_jaxprs(scan) for eqn in inner.eqns for v in eqn.outvars)


def _decision(level: Level, seed: Var, found: Form | Left) -> Decision:
    eqn = level.eqns[level.made_by[seed]]
    what = f"{seed.aval.str_short(True)} of `{eqn.primitive.name}`"
    if isinstance(found, Left):
        return Decision(NAME, what, where(eqn), False, found.reason)
    size, saved = found.size, found.peak_bytes_saved
    return Decision(
        NAME,
        f"{what} is made {size} of {found.stream.length} at a time",
        where(eqn),
        True,
        "it need not exist as a whole",
        bytes_saved=2 * saved,
        peak_bytes_saved=saved,
        exactness=found.stream.exactness,
    )
