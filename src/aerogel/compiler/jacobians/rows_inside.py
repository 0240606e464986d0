"""A Jacobian made before a loop and multiplied with in its steps: its rows, made there.

`J = jax.jacrev(f)(x)` and a conjugate-gradient loop with `J.T @ (J @ p)` in each step. Made in the step, of what the
derivative is taken at, its rows meet their products there, and each is a push or a pull.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var, evaluate, scan_counts, scan_params, trace_small

from ..axes.rebind import bind
from ..cost import Machine, jaxpr_seconds
from ..cost.flat import call_operands, called
from ..level import Edit
from ..loop import why_left
from ..loops.trips import most_trips
from ..program import Builder, is_var, substitute, with_equations
from ..record import record
from .basis_maps import behind, in_its_place, reads, through
from .basis_rows import BasisRows, is_short

Rewrite = Callable[[Jaxpr], Jaxpr]


@record
class Inside:
    """A loop with rows in its steps.

    Attributes:
        edit: it, in place of the loop.
        later: seconds by which all steps but the first take longer than the loop's, at most.
    """

    edit: Edit
    later: float


@record
class _Steps:
    """A `scan` or `while`: its body, and which operands are the body's constants."""

    eqn: JaxprEqn

    @property
    def is_scan(self) -> bool:
        return self.eqn.primitive.name == "scan"

    @property
    def body(self) -> ClosedJaxpr:
        return self.eqn.params["jaxpr" if self.is_scan else "body_jaxpr"]

    @property
    def first(self) -> int:
        return 0 if self.is_scan else self.eqn.params["cond_nconsts"]

    @property
    def consts(self) -> int:
        return scan_counts(self.eqn.params)[0] if self.is_scan else self.eqn.params["body_nconsts"]

    def run(self, body: ClosedJaxpr, consts: int, inputs: Sequence[Any]) -> list[Any]:
        """The loop with another body, of so many constants."""
        p = self.eqn.params
        if self.is_scan:
            return bind(self.eqn, inputs, scan_params(p, body, consts, scan_counts(p)[1]))
        return bind(self.eqn, inputs, p | {"body_jaxpr": body, "body_nconsts": consts})

    def later(self, new: Jaxpr, machine: Machine) -> float:
        """Seconds by which all steps but one take longer with the body `new`; of a `scan` its price tells that."""
        longer = jaxpr_seconds(new, machine) - jaxpr_seconds(self.body, machine)
        if self.is_scan or longer <= 0:
            return 0.0
        trips = most_trips(self.eqn)
        return float("inf") if trips is None else longer * max(trips - 1, 0)


def loops_with_rows(rows: BasisRows) -> Iterator[int]:
    """The places of the loops that read rows of a Jacobian in each step, whole."""
    return (place for place in _others(rows) if _read(rows, place))


def with_solves_open(rows: BasisRows) -> Jaxpr:
    """The level with what runs in place of an iterative solve that reads rows, if nobody differentiates it later."""
    level = rows.level
    places = [k for k in _others(rows) if level.eqns[k].primitive.name == "custom_linear_solve"]
    eqns: list[JaxprEqn] = []
    env: dict[Var, Any] = {}
    for place, eqn in enumerate(level.eqns):
        solve = called(eqn) if place in places else None
        if solve is None or solve.constvars or not any(e.primitive.name in ("scan", "while") for e in solve.eqns):
            eqns.append(eqn)
            continue
        builder = Builder(eqn)
        results = builder.inline(solve, call_operands(eqn))
        pairs = zip(eqn.outvars, results, strict=True)
        env |= {v: builder.as_weak_as(v, x) for v, x in pairs}
        eqns += builder.eqns
    if not env:
        return level.jaxpr
    renamed = [eqn.replace(invars=[substitute(x, env) for x in eqn.invars]) for eqn in eqns]
    return with_equations(level.jaxpr, renamed, [substitute(x, env) for x in level.jaxpr.outvars])


def _others(rows: BasisRows) -> list[int]:
    """The places of what reads rows of a Jacobian, and neither makes rows of them nor sums them up."""
    if rows.entry is not None:
        return []
    read = {k for x in rows.axes for k in rows.level.readers(x)}
    return sorted(read - rows.made.keys() - rows.sums.keys() - {-1})


def _read(rows: BasisRows, place: int) -> list[int]:
    """Which constants of a loop's steps are rows: short ones are made outside. None of what is no such loop."""
    eqn = rows.level.eqns[place]
    if eqn.primitive.name not in ("scan", "while"):
        return []
    steps = _Steps(eqn)
    if eqn.effects or steps.body.consts or (steps.is_scan and why_left(eqn) is not None):
        return []
    at = range(steps.first, steps.first + steps.consts)
    return [k for k in at if is_var(x := eqn.invars[k]) and x in rows.axes and not is_short(rows, x)]


def with_rows_inside(rows: BasisRows, place: int, rewrite: Rewrite, machine: Machine) -> Inside | None:
    """The loop at `place`, which makes rows in its steps, each as `rewrite` leaves it; None if that changes none."""
    eqn, read = rows.level.eqns[place], _read(rows, place)
    steps = _Steps(eqn)
    body, first = steps.body, steps.first
    places = behind(rows, (eqn.invars[k] for k in read))
    given = reads(rows, places)
    others = [x for k, x in enumerate(eqn.invars) if k not in read]
    left = [k for k in range(len(body.in_avals)) if first + k not in read]

    def step(*args: Any) -> list[Any]:
        known: Mapping[Var, Any] = dict(zip(given, args, strict=False))
        env = through(rows, places, _identity(rows), known, rows.count)
        inputs = {first + k: x for k, x in zip(left, args[len(given) :], strict=True)}
        inputs |= {k: env[x] for k in read if is_var(x := eqn.invars[k])}
        return evaluate(body, [inputs[k] for k in sorted(inputs)])

    made = trace_small(step, [*(x.aval for x in given), *(body.in_avals[k] for k in left)])
    new = rewrite(made.jaxpr)
    if new is made.jaxpr:
        return None
    smaller, consts = ClosedJaxpr(new, made.consts), steps.consts + len(given) - len(read)
    builder = Builder(eqn)
    operands = [*others[:first], *given, *others[first:]]
    results = builder.call(lambda *inputs: steps.run(smaller, consts, inputs), *operands)
    return Inside(in_its_place(builder, place, results), steps.later(new, machine))


def _identity(rows: BasisRows) -> Any:
    shape = rows.root.aval.shape
    row, column = (lax.broadcasted_iota(jnp.int32, shape, d) for d in (0, 1))
    return lax.convert_element_type(lax.eq(row, column), rows.root.aval.dtype)
