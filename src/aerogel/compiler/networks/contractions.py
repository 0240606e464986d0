"""The sums of products of one level that are cheaper taken in another order, and the edits that do so."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from aerogel._jax import Atom, JaxprEqn, Var

from ..apart import cost_of, inputs_of
from ..cost import Cost, nbytes
from ..exactness import Exactness
from ..known.records import Facts, Shifted
from ..level import Edit, Level
from ..pipeline import Context
from ..program import is_var, where
from ..record import record
from .contraction import Contraction
from .forms import Form, Forms, Refusal, exactness_of, picks, refusal
from .network_reader import VIEWS
from .networks import expanded, is_root, sum_of

# The estimate orders forms of one computation, and is no clock: less is not worth the risk.
MARGIN = 0.8
# On a GPU XLA takes the sums of an array in one kernel with what else reads it, as in the gradient of a softmax: a
# product in place of one of them, predicted to take 0.55 of its time, made it 1.1 times as long (H200).
MARGIN_ELSEWHERE = 0.5
LEAST_SECONDS = 2e-7
# What takes half of the time may hold as much as a core's cache, or as its largest operand, up to what cores share:
# `(x @ w) * y`, by hand, holds the product.
SO_MUCH_FASTER = 2.0
LARGEST_PART = 1 << 22
MORE_BYTES = 1 << 16  # that the new form may hold at its peak, or a part of what the old one reads and was made
PART_OF_READ = 16
ENTRYWISE = frozenset("mul integer_pow square neg div".split())


@record
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


def sites_of(
    level: Level, facts: Facts, context: Context, more_bytes: int | None = None
) -> tuple[list[Site], list[Refusal]]:
    """The sites that pay, together; each equation is in one of them at most, unless it goes with all of them.

    Each may hold `more_bytes` more than what it replaces.
    """
    more_bytes = MORE_BYTES if more_bytes is None else more_bytes
    staying: frozenset[int] = frozenset()
    forms = Forms(level, facts, context, MARGIN)
    judged: dict[Judged, Site | Refusal | None] = {}
    while True:
        finder = _Finder(level, facts, context, staying, more_bytes, forms, judged)
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


Judged = tuple[Form, frozenset[int], frozenset[int]]  # a form, what goes with it, and what of that others read


@dataclass
class _Finder:
    """One walk over a level, from its end; `staying` are equations that somebody else needs, whoever takes them in.

    The `forms`, and what was `judged` of them, are those of the walks before, too: few depend on what stays.
    """

    level: Level
    facts: Facts
    context: Context
    staying: frozenset[int]
    more_bytes: int
    forms: Forms
    judged: dict[Judged, Site | Refusal | None]

    @cached_property
    def _has_sums(self) -> bool:
        return self.facts.hold(Shifted)

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
        site = self._outcome(place, self.forms.of(expanded, place, closed)) if self._has_sums else None
        return site if isinstance(site, Site) else self._outcome(place, self.forms.of(sum_of, place, closed))

    def _outcome(self, place: int, form: Form | Refusal | None) -> Site | Refusal | None:
        if not isinstance(form, Form):
            return form
        dying, shared = map(frozenset, self._dying(place, form.places, inputs_of(form.made, (form.result,))))
        key = form, dying, shared
        if key not in self.judged:
            self.judged[key] = self._judged(place, *key)
        return self.judged[key]

    def _judged(self, place: int, form: Form, dying: frozenset[int], shared: frozenset[int]) -> Site | Refusal | None:
        eqns = self.level.eqns
        before = cost_of(self.level, [eqns[k] for k in sorted(dying)], eqns[place].outvars, self.context.machine)
        after = cost_of(self.level, form.made, (form.result,), self.context.machine)
        whole = before.seconds or 0.0
        parts = {k: self._part_of_others(k, dying, shared) for k in shared}
        # Alone, an equation writes its result out, as it does not in one kernel with those that read it.
        others = sum(self.forms.seconds(k) * part for k, part in parts.items())
        others = min(others, whole * max(parts.values(), default=0))
        merging = sum(one.tree.merging for one in form.contractions if one.tree is not None)
        after = replace(after, seconds=(after.seconds or 0.0) + merging)
        now, then = whole - others, after.seconds or 0.0
        on_cpu = self.context.platform == "cpu"
        least = max(LEAST_SECONDS, self.context.machine.seconds_per_graph)
        if then > (MARGIN if on_cpu else MARGIN_ELSEWHERE) * now or now - then < least:
            return refusal([one.network for one in form.contractions], place, now, then)
        read = inputs_of([eqns[k] for k in sorted(dying)], ())
        made = sum(nbytes(x.aval) for x in read if x in self.level.made_by)
        more = max(self.more_bytes, made // PART_OF_READ)
        is_fast = SO_MUCH_FASTER * then <= whole
        if self.more_bytes and is_fast:
            largest = max((nbytes(x.aval) for x in read), default=0)
            more = max(more, min(LARGEST_PART, max(largest, self.context.machine.cache_bytes)))
        # Products that are added up are each as large as the result.
        more += 2 * nbytes(form.result.aval) if is_fast or len(form.contractions) < 2 else 0
        if after.peak_bytes > before.peak_bytes + more:
            held = f"it would hold {after.peak_bytes / 1e6:.1f} MB, and holds {before.peak_bytes / 1e6:.1f} MB"
            remade = (k for k in form.places - dying if self.level.eqns[k].primitive.name in ENTRYWISE)
            return Refusal(place, held, frozenset(remade))
        return Site(
            place, dying, shared, form.made, form.result, before, after, now - then,
            exactness_of(form.contractions), _in_words(form.contractions),
        )  # fmt: skip

    def _part_of_others(self, place: int, dying: Container[int], shared: Container[int]) -> float:
        """How many of those that read an equation's result do not go, with those behind a transpose that is shared."""
        readers = self.level.readers(self.level.eqns[place].outvars[0])
        behind = sum(self._part_of_others(j, dying, shared) for j in readers if j in shared)
        return (sum(j not in dying for j in readers) + behind) / len(readers)

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
                seen_through = eqn.primitive.name in VIEWS and not _turns_a_matrix(eqn)
                if k in self.staying or k not in places or seen_through or -1 in readers:
                    continue
                shared.add(k)
            elif any(j in shared and _turns_a_matrix(eqns[j]) for j in readers):
                shared.add(k)
            dying.add(k)
            waiting = sorted({*waiting, *(made_by[x] for x in eqn.invars if is_var(x) and x in made_by)})
        parts = {k for k in shared if not all(j in dying for j in self.level.readers(eqns[k].outvars[0]))}
        behind = (k for k in shared if any(j in parts for j in self.level.readers(eqns[k].outvars[0])))
        return dying, parts.union(behind)


def _turns_a_matrix(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "transpose" and len(eqn.outvars[0].aval.shape) == 2


def _in_words(contractions: Sequence[Contraction]) -> str:
    picked = {picks(one.tree) for one in contractions}
    if "gather" in picked:
        return "rows are picked, not multiplied by one-hot rows"
    if "scatter" in picked:
        return "rows are added where they go, not multiplied by one-hot rows"
    if any(one.network.sums for one in contractions):
        return "an identity and a constant are multiplied by one by one"
    if any(one.network.is_finite for one in contractions):
        return "zeros off a diagonal are not multiplied"
    if len(contractions) > 1:
        return "what repeats in an operand is multiplied once"
    return "factors are multiplied in a cheaper order"


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
