"""Rules and passes that bring a derivative, in time: before `ag.grad` and its kin differentiate what is optimised.

An optimised program that holds a gradient holds it differentiated already, by JAX's own derivatives. So the rules and
passes that have something to say about that are applied to each function just before it is differentiated.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

from aerogel import _jax
from aerogel.compiler.exactness import Exactness
from aerogel.compiler.known.spread import is_over_devices
from aerogel.compiler.pipeline import Context, Pass, run_passes
from aerogel.compiler.report import Decision
from aerogel.compiler.rules import Rules, RuleSet
from aerogel.compiler.rules.stage import not_allowed

from ._static import hide, reveal
from .trace_program import function_name, trace_program

_jax.exclude_from_tracebacks(__file__)

_decisions: ContextVar[list[Decision] | None] = ContextVar("aerogel_early_decisions", default=None)


@contextmanager
def early_rules(rules: RuleSet, passes: Sequence[Pass], allowed: frozenset[Exactness]) -> Generator[list[Decision]]:
    """While it lasts, those of the rules and passes that bring a derivative are applied to what is differentiated.

    Yields what is decided on them.
    """
    bring = RuleSet(tuple(rule for rule in rules.with_derivatives if not_allowed(rule, allowed) is None))
    also = (
        one for one in passes if one.exactness in allowed and jax.default_backend() in getattr(one, "in_time_on", ())
    )
    found = (*((Rules(bring),) if bring else ()), *also)
    decisions: list[Decision] = []
    token = _decisions.set(decisions)
    try:
        # Part of what JAX keeps traces by, so only where there are such rules.
        with _jax.rules_in_time(found or None):
            yield decisions
    finally:
        _decisions.reset(token)


def in_time(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` of arrays, with these rules applied; `f` itself where there are none."""
    passes = _jax.rules_in_time.value
    if passes is None:
        return f

    @_jax.like(f)
    def hidden(*arrays: Any) -> Any:
        return hide(f(*arrays))

    @_jax.like(f)
    def rewritten(*arrays: Any) -> Any:
        program, inputs, out_tree = trace_program(hidden, arrays, {})
        context = Context(frozenset(Exactness), jax.default_backend(), True, is_over_devices(program))
        outcome = run_passes(program, passes, context, function_name(f))
        decisions = _decisions.get()
        if decisions is not None:
            decisions += outcome.decisions
        return reveal(jax.tree.unflatten(out_tree(), _jax.evaluate(outcome.after, inputs)))

    return rewritten
