"""A Jacobian made before a loop and multiplied with in its steps: its rows, made there.

`J = jax.jacrev(f)(x)` and a conjugate-gradient loop with `J.T @ (J @ p)` in each step. Made in the step, of what the
derivative is taken at, its rows meet their products there, and each is a push or a pull.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from aerogel._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Var, scan_counts, scan_params, trace_small

from .axes.rebind import bind
from .basis_maps import behind, in_its_place, reads, through
from .basis_rows import BasisRows, is_short
from .level import Edit
from .loop import as_loop
from .program import Builder, is_var
from .repeated_rows import values_of

Rewrite = Callable[[Jaxpr], Jaxpr]


def loops_with_rows(rows: BasisRows) -> Iterator[int]:
    """The places of the loops that read rows of a Jacobian in each step, whole."""
    if rows.entry is not None:
        return
    read = {k for x in rows.axes for k in rows.level.readers(x)}
    for place in sorted(read - rows.made.keys() - rows.sums.keys() - {-1}):
        if as_loop(rows.level.eqns[place]) is not None and _read(rows, place):
            yield place


def _read(rows: BasisRows, place: int) -> list[int]:
    """Which constants of a loop are rows: short ones are made outside."""
    eqn = rows.level.eqns[place]
    consts, _ = scan_counts(eqn.params)
    return [k for k, x in enumerate(eqn.invars[:consts]) if is_var(x) and x in rows.axes and not is_short(rows, x)]


def with_rows_inside(rows: BasisRows, place: int, rewrite: Rewrite) -> Edit | None:
    """The loop at `place`, which makes the rows in its steps, each of them as `rewrite` leaves it; None if it leaves it."""
    eqn = rows.level.eqns[place]
    read = _read(rows, place)
    places = behind(rows, (eqn.invars[k] for k in read))
    given = reads(rows, places)
    others = [x for k, x in enumerate(eqn.invars) if k not in read]
    body = eqn.params["jaxpr"]
    consts, carries = scan_counts(eqn.params)
    rest = [aval for k, aval in enumerate(body.in_avals) if k not in read]

    def step(*args: Any) -> list[Any]:
        known: Mapping[Var, Any] = dict(zip(given, args, strict=False))
        env = through(rows, places, _identity(rows), known, rows.count)
        left = iter(args[len(given) :])
        return _run(body, [env[x] if k in read else next(left) for k, x in enumerate(eqn.invars)])

    made = trace_small(step, [*(x.aval for x in given), *rest])
    new = rewrite(made.jaxpr)
    if new is made.jaxpr:
        return None
    params = scan_params(eqn.params, ClosedJaxpr(new, made.consts), consts + len(given) - len(read), carries)
    builder = Builder(eqn)
    results = builder.call(lambda *inputs: bind(eqn, inputs, params), *given, *others)
    return in_its_place(builder, place, results)


def _identity(rows: BasisRows) -> Any:
    shape = rows.root.aval.shape
    row, column = (lax.broadcasted_iota(jnp.int32, shape, d) for d in (0, 1))
    return lax.convert_element_type(lax.eq(row, column), rows.root.aval.dtype)


def _run(body: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    env: dict[Var, Any] = dict(zip(body.jaxpr.invars, args, strict=True))
    eqns: Sequence[JaxprEqn] = body.jaxpr.eqns
    for eqn in eqns:
        env.update(zip(eqn.outvars, bind(eqn, values_of(eqn.invars, env), eqn.params), strict=True))
    return values_of(body.jaxpr.outvars, env)
