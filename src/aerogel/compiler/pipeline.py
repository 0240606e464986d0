"""Passes, and how they are run one after the other.

A pass is a function from program to program with a name. A pass that raises, runs out of time or returns an
ill-typed program leaves the program as it was: the report says so in red, one warning names it, and under
`AEROGEL_STRICT=1` (our tests) it is an error.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import jax

from aerogel import _jax
from aerogel._errors import PassFailedWarning
from aerogel._jax import Jaxpr

from .budget import Budget, PassTimeout, budget_seconds
from .cost import Cost, Machine, machine, program_cost
from .exactness import Exactness
from .judging.check import check_program
from .normal_form.kernel_branches import without_kernel_branches
from .normal_form.written_constants import Held, with_constants_back, with_constants_written
from .normalize import normalize
from .program import Program
from .record import record
from .report import Decision, Report
from .uncollected import uncollected


@dataclass(frozen=True)
class Context:
    """What a pass may know about where its program will run."""

    allowed: frozenset[Exactness]
    platform: str
    before_differentiation: bool = False
    over_devices: bool = False  # whether its values may be spread over several devices
    memory_limit: int | None = None  # bytes that temporary values and results should take at most
    outermost: bool = False  # whether no other program holds it, as far as is known

    @property
    def machine(self) -> Machine:
        """The machine model of the platform."""
        return machine(self.platform)


def broken_limit(program: Program, context: Context) -> int | None:
    """The limit on memory, if the program is predicted to take more."""
    limit = context.memory_limit
    return limit if limit is not None and program_cost(program.jaxpr).peak_bytes > limit else None


class Pass(Protocol):
    """A function from program to program.

    Laws (tests/laws runs them on every pass): the result takes and returns the same types and `check_program`
    accepts it; outputs agree to the pass's stated exactness; a decision with `fired` stands for every change, and a
    program to which nothing was done is returned as the same object.

    A pass that says `platforms = ("cpu",)` runs for these platforms only; one that says `after_differentiation = True`
    waits until the program is not differentiated any more.

    A pass that says `early = True` is applied to a function before its gradient is taken, too: what it writes has the
    better gradient.

    A pass that says `in_time_on = ("gpu",)` is, on these platforms, also applied to what `ag.grad` and its kin
    differentiate inside of an optimised function: it brings a gradient that no pass finds behind JAX's own.

    A pass that says `after_rules = True` runs when all rules have. If it also says `keeps_derivatives = False`, what it
    writes has no derivative (bits of numbers): it, and such passes behind it, run on what is compiled next only.

    Where values may be spread over devices, only passes run that say `keeps_devices = True`: their rewrites never need
    a collective that the program did not.
    """

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    @property
    def exactness(self) -> Exactness:
        """The loosest promise of its rewrites."""
        ...

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program, changed or the same object, and what was decided."""
        ...


@record
class Outcome:
    """What the passes made of a program: itself, when nothing fired."""

    before: Program
    after: Program
    decisions: tuple[Decision, ...]
    seconds: float

    def report(self, name: str, where: str) -> Report:
        """The outcome with the costs of both programs, which are counted here and not at every trace."""
        decisions, costs = list(self.decisions), []
        equations = len(self.before.jaxpr.eqns)
        with closing(Budget(budget_seconds(equations))) as budget:
            for program in (self.before, self.after):
                cost, failure = guarded("cost", name, budget, lambda program=program: program_cost(program.jaxpr))
                costs.append(Cost(0, 0, 0) if cost is None else cost)
                decisions += failure
        return Report(name, where, tuple(decisions), costs[0], costs[1], equations, self.seconds)


def run_passes(program: Program, passes: Sequence[Pass], context: Context, name: str) -> Outcome:
    """The program after all passes, and what each did. The original object when nothing fired."""
    start = time.perf_counter()
    decisions: list[Decision] = []
    current = program
    refusal = refused_whole(program.jaxpr) if passes else None
    if refusal is not None:
        decisions.append(Decision("optimize", "the program is left as it is", "", False, refusal))
    elif passes:
        constants = list[Held]()
        steps: list[tuple[str, Run]] = [("normalize", partial(_normalized, constants=constants))]
        for one in passes:
            if not has_its_turn(one, context):
                continue
            if not context.over_devices or getattr(one, "keeps_devices", False):
                steps.append((one.name, one))
            else:
                reason = "the values are spread over devices, and it could move them between these"
                decisions.append(Decision(one.name, "the pass did not run", "", False, reason))
        with uncollected(), closing(Budget(budget_seconds(len(program.jaxpr.eqns)))) as budget:
            for step, run in steps:
                if budget.is_over:  # the pass that used it up is named already
                    decisions.append(Decision(step, "the pass did not run", "", False, "no time was left for it"))
                    continue
                current, made = attempt(step, name, run, current, context, budget)
                decisions += made
            if constants and any(d.fired for d in decisions):
                back: Run = lambda found, _: (with_constants_back(found, constants), [])  # noqa: E731
                current, made = attempt("constants", name, back, current, context, budget)
                decisions += made
    if not any(d.fired for d in decisions):
        current = program
    return Outcome(program, current, tuple(decisions), time.perf_counter() - start)


def has_its_turn(one: Pass, context: Context) -> bool:
    """Whether a pass is for the platform, and for a program that is, or is not, still to be differentiated."""
    waits = context.before_differentiation and getattr(one, "after_differentiation", False)
    return context.platform in getattr(one, "platforms", (context.platform,)) and not waits


def _normalized(program: Program, context: Context, constants: list[Held]) -> tuple[Program, list[Decision]]:
    """The normal form of a program; what is added to `constants` is written out in it."""
    if not context.over_devices:
        program, held = with_constants_written(program)
        constants += held
    found, decisions = normalize(program, context.over_devices)
    plain = without_kernel_branches(found, context.platform)
    if plain is found:
        return found, decisions
    found, more = normalize(plain, context.over_devices)
    return found, decisions + more


def refused_whole(jaxpr: Jaxpr) -> str | None:
    """Why no pass looks at a program at all; None when they do."""
    if _jax.holds_high_types(jaxpr):
        return "it holds values of types that JAX has still to lower"
    for v in (*jaxpr.invars, *jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)):
        if not all(isinstance(n, int) for n in getattr(v.aval, "shape", ())):
            return "it has symbolic shapes: no size is known"
    return None


Run = Callable[[Program, Context], tuple[Program, list[Decision]]]


def attempt(
    step: str, function: str, run: Run, program: Program, context: Context, budget: Budget
) -> tuple[Program, list[Decision]]:
    """What a pass gives, checked; or `program` itself and a red decision."""

    def checked() -> tuple[Program, list[Decision]]:
        result, decisions = run(program, context)
        if result is not program:
            check_program(result, program)
        return result, list(decisions)

    found, failure = guarded(step, function, budget, checked)
    return (program, failure) if found is None else found


T = TypeVar("T")


def guarded(step: str, function: str, budget: Budget, run: Callable[[], T]) -> tuple[T | None, list[Decision]]:
    """What `run` gives; or None and a red decision.

    This is the one place that catches every error: a compiler must not break the program that it was given, and a
    fault must not stay silent either.
    """
    try:
        return budget.run(run), []
    except (Exception, PassTimeout) as error:
        if os.environ.get("AEROGEL_STRICT") == "1":
            raise
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        warn_caller(PassFailedWarning(pass_name=step, function=function, reason=reason))
        return None, [Decision(step, "left the program as it was", "", False, reason, failed=True)]


def warn_caller(warning: Warning) -> None:
    """Issues a warning at the innermost line that is neither ours nor JAX's (`skip_file_prefixes` needs 3.12)."""
    ours = (os.path.dirname(os.path.dirname(__file__)), os.path.dirname(jax.__file__))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "__main__")
    warnings.warn_explicit(warning, type(warning), frame.f_code.co_filename, frame.f_lineno, module, registry)
