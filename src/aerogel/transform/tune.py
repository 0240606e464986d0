"""Tuning: the forms of a program that its passes and rules make, measured; the fastest is taken, and remembered."""

import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel.compiler.passes.derivatives import Derivatives, is_differentiated
from aerogel.compiler.pipeline import Context, Outcome, Pass, run_passes
from aerogel.compiler.program import Program, inner_jaxprs
from aerogel.compiler.report import Decision
from aerogel.compiler.rules import Rules, RuleSet, Stage

from .draws import normal
from .tuned_files import Choice, file_of, store, stored

_jax.exclude_from_tracebacks(__file__)

NAME = "tune"
MARGIN = 0.03  # a form has to be this part faster than a plainer one
MOST = 6  # passes and rules that are left out, one at a time
ROUNDS, LEAST_SECONDS = 9, 1e-3  # a round calls each form once, or as often as takes this long
BUDGET_SECONDS = 60.0  # after which no other form is begun


def with_rules(rules: RuleSet, passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """The passes between those that apply the rules of each stage that there are; after these, those that say so."""
    first, then, last = ((Rules(rules, stage),) if rules.at(stage) else () for stage in Stage)
    after = tuple(one for one in passes if getattr(one, "after_rules", False))
    before = (Derivatives(rules),) if any(map(is_differentiated, rules)) else ()
    return (*before, *first, *(one for one in passes if one not in after), *then, *last, *after)


@dataclass(frozen=True)
class Pipeline:
    """What makes forms of a program: rules and passes, some of which may be left out."""

    rules: RuleSet
    passes: tuple[Pass, ...]
    context: Context
    function: str

    def run(self, program: Program, left_out: Sequence[str] = ()) -> Outcome:
        """The program after all but those."""
        rules = RuleSet(tuple(rule for rule in self.rules if rule.name not in left_out))
        passes = tuple(one for one in self.passes if one.name not in left_out)
        return run_passes(program, with_rules(rules, passes), self.context, self.function)

    @property
    def names(self) -> frozenset[str]:
        """Of all that may be left out."""
        return frozenset((*(rule.name for rule in self.rules), *(one.name for one in self.passes)))


def tuned(program: Program, pipeline: Pipeline) -> Outcome:
    """The fastest form of a program, by measurement, or by what an earlier one found."""
    full = pipeline.run(program)
    if full.after is program:
        return full
    refusal = why_not(program, pipeline.context)
    if refusal is not None:
        return _with(full, "the model's choice stands", False, refusal)
    path = file_of(_key(program, pipeline))
    choice, said = stored(path), ", earlier"
    if choice is None:
        choice, said = _measured(program, full, pipeline), ""
        store(path, choice)
    reason = f"measured {choice.ratio:.2f} of natural{said}"
    if choice.natural:
        plain = replace(full, after=program, decisions=_refused(full.decisions, full.decisions, reason))
        return _with(plain, "the program stays as it stood", False, reason)
    if not choice.left_out:
        return _with(full, "all that was rewritten is kept", True, reason)
    found = pipeline.run(program, choice.left_out)
    gone = [d for d in full.decisions if d.rule in choice.left_out]
    found = replace(found, decisions=(*found.decisions, *_refused(gone, gone, "measured: faster without it")))
    return _with(found, f"without {' and '.join(choice.left_out)}", True, reason)


def _with(outcome: Outcome, what: str, fired: bool, reason: str) -> Outcome:
    return replace(outcome, decisions=(*outcome.decisions, Decision(NAME, what, "", fired, reason)))


def _refused(decisions: Sequence[Decision], fired: Sequence[Decision], reason: str) -> tuple[Decision, ...]:
    return tuple(replace(d, fired=False, reason=reason) if d.fired and d in fired else d for d in decisions)


def why_not(program: Program, context: Context) -> str | None:
    """Why a program cannot be run to measure it; None if it can."""
    if context.over_devices:
        return "it runs on several devices, and only one is measured"
    if program.jaxpr.effects:
        return "it has effects, which a measurement would repeat"
    if _holds_while(program.jaxpr):
        return "how long its `while` loops run hangs on numbers that are not known"
    if not all(isinstance(v.aval, _jax.ShapedArray) for v in program.jaxpr.invars):
        return "it takes values that are no arrays"
    return None


def _holds_while(jaxpr: Any) -> bool:
    return any(eqn.primitive.name == "while" or any(map(_holds_while, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)


def _key(program: Program, pipeline: Pipeline) -> str:
    """Equal for equal programs on equal machines under equal versions, rules and passes."""
    device = jax.local_devices()[0]
    context = pipeline.context
    said = (
        re.sub(r" at 0x[0-9a-f]+|id=\d+", "", str(program.jaxpr)),
        [v.aval.str_short() for v in (*program.jaxpr.invars, *program.jaxpr.constvars)],
        (device.platform, device.device_kind, os.cpu_count()),
        (jax.__version__, _version_of("jaxlib"), _version_of("aerogel")),
        (pipeline.rules.fingerprint, [repr(one) for one in pipeline.passes]),
        (sorted(context.allowed), context.platform, context.before_differentiation, context.memory_limit),
        (context.outermost, _jax.hands_over()),
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from its sources
        return "not installed"


def _measured(program: Program, full: Outcome, pipeline: Pipeline) -> Choice:
    """The fastest of the program as it stood, rewritten, and rewritten without the passes and rules that cost time."""
    deadline = time.monotonic() + BUDGET_SECONDS
    grad = pipeline.context.before_differentiation
    natural, whole = _compiled(program, grad), _compiled(full.after, grad)
    args = _drawn(program)
    ratio = _ratio(whole, natural, args)
    fired = [name for name in dict.fromkeys(d.rule for d in full.decisions if d.fired) if name in pipeline.names]
    costly: list[str] = []
    best, left_out = ratio, ()
    for name in fired[:MOST] if len(fired) > 1 else ():
        if time.monotonic() > deadline:
            break
        without = pipeline.run(program, (name,)).after
        if _ratio(_compiled(without, grad), whole, args) < 1 - MARGIN:
            costly.append(name)
    if costly:
        alone = _ratio(_compiled(pipeline.run(program, costly).after, grad), natural, args)
        if alone < best * (1 - MARGIN):
            best, left_out = alone, tuple(costly)
    return Choice(best > 1 - MARGIN, left_out if best <= 1 - MARGIN else (), float(best))


def _compiled(program: Program, gradient: bool) -> Any:
    """The program compiled; with `gradient`, that of the sum of its results."""

    def run(*args: Any) -> Any:
        return _jax.evaluate(program, args)

    def loss(floats: Sequence[Any], *args: Any) -> Any:
        rest = iter(floats)
        full = [next(rest) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in args]
        return sum(jnp.sum(y.astype(np.float32)) for y in run(*full) if jnp.issubdtype(y.dtype, jnp.floating))

    def derivative(*args: Any) -> Any:
        return jax.value_and_grad(loss)([x for x in args if jnp.issubdtype(x.dtype, jnp.floating)], *args)

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    outs = [v.aval for v in program.jaxpr.outvars]
    has_gradient = gradient and all(
        any(jnp.issubdtype(x.dtype, jnp.floating) for x in found) for found in (avals, outs)
    )
    with jax.ensure_compile_time_eval(), _jax.inside_optimize(True):
        return _jax.original_jit(derivative if has_gradient else run).lower(*avals).compile()


def _drawn(program: Program) -> list[Any]:
    """Inputs of the program's types."""
    rng = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():
        return [normal(rng, v.aval.shape, v.aval.dtype, 1.0) for v in program.jaxpr.invars]


def _ratio(one: Any, other: Any, args: Sequence[Any]) -> float:
    """The time of one form over that of another: the median over rounds in which each runs."""
    with jax.ensure_compile_time_eval():
        times = max(1, int(LEAST_SECONDS / max(_seconds(other, args, 2), 1e-9)))
        _seconds(one, args, 1)
        return median(_seconds(one, args, times) / _seconds(other, args, times) for _ in range(ROUNDS))


def _seconds(form: Any, args: Sequence[Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(form(*args))
    return (time.perf_counter() - start) / times
