"""What makes a program better, and tells what it did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aerogel import _jax
from aerogel.compiler.pipeline import Outcome, run_passes
from aerogel.compiler.program import Program
from aerogel.compiler.report import Decision, Report
from aerogel.compiler.rules import Rules

from .tune import Pipeline, tuned

_jax.exclude_from_tracebacks(__file__)

OnTrace = Callable[[Program, Report], None]


@dataclass(frozen=True, eq=False)
class Improver:
    """The pipeline of one trace of a function.

    Attributes:
        pipeline: what makes forms of a program.
        tune: whether they are measured.
        on_trace: is called with a program as it stood, and a report; or None.
        where: the file and line of the function, for the report.
        decisions: those made while it was traced.
    """

    pipeline: Pipeline
    tune: bool
    on_trace: OnTrace | None
    where: str
    decisions: Sequence[Decision]

    def first(self, program: Program) -> Outcome:
        """The program as it is differentiated: after the rules of the first stage, and the passes that are `early`."""
        context = replace(self.pipeline.context, before_differentiation=True)
        early = (one for one in self.pipeline.passes if getattr(one, "early", False))
        return run_passes(program, (Rules(self.pipeline.rules), *early), context, self.pipeline.function)

    def __call__(self, program: Program) -> Program:
        """The program, better; itself if nothing was done."""
        return self._improved(program, _jax.differentiating(), self.pipeline.function, self.decisions)

    def gradient(self, program: Program, decisions: Sequence[Decision]) -> Program:
        """The program of the function and its gradient, better, after what was decided about the function alone.

        To be called while the gradient is taken.
        """
        name = f"the gradient of {self.pipeline.function}"
        return self._improved(program, _jax.differentiating(again=True), name, (*self.decisions, *decisions))

    def _improved(self, program: Program, is_before: bool, name: str, decisions: Sequence[Decision]) -> Program:
        pipeline = replace(self.pipeline, context=replace(self.pipeline.context, before_differentiation=is_before))
        outcome = tuned(program, pipeline) if self.tune else pipeline.run(program)
        if self.on_trace is not None:
            outcome = replace(outcome, decisions=(*decisions, *outcome.decisions))
            self.on_trace(outcome.before, outcome.report(name, self.where))
        return outcome.after
