"""`optimize`: a function that computes the same by a better program."""

import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import jax

from aerogel import _jax
from aerogel._errors import UsageError
from aerogel.compiler.default import DEFAULT_PASSES
from aerogel.compiler.exactness import allowed
from aerogel.compiler.known.spread import is_over_devices
from aerogel.compiler.pipeline import Context, Pass
from aerogel.compiler.report import Report
from aerogel.compiler.rules import AnyRule, RuleSet, rule_set
from aerogel.compiler.rules import default as default_rules

from ._memory import bytes_of
from .early import early_rules
from .improver import Improver, OnTrace
from .own_gradient import evaluate
from .trace_program import function_name, trace_program
from .tune import Pipeline

_jax.exclude_from_tracebacks(__file__)

F = TypeVar("F", bound=Callable[..., Any])
OnReport = Callable[[Report], None]
SLOT = "__aerogel_optimized__"


def optimize(
    f: F,
    *,
    numerics: str = "fast",
    rules: Iterable[AnyRule] | None = None,
    passes: Sequence[Pass] | None = None,
    tune: bool = False,
    memory_limit: int | str | None = None,
    on_report: OnReport | None = None,
) -> F:
    """A function with the results, signature and name of `f`, whose program is rewritten to cost less.

    It composes: `jax.jit(optimize(f))`, `jax.grad(optimize(f))`, `optimize(jax.vmap(f))`. Each call traces `f`, so
    put it under `jax.jit`; then a call costs what a call of `jax.jit(f)` costs. When one optimised function is traced
    inside another, only the outer one works.

    Args:
        f: any function that `jax.jit` takes. What is static for the enclosing `jit` reaches `f` untouched.
        numerics: "fast" allows sums in another order and rewrites that differ only for inf and nan; "strict" only
            results whose error against float64 is no larger.
        rules: a `RuleSet` or a list of rules (`ag.rule`, `ag.compiler.on`), each of which is applied at its stage;
            without it those of `ag.rules.use`, or else of `ag.rules.default`.
        passes: instead of the default ones, and of the default rules unless `rules` are given too; `()` leaves every
            program as it is.
        tune: whether to measure, at each trace, the program as it stands against what is made of it, and against that
            without each pass and rule that fired, on drawn inputs, and to take the fastest. What was found is kept
            on disk, and serves from then on: see the how-to on tuning.
        memory_limit: what temporary values and results should take at most, in bytes or as "4 GB" or "512 MiB":
            where the prediction is more, values are computed twice or block by block, whatever time that takes. The
            report says by how much a limit is missed.
        on_report: called with a `Report` each time `f` is traced.

    Raises:
        UsageError: `numerics` is another word, `memory_limit` is no size, or `passes` or `rules` hold something else.
        RuleError: a rule does not say what to write, or two have one name.
        TypeError: `f` is not callable, or a generator function, as for `jax.jit`.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> f = jax.jit(ag.optimize(lambda x: jax.lax.scan(lambda c, _: (c / 2, c), x, None, length=4)[1].sum()))
    >>> float(f(jnp.ones(2)))
    3.75
    """
    _jax.check_callable(f)
    exact = allowed(numerics, "optimize")
    known = (None if passes is None else RuleSet()) if rules is None else rule_set(rules)
    chosen = DEFAULT_PASSES if passes is None else _checked(passes)
    limit = None if memory_limit is None else bytes_of(memory_limit, "optimize")
    if passes is None and on_report is None and isinstance(f, types.FunctionType):
        key = numerics, known, limit, tune
        return memoised(f, key, lambda: _wrap(f, exact, known, chosen, None, limit, tune))
    on_trace = None if on_report is None else lambda _, report: on_report(report)
    return _wrap(f, exact, known, chosen, on_trace, limit, tune)


def in_use() -> RuleSet:
    """The rules that apply where none are given."""
    found = _jax.rules_in_use.value
    return default_rules if found is None else found


def watched(f: F, numerics: str, on_trace: OnTrace, tune: bool = False) -> F:
    """`optimize(f)`; `on_trace` is called with the program as it stood, and a report, each time `f` is traced."""
    _jax.check_callable(f)
    return _wrap(f, allowed(numerics), None, DEFAULT_PASSES, on_trace, tune=tune)


def _checked(passes: Any) -> tuple[Pass, ...]:
    """The passes as a tuple. A class or a name in place of a pass would only show as a failure in each trace."""
    if not isinstance(passes, Sequence) or not all(hasattr(p, "name") and _is_instance(p) for p in passes):
        wanted = "a sequence of passes, such as a part of aerogel.compiler.DEFAULT_PASSES"
        raise UsageError(argument="passes", got=passes, wanted=wanted, function="optimize")
    return tuple(passes)


def _is_instance(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def memoised(f: Any, key: Hashable, make: Callable[[], Any]) -> Any:
    """One wrapper per plain function: JAX's caches are keyed by the function, so two jits of it share them.

    It is kept on the function itself: a cycle, which the garbage collector frees. `functools.wraps` copies
    attributes; a slot that belongs to another function is not used.
    """
    owner, wrappers = f.__dict__.get(SLOT, (None, None))
    if owner is not f or wrappers is None:
        wrappers = {}
        f.__dict__[SLOT] = (f, wrappers)
    if key not in wrappers:
        wrappers[key] = make()
    return wrappers[key]


def _wrap(
    f: Any,
    exact: Any,
    rules: RuleSet | None,
    passes: tuple[Pass, ...],
    on_trace: OnTrace | None,
    memory_limit: int | None = None,
    tune: bool = False,
) -> Any:
    @_jax.wraps(f)
    @_jax.api_boundary
    def optimized(*args: Any, **kwargs: Any) -> Any:
        if _jax.inside_optimize.value or _jax.jit_disabled() or _jax.hunting_nans() or _jax.checking_keys():
            return f(*args, **kwargs)
        chosen = in_use() if rules is None else rules
        with early_rules(chosen, passes, exact) as early:
            program, dynamic, out_tree = trace_program(f, args, kwargs)
        over_devices = is_over_devices(program)
        context = Context(
            exact,
            jax.default_backend(),
            over_devices=over_devices,
            memory_limit=memory_limit,
            outermost=_jax.is_outermost(),
        )
        pipeline = Pipeline(chosen, passes, context, function_name(f))
        improve = Improver(pipeline, tune, on_trace, function_place(f), early)
        return jax.tree.unflatten(out_tree(), evaluate(program, dynamic, improve))

    optimized.__dict__.pop(SLOT, None)
    optimized.__doc__ = getattr(f, "__doc__", None)  # JAX's `wraps` makes "" of None
    return optimized


def function_place(f: Any) -> str:
    """File and line of `f`, as "file.py:12"; "" for what has no Python code."""
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    code = getattr(getattr(f, "func", f), "__code__", None)
    return "" if code is None else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
