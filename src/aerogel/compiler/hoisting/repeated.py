"""What is the same in all steps of a loop: neither stacked by it nor read step by step."""

from functools import partial
from typing import Any

from jax import lax

from aerogel._jax import Atom, DropVar, Var

from ..level import Level
from ..loop import Loop
from ..loop_copy import LoopCopy
from ..program import Builder, copy_equation, is_var
from .hoist import Replacement


def with_repeated_outputs(loop: Loop) -> Replacement | None:
    """A loop whose outputs that are the same in all steps are repeated, not stacked; None if it has none.

    What reads them may need no array.
    """
    constants: dict[Atom, Atom] = dict(zip(loop.body_consts, loop.consts, strict=True))
    outputs = [(y, v) for y, v in zip(loop.ys, loop.body_ys, strict=True) if not isinstance(y, DropVar)]
    same = {y: constants[v] if is_var(v) else v for y, v in outputs if not is_var(v) or v in constants}
    if not same:
        return None
    builder = Builder(loop.eqn)
    results: dict[Var, Atom] = {}
    for y, value in same.items():
        (results[y],) = builder.call(partial(_repeated, count=loop.length), value)
    others = [(v, y) for y, v in outputs if y not in results]
    rest = [loop.restacked(others)] if loop.init or others else []
    return Replacement([*builder.eqns, *rest], results)


def _repeated(x: Any, count: int) -> Any:
    return lax.broadcast_in_dim(x, (count, *x.shape), range(1, x.ndim + 1))


def with_whole_inputs(level: Level, loop: Loop) -> Replacement | None:
    """A loop that reads whole what it read step by step and is the same in all of them; None if that is nothing."""
    whole = {x: source for x in loop.xs if is_var(x) and (source := _source(level, x)) is not None}
    if not whole:
        return None
    copy = LoopCopy(loop)
    copy.env.update((v, copy.new.const(whole[x])) for v, x in zip(loop.body_xs, loop.xs, strict=True) if x in whole)
    copy.new.body.eqns += [copy_equation(eqn, copy.env) for eqn in loop.body.eqns]
    copy.finish()
    return Replacement(copy.new.equations())


def _source(level: Level, x: Var) -> Atom | None:
    """What a value repeats along its first axis."""
    maker = level.maker(x)
    if maker is None or maker.primitive.name != "broadcast_in_dim":
        return None
    source, shape = maker.invars[0], x.aval.shape
    fits = tuple(maker.params["broadcast_dimensions"]) == tuple(range(1, len(shape))) and source.aval.shape == shape[1:]
    return source if fits and source.aval.dtype == x.aval.dtype else None
