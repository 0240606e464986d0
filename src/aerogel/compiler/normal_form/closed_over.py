"""Arrays that called functions close over, handed to them by the program: such a call can be inlined like any other.

JAX keeps the arrays that a jitted function closes over inside of the call. A program that calls it holds them instead
here, each once, and every call of one function stays a call of one function. A loop or branch in between is given them
as constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import _jax
from ..._jax import ClosedJaxpr, JaxprEqn, Var
from ..program import Program

CHECKPOINTS = frozenset(("checkpoint", "remat", "remat2"))
Array = tuple[int, Any]  # by which it is known: its id and its type


def without_closures(program: Program) -> Program:
    """The program with the arrays of all its calls as its own constants; the same object if they have none.

    Calls with effects keep theirs, and so do those inside of functions with derivatives of their own.
    """
    return _Opening().program(program)


@dataclass
class _Opening:
    done: dict[int, ClosedJaxpr] = field(default_factory=dict)
    kept: list[ClosedJaxpr] = field(default_factory=list)  # keeps the keys of `done` and `bodies` alive
    closed: dict[int, ClosedJaxpr] = field(default_factory=dict)
    bodies: dict[tuple[int, tuple[Array, ...]], ClosedJaxpr] = field(default_factory=dict)

    def program(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """A program whose calls close over nothing; once for each."""
        if id(closed) not in self.done:
            self.done[id(closed)] = self._opened(closed)
            self.kept.append(closed)
        return self.done[id(closed)]

    def _opened(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        jaxpr = closed.jaxpr
        known = dict(zip(_arrays(closed), jaxpr.constvars, strict=True))
        more: dict[Var, Any] = {}
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            programs = [self.program(inner) for inner in self._called(eqn)]
            for inner in programs:
                for array, x in zip(_arrays(inner), inner.consts, strict=True):
                    if array not in known:
                        known[array] = _jax.new_var(array[1])
                        more[known[array]] = x
            eqns.append(self._handed(eqn, programs, known) if any(inner.consts for inner in programs) else eqn)
        if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return closed
        constvars = [*jaxpr.constvars, *more]
        new = _jax.new_jaxpr(jaxpr, jaxpr.invars, jaxpr.outvars, eqns, constvars)
        return ClosedJaxpr(new, [*closed.consts, *more.values()])

    def _called(self, eqn: JaxprEqn) -> list[ClosedJaxpr]:
        """The programs that an equation runs, where it can give them more than it does."""
        if eqn.effects:
            return []
        p = eqn.params
        match eqn.primitive.name:
            case "jit" if asks_nothing(eqn):
                return [p["jaxpr"]]
            case "scan":
                return [p["jaxpr"]]
            case "while":
                return [p["cond_jaxpr"], p["body_jaxpr"]]
            case "cond":
                return list(p["branches"])
            case name if name in CHECKPOINTS and isinstance(p["prevent_cse"], bool):
                return [self._closed(p["jaxpr"])]
            case _:
                return []

    def _closed(self, jaxpr: Any) -> ClosedJaxpr:
        """A program that is given all it reads, as one that could close over something; once for each."""
        if isinstance(jaxpr, ClosedJaxpr):  # since jax 0.11 each is
            return jaxpr
        if id(jaxpr) not in self.closed:
            self.closed[id(jaxpr)] = ClosedJaxpr(jaxpr, ())
        return self.closed[id(jaxpr)]

    def _handed(self, eqn: JaxprEqn, programs: Sequence[ClosedJaxpr], known: dict[Array, Var]) -> JaxprEqn:
        """An equation that gives its programs, before all else, the arrays that they had as constants."""
        p, xs = eqn.params, eqn.invars
        arrays = [list(dict.fromkeys(_arrays(inner))) for inner in programs]
        if eqn.primitive.name == "cond":  # all branches are given the same
            arrays = [list(dict.fromkeys(array for each in arrays for array in each))] * len(arrays)
        bodies = [self._body(inner, each) for inner, each in zip(programs, arrays, strict=True)]
        handed = [[known[array] for array in each] for each in arrays]
        match eqn.primitive.name:
            case "while":
                n, m = p["cond_nconsts"], p["body_nconsts"]
                invars = [*handed[0], *xs[:n], *handed[1], *xs[n:]]
                params = {
                    **p,
                    "cond_jaxpr": bodies[0],
                    "cond_nconsts": n + len(handed[0]),
                    "body_jaxpr": bodies[1],
                    "body_nconsts": m + len(handed[1]),
                }
            case "cond":
                invars, params = [xs[0], *handed[0], *xs[1:]], {**p, "branches": tuple(bodies)}
            case "scan":
                n, m = _jax.scan_counts(p)
                invars, params = [*handed[0], *xs], _jax.scan_params(p, bodies[0], n + len(handed[0]), m)
            case name if name in CHECKPOINTS:
                invars, params = [*handed[0], *xs], {**p, "jaxpr": bodies[0].jaxpr}
            case _:
                invars, params = [*handed[0], *xs], _call_params(p, bodies[0], len(handed[0]))
        return eqn.replace(invars=invars, params=params)

    def _body(self, inner: ClosedJaxpr, arrays: Sequence[Array]) -> ClosedJaxpr:
        """A program that takes arrays as its first arguments, its own constants among them; once for each."""
        key = id(inner), tuple(arrays)
        if key not in self.bodies:
            jaxpr, own = inner.jaxpr, dict(zip(_arrays(inner), inner.jaxpr.constvars, strict=True))
            invars = [own[array] if array in own else _jax.new_var(array[1]) for array in arrays]
            new = _jax.new_jaxpr(jaxpr, [*invars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, [])
            self.bodies[key] = ClosedJaxpr(new, ())
        return self.bodies[key]


def _arrays(closed: ClosedJaxpr) -> list[Array]:
    return [(id(x), v.aval) for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True)]


def _call_params(p: dict[str, Any], body: ClosedJaxpr, n: int) -> dict[str, Any]:
    """The parameters of a call with `n` more arguments before the others."""
    return p | {
        "jaxpr": body,
        "donated_invars": (False,) * n + p["donated_invars"],
        "in_shardings": (_jax.UNSPECIFIED,) * n + p["in_shardings"],
        "in_layouts": (None,) * n + p["in_layouts"],
    }


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
