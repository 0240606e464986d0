"""Contraction: sums of products are taken in the cheapest order, without multiplying by zeros and ones."""

from dataclasses import dataclass

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..contractions import edits_of, line_of, sites_of
from ..exactness import Exactness
from ..level import Level, apply_edits
from ..levels import rewrite_steps
from ..networks import ROOTS
from ..normalize import normalize
from ..pipeline import Context
from ..program import Program, copy_equation, is_var, rename, substitute, with_equations
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
    level = Level(sliced_apart(without_kernel_branches(jaxpr, context.platform)))
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


def without_kernel_branches(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """A level without the branches that are taken inside TPU kernels only (`jnp.diagonal` has one)."""
    indices = {
        eqn.outvars[0]
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "platform_index" and eqn.params.get("platforms") == (("mosaic",), None)
    }
    if not indices or platform not in ("cpu", "gpu"):
        return jaxpr
    eqns: list[JaxprEqn] = []
    env: dict[Var, Atom] = {}
    for eqn in jaxpr.eqns:
        eqn = rename(eqn, env)
        if eqn.primitive.name == "cond" and eqn.invars[0] in indices and not eqn.effects:
            _take_branch(eqn, eqn.params["branches"][1], eqns, env)
        else:
            eqns.append(eqn)
    return with_equations(jaxpr, eqns, [substitute(x, env) for x in jaxpr.outvars])


def _take_branch(eqn: JaxprEqn, branch: ClosedJaxpr, eqns: list[JaxprEqn], env: dict[Var, Atom]) -> None:
    assert not branch.consts, "a branch of jnp's closed over an array"
    inner: dict[Var, Atom] = dict(zip(branch.jaxpr.invars, eqn.invars[1:], strict=True))
    for one in branch.jaxpr.eqns:
        new = copy_equation(one, inner)
        eqns.append(new.replace(source_info=eqn.source_info))
    env.update((v, substitute(x, inner)) for v, x in zip(eqn.outvars, branch.jaxpr.outvars, strict=True) if is_var(v))
