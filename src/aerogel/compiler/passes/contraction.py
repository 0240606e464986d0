"""Contraction: sums of products are taken in the cheapest order, without multiplying by zeros and ones."""

from collections.abc import Callable, Sequence
from functools import partial

from aerogel._jax import Jaxpr, JaxprEqn

from ..apart import Priced
from ..cost import Machine
from ..exactness import Exactness
from ..excerpts.classes import sums_of_classes
from ..excerpts.counts import counts
from ..excerpts.one_hot_sums import one_hot_sums
from ..known.identity_rows import identity_rows
from ..known.records import Facts
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_steps
from ..networks.added_rows import spread_before_products
from ..networks.block_products import products_read_in_blocks, products_with_blocks
from ..networks.contractions import edits_of, line_of, sites_of
from ..networks.gathered_rows import products_of_gathered_rows
from ..networks.networks import ROOTS
from ..networks.picked_products import picked_products
from ..networks.released import released
from ..networks.slices import sliced_apart
from ..networks.solved_products import solved_products
from ..networks.spread_products import spread_products
from ..networks.sums_of_factors import distributed, multiplied_out
from ..networks.triangles import running_sums
from ..networks.written_diagonals import written_diagonals
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program
from ..record import record
from ..report import Decision

NAME = "contraction"
WHAT = "a sum of products"
MOST_ROUNDS = 3  # the derivative of an inverse is a product of two solves
MOST_NESTED = 5  # the gradient of `matrix_power(A, 32) @ v` has five sums, one in the other

Prepare = Callable[[Level, Facts, Context], tuple[list[Edit], list[Decision]]]


@record
class ContractionOrder:
    """The pass. Bound: a product is looked at once for each network that it may be part of, at most 20 factors each.

    Attributes:
        more_bytes: what the new form of a sum may hold besides what the old one holds; by default little.
    """

    more_bytes: int | None = None
    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with cheaper sums of products, and a decision for each."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_steps(program, lambda jaxpr, before: _level(jaxpr, before, context, decisions, self.more_bytes))
        if new is program:
            return program, decisions
        # What two sites both make is one value before the next pass turns one of the two.
        new, merged = normalize(new)
        return new, decisions + merged


def _level(
    jaxpr: Jaxpr, before: Sequence[JaxprEqn], context: Context, decisions: list[Decision], more_bytes: int | None
) -> Jaxpr:
    """A level with such sums; again, while solves are for products that were taken in another order."""
    for _ in range(MOST_ROUNDS):
        new = _round(jaxpr, before, context, decisions, more_bytes)
        if new is jaxpr or not solved_products(Level(new)):
            return new
        jaxpr = new
    return jaxpr


def _round(
    jaxpr: Jaxpr, before: Sequence[JaxprEqn], context: Context, decisions: list[Decision], more_bytes: int | None
) -> Jaxpr:
    if not any(eqn.primitive.name in ROOTS for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(sliced_apart(jaxpr))
    facts = structure(level.jaxpr, before)
    for prepare in _prepared(context, before):
        edits, made = prepare(level, facts, context)
        if edits:
            decisions += made
            jaxpr = apply_edits(level.jaxpr, edits)[0]
            level = Level(jaxpr)
            facts = structure(jaxpr, before)
    sites, refusals = sites_of(level, facts, context, more_bytes)
    for one in refusals:
        decisions.append(Decision(NAME, f"{WHAT} is left as it is", line_of(one.root, level), False, one.reason))
    if not sites:
        return jaxpr
    for site in reversed(sites):
        was, now = site.before, site.after
        reason = f"{1e6 * (was.seconds or 0):.1f} us become {1e6 * (now.seconds or 0):.1f} us"
        saved = was.flops - now.flops, was.bytes_moved - now.bytes_moved, was.peak_bytes - now.peak_bytes
        what = f"{WHAT}: {site.how}"
        decisions.append(Decision(NAME, what, line_of(site.root, level), True, reason, *saved, site.exactness))
    return apply_edits(level.jaxpr, edits_of(sites, level))[0]


def _prepared(context: Context, before: Sequence[JaxprEqn]) -> Sequence[Prepare]:
    """What is done before networks are looked for; `before` as for `structure`."""
    if Exactness.FINITE not in context.allowed:
        return (_compared, _on_diagonals, _solved)

    def releasing(level: Level, facts: Facts, context: Context) -> tuple[list[Edit], list[Decision]]:
        edits = released(level, facts, lambda jaxpr: structure(jaxpr, before), context)
        what, why = "terms and divisors leave a sum of products", "it then has a cheaper order"
        exactness = Exactness.FINITE
        return edits, [Decision(NAME, what, line_of(one.place, level), True, why, exactness=exactness) for one in edits]

    nested = (_multiplied_out,) * MOST_NESTED
    return (_compared, _on_diagonals, _solved, _running, _picked, _added_up, _blocks, _distributed, *nested, releasing)


def _solved(level: Level, facts: Facts, context: Context) -> tuple[list[Edit], list[Decision]]:
    edits = solved_products(level)
    what, why = "a solve for a product becomes a product with a solve", "that is for fewer columns"
    exactness = Exactness.REASSOCIATES
    return edits, [Decision(NAME, what, line_of(one.place, level), True, why, exactness=exactness) for one in edits]


def _compared(level: Level, facts: Facts, context: Context) -> tuple[list[Edit], list[Decision]]:
    edits, decisions = list[Edit](), list[Decision]()
    counted = counts, "indices are counted", "one-hot rows need not be made to be summed up or multiplied"
    finite = Exactness.FINITE in context.allowed
    of_classes = partial(sums_of_classes, finite=finite), "rows are added where their classes say", "they are read once"
    for find, what, why in (
        (identity_rows, "rows of an identity are compared, not looked up", "they are one-hot rows"),
        (one_hot_sums, "one-hot rows are not summed up", "the sum is 1 where an index is in bounds"),
        # On GPUs many ones that go to few places wait for each other.
        *((counted, of_classes) if context.platform == "cpu" else ()),
    ):
        found = find(level, facts)
        edits += found
        decisions += [Decision(NAME, what, line_of(one.place, level), True, why) for one in found]
    return edits, decisions


def _on_diagonals(level: Level, facts: Facts, context: Context) -> tuple[list[Edit], list[Decision]]:
    edits, decisions = list[Edit](), list[Decision]()
    for what, edit in written_diagonals(level, facts):
        why = "what reads it then knows what it is"
        decisions.append(Decision(NAME, what, line_of(edit.place, level), True, why))
        edits.append(edit)
    return edits, decisions


def _priced(*ways: tuple[str, Exactness, Callable[[Level, Facts, Machine], list[Priced]]]) -> Prepare:
    """What makes the edits that each way finds, says what it is, and what each is predicted to take."""

    def prepare(level: Level, facts: Facts, context: Context) -> tuple[list[Edit], list[Decision]]:
        edits, decisions = list[Edit](), list[Decision]()
        for what, exactness, find in ways:
            for one in find(level, facts, context.machine):
                edits += one.edits
                reason = f"{1e6 * one.seconds_before:.1f} us become {1e6 * one.seconds_after:.1f} us"
                line = line_of(one.edits[0].place, level)
                decisions.append(Decision(NAME, what, line, True, reason, exactness=exactness))
        return edits, decisions

    return prepare


_running = _priced(("a product with a triangle of ones becomes a running sum", Exactness.FINITE, running_sums))
_picked = _priced(
    ("entries of a product are picked from its factors", Exactness.REASSOCIATES, picked_products),
    ("what indices spread in zeros is multiplied before", Exactness.FINITE, spread_products),
    ("rows are multiplied, and picked then", Exactness.FINITE, products_of_gathered_rows),
)
_added_up = _priced(("rows are added up, and multiplied then", Exactness.REASSOCIATES, spread_before_products))
_blocks = _priced(
    ("a matrix of blocks and zeros is multiplied block by block", Exactness.FINITE, products_with_blocks),
    ("of a product that is read in blocks these are made", Exactness.REASSOCIATES, products_read_in_blocks),
)
_distributed = _priced((f"{WHAT}: the terms of a factor are multiplied one by one", Exactness.FINITE, distributed))
_multiplied_out = _priced((f"{WHAT}: what it adds up is multiplied one by one", Exactness.FINITE, multiplied_out))
