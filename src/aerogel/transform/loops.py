"""`scan`, `while_loop` and `fori_loop`: JAX's, with carries and inputs that hold anything."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from aerogel import _jax
from aerogel.module._paths import show_path

from ._errors import CarryError
from ._positions import positions_of
from ._static import between, hide, reveal

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
        unroll: how many steps to write out, as for `jax.lax.scan`.

    Raises:
        CarryError: `f` returns a carry of another structure.
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

    return reveal(jax.lax.scan(body, hidden, hide(xs), length, reverse, unroll))


def while_loop(cond_fun: Callable[[C], Any], body_fun: Callable[[C], C], init_val: C) -> C:
    """The first carry for which `cond_fun` is false: `jax.lax.while_loop`, with anything in the carry, as in `scan`.

    Raises:
        CarryError: `body_fun` returns a carry of another structure.

    >>> import aerogel as ag
    >>> ag.while_loop(lambda c: c["n"] < 10, lambda c: {**c, "n": 2 * c["n"]}, {"n": 3, "name": "three"})
    {'n': Array(12, dtype=int32, weak_type=True), 'name': 'three'}
    """
    return reveal(jax.lax.while_loop(between(cond_fun), _checked("while_loop", body_fun), hide(init_val)))


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, C], C], init_val: C, *, unroll: int | bool | None = None
) -> C:
    """The carry after `body_fun(i, carry)` for `i` from `lower` to `upper`: `jax.lax.fori_loop`, as in `scan`.

    Raises:
        CarryError: `body_fun` returns a carry of another structure.

    >>> import aerogel as ag
    >>> ag.fori_loop(0, 5, lambda i, c: (c[0] + i, c[1]), (0, "sum"))
    (Array(10, dtype=int32, weak_type=True), 'sum')
    """
    return reveal(jax.lax.fori_loop(lower, upper, _checked("fori_loop", body_fun), hide(init_val), unroll=unroll))


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
