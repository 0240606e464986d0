"""What makes a program better, and tells what it did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aerogel import _jax
from aerogel.compiler.pipeline import Outcome, run_passes
from aerogel.compiler.program import Program
from aerogel.compiler.report import Decision, Report
from aerogel.compiler.rules import Rules

from .better import Better, has_other_values, keeps_derivatives, parted
from .tune import Pipeline, tuned

_jax.exclude_from_tracebacks(__file__)

OnTrace = Callable[[Program, Report], None]

WHAT = "the pass did not run"
WHY_EFFECTS = "what it writes has no derivative, and a gradient of a program with effects may be taken from outside"


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
        """The program, better; itself if nothing was done. It is compiled next: it may have no derivative."""
        pipeline = self._pipeline(_jax.differentiating())
        return self._reported(self._run(program, pipeline), pipeline.function, self.decisions).after

    def differentiable(self, program: Program) -> Better:
        """The program, better, for transformations to go through."""
        pipeline = self._pipeline(_jax.differentiating())
        return self._better(program, pipeline, pipeline.function, self.decisions)

    def gradient(self, program: Program, decisions: Sequence[Decision]) -> Better:
        """The program of the function and its gradient, better, after what was decided about the function alone.

        To be called while the gradient is taken.
        """
        pipeline = self._pipeline(_jax.differentiating(again=True))
        return self._better(program, pipeline, f"the gradient of {pipeline.function}", (*self.decisions, *decisions))

    def _pipeline(self, is_before: bool) -> Pipeline:
        return replace(self.pipeline, context=replace(self.pipeline.context, before_differentiation=is_before))

    def _run(self, program: Program, pipeline: Pipeline) -> Outcome:
        return tuned(program, pipeline) if self.tune else pipeline.run(program)

    def _reported(self, outcome: Outcome, name: str, decisions: Sequence[Decision]) -> Outcome:
        if self.on_trace is not None:
            outcome = replace(outcome, decisions=(*decisions, *outcome.decisions))
            self.on_trace(outcome.before, outcome.report(name, self.where))
        return outcome

    def _better(self, program: Program, pipeline: Pipeline, name: str, decisions: Sequence[Decision]) -> Better:
        first, last = parted(pipeline.passes)
        outcome = self._run(program, pipeline)
        fired = {d.rule for d in outcome.decisions if d.fired}
        if not any(one.name in fired and not keeps_derivatives(one) for one in last):
            return Better(self._reported(outcome, name, decisions).after, None)
        if has_other_values(program):
            kept = tuple(one for one in pipeline.passes if keeps_derivatives(one))
            outcome = self._run(program, replace(pipeline, passes=kept))
            names = (one.name for one in last if one.name in fired and not keeps_derivatives(one))
            refused = (Decision(name, WHAT, "", False, WHY_EFFECTS) for name in names)
            outcome = replace(outcome, decisions=(*outcome.decisions, *refused))
            return Better(self._reported(outcome, name, decisions).after, None)
        self._reported(outcome, name, decisions)
        before = self._run(program, replace(pipeline, passes=first)).after
        return Better(before, lambda found: run_passes(found, last, pipeline.context, name).after)
