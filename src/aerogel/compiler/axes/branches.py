"""`cond` (and `switch`) whose predicate does not vary: every branch must keep the axis in the same places."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..._jax import ClosedJaxpr, JaxprEqn
from .answer import Axis, Mapped, No
from .entry import Entry
from .nested import jaxpr_along
from .rebind import bind
from .retrace import start_operands, trace_block


def _solve(
    eqn: JaxprEqn, ins: Mapping[int, Axis], outs: Mapping[int, Axis], length: int, after_differentiation: bool
) -> Mapped | No:
    branches: Sequence[ClosedJaxpr] = eqn.params["branches"]

    def ask(operands: Mapping[int, Axis], wanted: Mapping[int, Axis], whole: Collection[int]) -> list[Mapped] | No:
        answers: list[Mapped] = []
        for branch in branches:
            answer = jaxpr_along(
                branch, operands, length, outs=wanted, whole=whole, after_differentiation=after_differentiation
            )
            if isinstance(answer, No):
                return answer
            answers.append(answer)
        return answers

    # The first input is the index of the branch; the others go to the branches.
    operands, wanted, whole = {i - 1: axis for i, axis in ins.items()}, dict(outs), set[int]()
    while True:
        answers = ask(operands, wanted, whole)
        if isinstance(answers, No):
            return answers
        places = [set(each) - {None} for each in zip(*(answer.ins for answer in answers), strict=True)]
        # What one branch takes as blocks, all are given as blocks, or else all are given whole.
        as_blocks = {i: min(axes, key=repr) for i, axes in enumerate(places) if axes and i not in operands}
        vary = {j: axis for answer in answers for j, axis in enumerate(answer.outs) if axis is not None}
        if vary == wanted and not as_blocks:
            return _together(eqn, answers)
        for i, axis in as_blocks.items():
            if isinstance(ask({**operands, i: axis}, vary, whole), No):
                whole.add(i)
            else:
                operands[i] = axis
        wanted = vary


def _together(eqn: JaxprEqn, answers: Sequence[Mapped]) -> Mapped:
    uses_start = any(answer.uses_start for answer in answers)
    avals = eqn.params["branches"][0].in_avals

    def block(start: Any, size: int, index: Any, *inputs: Any) -> list[Any]:
        traced = tuple(trace_block(answer, avals, size, uses_start) for answer in answers)
        return bind(eqn, [index, *start_operands(start, uses_start), *inputs], eqn.params | {"branches": traced})

    return Mapped((None, *answers[0].ins), answers[0].outs, block, uses_start)


def _along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
    return _solve(eqn, ins, {}, length, after_differentiation)


def _along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
    return _solve(eqn, {}, outs, length, False)


ENTRIES: dict[str, Entry] = {"cond": Entry(_along, _along_output, nested=True)}
