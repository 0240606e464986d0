"""Steps of loops that `jax.checkpoint` wraps, written out.

A checkpoint keeps what a gradient computes again apart from what its forward part has computed: XLA would merge them.
In the step of a backward loop there is mostly no forward part; and in blocks nothing is kept that could be merged.
"""

from dataclasses import dataclass, field

from aerogel._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..loop import as_loop
from ..normal_form.closed_over import CHECKPOINTS
from ..normalize import Normalizer, equation_key, open_jaxpr
from ..program import copy_equation, rename, substitute, with_equations
from .hoist import constant_equations


def with_open_steps(jaxpr: Jaxpr, least_bytes: int) -> Jaxpr:
    """The level with checkpoints in its loops open that read large constants of them; the same object if none is."""
    eqns = [_opened(eqn, least_bytes) for eqn in jaxpr.eqns]
    same = all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else with_equations(jaxpr, eqns)


def _opened(eqn: JaxprEqn, least_bytes: int) -> JaxprEqn:
    loop = as_loop(eqn)
    if loop is None:
        return eqn
    fixed = {v for i in constant_equations(loop) for v in loop.body.eqns[i].outvars}
    large = {v for v in (*loop.body_consts, *fixed) if nbytes(v.aval) >= least_bytes}
    places = {k for k, one in enumerate(loop.body.eqns) if _is_checkpoint(one) and not large.isdisjoint(one.invars)}
    if not places:
        return eqn
    opened = _inlined(loop.body, places, least_bytes)
    if opened is None:
        return eqn
    body = Normalizer(opened).run(opened)
    return eqn.replace(params=eqn.params | {"jaxpr": ClosedJaxpr(body, eqn.params["jaxpr"].consts)})


def _is_checkpoint(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in CHECKPOINTS and not eqn.effects


def _inlined(body: Jaxpr, places: set[int], least_bytes: int) -> Jaxpr | None:
    """The body with checkpoints written out; None if one makes something large that the body makes elsewhere, too."""
    eqns: list[JaxprEqn] = []
    env: dict[Var, Atom] = {}
    made = _Made(least_bytes)
    for place, eqn in enumerate(body.eqns):
        if place not in places:
            eqns.append(rename(eqn, env))
            made.add(eqns[-1], -1)
            continue
        inner = open_jaxpr(eqn.params["jaxpr"])
        if inner.constvars:
            return None
        names: dict[Var, Atom] = dict(zip(inner.invars, (substitute(x, env) for x in eqn.invars), strict=True))
        for one in inner.eqns:
            eqns.append(copy_equation(one, names))
            made.add(eqns[-1], place)
        env.update(zip(eqn.outvars, (substitute(x, names) for x in inner.outvars), strict=True))
    return None if made.twice else with_equations(body, eqns, [substitute(x, env) for x in body.outvars])


@dataclass
class _Made:
    """What equations make, one name for what is equal, and whether two places make something large `twice`."""

    least_bytes: int
    twice: bool = False
    names: dict[Var, Atom] = field(default_factory=dict)
    makers: dict[object, tuple[int, list[Var]]] = field(default_factory=dict)

    def add(self, eqn: JaxprEqn, place: int) -> None:
        """One more equation, of the checkpoint at a place, or of none (-1)."""
        key = equation_key(rename(eqn, self.names))
        if key is None:
            return
        maker, outs = self.makers.setdefault(key, (place, eqn.outvars))
        self.names.update((v, x) for v, x in zip(eqn.outvars, outs, strict=True) if v is not x)
        self.twice |= maker != place and any(nbytes(v.aval) >= self.least_bytes for v in outs)
