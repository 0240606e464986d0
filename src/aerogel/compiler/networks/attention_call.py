"""An attention as a call of cuDNN, and its gradient: equations in place of others.

The call has two forms (`_jax.two_forms`), of which cuDNN's is taken where a program is compiled for a CUDA device.
"""

import math
from collections.abc import Sequence
from typing import Any

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Var

from ..differentiated import differentiated
from ..kept import Kept
from ..known.records import Facts
from ..level import Edit, Level
from ..program import Builder, is_var
from ..record import record
from ..same import Body
from ..small_traces import traced
from ..written_derivatives import READ_ELSEWHERE, Equations, NotWritten, written_derivative
from . import attention_layout
from .attention import Attention, NotAttention, read_attention
from .attention_layout import Form, check_operands, layout_of
from .labelled import VIEWS

REFUSALS = (NotImplementedError, RuntimeError, ValueError)
_known = Kept[_jax.GradientForms](64)  # layers are alike
LEAST_BYTES = 4 << 20  # scores that stay in a cache cost little


def score_bytes(found: Attention) -> int:
    """What the scores of an attention take in memory."""
    aval = found.scores.outvars[0].aval
    return math.prod(aval.shape) * aval.dtype.itemsize


def edits_of(equations: Equations, facts: Facts, found: Attention) -> list[Edit]:
    """What computes an attention by cuDNN, and its gradient where that stands in the level, too.

    Raises:
        NotAttention: it cannot, or it does not pay.
    """
    level = equations.level
    call = Call.of(level, found)
    if not _is_read_on_the_way(level, found):
        return [call.edit(level)]
    try:
        return call.edits_with_gradient(equations)
    except NotAttention as refused:  # gradients of what operands are views of may be added up before they are viewed
        near = read_attention(level, facts, found.place, near=True)
        assert near is not None, "it is one"
        try:
            return Call.of(level, near).edits_with_gradient(equations)
        except NotAttention:
            raise refused from None


def _is_read_on_the_way(level: Level, found: Attention) -> bool:
    """Whether something else reads what stands between the operands and the result."""
    inside = found.places - {found.place}
    return any(k not in found.places for place in inside for v in level.eqns[place].outvars for k in level.readers(v))


@record
class Call:
    """An attention in two forms.

    Attributes:
        found: the attention.
        plain, fused: the forms: functions of `inputs`, of which the first `count` are what is multiplied or added.
    """

    found: Attention
    plain: ClosedJaxpr
    fused: ClosedJaxpr
    inputs: list[Var]
    count: int

    @classmethod
    def of(cls, level: Level, found: Attention) -> "Call":
        """The call that an attention is.

        Raises:
            NotAttention: cuDNN cannot compute it, or it does not pay.
        """
        eqn = level.eqns[found.place]
        layout = layout_of(found)
        check_operands(found, layout)
        (out,), dtype = eqn.outvars, found.q.atom.aval.dtype
        if out.aval.dtype != dtype and not _is_narrowed(level, out, dtype):
            raise NotAttention("its result has more bits than its operands")
        if score_bytes(found) < LEAST_BYTES:
            raise NotAttention("its scores are small")
        why_not = _jax.why_no_cudnn_attention()
        if why_not is not None:
            raise NotAttention(why_not)
        operands = [found.q, found.k, found.v, *([] if found.bias is None else [found.bias])]
        atoms = [x for x in dict.fromkeys(x.atom for x in operands) if is_var(x)]
        plain, inputs = _plain(level, found.place, atoms)
        form = Form(
            tuple(found.network.sizes),
            layout,
            found.out,
            tuple(x.dims for x in operands),
            tuple(inputs.index(x.atom) for x in operands if is_var(x.atom)),
            found.scale,
            found.causal is not None,
            str(out.aval.dtype),
            attention_layout.IMPLEMENTATION,
        )
        try:
            fused = traced(form, [x.aval for x in inputs], eqn)
        except REFUSALS as error:  # JAX knows which versions of cuDNN take which sizes on which devices
            raise NotAttention(f"cuDNN does not take it: {error}") from None
        return cls(found, plain, fused, inputs, len(atoms))

    def edit(self, level: Level) -> Edit:
        """The call in place of the attention."""
        place, eqn = self.found.place, level.eqns[self.found.place]
        builder = Builder(eqn)
        (result,) = builder.call(lambda *args: _jax.two_forms(self.plain, self.fused, *args), *self.inputs)
        return Edit(place, frozenset({place}), builder.eqns, {eqn.outvars[0]: result}, self.found.places)

    def edits_with_gradient(self, equations: Equations) -> list[Edit]:
        """The call, and that of the gradient in place of the one that JAX has written.

        Raises:
            NotAttention: there is none, or something else reads what is computed on the way.
        """
        level, place = equations.level, self.found.place
        eqn = level.eqns[place]
        (out,) = eqn.outvars
        try:
            written = written_derivative(equations, differentiated(self.plain, self.count), [out], self.found.places)
        except NotWritten:
            raise NotAttention(READ_ELSEWHERE) from None
        key = (Body(self.plain), Body(self.fused), self.count, eqn.ctx, _jax.trace_key())
        forms = _known.get(key) or _known.put(key, _jax.gradient_forms(self.plain, self.fused, range(self.count)))
        builder = Builder(eqn)
        result, *kept = builder.call(forms.forward, *self.inputs)
        forward = Edit(place, frozenset({place}), builder.eqns, {out: result}, self.found.places)
        last = max(level.made_by[total.value] for total in written.results.values())
        builder = Builder(level.eqns[last])
        cotangents = builder.call(forms.backward, *self.inputs, *kept, *written.in_full(builder))
        results = {total.value: total.with_derivative(builder, cotangents[k]) for k, total in written.results.items()}
        return [forward, Edit(last, frozenset(), builder.eqns, results, written.places)]


def _is_narrowed(level: Level, var: Var, dtype: Any) -> bool:
    """Whether all that reads a value first converts it to a type."""
    readers = [level.eqns[k] if k >= 0 else None for k in level.readers(var)]
    return bool(readers) and all(
        eqn is not None
        and (
            (eqn.primitive.name in VIEWS and _is_narrowed(level, eqn.outvars[0], dtype))
            or (eqn.primitive.name == "convert_element_type" and eqn.outvars[0].aval.dtype == dtype)
        )
        for eqn in readers
    )


def _plain(level: Level, place: int, stops: Sequence[Var]) -> tuple[ClosedJaxpr, list[Var]]:
    """The equations between some variables and a result, as a program, and the variables that it takes."""
    inputs, inside, waiting = list(stops), {place}, [place]
    while waiting:
        for x in level.eqns[waiting.pop()].invars:
            if not is_var(x) or x in inputs:
                continue
            maker = level.made_by.get(x)
            if maker is None:
                inputs.append(x)
            elif maker not in inside:
                inside.add(maker)
                waiting.append(maker)
    eqns = [level.eqns[k] for k in sorted(inside)]
    return ClosedJaxpr(_jax.new_jaxpr(level.jaxpr, inputs, level.eqns[place].outvars, eqns), ()), inputs
