"""`check_rule`: whether a rule does what it claims."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.compiler.agree import Difference, Reference, compare, float64_reference
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.rules import AnyRule, PrimitiveRule, RuleCheckError, Stage
from aerogel.compiler.rules.traces import KINDS, MOST_EXAMPLES, REFUSALS, SIZE, ranks_tried

from .optimize import function_name, function_place, optimize

_jax.exclude_from_tracebacks(__file__)

Example = Callable[..., Any] | tuple[Callable[..., Any], tuple[Any, ...]]
DRAWS = 3


def check_rule(
    rule: AnyRule,
    *,
    fires_on: Sequence[Example] = (),
    leaves_alone: Sequence[Example] = (),
    under: Sequence[Callable[..., Any]] = (jax.grad, jax.vmap),
    seed: int = 0,
) -> None:
    """Nothing, if a rule fires where it should, leaves the rest alone, and is as exact as it claims.

    Programs with and without the rule are run on random numbers and on those at which rewrites go wrong: 0, -0, the
    smallest numbers, 1e-8, 1, the largest numbers, inf, nan, and the limits of integers; in one entry of an argument,
    and in all. Both results are judged against float64, by what the rule's exactness promises. Where float64 gives no
    finite number, and neither does either program, they agree; as they do where the worst entry of the result with the
    rule is no further from float64 than the worst one without, or, unless "bitwise" or "no_worse" is claimed, where the
    program without the rule overflows for finite arguments.

    Args:
        rule: the rule.
        fires_on: programs that hold its pattern: functions, or pairs of a function and its arguments. A function
            alone is tried at small arrays of several ranks (of floats, unless an argument is annotated with `int` or
            `bool`); the first at which the rule fires are judged. Without any, `before` itself is the program; a rule
            of one primitive needs some.
        leaves_alone: programs on which it must not fire: near misses.
        under: transformations under which the results must agree too, at random numbers. A function whose result is
            no scalar is summed up for `jax.grad`.
        seed: of the random numbers.

    Raises:
        RuleCheckError: a claim does not hold.
        RuleError: `after` cannot be traced, or returns another type.
        UsageError: `fires_on` is empty for a rule of one primitive.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> @ag.rule(exactness="no_worse", reason="log(1 + x) loses x below 6e-8")
    ... def log_of_one_plus(x):
    ...     return jnp.log(1 + x)
    >>> @log_of_one_plus.to
    ... def _(x):
    ...     return jnp.log1p(x)
    >>> ag.check_rule(
    ...     log_of_one_plus,
    ...     fires_on=[lambda x: jnp.log(x + 1) * 2],
    ...     leaves_alone=[lambda x: jnp.log(2 + x), lambda x: jnp.log(1 - x)],
    ... )
    """
    for example in leaves_alone:
        for case in _cases(rule, example):
            if case.fires:
                raise case.error("fires on what it should leave alone.", "narrow `before`, or refuse it with `when`")
    for example in fires_on or _own_program(rule):
        cases = list(_cases(rule, example))
        firing = [case for case in cases if case.fires]
        if not firing:
            raise _never(rule, example, cases)
        _judge(firing[0], _probes(firing[0].args, seed), rule.exactness, _as_it_is)
        for transform in under:
            _judge_under(firing[0], transform, seed)


def _own_program(rule: AnyRule) -> list[Example]:
    """The spellings of a pattern, as programs."""
    if isinstance(rule, PrimitiveRule):
        wanted = "programs that hold the primitive"
        raise UsageError(argument="fires_on", got=(), wanted=wanted, function="check_rule")
    return list(rule.spellings)


@dataclass(frozen=True)
class _Case:
    """A program at some arguments.

    Attributes:
        fires: whether the rule fires on it.
        reason: why it does not.
    """

    rule: AnyRule
    f: Callable[..., Any]
    args: tuple[Any, ...]
    fires: bool
    reason: str

    def transformed(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """The program with the rule under a transformation; over it, where the rule's place is behind derivatives."""
        if self.rule.stage is Stage.BEFORE:
            return transform(optimize(self.f, rules=[self.rule], passes=()))
        return optimize(transform(self.f), rules=[self.rule], passes=())

    def where(self, more: str = "") -> str:
        types = ", ".join(jax.typeof(x).str_short(True) for x in jax.tree.leaves(self.args))
        return f"{_named(self.f)} at {types}{more}"

    def error(self, what: str, to_fix: str, more: str = "", **fields: Any) -> RuleCheckError:
        return RuleCheckError(rule=self.rule.name, what=what, where=self.where(more), to_fix=to_fix, **fields)


def _named(f: Callable[..., Any]) -> str:
    place = function_place(f)
    return f"`{function_name(f)}`" + (f" ({place})" if place else "")


def _cases(rule: AnyRule, example: Example) -> Iterator[_Case]:
    """The program at its arguments, or at all example arguments with which it can be traced."""
    if isinstance(example, tuple):
        f, args = example
        yield _case(rule, f, tuple(args))
        return
    for args in _example_arguments(example):
        try:
            jax.eval_shape(example, *args)
        except REFUSALS:
            continue
        yield _case(rule, example, args)


def _case(rule: AnyRule, f: Callable[..., Any], args: tuple[Any, ...]) -> _Case:
    reports: list[Any] = []
    jax.eval_shape(_jax.original_jit(optimize(f, rules=[rule], passes=(), on_report=reports.append)), *args)
    decisions = [d for d in reports[-1].decisions if d.rule == rule.name]
    reason = next((d.reason for d in decisions if not d.fired), "it holds no first operation of the pattern")
    return _Case(rule, f, args, any(d.fired for d in decisions), reason)


def _example_arguments(f: Callable[..., Any]) -> Iterator[tuple[Any, ...]]:
    required = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty]
    dtypes = [KINDS.get(p.annotation, np.float32) for p in required]
    rng = np.random.default_rng(0)
    for ranks in itertools.islice(ranks_tried(len(required)), MOST_EXAMPLES):
        yield tuple(_normal(rng, (SIZE,) * rank, np.dtype(d), 1.0) for rank, d in zip(ranks, dtypes, strict=True))


def _never(rule: AnyRule, example: Example, cases: list[_Case]) -> RuleCheckError:
    fix = "make `before` trace to what stands in that program; ag.explain(f, rules=[rule]) shows each site"
    if cases:
        return cases[0].error("does not fire.", fix, got=cases[0].reason)
    f = example[0] if isinstance(example, tuple) else example
    return RuleCheckError(
        rule=rule.name,
        what="cannot be tried.",
        where=_named(f),
        got="no small arrays of floats that the program takes",
        to_fix="give it with arguments: (f, (x, y)), or annotate those that are `int` or `bool`",
    )


# --- arguments ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Probe:
    what: str
    args: tuple[Any, ...]


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, scale: float) -> Any:
    if dtype == np.bool_:
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 4, shape), dtype)
    drawn = rng.normal(size=shape) * scale
    return jnp.asarray(drawn + 1j * rng.normal(size=shape) * scale if dtype.kind == "c" else drawn, dtype)


def _draws(args: tuple[Any, ...], seed: int) -> list[_Probe]:
    """Random numbers of the arguments' types; the first are the arguments themselves."""
    rng = np.random.default_rng(seed)
    found = [_Probe("", args)]
    for scale in (1.0, 1e-2, 1e2)[:DRAWS]:
        drawn = jax.tree.map(lambda x, s=scale: _normal(rng, jnp.shape(x), jnp.result_type(x), s), args)
        found.append(_Probe(f", normal numbers times {scale:g}", drawn))
    return found


def _probes(args: tuple[Any, ...], seed: int) -> list[_Probe]:
    """Random numbers, and those at which rewrites go wrong, in each argument in one entry and in all."""
    found = _draws(args, seed)
    leaves, tree = jax.tree.flatten(args)
    for k, x in enumerate(leaves):
        for name, value in _special(jnp.result_type(x)).items():
            whole = jnp.full(jnp.shape(x), value, jnp.result_type(x))
            some = (
                [whole] if not jnp.ndim(x) or not jnp.size(x) else [whole, jnp.asarray(x).reshape(-1).at[-1].set(value)]
            )
            for one in some:
                new = [*leaves[:k], one.reshape(jnp.shape(x)), *leaves[k + 1 :]]
                said = "all" if one is whole else "the last entry"
                found.append(_Probe(f", {said} of argument {k} {name}", jax.tree.unflatten(tree, new)))
    return found


def _special(dtype: Any) -> dict[str, Any]:
    if dtype == np.bool_:
        return {"True": True, "False": False}
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return {"0": 0, "1": 1, str(info.max): info.max, str(info.min): info.min}
    info = jnp.finfo(dtype)
    values = [0.0, -0.0, float(info.smallest_subnormal), 1e-8, 1.0, float(info.max) / 4, np.inf, -np.inf, np.nan]
    return {f"{v:g}": v for v in values}


# --- the judgement -----------------------------------------------------------------------------------------------


def _as_it_is(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def _judge_under(case: _Case, transform: Callable[..., Any], seed: int) -> None:
    """The program under a transformation, at random numbers."""
    draws = _draws(case.args, seed)
    loosest = case.rule.exactness if case.rule.exactness is not Exactness.BITWISE else Exactness.REASSOCIATES
    if transform is jax.vmap:
        pairs = [
            _Probe("", jax.tree.map(lambda *xs: jnp.stack(xs), a.args, b.args)) for a, b in itertools.pairwise(draws)
        ]
        _judge(case, pairs, loosest, jax.vmap)
    elif transform is jax.grad:
        leaves, tree = jax.tree.flatten(case.args)
        floats = tuple(k for k, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.floating))
        outs = jax.tree.leaves(jax.eval_shape(case.f, *case.args))
        if not floats or not any(jnp.issubdtype(x.dtype, jnp.floating) for x in outs):
            return

        def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
            def loss(*flat: Any) -> Any:
                found = jax.tree.leaves(f(*jax.tree.unflatten(tree, flat)))
                terms = [jnp.sum(jnp.sin(x)).astype(np.float32) for x in found if jnp.issubdtype(x.dtype, jnp.floating)]
                return sum(terms, np.float32(0))

            grad = jax.grad(loss, argnums=floats)
            return lambda *args: grad(*jax.tree.leaves(args))

        # What stands before a derivative is the rule's; a derivative adds up in another order.
        _judge(case, draws, max(loosest, Exactness.REASSOCIATES, key=list(Exactness).index), gradient)
    else:
        _judge(case, draws, loosest, transform)


def _judge(case: _Case, probes: Sequence[_Probe], exactness: Exactness, transform: Callable[[Any], Any]) -> None:
    """Compares a program with and without the rule at all probes: one after the other, in one loop."""
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *(probe.args for probe in probes))

    def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: jax.lax.map(lambda one: f(*one), args)

    natural = _jax.original_jit(mapped(transform(case.f)))
    want = jax.tree.leaves(natural(*stacked))
    got = jax.tree.leaves(_jax.original_jit(mapped(case.transformed(transform)))(*stacked))
    flat = jax.tree.leaves(stacked)
    reference: Any = None
    for k, probe in enumerate(probes):
        ours, theirs = ([x[k] for x in found] for found in (got, want))
        if not compare(ours, theirs, exactness=Exactness.BITWISE):
            continue
        if reference is None:
            program = natural.trace(*stacked).jaxpr
            reference = float64_reference(program.jaxpr, program.consts, flat)
        one = reference
        if isinstance(reference, Reference):
            one = Reference(tuple(v[k] for v in reference.values), tuple(s[k] for s in reference.spread))
            ours = [_numbers(*xs) for xs in zip(ours, theirs, one.values, strict=True)]
        found = compare(ours, theirs, one, exactness=exactness, inputs=jax.tree.leaves(probe.args))
        if found and not (isinstance(one, Reference) and _is_nearer(ours, theirs, one, exactness, probe.args)):
            raise _disagreement(case, probe, exactness, transform, found[0])


def _is_nearer(ours: Sequence[Any], theirs: Sequence[Any], one: Reference, exactness: Exactness, args: Any) -> bool:
    """Whether the worst entry of each result is no worse than the natural program's worst one.

    Where underflow or cancellation spoils both, it spoils other entries when sums are in another order. So does
    overflow: where the natural program overflows for finite arguments, only "bitwise" and "no_worse" are judged.
    """
    if exactness is Exactness.BITWISE:
        return False
    if exactness is not Exactness.NO_WORSE and _are_finite(jax.tree.leaves(args)) and not _are_finite(theirs):
        return True
    for a, b, truth in zip(ours, theirs, one.values, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or not jnp.issubdtype(a.dtype, jnp.inexact):
            return False
        with np.errstate(invalid="ignore"):  # inf - inf
            off, natural = (np.max(np.abs(np.asarray(x).astype(truth.dtype) - truth), initial=0.0) for x in (a, b))
        if not off <= natural:  # nor where one of them is no number
            return False
    return True


def _are_finite(arrays: Sequence[Any]) -> bool:
    return all(not jnp.issubdtype(x.dtype, jnp.inexact) or bool(jnp.isfinite(x).all()) for x in arrays)


def _numbers(ours: Any, theirs: Any, truth: np.ndarray) -> Any:
    """`ours` where there is a number to compare it with; `theirs` where there is none and neither has one."""
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return ours
    nowhere = ~np.isfinite(truth) & ~np.isfinite(np.asarray(ours)) & ~np.isfinite(np.asarray(theirs))
    return jnp.where(nowhere, theirs, ours)


def _disagreement(
    case: _Case, probe: _Probe, exactness: Exactness, transform: Callable[[Any], Any], found: Difference
) -> RuleCheckError:
    under = "" if transform is _as_it_is else f", under `{getattr(transform, '__name__', 'a transformation')}`"
    detail = f" ({found.detail})" if found.detail else ""
    return case.error(
        f"is not `{exactness}`." if found.kind == "value" else f"changed the {found.kind} of a result.",
        "claim less with `exactness`, refuse these types with `when`, or mend `after`",
        under + probe.what,
        got=found.got + detail,
        wanted=found.want,
    )
