"""Rules for loops: a typed view of a `scan` or a `while`, and the decorator that makes rules of functions of it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

from ... import _jax
from ..._jax import ClosedJaxpr, Jaxpr
from ..program import is_var
from .on import PrimitiveRule, on
from .place import without_parentheses
from .profit import Profit


@dataclass(frozen=True)
class Reads:
    """What one value of a step is computed from.

    Attributes:
        consts: positions of constants.
        carry: positions of carries, as they are at the start of the step.
        xs: positions of inputs.
    """

    consts: frozenset[int]
    carry: frozenset[int]
    xs: frozenset[int]


@dataclass(frozen=True)
class LoopView:
    """A loop by its parts, all of them arrays and functions of arrays.

    Attributes:
        kind: "scan" or "while".
        length: how many steps a scan takes; None of a `while`.
        reverse: whether a scan begins at its last inputs.
        consts: what every step reads whole.
        init: the carries before the first step.
        xs: inputs of a scan, stacked on a leading axis.
    """

    kind: str
    length: int | None
    reverse: bool
    consts: tuple[Any, ...]
    init: tuple[Any, ...]
    xs: tuple[Any, ...]
    _body: ClosedJaxpr
    _test: ClosedJaxpr | None = None
    _test_consts: tuple[Any, ...] = ()

    def step(self, carry: Sequence[Any], x: Sequence[Any] = ()) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """One step: the carries after it, and its outputs."""
        outs = _jax.evaluate(self._body, [*self.consts, *carry, *x])
        return tuple(outs[: len(self.init)]), tuple(outs[len(self.init) :])

    def goes_on(self, carry: Sequence[Any]) -> Any:
        """Whether a `while` takes another step."""
        assert self._test is not None, "a scan ends after its length"
        return _jax.evaluate(self._test, [*self._test_consts, *carry])[0]

    @cached_property
    def reads(self) -> tuple[Reads, ...]:
        """For each carry after a step, and then for each output, what it is computed from in that step."""
        found = _read_positions(self._body.jaxpr)
        first, last = len(self.consts), len(self.consts) + len(self.init)
        return tuple(
            Reads(
                frozenset(k for k in positions if k < first),
                frozenset(k - first for k in positions if first <= k < last),
                frozenset(k - last for k in positions if k >= last),
            )
            for positions in found
        )

    @cached_property
    def unchanged(self) -> tuple[int, ...]:
        """The positions of carries that every step passes on as they are."""
        first, jaxpr = len(self.consts), self._body.jaxpr
        return tuple(k for k in range(len(self.init)) if jaxpr.outvars[k] is jaxpr.invars[first + k])


def _read_positions(body: Jaxpr) -> list[frozenset[int]]:
    """For each result, the positions of the arguments that it is computed from."""
    known = {v: frozenset((k,)) for k, v in enumerate(body.invars)}
    nothing = frozenset[int]()
    for eqn in body.eqns:
        read = nothing.union(*(known.get(x, nothing) for x in eqn.invars if is_var(x)))
        known.update(dict.fromkeys(eqn.outvars, read))
    return [known.get(x, nothing) if is_var(x) else nothing for x in body.outvars]


def on_loop(
    function: None = None,
    /,
    *,
    stage: str = "before",
    platforms: Sequence[str] | None = None,
    exactness: str = "reassociates",
    reason: str = "it is the cheaper form",
    name: str | None = None,
    profit: Profit = None,
) -> Callable[[Callable[..., Any]], PrimitiveRule]:
    """Decorator that makes a rule of a function that computes what a loop computes, for some loops.

    The function is given a `LoopView`, and the `Site` if it has an argument `site`. It returns the carries after the
    last step and the outputs, stacked (none of a `while`), as a pair of sequences; or a string, the reason why this
    loop stays as it is. All else is as for `on`; before differentiation is where loops are best rewritten.

    Raises:
        UsageError: an argument is something else.
        RuleError: the function stands under `@on_loop` without parentheses.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> from jax import lax
    >>> @ag.compiler.on_loop(exactness="bitwise", reason="nothing is left to repeat")
    ... def no_step(loop):
    ...     if loop.length != 0 or loop.xs or len(loop.reads) > len(loop.init):
    ...         return "it takes steps"
    ...     return loop.init, ()
    >>> f = lambda x: lax.fori_loop(0, 0, lambda i, c: c * 2, x)
    >>> [decision.what for decision in ag.explain(f, rules=[no_step])(1.0).fired]
    ['`scan` becomes a value that is there']
    """
    if function is not None:
        raise without_parentheses(function, "has nothing said of it.", "@on_loop()")

    def decorate(function: Callable[..., Any]) -> PrimitiveRule:
        @wraps(function)
        def replacement(*operands: Any, site: Any, **params: Any) -> Any:
            out = function(_view(site.primitive, operands, params), **({"site": site} if takes_site else {}))
            return out if isinstance(out, str) else [*out[0], *out[1]]

        takes_site = "site" in inspect.signature(function).parameters
        options: Any = {"exactness": exactness, "reason": reason, "name": name, "profit": profit}
        return on(("scan", "while"), stage=stage, platforms=platforms, **options)(replacement)

    return decorate


def _view(kind: str, operands: Sequence[Any], params: dict[str, Any]) -> LoopView:
    if kind == "scan":
        n, m = _jax.scan_counts(params)
        consts, init, xs = tuple(operands[:n]), tuple(operands[n : n + m]), tuple(operands[n + m :])
        return LoopView(kind, params["length"], params["reverse"], consts, init, xs, params["jaxpr"])
    n, m = params["cond_nconsts"], params["body_nconsts"]
    consts, init = tuple(operands[n : n + m]), tuple(operands[n + m :])
    return LoopView(
        kind, None, False, consts, init, (), params["body_jaxpr"], params["cond_jaxpr"], tuple(operands[:n])
    )
