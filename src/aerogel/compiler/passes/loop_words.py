"""Loop words: on a CPU, what a loop stacks of bfloat16 is stacked as words of 16 bits, small floats as words of 8.

See docs/explanation/loop-words.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..axes.words import WORDS
from ..cost import Machine, nbytes
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loop import Loop, LoopBuilder, as_loop
from ..normalize import drop_dead
from ..pipeline import Context
from ..program import Program, is_var, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-words"
LEAST_SECONDS = 1e-6


@record
class LoopWords:
    """The pass. Bound: each loop is looked at once. It runs after all rules, which would see through no bits."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True
    keeps_derivatives: ClassVar = False

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such stacks as words, and a decision for each loop."""
        decisions: list[Decision] = []
        return rewrite_levels(program, lambda jaxpr: _level(jaxpr, context.machine, decisions)), decisions


def _level(jaxpr: Jaxpr, machine: Machine, decisions: list[Decision]) -> Jaxpr:
    words: dict[Var, Var] = {}  # of what a loop of this level stacked
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        loop = as_loop(eqn)
        own = {} if loop is None else _paying(loop, machine)
        if loop is None or not (own or any(is_var(x) and x in words for x in loop.xs)):
            eqns.append(eqn)
            continue
        words |= own
        eqns += _of_words(loop, own, words)
        if own:
            decisions.append(_decision(loop, own))
    return drop_dead(with_equations(jaxpr, eqns)) if words else jaxpr


def _paying(loop: Loop, machine: Machine) -> dict[Var, Var]:
    """The outputs that XLA's CPU backend would compute on as float32, all of each, to write one entry; with words.

    Each step would read and write all of a stack. Words are read and written once more, behind the loop.
    """
    ys = [y for y in loop.ys if not isinstance(y, _jax.DropVar) and _is_widened(y.aval.dtype)]
    seconds = (loop.length - 2) * 2 * sum(nbytes(y.aval) for y in ys) / machine.cache_bytes_per_second
    return (
        {y: _jax.new_var(y.aval.update(dtype=_word_of(y.aval.dtype))) for y in ys} if seconds >= LEAST_SECONDS else {}
    )


def _of_words(loop: Loop, own: dict[Var, Var], words: dict[Var, Var]) -> list[JaxprEqn]:
    """The loop with its outputs `own`, and those of its inputs that loops before it stacked, as words."""
    new = LoopBuilder(loop.eqn, loop.length, loop.reverse)
    ins: list[Atom] = [new.const(c) for c in loop.consts]
    setters: list[Callable[[Atom], None]] = []
    for init, final in zip(loop.init, loop.finals, strict=True):
        var, set_next = new.keep_carry(init, _jax.new_var(final.aval) if isinstance(final, _jax.DropVar) else final)
        ins.append(var)
        setters.append(set_next)
    for x in loop.xs:
        assert is_var(x), "what has an entry for each step is an array"
        ins += new.body.call(_bits(x.aval.dtype), new.x(words[x])) if x in words else [new.x(x)]
    outs = new.body.inline(loop.body, ins)
    for set_next, out in zip(setters, outs[: len(setters)], strict=True):
        set_next(out)
    for y, out in zip(loop.ys, outs[len(setters) :], strict=True):
        new.y(new.body.call(_bits(own[y].aval.dtype), out)[0] if y in own else out, own.get(y, y))
    for y, word in own.items():
        new.after.call(_bits(y.aval.dtype), word)
        new.after.eqns[-1] = new.after.eqns[-1].replace(outvars=[y])
    return new.equations()


def _is_widened(dtype: Any) -> bool:
    """Whether it is computed on as a wider float: bfloat16 as float32, those of 8 bits as float16."""
    if dtype == jnp.bfloat16:
        return _jax.WIDENS_BFLOAT16_STACKS
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits == 8


def _word_of(dtype: Any) -> Any:
    return np.dtype(WORDS[8 * dtype.itemsize])


def _bits(dtype: Any) -> Callable[[Any], Any]:
    return partial(lax.bitcast_convert_type, new_dtype=dtype)


def _decision(loop: Loop, own: dict[Var, Var]) -> Decision:
    saved = (loop.length - 2) * 2 * sum(nbytes(y.aval) for y in own)
    return Decision(
        NAME,
        f"{len(own)} stacks of {min(y.aval.dtype.name for y in own)} are of words",
        where(loop.eqn),
        True,
        "XLA would write each entry by making all of a stack a wider float and back",
        bytes_saved=saved,
        exactness=Exactness.BITWISE,
    )
