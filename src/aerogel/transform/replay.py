"""Loops whose gradient computes their steps again, from a number of snapshots that is fixed in advance.

Forward, such a loop is JAX's own. Where reverse mode looks at it, it keeps snapshots too; and the way back is one more
loop, which sets snapshots anew as it goes. Both are made of plain loops, so that forward mode goes through them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel._jax import ClosedJaxpr

from ._static import Static
from .scan_steps import Scan
from .snapshots import Choice, Placement, placement
from .steps import Loop, Values, is_smooth
from .way_back import Back, filled, only
from .while_steps import While

_jax.exclude_from_tracebacks(__file__)


def replayed(f: Callable[..., Any], choice: Choice, steps: int | None, function: str) -> Callable[..., Any]:
    """`f`, a function that calls one of JAX's loops and does no more, with snapshots placed by `choice`.

    Args:
        f: the function.
        choice: what a user passed as `checkpoint`.
        steps: how many there may be, where the loop does not say so itself.
        function: the user's one, for messages.

    Raises:
        UsageError: `choice` is none, or the loop cannot be gone through again.
    """

    def with_snapshots(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        result: Any = None

        def flat(*leaves: Any) -> list[Any]:
            nonlocal result
            outs, result = jax.tree.flatten(f(*structure.unflatten(leaves)))
            return outs

        program = _jax.traced(flat, list(map(_jax.shaped_abstractify, leaves)))
        _check(program, choice, steps, function)
        run_it = _with_snapshots(program, lambda length: placement(choice, length, function), steps)
        return result.unflatten(run_it(*leaves))

    return with_snapshots


def _check(program: ClosedJaxpr, choice: Choice, steps: int | None, function: str) -> None:
    for eqn in program.jaxpr.eqns:
        if not all(map(_jax.is_repeatable, eqn.effects)):
            wanted = "'all' for a body with effects, such as a print, which would happen again"
            to_fix = "take them out of the body, or leave `checkpoint` out"
        elif eqn.primitive.name == "while" and steps is None:
            wanted, to_fix = "'all' for bounds that are not known in tracing", "use `ag.while_loop` with `max_steps`"
        else:
            continue
        raise UsageError(argument="checkpoint", got=choice, wanted=wanted, function=function, to_fix=to_fix)


def _with_snapshots(program: ClosedJaxpr, place: Callable[[int], Placement], steps: int | None) -> Any:
    """The function of flat arrays that a program with one loop is, the loop with snapshots for its gradient."""

    def scan(eqn: Any, *args: Any) -> list[Any]:
        p, (consts, carries) = eqn.params, _jax.scan_counts(eqn.params)
        return run(Scan(p["jaxpr"], consts, carries, place(p["length"]), p["reverse"], p["unroll"]), *args)

    def bounded(eqn: Any, *args: Any) -> list[Any]:
        p = eqn.params
        consts = p["cond_nconsts"] + p["body_nconsts"]
        assert steps is not None, "a loop without a bound was refused"
        return run(
            While(p["body_jaxpr"], consts, len(args) - consts, place(steps), p["cond_jaxpr"], p["cond_nconsts"]), *args
        )

    return lambda *args: _jax.evaluate_around(program, args, {"scan": scan, "while": bounded})


def run(loop: Loop, *args: Any) -> list[Any]:
    """The last carry and the stacked results of a loop, from its constants, first carry and inputs."""
    if loop.placement.steps < 2 and isinstance(loop, Scan):
        return loop.plain(*args)
    return _jax.with_reverse(
        loop.plain,
        lambda *given: _gradient(loop, *given)[0],
        *args,
        anew=lambda program: _with_snapshots(program, lambda _: loop.placement, loop.placement.steps),
    )


def _gradient(loop: Loop, *args: Any) -> tuple[list[Any], list[Any]]:
    """What `run` returns, and what the way back needs, with a rule for reverse mode."""
    outs = len(loop.body.out_avals)

    def kept(*given: Any) -> tuple[list[Any], list[Any]]:
        found = _jax.with_reverse(
            loop.with_snapshots, lambda *same: [x for part in _gradient(loop, *same) for x in part], *given
        )
        return found[:outs], found[outs:]

    def forward(*given: Any) -> Any:
        values = [x.value for x in given]
        found = kept(*values)
        return found, (values, found[1], Static(tuple(x.perturbed for x in given)))

    def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        values, found, moved = residuals
        return tuple(_cotangents(loop, values, found, moved.value, cotangents[0]))

    return _jax.with_backward_rule(kept, forward, backward)(*args)


def _cotangents(loop: Loop, values: Values, kept: Values, moved: Sequence[bool], cotangents: Values) -> list[Any]:
    """Of the loop's arguments, from those of its results; None for those that are not wanted."""
    carries = slice(loop.consts, loop.consts + loop.carries)
    is_zero = [isinstance(ct, jax.custom_derivatives.SymbolicZero) for ct in cotangents]
    # What steps hand on has cotangents at every step, whether or not those at the ends are wanted and given.
    given = [is_smooth(aval) and (k < loop.carries or not is_zero[k]) for k, aval in enumerate(loop.body.out_avals)]
    wanted = [is_smooth(x) and yes for x, yes in zip(values, moved, strict=True)]
    wanted[carries] = given[: loop.carries]
    wanted[: loop.unused] = [False] * loop.unused
    first = zip(cotangents, is_zero, values[carries], strict=False)
    cts = [*(jnp.zeros_like(x) if zero else ct for ct, zero, x in first), *cotangents[loop.carries :]]
    back = Back(loop, tuple(wanted), tuple(given))
    sizes = len(values), len(values) + len(kept)
    found = _jax.with_reverse(
        lambda *args: back.replayed(args[: sizes[0]], args[sizes[0] : sizes[1]], args[sizes[1] :]),
        lambda *args: _once_more(back, args[: sizes[0]], args[sizes[1] :]),
        *values,
        *kept,
        *only(cts, given),
    )
    rest = iter(found)
    return [next(rest) if yes else None for yes in wanted]


def _once_more(back: Back, values: Values, given: Values) -> list[Any]:
    """The cotangents by loops that reverse mode goes through: the carries of all steps, and a loop over these."""
    loop = back.loop
    if isinstance(loop, While):
        bounded, moved = loop.as_scan(), back.moved

        def of_moved(*some: Any) -> list[Any]:
            return only(run(bounded, *filled(values, moved, some)), back.given)

        return list(jax.vjp(of_moved, *only(values, moved))[1](list(given)))
    assert isinstance(loop, Scan)
    carries = run(loop.keeping_carries(), *values)[loop.carries :]
    return back.over_carries(carries, values, given, run)
