"""`check_rule`: whether a rule does what it claims."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.compiler.rules import AnyRule, PrimitiveRule, RuleCheckError, Stage
from aerogel.compiler.rules.traces import REFUSALS

from .rule_facts import assumed, conforming
from .rule_judge import Case, Subject, as_it_is, judge, judge_around, judge_under, named
from .rule_probes import example_arguments, probes_of

_jax.exclude_from_tracebacks(__file__)

Example = Callable[..., Any] | tuple[Callable[..., Any], tuple[Any, ...]]


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
    smallest numbers, 1e-8, 1, the largest ones whose sums the type holds, inf, nan, and the limits of integers; in one
    entry of an argument, and in all. On random numbers they are run in random programs too: in loops, branches and
    calls, with arguments and results that something else reads. What a program says of its arguments by `ag.assume`
    holds for those that are drawn: `ag.assume(S, "spd")` makes them positive definite.

    Both results are judged against float64, by what the rule's exactness promises. Where float64 gives no finite
    number, and neither does either program, they agree; as they do where the worst entry of the result with the rule is
    no further from float64 than the worst one without. An entry that is a number without the rule is one with it,
    unless the result holds another that its type cannot hold at all.

    Args:
        rule: the rule.
        fires_on: programs that hold its pattern: functions, or pairs of a function and its arguments. A function
            alone is tried at small arrays of several ranks (of floats, unless an argument is annotated with `int` or
            `bool`); the first at which the rule fires are judged. Without any, those of `rule.examples` are
            taken, or else `before` itself; a rule of one primitive needs some.
        leaves_alone: programs on which it must not fire: near misses. Without any, those of `rule.examples`.
        under: transformations under which the results must agree too, at random numbers. A function whose result is
            no scalar is summed up for `jax.grad`.
        seed: of the random numbers.

    Raises:
        RuleCheckError: a claim does not hold.
        RuleError: `after` cannot be traced, or returns another type.
        UsageError: `rule` is none, or `fires_on` is empty for a rule of one primitive.

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
    if not isinstance(rule, AnyRule):
        wanted = "a rule, which `ag.rule` and `ag.compiler.on` make"
        raise UsageError(argument="rule", got=rule, wanted=wanted, function="check_rule")
    early = rule.stage is Stage.BEFORE
    subject = Subject("rule", rule.name, rule.exactness, early, {"rules": [rule], "passes": ()})
    check_subject(
        subject,
        fires_on or rule.fires_on or _own_program(rule),
        leaves_alone or rule.leaves_alone,
        under,
        seed,
    )


def check_subject(
    subject: Subject,
    fires_on: Iterable[Example],
    leaves_alone: Iterable[Example],
    under: Iterable[Callable[..., Any]],
    seed: int,
) -> list[Case]:
    """Checks where a rule or a pass fires, and what it does there; returns the programs on which it fires.

    Raises:
        RuleCheckError: a claim does not hold.
    """
    for example in leaves_alone:
        for case in _cases(subject, example):
            if case.fires:
                raise case.error("fires on what it should leave alone.", f"narrow what the {subject.noun} looks for")
    checked = []
    for example in fires_on:
        cases = list(_cases(subject, example))
        firing = [case for case in cases if case.fires]
        if not firing:
            raise _never(subject, example, cases)
        judge(firing[0], probes_of(firing[0].args, firing[0].facts, seed), subject.exactness, as_it_is)
        for transform in under:
            judge_under(firing[0], transform, seed)
        judge_around(firing[0], seed)
        checked.append(firing[0])
    return checked


def _own_program(rule: AnyRule) -> list[Example]:
    """The spellings of a pattern, as programs."""
    if isinstance(rule, PrimitiveRule):
        wanted = "programs that hold the primitive"
        raise UsageError(argument="fires_on", got=(), wanted=wanted, function="check_rule")
    return list(rule.spellings)


def _cases(subject: Subject, example: Example) -> Iterator[Case]:
    """The program at its arguments, or at all example arguments with which it can be traced."""
    if isinstance(example, tuple):
        f, *rest = example
        if len(rest) != 1 or not isinstance(rest[0], tuple | list):
            wanted = "functions, or pairs of a function and a tuple of its arguments"
            fix = "write (f, (x, y)), or (f, (x,)) of one argument"
            raise UsageError(argument="fires_on", got=example, wanted=wanted, to_fix=fix)
        yield _case(subject, f, tuple(rest[0]))
        return
    for args in example_arguments(example):
        try:
            jax.eval_shape(example, *args)
        except REFUSALS:
            continue
        yield _case(subject, example, args, drawn=True)


def _case(subject: Subject, f: Callable[..., Any], args: tuple[Any, ...], drawn: bool = False) -> Case:
    facts = assumed(f, args)
    args = conforming(args, facts) if drawn else args
    reports: list[Any] = []
    jax.eval_shape(_jax.original_jit(subject.at_work(f, reports.append)), *args)
    decisions = [d for d in reports[-1].decisions if d.rule == subject.name]
    nothing = "it holds no first operation of the pattern" if subject.noun == "rule" else "it found nothing"
    reason = next((d.reason for d in decisions if not d.fired), nothing)
    return Case(subject, f, args, facts, any(d.fired for d in decisions), reason)


def _never(subject: Subject, example: Example, cases: list[Case]) -> RuleCheckError:
    fix = f"make the {subject.noun} look for what stands in that program"
    if subject.noun == "rule":
        fix = "make `before` trace to what stands in that program; ag.explain(f, rules=[rule]) shows each site"
    if cases:
        return cases[0].error("does not fire.", fix, got=cases[0].reason)
    f = example[0] if isinstance(example, tuple) else example
    return RuleCheckError(
        rule=subject.name,
        noun=subject.noun,
        what="cannot be tried.",
        where=named(f),
        got="no small arrays of floats that the program takes",
        to_fix="give it with arguments: (f, (x, y)), or annotate those that are `int` or `bool`",
    )
