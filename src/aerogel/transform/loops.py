"""`scan`, `while_loop` and `fori_loop`: JAX's, with carries and inputs that hold anything."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.module._paths import show_path

from ._errors import CarryError
from ._positions import positions_of
from ._static import between, hide, reveal
from .replay import replayed
from .snapshots import Choice, is_count

_jax.exclude_from_tracebacks(__file__)

C = TypeVar("C")
Y = TypeVar("Y")


def scan(
    f: Callable[[C, Any], tuple[C, Y]],
    init: C,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    checkpoint: Choice = "all",
) -> tuple[C, Y]:
    """The last carry and the stacked results of a loop over the leading axis of `xs`: `jax.lax.scan`.

    Modules need no help in `jax.lax.scan`. What this adds: values that are no arrays may stand in the carry, in `xs`
    (where they are the same in each step) and in the results; and a carry that changes its structure is told by path.

    Args:
        f: from the carry and a slice of `xs` to the next carry and a result to be stacked.
        init: the first carry.
        xs: what is looped over.
        length: the number of steps, where `xs` does not tell.
        reverse: whether to begin at the end.
        unroll: how many steps to write out, as for `jax.lax.scan`; a gradient that computes steps again writes out one.
        checkpoint: how many carries a gradient keeps. "all": JAX's own gradient, which keeps more than that, each value
            that the derivative of a step needs. A number: that many, the first one among them; the rest is computed
            again as seldom as possible. "sqrt": so many that no step is computed more than three times. "log": one for
            each doubling of the length.

    Raises:
        CarryError: `f` returns a carry of another structure.
        UsageError: another `checkpoint`, or one for a body with effects (a print), which would happen again.
        TypeError: it returns one of other shapes or dtypes, and what else `jax.lax.scan` raises.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> step = lambda carry, x: ({"total": carry["how"](carry["total"], x), "how": carry["how"]}, None)
    >>> carry, _ = ag.scan(step, {"total": 0.0, "how": jnp.add}, jnp.arange(4.0))
    >>> float(carry["total"])
    6.0
    """
    hidden = hide(init)

    @_jax.like(f)
    def body(carry: Any, x: Any) -> Any:
        out = between(f)(carry, x)
        if isinstance(out, tuple) and len(out) == 2:  # else JAX says what is wrong
            check_carry("scan", carry, out[0])
        return out

    loop = lambda init, xs: jax.lax.scan(body, init, xs, length, reverse, unroll)  # noqa: E731
    return reveal(_remembering(loop, checkpoint, None, "scan")(hidden, hide(xs)))


def while_loop(
    cond_fun: Callable[[C], Any],
    body_fun: Callable[[C], C],
    init_val: C,
    *,
    max_steps: int | None = None,
    checkpoint: Choice | None = None,
) -> C:
    """The first carry for which `cond_fun` is false: `jax.lax.while_loop`, with anything in the carry, as in `scan`.

    Args:
        cond_fun: from a carry to whether there is one more step.
        body_fun: from a carry to the next one.
        init_val: the first carry.
        max_steps: how many steps there may be: after these the loop ends, whatever `cond_fun` says. Reverse mode needs
            it; it costs nothing.
        checkpoint: how many carries a gradient keeps, as in `scan`; "sqrt" unless said. For a loop of unknown length
            "all" means up to `max_steps`.

    Raises:
        CarryError: `body_fun` returns a carry of another structure.
        UsageError: `checkpoint` without `max_steps`, another value of one of them, or a loop with effects.

    >>> import aerogel as ag
    >>> ag.while_loop(lambda c: c["n"] < 10, lambda c: {**c, "n": 2 * c["n"]}, {"n": 3, "name": "three"})
    {'n': Array(12, dtype=int32, weak_type=True), 'name': 'three'}
    >>> float(ag.grad(lambda x: ag.while_loop(lambda x: x < 10, lambda x: x * x, x, max_steps=8))(3.0))
    108.0
    """
    body = _checked("while_loop", body_fun)
    if max_steps is None:
        if checkpoint is not None:
            to_fix = "say how many steps there may be: max_steps=1000"
            wanted = "a number of steps, where `checkpoint` is given"
            raise UsageError(argument="max_steps", got=None, wanted=wanted, function="while_loop", to_fix=to_fix)
        return reveal(jax.lax.while_loop(between(cond_fun), body, hide(init_val)))
    if not is_count(max_steps) or max_steps < 0:
        raise UsageError(argument="max_steps", got=max_steps, wanted="a number of steps", function="while_loop")

    def loop(init: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return jnp.logical_and(state[0] < max_steps, between(cond_fun)(state[1]))

        return jax.lax.while_loop(goes_on, lambda state: (state[0] + 1, body(state[1])), (jnp.int32(0), init))[1]

    return reveal(
        _remembering(loop, "sqrt" if checkpoint is None else checkpoint, max_steps, "while_loop")(hide(init_val))
    )


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, C], C],
    init_val: C,
    *,
    unroll: int | bool | None = None,
    checkpoint: Choice = "all",
) -> C:
    """The carry after `body_fun(i, carry)` for `i` from `lower` to `upper`: `jax.lax.fori_loop`, as in `scan`.

    Args:
        lower: the first number.
        upper: the number after the last one.
        body_fun: from a number and a carry to the next carry.
        init_val: the first carry.
        unroll: how many steps to write out, as for `jax.lax.fori_loop`.
        checkpoint: as in `scan`; others than "all" need bounds that are known when the loop is traced.

    Raises:
        CarryError: `body_fun` returns a carry of another structure.
        UsageError: as for `scan`.

    >>> import aerogel as ag
    >>> ag.fori_loop(0, 5, lambda i, c: (c[0] + i, c[1]), (0, "sum"))
    (Array(10, dtype=int32, weak_type=True), 'sum')
    """
    body = _checked("fori_loop", body_fun)
    loop = lambda init: jax.lax.fori_loop(lower, upper, body, init, unroll=unroll)  # noqa: E731
    return reveal(_remembering(loop, checkpoint, None, "fori_loop")(hide(init_val)))


def _remembering(loop: Callable[..., Any], choice: Choice, steps: int | None, function: str) -> Callable[..., Any]:
    """A loop of JAX's, with what its gradient keeps. Under `jax.disable_jit` JAX makes none, and keeps all."""
    is_plain = (isinstance(choice, str) and choice == "all" and steps is None) or _jax.jit_disabled()
    return loop if is_plain else replayed(loop, choice, steps, function)


def _checked(loop: str, f: Callable[..., Any]) -> Callable[..., Any]:
    @_jax.like(f)
    def body(*args: Any) -> Any:
        out = between(f)(*args)
        check_carry(loop, args[-1], out)
        return out

    return body


def check_carry(loop: str, before: Any, after: Any) -> None:
    """Nothing, if both have one structure.

    Raises:
        CarryError: they do not; names the first difference.
    """
    if jax.tree.structure(before) == jax.tree.structure(after):
        return
    old, new = (dict(positions_of(reveal(tree), (), arrays=False)) for tree in (before, after))
    for path in dict.fromkeys((*old, *new)):
        if old.get(path) != new.get(path):
            got, wanted = ("nothing" if parts.get(path) is None else parts[path].text for parts in (new, old))
            # Of two dicts with other keys, the line of the key tells more.
            if got != wanted:
                raise CarryError(loop=loop, path=show_path(path, "carry"), got=got, wanted=wanted)
    structures = (str(jax.tree.structure(tree)) for tree in (after, before))
    raise CarryError(loop=loop, path="carry", got=next(structures), wanted=next(structures))
