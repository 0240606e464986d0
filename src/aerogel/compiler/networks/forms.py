"""The forms that the sums of products of one level could take: made once, whoever asks for them how often."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import permutations

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..cost import equation_seconds
from ..exactness import Exactness
from ..known.records import Facts
from ..level import Level
from ..pipeline import Context
from ..program import Builder, is_var
from ..record import record
from .contraction import Contraction
from .contraction_plan import Node
from .network import Network
from .network_reader import VIEWS
from .networks import Sum

Way = Callable[[Level, Facts, int, frozenset[int], set[int]], Sum | None]


@record
class Refusal:
    """A network that stays as it is, and why.

    Attributes:
        root: the place of the equation whose result it makes.
        reason: in words.
        remade: places of entrywise products in it that others read: if it reads them too, it holds less.
    """

    root: int
    reason: str
    remade: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Form:
    """A network in another order.

    Attributes:
        contractions: how it is taken.
        places: of the equations that it is in the place of.
        made: the new equations, and `result`, what stands for the root's.
    """

    contractions: tuple[Contraction, ...]
    places: frozenset[int]
    made: tuple[JaxprEqn, ...]
    result: Atom


@dataclass
class Forms:
    """The forms of the sums of one level that are planned to take less than `margin` of what their equations take."""

    level: Level
    facts: Facts
    context: Context
    margin: float
    _seconds: dict[int, float] = field(default_factory=dict)
    _opened: dict[tuple[Way, int], set[int]] = field(default_factory=dict)
    _found: dict[tuple[Way, int, frozenset[int]], Form | Refusal | None] = field(default_factory=dict)

    @cached_property
    def ranks(self) -> dict[Var, int]:
        """The values in the order in which they are made."""
        jaxpr = self.level.jaxpr
        every = (*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars))
        return {v: k for k, v in enumerate(every)}

    def seconds(self, place: int) -> float:
        """Of an equation that runs alone."""
        found = self._seconds.get(place)
        if found is None:
            found = self._seconds[place] = equation_seconds(self.level.eqns[place], self.context.machine)
        return found

    def of(self, way: Way, place: int, closed: frozenset[int]) -> Form | Refusal | None:
        """The form of the sum that a way reads at a place without taking in what is `closed`; why not; None if none."""
        opened = self._opened.get((way, place))
        if opened is not None and opened.isdisjoint(closed):
            closed = frozenset()  # reading came to none of these
        key = way, place, closed
        if key not in self._found:
            opened = set[int]()
            found = way(self.level, self.facts, place, closed, opened)
            self._found[key] = None if found is None else self._form_of(found, place)
            if not closed:
                self._opened[way, place] = opened
        return self._found[key]

    def _form_of(self, found: Sum, place: int) -> Form | Refusal | None:
        eqn = self.level.eqns[place]
        aval = eqn.outvars[0].aval
        if not all(_is_held(one.coefficient, eqn) for one in found.networks):
            return None
        networks = found.networks
        if len(networks) == 1 and (not _is_more_than_written(networks[0]) or self._weighs_steps(networks[0])):
            return None
        on_cpu = self.context.platform == "cpu"
        contractions = [Contraction(one, aval.dtype, self.context.machine, self.ranks, on_cpu) for one in networks]
        places = frozenset[int]().union(*(one.places for one in networks))
        priced = (k for k in sorted(places) if k == place or self.level.eqns[k].primitive.name not in VIEWS)
        bound = sum(self.seconds(k) for k in priced) + sum(self._making(one, places) for one in networks)
        planned = sum(one.tree.seconds for one in contractions if one.tree is not None)
        if planned == math.inf:
            return Refusal(place, "a nan that a mask keeps out would not stay out")
        if planned > self.margin * bound:
            return refusal(networks, place, bound, planned)
        exactness = exactness_of(contractions)
        # The CPU knows one precision. Elsewhere the highest of several would cost what was not asked for.
        mixed = not on_cpu and any(len(set(one.precisions)) > 1 for one in networks)
        if exactness not in self.context.allowed or mixed:
            return None
        builder = Builder(eqn)
        result = _emitted(contractions, found.dim, builder, tuple(aval.shape))
        return Form(tuple(contractions), places, tuple(builder.eqns), result) if result.aval == aval else None

    def _making(self, network: Network, places: frozenset[int]) -> float:
        """Of the one-hot factors that nobody but the equations at `places` reads."""
        hot = {factor.atom for factor in network.factors if factor.picking and is_var(factor.atom)}
        alone = (x for x in hot if x in self.level.made_by and places.issuperset(self.level.readers(x)))
        return sum(self.seconds(self.level.made_by[x]) for x in alone)

    def _weighs_steps(self, network: Network) -> bool:
        """Whether it is a sum of a loop's steps, each times a number: that is accumulated in the loop."""
        kept = {label for labels in network.out for label in labels}
        for one, other in permutations(network.factors) if len(network.factors) == 2 else ():
            steps = set(one.dims[0]) if one.dims and self._is_stacked(one.atom) else set[int]()
            if steps and not steps & kept and {label for labels in other.dims for label in labels} <= steps:
                return True
        return False

    def _is_stacked(self, x: Atom) -> bool:
        """Whether a value holds steps of a loop."""
        while is_var(x) and x in self.level.made_by:
            maker = self.level.eqns[self.level.made_by[x]]
            if maker.primitive.name not in ("rev", "slice"):
                return maker.primitive.name == "scan"
            x = maker.invars[0]
        return False


def _is_more_than_written(network: Network) -> bool:
    """Whether there is anything to choose: several values are multiplied, in several equations or with a known one."""
    picks = any(factor.picking is not None for factor in network.factors)
    chosen = len(network.places) > 1 or network.is_finite or network.is_known or picks
    return chosen and network.multiplies


def _is_held(coefficient: float, eqn: JaxprEqn) -> bool:
    """Whether an equation's type holds a number, neither as zero nor as an infinity."""
    with np.errstate(all="ignore"):
        held = np.asarray(coefficient).astype(eqn.outvars[0].aval.dtype)
    return bool(np.isfinite(held)) and held != 0


def _emitted(contractions: list[Contraction], dim: int | None, builder: Builder, shape: tuple[int, ...]) -> Atom:
    """What stands for the root: the one result, or several added up or joined along `dim`."""
    results: list[Atom] = []
    for one in contractions:
        own = shape
        if dim is not None:
            rows = math.prod(one.network.sizes[label] for label in one.network.out[dim])
            own = (*shape[:dim], rows, *shape[dim + 1 :])
        results.append(one.emit(builder, own))
    if len(results) == 1:
        return results[0]
    if dim is not None:
        return builder.call(lambda *ys: lax.concatenate(ys, dim), *results)[0]
    return builder.call(lambda *ys: reduce(lax.add, ys), *results)[0]


def exactness_of(contractions: Sequence[Contraction]) -> Exactness:
    """What another order does to the numbers: out of a sum, a factor of infinity meets the sum alone, not its terms."""
    finite = any(_takes_out(one.network) or one.network.is_finite or picks(one.tree) for one in contractions)
    return Exactness.FINITE if finite else Exactness.REASSOCIATES


def _takes_out(network: Network) -> bool:
    """Whether a factor can leave a sum: of three one can, of two where the other alone has a summed dimension."""
    factors = [{one for labels in factor.dims for one in network.resolved(labels)} for factor in network.factors]
    summed = set(network.resolved(network.summed))
    return len(factors) > 2 or (len(factors) == 2 and bool(summed & (factors[0] ^ factors[1])))


def picks(node: Node | None) -> str | None:
    """Whether a tree gathers or scatters."""
    if node is None:
        return None
    return node.how if node.how in ("gather", "scatter") else picks(node.left) or picks(node.right)


def refusal(networks: Sequence[Network], place: int, now: float, then: float) -> Refusal | None:
    """The refusal of another order by its seconds; None of two factors, which have no other."""
    if len(networks) == 1 and len(networks[0].factors) < 3 and not networks[0].is_finite:
        return None
    more = 1e6 * (then - now)
    how = f"take {more:.1f} us more" if more > 0 else f"save {-more:.1f} of {1e6 * now:.1f} us"
    return Refusal(place, f"another order is predicted to {how}")
