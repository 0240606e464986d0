"""What is known of every value of a program, nested levels included: what a body is given, it knows all about."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ... import _jax
from ..._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from ..known.records import Facts, Known, Spread, moved
from ..known.structure import learn
from ..known.words import records_of
from ..program import inner_jaxprs, inner_levels
from .constants import facts_of

CALLS = frozenset("jit closed_call eval_jaxpr remat2 checkpoint custom_jvp_call custom_vjp_call".split())

SMALL = 4096  # entries of a constant; what is made of a larger one is known less about


class Knowledge:
    """Constants and records of all levels of a program; nothing is looked at before somebody asks.

    A body that is called from several places is told nothing of its arguments.
    """

    def __init__(self, program: ClosedJaxpr):
        self._program = program
        self._own = dict(zip(program.jaxpr.constvars, program.consts, strict=True))

    def value(self, x: Var) -> Any:
        """The array that a value is, where the program holds it as a constant; else None."""
        return self._own[x] if x in self._own else self._found.values.get(x)

    def of(self, x: Atom) -> Known:
        """What is known of a value."""
        return self._found.facts.of(x)

    def learn(self, eqns: list[JaxprEqn]) -> None:
        """Adds what is known of the results of new equations."""
        for eqn in eqns:
            learn(eqn, self._found.facts)

    @cached_property
    def _found(self) -> "_Walk":
        return _Walk(self._program)


class _Walk:
    def __init__(self, program: ClosedJaxpr):
        self.values: dict[Var, Any] = {}
        self.facts = Facts({})
        self._times: Counter[int] = Counter()
        self._count(program.jaxpr)
        self._seen: set[int] = set()
        self._hold(program.jaxpr, program.consts)
        self._level(program.jaxpr)

    def _count(self, jaxpr: Jaxpr) -> None:
        for inner in inner_levels(jaxpr):
            self._times[id(inner)] += 1
            if self._times[id(inner)] == 1:
                self._count(inner)

    def _hold(self, jaxpr: Jaxpr, consts: Any) -> None:
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            if not _jax.is_known_array(value):
                continue
            self.values[v] = value
            if value.size <= SMALL:
                self.facts.learn(v, records_of(facts_of(value), v.aval))

    def _level(self, jaxpr: Jaxpr) -> None:
        if id(jaxpr) in self._seen:
            return
        self._seen.add(id(jaxpr))
        for eqn in jaxpr.eqns:
            bodies = inner_jaxprs(eqn)
            if bodies:
                self._bodies(eqn, bodies)
            else:
                learn(eqn, self.facts)

    def _bodies(self, eqn: JaxprEqn, bodies: list[Jaxpr]) -> None:
        for closed in _jax.jaxprs_in_params(eqn.params):
            if isinstance(closed, ClosedJaxpr) and closed.consts:
                self._hold(closed.jaxpr, closed.consts)
        for body, xs in _given(eqn, bodies):
            for x, v in zip(xs, body.invars, strict=False):
                if x is not None and self._times[id(body)] == 1 and hasattr(v.aval, "shape"):
                    self._pass_on(x, v)
        for body in bodies:
            self._level(body)
        if eqn.primitive.name in CALLS and len(bodies) == 1:
            for v, x in zip(eqn.outvars, bodies[0].outvars, strict=True):
                self.facts.learn(v, frozenset(r for r in self.facts.of(x) if not isinstance(r, Spread)))

    def _pass_on(self, x: Atom, v: Var) -> None:
        """What is known of `x` is known of `v`, which is `x`, or one entry of it along the leading axis."""
        old, new = tuple(x.aval.shape), tuple(v.aval.shape)
        if old != new:
            to = [-1, *range(len(new))]
            self.facts.learn(v, frozenset(moved(self.facts.of(x), to, old, new)))
            return
        self.facts.learn(v, self.facts.of(x))
        value = np.asarray(x.val, x.aval.dtype) if isinstance(x, Literal) else self.values.get(x)
        if value is not None:
            self.values[v] = value


def _given(eqn: JaxprEqn, bodies: list[Jaxpr]) -> list[tuple[Jaxpr, Sequence[Atom | None]]]:
    """What the programs in an equation are given, as far as that is an operand of it, or an entry of one."""
    params, xs = eqn.params, eqn.invars
    match eqn.primitive.name:
        case "scan":
            n, m = _jax.scan_counts(params)
            return [(bodies[0], [*xs[:n], *[None] * m, *xs[n + m :]])]
        case "while":
            n, m = params["cond_nconsts"], params["body_nconsts"]
            return [(params["cond_jaxpr"].jaxpr, xs[:n]), (params["body_jaxpr"].jaxpr, xs[n : n + m])]
        case "cond":
            return [(body, xs[1:]) for body in bodies]
        case name if name in CALLS and len(bodies) == 1 and len(bodies[0].invars) == len(xs):
            return [(bodies[0], xs)]
        case _:
            return []
