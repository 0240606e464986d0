"""Rules: pairs of ordinary functions, a claim and a reason."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..._errors import UsageError
from ..exactness import Exactness
from ..kept import Kept
from .derivative import Derivative
from .errors import RuleError
from .place import is_own, name_of, place_of, without_parentheses
from .profit import profit_of
from .stage import Stage, platforms_of, stage_of


@dataclass(eq=False)
class Rule:
    """What to write in place of what: two functions of the same arguments, traced at the types of each site.

    Positional arguments are arrays. Keyword-only ones are Python values that a match binds (an axis, a constant, an
    exponent); their default is the example with which the function is first looked at.

    Attributes:
        name: in reports.
        before: the function to look for. It returns an array, or several in a tuple.
        exactness: what the rewrite may do to numbers.
        reason: why the other form is better, as a clause for reports.
        shared: whether the rule also fires where something else reads a value from the middle of the pattern, which
            is then computed besides what the rule writes.
        stage: where in the compiler it has its place.
        platforms: the backends that it is for; None for all.
        profit: None, "model", or a function of the site.
        shapes: of arrays at which the function is first looked at; None where small ones of equal sizes will do.
        after: the function that stands in its place; `to` sets it.
        derivative: of what stands in its place, if JAX's own is not wanted; `defjvp` or `defvjp` sets it.
        condition: of the operands, whether the rule fires; `when` sets it.
        spellings: `before`, and other functions to look for; `also` adds them.
        fires_on: programs in which it must fire; `examples` sets them.
        leaves_alone: near misses.
        begins: where a search begins, by the name of the operation (`spelling.operation`), if that is known before
            `before` is traced; with what such an equation has in common with no other, where there is something.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> @ag.rule(exactness="no_worse", reason="log(1 + x) loses x below 6e-8")
    ... def log_of_one_plus(x):
    ...     return jnp.log(1 + x)
    >>> @log_of_one_plus.to
    ... def _(x):
    ...     return jnp.log1p(x)
    >>> log_of_one_plus
    Rule('log-of-one-plus', no_worse)
    """

    name: str
    before: Callable[..., Any]
    exactness: Exactness
    reason: str
    shared: bool = False
    stage: Stage = Stage.BEFORE
    platforms: tuple[str, ...] | None = None
    profit: Any = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    after: Callable[..., Any] | None = None
    derivative: Derivative | None = None
    condition: Callable[..., Any] | None = None
    fires_on: tuple[Any, ...] = field(init=False, default=(), repr=False)
    leaves_alone: tuple[Any, ...] = field(init=False, default=(), repr=False)
    begins: Mapping[str, Callable[[Any], bool] | None] | None = field(init=False, default=None, repr=False)
    asks_site: bool = field(init=False, default=False)
    spellings: list[Callable[..., Any]] = field(init=False, default_factory=list, repr=False)
    arrays: tuple[str, ...] = field(init=False)
    parameters: dict[str, Any] = field(init=False)
    kept: Kept[Any] = field(
        init=False, default_factory=lambda: Kept(512), repr=False
    )  # what `before` and `after` trace to

    def __post_init__(self) -> None:
        self.arrays, self.parameters = _arguments(self)
        self.spellings.append(self.before)

    def __repr__(self) -> str:
        return f"Rule({self.name!r}, {self.exactness})"

    @property
    def line(self) -> str:
        """Where it is written."""
        return place_of(self.before)

    @property
    def functions(self) -> tuple[Any, ...]:
        """What it says, for its fingerprint."""
        derivative = () if self.derivative is None else self.derivative.functions
        return (self.shared, *self.spellings, self.after, self.condition, self.profit, *derivative)

    @cached_property
    def written(self) -> Callable[..., Any] | None:
        """What is traced in the place of `before`: `after` with the derivative, or `before` itself with it."""
        if self.derivative is None:
            return self.after
        return self.derivative.given_to(self.after or self.before)

    def to(self, after: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the function to write in place of `before`, with the same arguments.

        Raises:
            RuleError: there is one already, or its arguments are others.
        """
        self.after = self._fitting("after", self.after, after)
        self._changed()
        return after

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the derivative of what the rule writes, as `jax.custom_jvp.defjvp` takes it.

        The function takes the tuples of primals and of tangents, and returns the result and its tangent. It may ask
        for the rule's keyword-only parameters. A rule with a derivative may have no `to`: what it finds then stays,
        and is differentiated so.

        Raises:
            RuleError: there is a derivative already, or the rule is for programs that nobody differentiates any more.
        """
        self._bring(Derivative(jvp=jvp), jvp)
        return jvp

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """The derivative of what the rule writes, as `jax.custom_vjp.defvjp` takes it: in reverse mode only.

        `forward` returns the result and what is kept, `backward` takes that and the cotangent of the result, and
        returns a tuple of cotangents. Both may ask for the rule's keyword-only parameters.

        Raises:
            RuleError: as for `defjvp`.
        """
        self._bring(Derivative(forward=forward, backward=backward), backward)

    def _bring(self, derivative: Derivative, function: Callable[..., Any]) -> None:
        line = place_of(function)
        if self.derivative is not None:
            raise RuleError(rule=self.name, what="has two derivatives.", where=line, to_fix="drop one of them")
        if self.stage is not Stage.BEFORE:
            what, fix = f"has a derivative, but runs {self.stage} differentiation.", 'give it stage="before"'
            raise RuleError(rule=self.name, what=what, where=line, to_fix=fix)
        self.derivative = derivative
        self._changed()

    def _changed(self) -> None:
        self.__dict__.pop("written", None)
        self.kept.clear()

    def examples(self, *, fires_on: Sequence[Any] = (), leaves_alone: Sequence[Any] = ()) -> None:
        """Keeps programs that the rule is checked on: what `ag.check_rule` takes by these names."""
        self.fires_on, self.leaves_alone = tuple(fires_on), tuple(leaves_alone)

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with Aerogel, whose tests check it."""
        return is_own(self.before)

    def also(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: another spelling of what `before` computes, with the same arguments, to look for too.

        Raises:
            RuleError: its arguments are others.
        """
        self.spellings.append(fitting(self, "also", before))
        self.begins = None
        self._changed()
        return before

    def when(self, condition: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: says of the operands at a site whether the rule fires there: True, or the reason against it.

        The function takes what `before` takes, an `Operand` in the place of each array; and the `Site`, if it has a
        keyword argument `site`.

        Raises:
            RuleError: there is one already, or its arguments are others.
        """
        self.condition = self._fitting("when", self.condition, condition)
        self.asks_site = "site" in inspect.signature(condition).parameters and "site" not in self.parameters
        return condition

    def _fitting(self, part: str, old: Any, new: Callable[..., Any]) -> Callable[..., Any]:
        if old is not None:
            raise RuleError(rule=self.name, what=f"has two functions for `{part}`.", to_fix="drop one of them")
        return fitting(self, part, new)


def fitting(rule: Rule, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, if it takes what `before` takes."""
    found = inspect.signature(function).parameters.values()
    arrays = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    parameters = [p.name for p in found if p.kind is p.KEYWORD_ONLY]
    asked = int(part == "when" and "site" in parameters and "site" not in rule.parameters)
    if asked:
        parameters.remove("site")
    if (
        len(arrays) != len(rule.arrays)
        or set(parameters) != set(rule.parameters)
        or len(found) != len(arrays + parameters) + asked
    ):
        raise RuleError(
            rule=rule.name,
            what=f"takes other arguments in `{part}` than in `before`.",
            where=place_of(function),
            got=str(inspect.signature(function)),
            wanted=f"({_signature(rule)})",
            to_fix=f"write def _({_signature(rule)})",
        )
    return function


def _signature(rule: Rule) -> str:
    return ", ".join((*rule.arrays, *(("*", *rule.parameters) if rule.parameters else ())))


def _arguments(rule: Rule) -> tuple[tuple[str, ...], dict[str, Any]]:
    arrays, parameters = [], {}
    for name, p in inspect.signature(rule.before).parameters.items():
        if p.kind is p.KEYWORD_ONLY and isinstance(p.default, bool | int | float | tuple):
            parameters[name] = p.default
        elif p.kind is p.KEYWORD_ONLY:
            raise RuleError(
                rule=rule.name,
                what=f"needs a default for its parameter `{name}`.",
                where=place_of(rule.before),
                got="none" if p.default is p.empty else repr(p.default),
                wanted="a number, a bool or a tuple of ints",
                to_fix=f"give one that `before` can be traced with: *, {name}=0",
            )
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
            arrays.append(name)
        else:
            raise RuleError(
                rule=rule.name,
                what=f"has an argument `{p}` that is neither an array nor a parameter.",
                where=place_of(rule.before),
                to_fix="arrays are positional, without a default; Python values are keyword-only, with one",
            )
    return tuple(arrays), parameters


def rule(
    before: None = None,
    /,
    *,
    exactness: str = "",
    reason: str = "",
    name: str | None = None,
    shared: bool = False,
    stage: str = "before",
    platforms: Sequence[str] | None = None,
    profit: Any = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> Callable[..., Rule]:
    """Decorator that makes a `Rule` of the function to look for; `.to` and `.when` of the result complete it.

    Args:
        exactness: "bitwise", "no_worse" (the worst error against float64 does not grow), "reassociates" (sums in
            another order), "finite" (the same unless an input holds inf or nan), "assumes" (needs a promise by the
            user) or "other_bits" (another draw of random numbers). `ag.check_rule` tests the claim.
        reason: why the other form is better.
        name: in reports; the name of the function, with hyphens, unless given.
        shared: whether the rule also fires where something else reads a value from the middle of the pattern.
        stage: "before", "after" or "final": `aerogel.compiler.Stage` says what they mean.
        platforms: the backends that it is for, as `jax.default_backend()` names them; all of them unless given.
        profit: "model", if the rule is to fire only where what it writes takes less time than what goes, by the model
            of the machine; or a function of the site (`aerogel.compiler.Site`) that returns True, or the reason
            against it. Without it the rule fires wherever it matches.
        shapes: one for each array, at which the function is looked at before any site is known; where it does not
            take small arrays of equal sizes, because one is as long as two others multiplied, say.

    Raises:
        UsageError: `exactness`, `stage`, `platforms` or `profit` is something else.
        RuleError: the function has arguments that a rule cannot bind, or stands under `@ag.rule` alone, where nothing
            is claimed of it.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> @ag.rule(exactness="reassociates", reason="a solve costs a third of an inverse and loses fewer digits")
    ... def inverse_times(A, b):
    ...     return jnp.linalg.inv(A) @ b
    >>> @inverse_times.to
    ... def _(A, b):
    ...     return jnp.linalg.solve(A, b)
    >>> @inverse_times.when
    ... def _(A, b):
    ...     return A.ndim == 2 or "batched inverse"
    >>> f = ag.optimize(lambda A, b: jnp.linalg.inv(A) @ b + 1, rules=[inverse_times])
    >>> f(2 * jnp.eye(2), jnp.ones(2))
    Array([1.5, 1.5], dtype=float32)
    """
    if before is not None:
        claim = '@ag.rule(exactness="reassociates", reason="why the other form is better")'
        raise without_parentheses(before, "has no exactness and no reason.", claim)
    words = [e.value for e in Exactness]
    if exactness not in words:
        raise UsageError(argument="exactness", got=exactness, wanted=words, function="rule")
    if not reason:
        wanted = "a clause that says why the other form is better"
        raise UsageError(argument="reason", got=reason, wanted=wanted, function="rule")
    settled = stage_of(stage, "rule"), platforms_of(platforms, "rule"), profit_of(profit, "rule")

    def decorate(before: Callable[..., Any]) -> Rule:
        said = name or name_of(before, "rule")
        sizes = None if shapes is None else tuple(map(tuple, shapes))
        made = Rule(said, before, Exactness(exactness), reason, shared, *settled, sizes)
        if sizes is not None and len(sizes) != len(made.arrays):
            wanted = f"{len(made.arrays)} shapes, of {', '.join(made.arrays)}"
            raise UsageError(argument="shapes", got=shapes, wanted=wanted, function="rule")
        return made

    return decorate
