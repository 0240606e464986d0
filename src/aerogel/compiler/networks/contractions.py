"""The sums of products of one level that are cheaper taken in another order, and the edits that do so."""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import permutations

import numpy as np
from jax import lax

from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import cost_of, inputs_of
from ..cost import Cost, equation_seconds, nbytes
from ..exactness import Exactness
from ..known.records import Facts, Shifted
from ..level import Edit, Level
from ..pipeline import Context
from ..program import Builder, is_var, where
from .contraction import Contraction
from .contraction_plan import Node
from .network import Network
from .network_reader import VIEWS
from .networks import Sum, expanded, is_root, sum_of

# The estimate orders forms of one computation, and is no clock: less is not worth the risk.
MARGIN = 0.8
# On a GPU XLA takes the sums of an array in one kernel with what else reads it, as in the gradient of a softmax: a
# product in place of one of them, predicted to take 0.55 of its time, made it 1.1 times as long (H200).
MARGIN_ELSEWHERE = 0.5
LEAST_SECONDS = 2e-7
MORE_BYTES = 1 << 16  # that the new form may hold at its peak, or a part of what the old one reads and was made
PART_OF_READ = 16
ENTRYWISE = frozenset("mul integer_pow square neg div".split())


@dataclass(frozen=True)
class Site:
    """A network that is cheaper in another order.

    Attributes:
        root: the place of the equation whose result it makes.
        dying: places of the equations that go with it, `shared` of which go only if other sites fire, too.
        made: the new equations, and `result`, what stands for the root's.
        before, after: what both forms cost.
        seconds_saved: by the new one, if what is shared goes.
        exactness: what it does to the numbers.
        how: in words, what was done.
    """

    root: int
    dying: frozenset[int]
    shared: frozenset[int]
    made: tuple[JaxprEqn, ...]
    result: Atom
    before: Cost
    after: Cost
    seconds_saved: float
    exactness: Exactness
    how: str


@dataclass(frozen=True)
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


def sites_of(
    level: Level, facts: Facts, context: Context, more_bytes: int | None = None
) -> tuple[list[Site], list[Refusal]]:
    """The sites that pay, together; each equation is in one of them at most, unless it goes with all of them.

    Each may hold `more_bytes` more than what it replaces.
    """
    more_bytes = MORE_BYTES if more_bytes is None else more_bytes
    staying: frozenset[int] = frozenset()
    while True:
        finder = _Finder(level, facts, context, staying, more_bytes)
        sites, refusals = finder.run()
        gone = frozenset[int]().union(*(site.dying - site.shared for site in sites))
        stay = {k for site in sites for k in site.shared if not _all_read_in(level, k, gone, sites)}
        if not stay:
            return sites, refusals
        assert not stay & staying, "what stays was counted on to go"
        staying |= stay


def _all_read_in(level: Level, place: int, gone: frozenset[int], sites: Sequence[Site]) -> bool:
    """Whether all who read an equation's result go, and no new equation reads it."""
    (var,) = level.eqns[place].outvars
    if any(var in inputs_of(site.made, ()) for site in sites):
        return False
    shared = {k for site in sites for k in site.shared}
    return all(k in gone or k in shared for k in level.readers(var))


@dataclass
class _Finder:
    """One walk over a level, from its end; `staying` are equations that somebody else needs, whoever takes them in."""

    level: Level
    facts: Facts
    context: Context
    staying: frozenset[int]
    more_bytes: int
    seconds: dict[int, float] = field(default_factory=dict)  # of equations that run alone, by place

    @cached_property
    def ranks(self) -> dict[Var, int]:
        """The values in the order in which they are made."""
        jaxpr = self.level.jaxpr
        every = (*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars))
        return {v: k for k, v in enumerate(every)}

    @cached_property
    def _has_sums(self) -> bool:
        return self.facts.hold(Shifted)

    def _seconds(self, place: int) -> float:
        found = self.seconds.get(place)
        if found is None:
            found = self.seconds[place] = equation_seconds(self.level.eqns[place], self.context.machine)
        return found

    def run(self) -> tuple[list[Site], list[Refusal]]:
        """The sites, those that come last in the program first, and what was looked at in vain."""
        sites: list[Site] = []
        refusals: list[Refusal] = []
        covered: set[int] = set()
        for place in reversed(range(len(self.level.eqns))):
            if place in covered or not is_root(self.level, self.facts, self.level.eqns[place]):
                continue
            found = self._site(place, frozenset())
            if isinstance(found, Site) and found.shared:
                # What several networks read is better made once if that saves as much.
                found = self._better(found, place, found.shared)
            elif isinstance(found, Refusal) and found.remade:
                found = self._better(found, place, found.remade)
            if self.staying:
                found = self._better(found, place, self.staying)
            if isinstance(found, Site):
                sites.append(found)
                covered |= found.dying
            elif found is not None:
                refusals.append(found)
        return sites, refusals

    def _better(self, found: Site | Refusal | None, place: int, closed: frozenset[int]) -> Site | Refusal | None:
        """What was found at a place, or what is found there without what is `closed`, if that saves as much."""
        other = self._site(place, closed)
        if isinstance(other, Site):
            return found if isinstance(found, Site) and found.seconds_saved > other.seconds_saved else other
        return found if isinstance(found, Site) or other is None else other

    def _site(self, place: int, closed: frozenset[int]) -> Site | Refusal | None:
        multiplied_out = expanded(self.level, self.facts, place, closed) if self._has_sums else None
        site = None if multiplied_out is None else self._site_of(multiplied_out, place)
        if isinstance(site, Site):
            return site
        found = sum_of(self.level, self.facts, place, closed)
        return None if found is None else self._site_of(found, place)

    def _site_of(self, found: Sum, place: int) -> Site | Refusal | None:
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
        bound = sum(self._seconds(k) for k in priced) + sum(self._making(one, places) for one in networks)
        planned = sum(one.tree.seconds for one in contractions if one.tree is not None)
        if planned == math.inf:
            return Refusal(place, "a nan that a mask keeps out would not stay out")
        if planned > MARGIN * bound:
            return _refusal(networks, place, bound, planned)
        exactness = _exactness(contractions)
        # The CPU knows one precision. Elsewhere the highest of several would cost what was not asked for.
        mixed = not on_cpu and any(len(set(one.precisions)) > 1 for one in networks)
        if exactness not in self.context.allowed or mixed:
            return None
        builder = Builder(eqn)
        result = _emitted(contractions, found.dim, builder, tuple(aval.shape))
        return self._judged(place, contractions, places, builder, result) if result.aval == aval else None

    def _making(self, network: Network, places: frozenset[int]) -> float:
        """Of the one-hot factors that nobody but the equations at `places` reads."""
        hot = {factor.atom for factor in network.factors if factor.picking and is_var(factor.atom)}
        alone = (x for x in hot if x in self.level.made_by and places.issuperset(self.level.readers(x)))
        return sum(self._seconds(self.level.made_by[x]) for x in alone)

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

    def _judged(
        self, place: int, contractions: list[Contraction], places: frozenset[int], builder: Builder, result: Atom
    ) -> Site | Refusal | None:
        dying, shared = self._dying(place, places, inputs_of(builder.eqns, (result,)))
        eqns = self.level.eqns
        before = cost_of(self.level, [eqns[k] for k in sorted(dying)], eqns[place].outvars, self.context.machine)
        after = cost_of(self.level, builder.eqns, (result,), self.context.machine)
        whole = before.seconds or 0.0
        parts = {k: self._part_of_others(k, dying) for k in shared}
        # Alone, an equation writes its result out, as it does not in one kernel with those that read it.
        others = min(sum(self._seconds(k) * part for k, part in parts.items()), whole * max(parts.values(), default=0))
        merging = sum(one.tree.merging for one in contractions if one.tree is not None)
        after = replace(after, seconds=(after.seconds or 0.0) + merging)
        now, then = whole - others, after.seconds or 0.0
        on_cpu = self.context.platform == "cpu"
        least = max(LEAST_SECONDS, self.context.machine.seconds_per_graph)
        if then > (MARGIN if on_cpu else MARGIN_ELSEWHERE) * now or now - then < least:
            return _refusal([one.network for one in contractions], place, now, then)
        read = inputs_of([eqns[k] for k in sorted(dying)], ())
        made = sum(nbytes(x.aval) for x in read if x in self.level.made_by)
        more = max(self.more_bytes, made // PART_OF_READ)
        if after.peak_bytes > before.peak_bytes + 2 * nbytes(result.aval) + more:
            held = f"it would hold {after.peak_bytes / 1e6:.1f} MB, and holds {before.peak_bytes / 1e6:.1f} MB"
            remade = (k for k in places - dying if self.level.eqns[k].primitive.name in ENTRYWISE)
            return Refusal(place, held, frozenset(remade))
        return Site(
            place, frozenset(dying), frozenset(shared), tuple(builder.eqns), result, before, after, now - then,
            _exactness(contractions), _in_words(contractions),
        )  # fmt: skip

    def _part_of_others(self, place: int, dying: Container[int]) -> float:
        """How many of those that read an equation's result do not go."""
        readers = self.level.readers(self.level.eqns[place].outvars[0])
        return sum(j not in dying for j in readers) / len(readers)

    def _dying(self, place: int, places: frozenset[int], kept: Container[Var]) -> tuple[set[int], set[int]]:
        """What nobody reads any more when the root goes, and which of it other networks read, too."""
        dying, shared = {place}, set[int]()
        made_by, eqns = self.level.made_by, self.level.eqns
        waiting = sorted({made_by[x] for x in eqns[place].invars if is_var(x) and x in made_by})
        while waiting:
            k = waiting.pop()
            eqn = eqns[k]
            if k in dying or eqn.effects or any(v in kept for v in eqn.outvars) or len(eqn.outvars) != 1:
                continue
            readers = self.level.readers(eqn.outvars[0])
            if not all(j in dying for j in readers):
                if k in self.staying or k not in places or eqn.primitive.name in VIEWS or -1 in readers:
                    continue
                shared.add(k)
            dying.add(k)
            waiting = sorted({*waiting, *(made_by[x] for x in eqn.invars if is_var(x) and x in made_by)})
        return dying, {k for k in shared if not all(j in dying for j in self.level.readers(eqns[k].outvars[0]))}


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


def _exactness(contractions: Sequence[Contraction]) -> Exactness:
    """Another order of three factors takes one out of a sum: `inf * (a + b)` may not be `inf * a + inf * b`."""
    finite = any(len(one.network.factors) > 2 or one.network.is_finite or _picks(one.tree) for one in contractions)
    return Exactness.FINITE if finite else Exactness.REASSOCIATES


def _picks(node: Node | None) -> str | None:
    """Whether a tree gathers or scatters."""
    if node is None:
        return None
    return node.how if node.how in ("gather", "scatter") else _picks(node.left) or _picks(node.right)


def _in_words(contractions: list[Contraction]) -> str:
    picks = {_picks(one.tree) for one in contractions}
    if "gather" in picks:
        return "rows are picked, not multiplied by one-hot rows"
    if "scatter" in picks:
        return "rows are added where they go, not multiplied by one-hot rows"
    if any(one.network.sums for one in contractions):
        return "an identity and a constant are multiplied by one by one"
    if any(one.network.is_finite for one in contractions):
        return "zeros off a diagonal are not multiplied"
    if len(contractions) > 1:
        return "what repeats in an operand is multiplied once"
    return "factors are multiplied in a cheaper order"


def _refusal(networks: Sequence[Network], place: int, now: float, then: float) -> Refusal | None:
    if len(networks) == 1 and len(networks[0].factors) < 3 and not networks[0].is_finite:
        return None
    more = 1e6 * (then - now)
    how = f"take {more:.1f} us more" if more > 0 else f"save {-more:.1f} of {1e6 * now:.1f} us"
    return Refusal(place, f"another order is predicted to {how}")


def edits_of(sites: Sequence[Site], level: Level) -> list[Edit]:
    """The edits that sites are: their roots go, the rest is dead then."""
    results = {level.eqns[site.root].outvars[0]: site.result for site in sites}
    edits: list[Edit] = []
    for site in sites:
        out, result = level.eqns[site.root].outvars[0], site.result
        while is_var(result) and result in results:  # an identity times what is the root of another site
            result = results[result]
        edits.append(Edit(site.root, frozenset({site.root}), site.made, {out: result}, site.dying))
    return edits


def line_of(place: int, level: Level) -> str:
    """The user's line of an equation."""
    return where(level.eqns[place])
