"""`scan` and `while`: an axis other than the loop's own passes through, if the loop's body keeps it in its carry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import _jax
from ..._jax import ClosedJaxpr, JaxprEqn
from ..record import record
from .answer import Axis, Mapped, No
from .entry import Entry
from .nested import jaxpr_along
from .rebind import bind
from .retrace import start_operands, trace_block


def settle(
    body: ClosedJaxpr,
    length: int,
    carried: Mapping[int, int],
    ins: Mapping[int, Axis],
    outs: Mapping[int, Axis],
    after_differentiation: bool,
) -> Mapped | No:
    """What a loop's body is along an axis, once its carries come out with the axis where they go in.

    `carried` gives the output position of each carried input. The carries that have the axis only grow in number,
    so this ends after at most as many rounds as there are carries.
    """
    ins, outs = dict(ins), dict(outs)
    while True:
        answer = jaxpr_along(body, ins, length, outs=outs, after_differentiation=after_differentiation)
        if isinstance(answer, No):
            return answer
        before = len(ins) + len(outs)
        for into, out in carried.items():
            place = answer.ins[into] or answer.outs[out]
            if place is None:
                continue
            if ins.setdefault(into, place) != outs.setdefault(out, place):
                return No("a loop moves the axis from one place of its carry to another")
        if len(ins) + len(outs) == before:
            return answer


_OWN = No("the axis is the one that the loop runs over")


def _scan(
    eqn: JaxprEqn, ins: Mapping[int, Axis], outs: Mapping[int, Axis], length: int, after_differentiation: bool
) -> Mapped | No:
    params = eqn.params
    consts, carries = _jax.scan_counts(params)
    first_x = consts + carries
    stacked = [axis for i, axis in ins.items() if i >= first_x] + [axis for j, axis in outs.items() if j >= carries]
    if any(axis.dim == 0 for axis in stacked):
        return _OWN
    body = settle(
        params["jaxpr"],
        length,
        {consts + j: j for j in range(carries)},
        {i: axis if i < first_x else axis.moved(-1) for i, axis in ins.items()},
        {j: axis if j < carries else axis.moved(-1) for j, axis in outs.items()},
        after_differentiation,
    )
    if isinstance(body, No):
        return body
    avals = params["jaxpr"].in_avals

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        extra = start_operands(start, body.uses_start)
        traced = trace_block(body, avals, size, body.uses_start)
        return bind(eqn, [*extra, *inputs], _jax.scan_params(params, traced, consts + len(extra), carries))

    places = tuple(a and (a if i < first_x else a.moved(1)) for i, a in enumerate(body.ins))
    results = tuple(a and (a if j < carries else a.moved(1)) for j, a in enumerate(body.outs))
    return Mapped(places, results, block, body.uses_start)


@record
class _While:
    """The inputs of a `while`: constants of its condition, of its body, and the carry."""

    eqn: JaxprEqn

    @property
    def cond_consts(self) -> int:
        return self.eqn.params["cond_nconsts"]

    @property
    def body_consts(self) -> int:
        return self.eqn.params["body_nconsts"]

    def to_body(self, ins: Mapping[int, Axis]) -> dict[int, Axis]:
        return {i - self.cond_consts: axis for i, axis in ins.items() if i >= self.cond_consts}

    def to_cond(self, ins: Mapping[int, Axis], carry: Sequence[Axis | None]) -> dict[int, Axis]:
        consts = {i: axis for i, axis in ins.items() if i < self.cond_consts}
        return consts | {self.cond_consts + j: axis for j, axis in enumerate(carry) if axis is not None}


def _while(
    eqn: JaxprEqn, ins: Mapping[int, Axis], outs: Mapping[int, Axis], length: int, after_differentiation: bool
) -> Mapped | No:
    at, params = _While(eqn), eqn.params
    carries = {at.body_consts + j: j for j in range(len(eqn.outvars))}
    body = settle(params["body_jaxpr"], length, carries, at.to_body(ins), outs, after_differentiation)
    if isinstance(body, No):
        return body
    carry = body.ins[at.body_consts :]
    cond = jaxpr_along(
        params["cond_jaxpr"],
        at.to_cond(ins, carry),
        length,
        whole=[at.cond_consts + j for j, axis in enumerate(carry) if axis is None],
        after_differentiation=after_differentiation,
    )
    if isinstance(cond, No):
        return No(f"the condition of a `while` looks at the axis: {cond.reason}")
    if cond.outs != (None,):
        return No("the condition of a `while` varies along the axis")

    def block(start: Any, size: int, *inputs: Any) -> list[Any]:
        cond_start, body_start = start_operands(start, cond.uses_start), start_operands(start, body.uses_start)
        changed = {
            "cond_jaxpr": trace_block(cond, params["cond_jaxpr"].in_avals, size, cond.uses_start),
            "cond_nconsts": at.cond_consts + len(cond_start),
            "body_jaxpr": trace_block(body, params["body_jaxpr"].in_avals, size, body.uses_start),
            "body_nconsts": at.body_consts + len(body_start),
        }
        operands = [*cond_start, *inputs[: at.cond_consts], *body_start, *inputs[at.cond_consts :]]
        return bind(eqn, operands, params | changed)

    places = (*cond.ins[: at.cond_consts], *body.ins)
    return Mapped(places, body.outs, block, cond.uses_start or body.uses_start)


def _loop(solve: Callable[..., Mapped | No]) -> Entry:
    def along(eqn: JaxprEqn, ins: Mapping[int, Axis], length: int, after_differentiation: bool) -> Mapped | No:
        return solve(eqn, ins, {}, length, after_differentiation)

    def along_output(eqn: JaxprEqn, outs: Mapping[int, Axis], length: int) -> Mapped | No:
        return solve(eqn, {}, outs, length, False)

    return Entry(along, along_output, nested=True)


ENTRIES: dict[str, Entry] = {"scan": _loop(_scan), "while": _loop(_while)}
