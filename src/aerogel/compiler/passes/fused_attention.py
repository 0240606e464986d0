"""Fused attention: on GPUs, a softmax of scores between products is cuDNN's attention, which stores no scores.

XLA makes the scores of all queries and keys, their exponentials and the weights in memory, each as large as the number
of queries times that of keys. cuDNN's kernel makes them block by block, in registers, and so does its gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr, Var

from ..exactness import Exactness
from ..known.structure import structure
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..networks import attention_layout
from ..networks.attention import Attention, NotAttention, read_attention
from ..networks.attention_layout import Form, check_operands, layout_of
from ..networks.labelled import VIEWS
from ..pipeline import Context
from ..program import Builder, Program, is_var, where
from ..report import Decision
from ..small_traces import traced

NAME = "fused-attention"
WHAT = "a softmax between two products is cuDNN's attention"
EXACTNESS = Exactness.REASSOCIATES
REFUSALS = (NotImplementedError, RuntimeError, ValueError)
LEAST_BYTES = 4 << 20  # scores that stay in a cache cost little


@dataclass(frozen=True)
class FusedAttention:
    """The pass. Bound: each product is looked at once."""

    platforms: ClassVar = ("gpu",)
    early: ClassVar = True  # the gradient is cuDNN's, too
    in_time_on: ClassVar = ("gpu",)

    name: str = NAME
    exactness: Exactness = EXACTNESS

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with cuDNN's attention in it, and a decision for each product with a softmax."""
        if self.exactness not in context.allowed:
            return program, []
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, decisions)), decisions


def _level(jaxpr: Jaxpr, decisions: list[Decision]) -> Jaxpr:
    names = {eqn.primitive.name for eqn in jaxpr.eqns}
    if not names >= {"dot_general", "exp", "div"}:
        return jaxpr
    level, facts, edits = Level(jaxpr), structure(jaxpr), list[Edit]()
    for place, eqn in enumerate(level.eqns):
        try:
            found = read_attention(level, facts, place)
            if found is None:
                continue
            edit = _edit(level, found)
        except NotAttention as refused:
            decisions.append(Decision(NAME, WHAT, where(eqn), False, str(refused), exactness=EXACTNESS))
        else:
            edits.append(edit)
            taken = _score_bytes(found)
            reason = f"{taken / 2**20:.3g} MiB of scores, and as many exponentials and weights, are in no memory"
            saved = (0, 4 * taken, 2 * taken)
            decisions.append(Decision(NAME, WHAT, where(eqn), True, reason, *saved, exactness=EXACTNESS))
    return apply_edits(jaxpr, edits)[0] if edits else jaxpr


def _score_bytes(found: Attention) -> int:
    aval = found.scores.outvars[0].aval
    return math.prod(aval.shape) * aval.dtype.itemsize


def _edit(level: Level, found: Attention) -> Edit:
    """What computes an attention by cuDNN.

    Raises:
        NotAttention: it cannot, or it does not pay.
    """
    eqn = level.eqns[found.place]
    layout = layout_of(found)
    check_operands(found, layout)
    (out,), dtype = eqn.outvars, found.q.atom.aval.dtype
    if out.aval.dtype != dtype and not _is_narrowed(level, out, dtype):
        raise NotAttention("its result has more bits than its operands")
    if _score_bytes(found) < LEAST_BYTES:
        raise NotAttention("its scores are small")
    inside = found.places - {found.place}
    if any(k not in found.places for place in inside for v in level.eqns[place].outvars for k in level.readers(v)):
        raise NotAttention("what it computes on the way is read elsewhere, too: by a gradient, for example")
    why_not = _jax.why_no_cudnn_attention()
    if why_not is not None:
        raise NotAttention(why_not)
    operands = [found.q, found.k, found.v, *([] if found.bias is None else [found.bias])]
    atoms = list(dict.fromkeys(x.atom for x in operands))
    plain, inputs = _plain(level, found.place, [x for x in atoms if is_var(x)])
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
    builder = Builder(eqn)
    (result,) = builder.call(lambda *args: _jax.two_forms(plain, fused, *args), *inputs)
    return Edit(found.place, frozenset({found.place}), builder.eqns, {out: result}, found.places)


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
