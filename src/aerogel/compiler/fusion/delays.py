"""Values of earlier steps in a loop under construction: what `ys[1:] - ys[:-1]` reads besides the present one."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import lax

from aerogel._jax import Atom, Var

from ..axes import Mapped
from ..cost import Machine, nbytes
from ..loop import LoopBuilder, strong
from ..program import is_var
from .region import Region, Site, Sliced

# Up to this many values are kept in carries of their own, which each step hands on; more in a ring buffer.
HANDED_ON = 4
# Done once more for an earlier step rather than kept.
AGAIN = frozenset(
    "add sub mul neg abs max min square integer_pow convert_element_type broadcast_in_dim reshape squeeze expand_dims "
    "transpose copy select_n".split()
)


class Delays:
    """The last few values of some variables of a body, kept in carries.

    The latest of them is a carry always: XLA's CPU backend would compute a value again to write it to a buffer, but not
    what it carries.
    """

    def __init__(self, new: LoopBuilder, region: Region, sites: Iterable[Site]):
        self.new, self.region = new, region
        self._makers = {v: site for site in sites for v in site.eqn.outvars}
        self.depth: dict[Var, int] = {}  # how many values of a variable are needed
        for site in sites:
            self._need(site, 0)
        self._kept: dict[Var, list[Atom]] = {}  # the values of 1, 2, ... steps ago

    def _need(self, site: Site, delay: int) -> None:
        for k, x in enumerate(site.reads):
            if is_var(x) and x in self.region.stacked and delay + site.delay(k):
                maker = self.remade(x)
                if maker is None:
                    source = self._source(x)
                    self.depth[source] = max(self.depth.get(source, 0), delay + site.delay(k))
                else:
                    self._need(maker, delay + site.delay(k))

    def _source(self, x: Var) -> Var:
        """What a slice over time is of: both are the same value in the body."""
        while (
            (maker := self._makers.get(x)) is not None and isinstance(maker.answer, Sliced) and is_var(maker.reads[0])
        ):
            x = maker.reads[0]
        return x

    def remade(self, x: Var) -> Site | None:
        """The site that is run once more, on earlier values, to have an earlier `x`: one that costs next to nothing.

        What is kept is then what the loop carries anyway, or what is dear.
        """
        site = self._makers.get(self._source(x))
        if site is None or not isinstance(site.answer, Mapped) or site.answer.uses_start or len(site.eqn.outvars) > 1:
            return None
        early = (
            p for v, p in zip(site.reads, site.places, strict=True) if not (is_var(v) and v in self.region.stacked)
        )
        return site if site.eqn.primitive.name in AGAIN and all(p is None for p in early) else None

    def read(self, x: Var, now: Atom, delay: int) -> Atom:
        """The value of `x` of `delay` steps ago, where that is a step; `now` is the value of this step."""
        x = self._source(x)
        if x not in self._kept:
            self._keep(x, [self._one(now)])
        return self._kept[x][delay - 1]

    def is_before(self, x: Var, carry: Atom) -> None:
        """Notes that one step ago `x` was what the atom `carry` holds (with time in front): the latest is kept."""
        if x in self.depth:
            self._keep(x, self.new.body.call(lambda v: lax.expand_dims(v, [0]), carry))

    def _keep(self, x: Var, kept: list[Atom]) -> None:
        depth = self.depth[x]
        if depth > HANDED_ON:
            kept = kept + self._ring(kept[0], depth - 1)
        while len(kept) < depth:
            kept.append(self._one(kept[-1]))
        self._kept[x] = kept

    def _one(self, now: Atom) -> Atom:
        """What `now` was a step ago."""
        aval = strong(now.aval)
        (empty,) = self.new.before.call(lambda: lax.full(aval.shape, 0, aval.dtype))
        kept, set_next, _ = self.new.carry(empty)
        set_next(now)
        return kept

    def _ring(self, now: Atom, depth: int) -> list[Atom]:
        """What `now` was 1, 2, ... `depth` steps ago."""
        aval, ahead = strong(now.aval), -1 if self.new.reverse else 1
        (empty,) = self.new.before.call(lambda: lax.full((depth, *aval.shape), 0, aval.dtype))
        ring, set_next, _ = self.new.carry(empty)

        def row(t: Any, delay: int) -> Any:
            return lax.rem(t + np.int32(depth - ahead * delay), np.int32(depth))

        def read(ring: Any, t: Any) -> list[Any]:
            return [lax.dynamic_index_in_dim(ring, row(t, d), 0, keepdims=False) for d in range(1, depth + 1)]

        def write(ring: Any, v: Any, t: Any) -> Any:
            return lax.dynamic_update_index_in_dim(ring, lax.expand_dims(v, [0]), row(t, 0), 0)

        values = self.new.body.call(read, ring, self.new.index())
        (written,) = self.new.body.call(write, ring, now, self.new.index())
        set_next(written)
        return values


def seconds_to_delay(site: Site, machine: Machine) -> float:
    """Time of all steps to keep and read what a site reads of earlier steps."""
    return sum(
        2 * nbytes(x.aval) / machine.cache_bytes_per_second
        for k, x in enumerate(site.reads)
        if is_var(x) and site.delay(k)
    )
