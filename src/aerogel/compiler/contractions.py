"""The sums of products of one level that are cheaper taken in another order, and the edits that do so."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from aerogel import _jax
from aerogel._jax import Atom, JaxprEqn, Var

from .contraction import Contraction
from .contraction_plan import Node
from .cost import Cost, equation_seconds, jaxpr_seconds, nbytes
from .cost.program import jaxpr_cost
from .exactness import Exactness
from .level import Edit, Level
from .network import Network
from .networks import ROOTS, VIEWS, network_of
from .pipeline import Context
from .program import Builder, is_var, where, with_equations
from .records import Facts

# The estimate orders forms of one computation, and is no clock: less is not worth the risk.
MARGIN = 0.8
LEAST_SECONDS = 2e-7
MORE_BYTES = 1 << 16  # that the new form may hold at its peak


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
    """A network that stays as it is, and why."""

    root: int
    reason: str


def sites_of(level: Level, facts: Facts, context: Context) -> tuple[list[Site], list[Refusal]]:
    """The sites that pay, together; each equation is in one of them at most, unless it goes with all of them."""
    closed: frozenset[int] = frozenset()
    while True:
        finder = _Finder(level, facts, context, closed)
        sites, refusals = finder.run()
        gone = frozenset[int]().union(*(site.dying - site.shared for site in sites))
        stay = {k for site in sites for k in site.shared if not _all_read_in(level, k, gone, sites)}
        if not stay:
            return sites, refusals
        closed |= stay


def _all_read_in(level: Level, place: int, gone: frozenset[int], sites: Sequence[Site]) -> bool:
    """Whether all who read an equation's result go, and no new equation reads it."""
    (var,) = level.eqns[place].outvars
    if any(var in _inputs(site.made, ()) for site in sites):
        return False
    shared = {k for site in sites for k in site.shared}
    return all(k in gone or k in shared for k in level.readers(var))


@dataclass
class _Finder:
    """One walk over a level, from its end."""

    level: Level
    facts: Facts
    context: Context
    closed: frozenset[int]
    seconds: dict[int, float] = field(default_factory=dict)  # of equations that run alone, by place

    @cached_property
    def ranks(self) -> dict[Var, int]:
        """The values in the order in which they are made."""
        jaxpr = self.level.jaxpr
        every = (*jaxpr.constvars, *jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars))
        return {v: k for k, v in enumerate(every)}

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
            if place in covered or self.level.eqns[place].primitive.name not in ROOTS:
                continue
            found = self._site(place, self.closed)
            if isinstance(found, Site) and found.shared:
                # What several networks read is better made once if that saves as much.
                other = self._site(place, self.closed | found.shared)
                found = other if isinstance(other, Site) and other.seconds_saved >= found.seconds_saved else found
            if isinstance(found, Site):
                sites.append(found)
                covered |= found.dying
            elif found is not None:
                refusals.append(found)
        return sites, refusals

    def _site(self, place: int, closed: frozenset[int]) -> Site | Refusal | None:
        network = network_of(self.level, self.facts, place, closed)
        eqn = self.level.eqns[place]
        if network is None or not _is_more_than_written(network) or not _is_held(network.coefficient, eqn):
            return None
        contraction = Contraction(network, eqn.outvars[0].aval.dtype, self.context.machine, self.ranks)
        tree = contraction.tree
        work = [k for k in network.places if self.level.eqns[k].primitive.name not in VIEWS]
        bound = sum(self._seconds(k) for k in sorted(work))
        if tree is not None and tree.seconds > MARGIN * bound:
            return _refusal(network, place, bound, tree.seconds)
        exactness = _exactness(network, tree)
        if exactness not in self.context.allowed or len(set(network.precisions)) > 1:
            return None
        builder = Builder(eqn)
        result = contraction.emit(builder, eqn)
        if result.aval != eqn.outvars[0].aval:
            return None
        return self._judged(place, network, builder, result, exactness, tree)

    def _judged(
        self, place: int, network: Network, builder: Builder, result: Atom, exactness: Exactness, tree: Node | None
    ) -> Site | Refusal | None:
        dying, shared = self._dying(place, network, _inputs(builder.eqns, (result,)))
        eqns = self.level.eqns
        before = self._cost([eqns[k] for k in sorted(dying)], eqns[place].outvars[0])
        after = self._cost(builder.eqns, result)
        parts = {k: sum(j in dying for j in self.level.readers(eqns[k].outvars[0])) for k in shared}
        others = sum(self._seconds(k) * (1 - n / len(self.level.readers(eqns[k].outvars[0]))) for k, n in parts.items())
        now, then = (before.seconds or 0.0) - others, after.seconds or 0.0
        if then > MARGIN * now or now - then < LEAST_SECONDS:
            return _refusal(network, place, now, then)
        if after.peak_bytes > before.peak_bytes + 2 * nbytes(result.aval) + MORE_BYTES:
            held = f"it would hold {after.peak_bytes / 1e6:.1f} MB, and holds {before.peak_bytes / 1e6:.1f} MB"
            return Refusal(place, held)
        return Site(
            place, frozenset(dying), frozenset(shared), tuple(builder.eqns), result, before, after, now - then,
            exactness, _in_words(network, tree),
        )  # fmt: skip

    def _dying(self, place: int, network: Network, kept: Container[Var]) -> tuple[set[int], set[int]]:
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
                if k not in network.places or eqn.primitive.name in VIEWS or -1 in readers:
                    continue
                shared.add(k)
            dying.add(k)
            waiting = sorted({*waiting, *(made_by[x] for x in eqn.invars if is_var(x) and x in made_by)})
        return dying, {k for k in shared if not all(j in dying for j in self.level.readers(eqns[k].outvars[0]))}

    def _cost(self, eqns: Sequence[JaxprEqn], result: Atom) -> Cost:
        jaxpr = with_equations(self.level.jaxpr, eqns, [result])
        jaxpr = _jax.new_jaxpr(jaxpr, list(_inputs(eqns, (result,))), [result], list(eqns), ())
        cost, seconds = jaxpr_cost(jaxpr), jaxpr_seconds(jaxpr, self.context.machine)
        return Cost(cost.flops, cost.bytes_moved, cost.peak_bytes, seconds)


def _inputs(eqns: Sequence[JaxprEqn], more: Sequence[Atom]) -> dict[Var, None]:
    """What equations read and do not make, in order."""
    made = {v for eqn in eqns for v in eqn.outvars}
    read = [x for eqn in eqns for x in eqn.invars if is_var(x)] + [x for x in more if is_var(x)]
    return dict.fromkeys(x for x in read if x not in made)


def _is_more_than_written(network: Network) -> bool:
    """Whether there is anything to choose: several values are multiplied, in several equations or with a known one."""
    picks = any(factor.picking is not None for factor in network.factors)
    chosen = len(network.places) > 1 or network.is_finite or network.is_known or picks
    return chosen and (network.joins or bool(network.precisions))


def _is_held(coefficient: float, eqn: JaxprEqn) -> bool:
    """Whether an equation's type holds a number, neither as zero nor as an infinity."""
    with np.errstate(all="ignore"):
        held = np.asarray(coefficient).astype(eqn.outvars[0].aval.dtype)
    return bool(np.isfinite(held)) and held != 0


def _exactness(network: Network, tree: Node | None) -> Exactness:
    return Exactness.FINITE if network.is_finite or _picks(tree) else Exactness.REASSOCIATES


def _picks(node: Node | None) -> str | None:
    """Whether a tree gathers or scatters."""
    if node is None:
        return None
    return node.how if node.how in ("gather", "scatter") else _picks(node.left) or _picks(node.right)


def _in_words(network: Network, tree: Node | None) -> str:
    picks = _picks(tree)
    if picks:
        return (
            "rows are picked, not multiplied by one-hot rows" if picks == "gather" else "rows are added where they go"
        )
    if network.is_finite:
        return "zeros off a diagonal are not multiplied"
    return "factors are multiplied in a cheaper order"


def _refusal(network: Network, place: int, now: float, then: float) -> Refusal | None:
    if len(network.factors) < 3 and not network.is_finite:
        return None
    return Refusal(place, f"another order would take {1e6 * then:.1f} us, and it takes {1e6 * now:.1f} us")


def edit_of(site: Site, level: Level) -> Edit:
    """The edit that a site is: its root goes, the rest is dead then."""
    out = level.eqns[site.root].outvars[0]
    return Edit(site.root, frozenset({site.root}), site.made, {out: site.result}, site.dying)


def line_of(place: int, level: Level) -> str:
    """The user's line of an equation."""
    return where(level.eqns[place])
