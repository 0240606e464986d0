"""Branches that only TPU kernels take: `jnp.diagonal`, and `jnp.diag` with it, has one.

Elsewhere the other form is the program, and passes see through it.
"""

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..levels import rewrite_levels
from ..program import Program, copy_equation, is_var, rename, substitute, with_equations


def without_kernel_branches(program: Program, platform: str) -> Program:
    """A program without the branches that are taken inside TPU kernels only; itself if it has none."""
    return rewrite_levels(program, _level) if platform in ("cpu", "gpu") else program


def _level(jaxpr: Jaxpr) -> Jaxpr:
    indices = {
        eqn.outvars[0]
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "platform_index" and eqn.params.get("platforms") == (("mosaic",), None)
    }
    if not indices:
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
