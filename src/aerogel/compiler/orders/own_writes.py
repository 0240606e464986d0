"""Writes into what they read: `y.at[1].set(jnp.flip(y[1]))`.

XLA's CPU backend since jaxlib 0.11.2 computes some of them wrongly: it writes in place while it still reads
(openxla/xla issue 49176). It does so where nothing but a new shape stands between the write and a product, a sort, a
transform or a loop; a transpose there hides it.
"""

from collections.abc import Sequence

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr

from ..program import is_var, producers

_WRITES = ("dynamic_update_slice", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max")
_APART = frozenset(
    "conv_general_dilated cumsum cumprod cummax cummin cumlogsumexp dot_general fft scan sort top_k while".split()
)  # each has a kernel of its own: what it reads is read before anything is written


def may_come_out_wrong(jaxpr: Jaxpr, platform: str) -> bool:
    """Whether a level has such a write, and XLA is one that computes some of these wrongly."""
    if not _jax.WRITES_WHERE_IT_READS or platform != "cpu":
        return False
    writes = [eqn for eqn in jaxpr.eqns if eqn.primitive.name in _WRITES]
    if not writes:
        return False
    return any(_reads(jaxpr, eqn.invars[1:], eqn.invars[0]) for eqn in writes)


def _reads(jaxpr: Jaxpr, values: Sequence[Atom], operand: Atom) -> bool:
    """Whether one of these values is made of `operand` by what XLA may put into one kernel."""
    makers = producers(jaxpr)
    seen: set[Atom] = set()
    left = [x for x in values if is_var(x)]
    while left:
        x = left.pop()
        if x is operand:
            return True
        if x in seen or x not in makers:
            continue
        seen.add(x)
        eqn = jaxpr.eqns[makers[x]]
        if eqn.primitive.name not in _APART:
            left += filter(is_var, eqn.invars)
    return False
