"""Arrays that called functions close over, handed to them by the program: such a call can be inlined like any other.

JAX keeps the arrays that a jitted function closes over inside of the call. A program that calls it holds them instead
here, each once, and every call of one function stays a call of one function.
"""

from dataclasses import dataclass, field
from typing import Any

from ... import _jax
from ..._jax import ClosedJaxpr, JaxprEqn, Var
from ..program import Program


def without_closures(program: Program) -> Program:
    """The program with the arrays of all its calls as its own constants; the same object if they have none.

    Calls in the bodies of loops and branches keep theirs, and so do those with effects.
    """
    return _Opening().program(program)


@dataclass
class _Opening:
    done: dict[int, ClosedJaxpr] = field(default_factory=dict)
    kept: list[ClosedJaxpr] = field(default_factory=list)  # keeps the keys of `done` and `bodies` alive
    bodies: dict[int, ClosedJaxpr] = field(default_factory=dict)  # with the arrays as first arguments

    def program(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """A program whose calls close over nothing; once for each."""
        if id(closed) not in self.done:
            self.done[id(closed)] = self._opened(closed)
            self.kept.append(closed)
        return self.done[id(closed)]

    def _opened(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = closed.jaxpr
        known = {(id(x), v.aval): v for v, x in zip(jaxpr.constvars, closed.consts, strict=True)}
        more: dict[Var, Any] = {}
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            inner = self.program(eqn.params["jaxpr"]) if asks_nothing(eqn) and not eqn.effects else None
            if inner is None or not inner.consts:
                eqns.append(eqn)
                continue
            held = [(id(x), v.aval) for v, x in zip(inner.jaxpr.constvars, inner.consts, strict=True)]
            for key, x in zip(held, inner.consts, strict=True):
                if key not in known:
                    known[key] = _jax.new_var(key[1])
                    more[known[key]] = x
            eqns.append(_handed(eqn, self._body(inner), [known[key] for key in held]))
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return closed
        constvars = [*jaxpr.constvars, *more]
        new = _jax.new_jaxpr(jaxpr, jaxpr.invars, jaxpr.outvars, eqns, constvars)
        return ClosedJaxpr(new, [*closed.consts, *more.values()])

    def _body(self, inner: ClosedJaxpr) -> ClosedJaxpr:
        if id(inner) not in self.bodies:
            self.bodies[id(inner)] = ClosedJaxpr(_jax.convert_constvars(inner.jaxpr), ())
        return self.bodies[id(inner)]


def _handed(call: JaxprEqn, body: ClosedJaxpr, arrays: list[Var]) -> JaxprEqn:
    """A call whose first operands are the arrays that its function had as constants."""
    p, n = call.params, len(arrays)
    params = p | {
        "jaxpr": body,
        "donated_invars": (False,) * n + p["donated_invars"],
        "in_shardings": (_jax.UNSPECIFIED,) * n + p["in_shardings"],
        "in_layouts": (None,) * n + p["in_layouts"],
    }
    return call.replace(invars=[*arrays, *call.invars], params=params)


def asks_nothing(eqn: JaxprEqn) -> bool:
    """Whether an equation is a `jit` that asks nothing of the compiler: no shardings, layouts, donation, options."""
    if eqn.primitive.name != "jit":
        return False
    p = eqn.params
    return (
        not any(p["donated_invars"])
        and all(_jax.is_unspecified(s) for s in (*p["in_shardings"], *p["out_shardings"]))
        and all(x is None for x in (*p["in_layouts"], *p["out_layouts"]))
        and not p["compiler_options_kvs"]
        and not p["keep_unused"]
        and not _jax.is_kept_for_xla(eqn)
    )
