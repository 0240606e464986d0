"""Rules for one primitive: an ordinary function that stands in its place."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import _jax
from ..._errors import UsageError
from ..._jax import Atom, JaxprEqn, Literal
from ..exactness import Exactness
from ..kept import Kept
from .errors import RuleError
from .graph import Graph, Node
from .place import is_own, name_of, place_of
from .profit import Profit, profit_of
from .site import Site
from .stage import Stage, platforms_of, stage_of
from .traces import REFUSALS, Pattern, as_pattern

MOST = 512  # traces of one equation, and equations


@dataclass(eq=False)
class PrimitiveRule:
    """What to compute in the place of one primitive; `on` makes it.

    Attributes:
        name: in reports.
        primitives: the names of the primitives.
        function: of its operands; returns what stands for its results, or the reason against it.
        exactness: what the rewrite may do to numbers.
        reason: why the other form is better, as a clause for reports.
        stage: where in the compiler it has its place.
        platforms: the backends that it is for; None for all.
        profit: None, "model", or a function of the site.
        fires_on: programs in which it must fire; `examples` sets them.
        leaves_alone: near misses.
    """

    name: str
    primitives: tuple[str, ...]
    function: Callable[..., Any]
    exactness: Exactness
    reason: str
    stage: Stage = Stage.AFTER
    platforms: tuple[str, ...] | None = None
    profit: Profit = None
    fires_on: tuple[Any, ...] = field(init=False, default=(), repr=False)
    leaves_alone: tuple[Any, ...] = field(init=False, default=(), repr=False)
    kept: Kept[list[Any]] = field(init=False, default_factory=lambda: Kept(MOST), repr=False)

    def __post_init__(self) -> None:
        found = inspect.signature(self.function, follow_wrapped=False).parameters.items()
        named = {n for n, p in found if p.kind is p.KEYWORD_ONLY}
        self._takes = None if any(p.kind is p.VAR_KEYWORD for _, p in found) else named

    def __repr__(self) -> str:
        return f"PrimitiveRule({self.name!r}, on {' and '.join(self.primitives)}, {self.exactness})"

    @property
    def line(self) -> str:
        """Where it is written."""
        return place_of(self.function)

    @property
    def functions(self) -> tuple[Any, ...]:
        """What it says, for its fingerprint."""
        return (self.primitives, self.function, self.profit)

    def examples(self, *, fires_on: Sequence[Any] = (), leaves_alone: Sequence[Any] = ()) -> None:
        """Keeps programs that the rule is checked on: what `ag.check_rule` takes by these names."""
        self.fires_on, self.leaves_alone = tuple(fires_on), tuple(leaves_alone)

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with Aerogel, whose tests check it."""
        return is_own(self.function)

    def replacement(self, node: Node, site: Site) -> Pattern | str:
        """What is computed in the place of an equation, as a program of its operands; or the reason against it.

        Raises:
            RuleError: the function raises, or returns other types than the equation has.
        """
        eqn, key = node.eqn, node.key
        known = self.kept.get(key) or []
        for answers, outcome in known:
            if site.agrees(answers):
                return outcome
        # only what the function asks is what its outcome depends on
        asking = site.anew()
        outcome = self._traced(eqn, asking)
        if key is not None:
            self.kept.put(key, [*known[1 - MOST :], (asking.answers(), outcome)])
        return outcome

    def _traced(self, eqn: JaxprEqn, site: Site) -> Pattern | str:
        inputs = tuple(k for k, x in enumerate(eqn.invars) if not isinstance(x, Literal))
        reason: list[str] = []
        given = {**eqn.params, "site": site}
        params = {k: v for k, v in given.items() if self._takes is None or k in self._takes}

        def flat(*arrays: Any) -> list[Any]:
            known = dict(zip(inputs, arrays, strict=True))
            full = [known[k] if k in known else _number(x) for k, x in enumerate(eqn.invars)]
            with _jax.inside_optimize(True):
                out = self.function(*full, **params)
            if isinstance(out, str):
                reason.append(out)
                return []
            if out is None:
                raise TypeError("None is returned, neither arrays nor a string: the reason why the site stays")
            return list(out) if isinstance(out, tuple | list) else [out]

        names = _jax.argument_names(flat, (), {}, ()).with_unknown_names()
        avals = [eqn.invars[k].aval for k in inputs]
        try:
            with _jax.equation_context(eqn):
                program = _jax.trace_flat(flat, names, avals)
        except REFUSALS as error:
            raise self._error(eqn, f"raised {type(error).__name__}", _first_line(error), None) from error
        if reason:
            return reason[0]
        got, wanted = program.jaxpr.outvars, eqn.outvars
        said = [(x.aval.shape, x.aval.dtype) for x in got], [(x.aval.shape, x.aval.dtype) for x in wanted]
        if said[0] != said[1]:
            raise self._error(eqn, "returned other types", _types(got), _types(wanted))
        return as_pattern(program, inputs)

    def _error(self, eqn: JaxprEqn, what: str, got: str, wanted: str | None) -> RuleError:
        return RuleError(
            rule=self.name,
            what=f"{what} in the place of `{eqn.primitive.name}` of {_types(eqn.invars)}.",
            where=self.line,
            got=got,
            wanted=wanted,
            to_fix="return a string, the reason, where it is not meant to work",
        )


def _types(atoms: Sequence[Any]) -> str:
    return ", ".join(x.aval.str_short(True) for x in atoms)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else "no message"


def _number(x: Atom) -> Any:
    assert isinstance(x, Literal)
    return np.asarray(x.val, x.aval.dtype)[()]


def nodes_of(graph: Graph, rule: PrimitiveRule) -> list[Node]:
    """The equations of a rule's primitive at one level. Those in calls are found where the call's body is the level."""
    places = sorted(place for name in rule.primitives for place in graph.by_primitive.get(name, ()))
    return [graph.node(place) for place in places]


def on(
    primitive: Any,
    *,
    stage: str = "after",
    platforms: Sequence[str] | None = None,
    exactness: str = "reassociates",
    reason: str = "it is the cheaper form",
    name: str | None = None,
    profit: Profit = None,
) -> Callable[[Callable[..., Any]], PrimitiveRule]:
    """Decorator that makes a rule of a function that computes what one primitive computes, for some of its sites.

    The function is given the operands, as arrays of the types that they have at the site, and by name the parameters
    of the equation and the `Site`; it may leave out names that it does not need. It returns one array, a list where
    the primitive has several results, or a string: the reason why this site stays as it is. It is called once for each
    combination of types, parameters and answers of the site that it asked for. It is found under `vmap`, as the
    primitive that the batched program holds, and in the bodies of loops and branches. It does not look at what it
    wrote itself.

    Args:
        primitive: a JAX primitive, such as `lax.linalg.cholesky_p`, or its name; or several of them in a tuple, which
            `site.primitive` tells apart.
        stage: "before", "after" or "final": `Stage` says what they mean.
        platforms: the backends that it is for, as `jax.default_backend()` names them; all of them unless given.
        exactness: as for `ag.rule`.
        reason: why the other form is better.
        name: in reports; the name of the function, with hyphens, unless given.
        profit: as for `ag.rule`.

    Raises:
        UsageError: an argument is something else.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> from jax import lax
    >>> @ag.compiler.on(lax.linalg.cholesky_p, reason="a root is no matrix")
    ... def one_by_one(x, *, site):
    ...     return jnp.sqrt(x) if x.shape[-1] == 1 else "larger than 1 x 1"
    >>> report = ag.explain(lambda x: jnp.linalg.cholesky(x) + 1, rules=[one_by_one])(jnp.ones((1, 1)))
    >>> [decision.what for decision in report.fired]
    ['`cholesky` becomes `sqrt`']
    """
    several = primitive if isinstance(primitive, tuple) else (primitive,)
    found = tuple(one if isinstance(one, str) else getattr(one, "name", "") for one in several)
    if not all(isinstance(one, str | _jax.Primitive) for one in several):
        raise UsageError(argument="primitive", got=primitive, wanted="a primitive, or its name", function="on")
    words = [e.value for e in Exactness]
    if exactness not in words:
        raise UsageError(argument="exactness", got=exactness, wanted=words, function="on")
    settled = stage_of(stage, "on"), platforms_of(platforms, "on"), profit_of(profit, "on")

    def decorate(function: Callable[..., Any]) -> PrimitiveRule:
        return PrimitiveRule(name or name_of(function, "on"), found, function, Exactness(exactness), reason, *settled)

    return decorate
