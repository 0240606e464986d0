"""`explain`: what the compiler does to a function, and `verify`: that it computes the same."""

from collections.abc import Callable, Iterable
from typing import Any, Never, ParamSpec, TypeVar

import jax
import numpy as np

from aerogel import _jax
from aerogel._errors import Disagreement, UsageError
from aerogel.compiler.exactness import Exactness, allowed
from aerogel.compiler.judging.agree import Difference, compare, float64_reference
from aerogel.compiler.report import Report
from aerogel.compiler.rules import AnyRule, rule_set

from ._split import divider, joined, through
from ._static import is_static
from .jit import made_by
from .optimize import optimize
from .trace_program import function_name

_jax.exclude_from_tracebacks(__file__)

P = ParamSpec("P")
R = TypeVar("R")
NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
LOOSEST = (Exactness.NO_WORSE, Exactness.REASSOCIATES, Exactness.FINITE)


def explain(
    f: Callable[P, Any],
    *arguments: Never,
    numerics: str = "fast",
    rules: Iterable[AnyRule] | None = None,
    **jit_options: Any,
) -> Callable[P, Report]:
    """A function that takes the arguments of `f` and returns the `Report` of optimising it for them.

    Nothing is compiled or run: `f` is traced once. The report prints well, in a notebook too; `report.fired`,
    `report.refused` and `report.failed` are its decisions as data.

    Args:
        f: what `optimize` takes.
        numerics: as for `optimize`.
        rules: as for `optimize`. Every place where the first operation of a rule stands has a decision.
        jit_options: options of `jax.jit` that the arguments need, such as `static_argnums`.

    Raises:
        UsageError: `numerics` is another word; arguments of `f` stand beside it.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> def decay(x):
    ...     return jax.lax.scan(lambda c, _: (c / 2, c), x, None, length=64)[1].sum()
    >>> report = ag.explain(decay)(jnp.ones(1000))
    >>> [decision.rule for decision in report.fired]
    ['loop-fusion', 'loop-kernel']
    """
    _check(f, arguments, numerics, "explain")
    chosen = None if rules is None else rule_set(rules)
    f, jit_options = _as_written(f, jit_options)

    @_jax.wraps(f)
    def explained(*args: Any, **kwargs: Any) -> Report:
        return _trace(f, numerics, chosen, jit_options, *_divide(f, jit_options, args, kwargs))

    return explained


def _check(f: Any, arguments: tuple[Any, ...], numerics: str, function: str) -> None:
    """Finds a mistake before the call does."""
    _jax.check_callable(f)
    if arguments:
        raise UsageError(
            argument="arguments",
            got=arguments,
            wanted="none: the function stands alone here",
            function=function,
            to_fix=f"give the arguments to what comes back: ag.{function}({function_name(f)})(...)",
        )
    allowed(numerics, function)


def _trace(f: Any, numerics: str, rules: Any, jit_options: dict[str, Any], args: Any, kwargs: Any) -> Report:
    """The report for arguments that are divided."""
    reports: list[Report] = []
    inside = through(f)
    optimized = optimize(inside, numerics=numerics, rules=rules, on_report=reports.append)
    _jax.original_jit(optimized, **jit_options).trace(*args, **kwargs)
    return reports[-1]


def _as_written(f: Any, jit_options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What `ag.jit` was given, with what was static there, so that the report is about all of it."""
    natural, given = made_by(f)
    static = {name: given[name] for name in ("static_argnums", "static_argnames") if name in given}
    return natural, {**static, **jit_options}


def _divide(f: Any, jit_options: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """The arguments with what is no array in them apart from the arrays, as `ag.jit` takes them."""
    return divider(_jax.static_arguments(_jax.original_jit(through(f), **jit_options)))(args, kwargs)


def verify(
    f: Callable[P, R],
    *arguments: Never,
    numerics: str = "fast",
    rules: Iterable[AnyRule] | None = None,
    **jit_options: Any,
) -> Callable[P, R]:
    """A function that runs `f` both as it stands and optimised, and returns the optimised result if they agree.

    Both are judged against float64 where the program can be run at float64; else against each other. How near they
    must be follows from the loosest exactness among the rewrites that fired: to the bit, no further from float64, or
    as near as sums in another order come.

    Args:
        f: what `optimize` takes. Prints and callbacks in it happen twice.
        numerics: as for `optimize`.
        rules: as for `optimize`.
        jit_options: options of `jax.jit` that the arguments need, such as `static_argnums`.

    Raises:
        Disagreement: a result differs by more than that, or has another type; names the first by its path.
        UsageError: `numerics` is another word; arguments of `f` stand beside it.

    >>> import jax.numpy as jnp, aerogel as ag
    >>> float(ag.verify(lambda x: (x * 2).sum())(jnp.ones(3)))
    6.0
    """
    _check(f, arguments, numerics, "verify")
    chosen = None if rules is None else rule_set(rules)
    f, jit_options = _as_written(f, jit_options)

    @_jax.wraps(f)
    def verified(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _divide(f, jit_options, args, kwargs)
        report = _trace(f, numerics, chosen, jit_options, args, kwargs)
        plain = _jax.original_jit(through(f), **jit_options)
        # `f` may be optimised already, or call what is: as it stands means without that.
        with _jax.inside_optimize(True):
            want = plain(*args, **kwargs)
            traced = plain.trace(*args, **kwargs)
        optimized = optimize(through(f), numerics=numerics, rules=chosen)
        got = _jax.original_jit(optimized, **jit_options)(*args, **kwargs)
        told = jax.tree_util.tree_flatten_with_path(joined(want))[0]
        paths = [jax.tree_util.keystr(path) for path, leaf in told if not is_static(leaf)]
        inputs = [x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, NUMBERS)]
        program = traced.jaxpr
        # float64 results have no better reference; they are compared with each other
        wide = any(getattr(x, "dtype", None) in (np.float64, np.complex128) for x in jax.tree.leaves(want))
        known = len(inputs) == len(program.jaxpr.invars) and not wide
        differences = compare(
            jax.tree.leaves(got),
            jax.tree.leaves(want),
            (lambda: float64_reference(program.jaxpr, program.consts, inputs)) if known else None,
            exactness=_promised(report, numerics),
            inputs=inputs,
        )
        if differences:
            raise _disagreement(function_name(f), paths, differences[0])
        return joined(got)

    return verified


def _promised(report: Report, numerics: str) -> Exactness:
    """The loosest exactness among the rewrites that fired."""
    fired = {Exactness(d.exactness) for d in report.fired}
    allowed = LOOSEST if numerics == "fast" else LOOSEST[:1]
    return max((e for e in allowed if e in fired), key=LOOSEST.index, default=LOOSEST[0])


def _disagreement(name: str, paths: list[str], difference: Difference) -> Disagreement:
    at = "".join(f"[{i}]" for i in difference.at)
    path = f"result{paths[difference.output]}{at}" if difference.output >= 0 else "result"
    return Disagreement(
        function=name,
        path=path,
        got=difference.got,
        wanted=difference.want,
        error=f"{difference.kind}: {difference.detail}" if difference.detail else difference.kind,
    )
