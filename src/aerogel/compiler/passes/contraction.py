"""Contraction: sums of products are taken in the cheapest order, without multiplying by zeros and ones."""

from dataclasses import dataclass

from aerogel._jax import Jaxpr

from ..contractions import edits_of, line_of, sites_of
from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_steps
from ..networks import ROOTS
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program
from ..report import Decision
from ..slices import sliced_apart
from ..structure import structure

NAME = "contraction"
WHAT = "a sum of products"


@dataclass(frozen=True)
class ContractionOrder:
    """The pass. Bound: a product is looked at once for each network that it may be part of, at most 20 factors each."""

    name: str = NAME
    exactness: Exactness = Exactness.FINITE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with cheaper sums of products, and a decision for each."""
        if Exactness.REASSOCIATES not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        new = rewrite_steps(program, lambda jaxpr: _level(jaxpr, context, decisions))
        if new is program:
            return program, decisions
        # What two sites both make is one value before the next pass turns one of the two.
        new, merged = normalize(new)
        return new, decisions + merged


def _level(jaxpr: Jaxpr, context: Context, decisions: list[Decision]) -> Jaxpr:
    if not any(eqn.primitive.name in ROOTS for eqn in jaxpr.eqns):
        return jaxpr
    level = Level(sliced_apart(jaxpr))
    sites, refusals = sites_of(level, structure(level.jaxpr), context)
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
