"""Flat draws: random numbers in short rows are drawn as one row, an odd number of them with one more.

A threefry word hangs on its place among all entries, not on their shape or number. XLA's CPU backend unrolls its 20
rounds for each entry of a short row, and its code for an odd number of entries is scalar (`long_rows.py`). See
docs/explanation/flat-draws.md.
"""

import math
from typing import Any, ClassVar

from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn

from ..axes.rebind import bind, shape_of
from ..exactness import Exactness
from ..kernels.long_rows import is_drawn_by_place
from ..level import Edit, Level, apply_edits
from ..levels import rewrite_levels
from ..pipeline import Context
from ..program import Builder, Program, where
from ..record import record
from ..report import Decision

NAME = "flat-draws"
# Measured on two cores (jaxlib 0.10.2): docs/explanation/flat-draws.md.
LONG = 64  # entries of a row that XLA compiles well
FEWEST_OF_A_KEY = 16  # entries, where there are several keys: 9 in a row take twice as long to compile as 3 x 3
SHARED = 1024  # entries that two threads share
SHORT_ROWS = "XLA compiles one row in a half to a tenth of the time of short ones, which are no faster"
ODD = "XLA's code for an odd number of entries is scalar"


@record
class FlatDraws:
    """The pass. Bound: each draw is looked at once. It runs behind those that draw and work in one kernel."""

    platforms: ClassVar = ("cpu",)
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such draws in one row, and a decision for each."""
        decisions: list[Decision] = []

        def rewritten(jaxpr: Jaxpr) -> Jaxpr:
            level = Level(jaxpr)
            edits: list[Edit] = []
            for place, eqn in enumerate(level.eqns):
                if eqn.primitive.name != "random_bits":
                    continue
                reason, refusal = _decided(eqn)
                if refusal is None:
                    edits.append(_flat(level, place, is_odd=reason == ODD))
                if refusal != "":
                    decisions.append(_decision(eqn, refusal, reason))
            return apply_edits(jaxpr, edits)[0] if edits else jaxpr

        return rewrite_levels(program, rewritten), decisions


def _decided(eqn: JaxprEqn) -> tuple[str, str | None]:
    """Why a draw is made in one row, and the reason against it: None for none, "" where nothing is to be gained."""
    shape = tuple(n for n in eqn.params["shape"] if n != 1)
    size, keys = math.prod(shape), math.prod(shape_of(eqn.invars[0]))
    is_odd = keys == 1 and size % 2 == 1 and size >= SHARED and (len(shape) == 1 or shape[-1] < LONG)
    if not is_odd and (len(shape) < 2 or shape[-1] >= LONG or size == 0 or keys == 0):
        return "", ""
    reason = ODD if is_odd else SHORT_ROWS
    if not is_drawn_by_place(eqn):
        return reason, "its words hang on how many there are"
    if keys > 1 and size < FEWEST_OF_A_KEY:
        return reason, f"{size} entries of each key, fewer than {FEWEST_OF_A_KEY}"
    return reason, None


def _decision(eqn: JaxprEqn, refusal: str | None, reason: str) -> Decision:
    what = f"{' x '.join(map(str, eqn.params['shape']))} random words are drawn in one row"
    return Decision(NAME, what, where(eqn), refusal is None, refusal or reason, exactness=Exactness.BITWISE)


def _flat(level: Level, place: int, is_odd: bool) -> Edit:
    """The draw of all words of a key in one row, whose last is left out where it is one too many."""
    eqn = level.eqns[place]
    builder = Builder(eqn)
    size = math.prod(eqn.params["shape"])
    keys = shape_of(eqn.invars[0])

    def drawn(key: Any) -> Any:
        (row,) = bind(eqn, [key], {**eqn.params, "shape": (size + is_odd,)})
        row = lax.slice_in_dim(row, 0, size, axis=len(keys)) if is_odd else row
        return lax.reshape(row, shape_of(eqn.outvars[0]))

    (words,) = builder.call(drawn, eqn.invars[0])
    here = frozenset((place,))
    return Edit(place, here, builder.eqns, {eqn.outvars[0]: words}, here)
