"""`check_pass`: whether a pass keeps the laws of passes."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from aerogel import _jax
from aerogel.compiler.exactness import allowed
from aerogel.compiler.normalize import normalize
from aerogel.compiler.pipeline import Context, Pass

from .rule_check import Example, check_subject
from .rule_judge import Case, Subject

_jax.exclude_from_tracebacks(__file__)


def check_pass(
    tested: Pass,
    *,
    fires_on: Sequence[Example],
    leaves_alone: Sequence[Example] = (),
    under: Sequence[Callable[..., Any]] = (jax.grad, jax.vmap),
    seed: int = 0,
) -> None:
    """Nothing, if a pass fires where it should, leaves the rest alone, and keeps the laws of passes.

    Those are: results have the types and, to the exactness that the pass states, the numbers that they had, under
    transformations and in random programs too (as for `check_rule`); run on its own result, the pass changes nothing;
    a program to which it did nothing is the same object, and a decision that fired stands for every change.

    Args:
        tested: the pass.
        fires_on: programs on which it must fire: functions, or pairs of a function and its arguments.
        leaves_alone: programs on which it must not.
        under: transformations under which the results must agree too.
        seed: of the random numbers.

    Raises:
        RuleCheckError: one of it does not hold.

    The tutorial on passes shows one that is checked.
    """
    options = {"rules": (), "passes": (tested,)}
    subject = Subject("pass", tested.name, tested.exactness, True, options)
    for case in check_subject(subject, fires_on, leaves_alone, under, seed):
        _check_rest(tested, case)


def _check_rest(tested: Pass, case: Case) -> None:
    """The laws about programs that are rewritten already."""
    context = Context(allowed("fast"), jax.default_backend())
    program, _ = normalize(_jax.original_jit(case.f).trace(*case.args).jaxpr)
    once, _ = normalize(tested(program, context)[0])
    again, decisions = tested(once, context)
    fired = [d.what for d in decisions if d.fired]
    if again is not once or fired:
        raise case.error(
            "changes what it wrote itself.",
            "return the program that was given where nothing is left to do",
            got="; ".join(fired) or "another program, and no decision that fired",
        )
