"""How many steps of a loop that is one kernel stand in its code one after the other.

A step reads its inputs and writes its outputs at an index, counts, and compares: with numbers instead of arrays that is
half of the time. Written out four times, a step costs 0.4 to 1.0 of that (30 loops; table in docs/explanation).
A loop that XLA compiles as one kernel by itself it leaves to kernels of their own if the user unrolls it, since it then
moves more bytes in a step: 20 to 50 times as long.
"""

from aerogel._jax import Jaxpr, JaxprEqn

from ..axes.elementwise import NAMES as ELEMENTWISE
from ..cost.primitives import REDUCE
from ..program import count_equations, inner_jaxprs, inner_levels

# Entries of each value of a step. With 8 values in a register's length a step takes as long, with 16 it takes longer.
MOST_ENTRIES = 4
# Of more, most of the time goes into what a step computes, and LLVM takes long.
MOST_EQUATIONS = 100
# 8 steps of few numbers are faster than 4 (0.45 of the time and 0.65); of many, the registers do not suffice.
FEW_EQUATIONS = 12
# A step saves 1 to 5 ns, and a call takes 5 us.
FEWEST_STEPS = 1000
# What takes entries at an index that a step computes gained nothing (a walk through a table took 1.4 times as long).
SHAPING = (
    "broadcast_in_dim reshape squeeze expand_dims transpose slice concatenate pad rev stack unstack split dot_general"
).split()
CALLS = "jit closed_call eval_jaxpr custom_jvp_call custom_vjp_call".split()
CAN_STAND = frozenset((*ELEMENTWISE, *SHAPING, *CALLS, *REDUCE))
# Sine and cosine of one number are one call of the C library where they stand together. What several steps stack is
# joined entry by entry, each in a block of code of its own: two calls then, 1.1 to 1.5 times the time of single steps.
SINE, COSINE = "sin", "cos"


def steps_at_once(eqn: JaxprEqn) -> int:
    """The number of steps; 1 for a loop that stays as it is."""
    if eqn.primitive.name != "scan" or eqn.params["unroll"] != 1 or eqn.params["length"] < FEWEST_STEPS:
        return 1
    (body,) = inner_jaxprs(eqn)
    size = count_equations(body)
    if size > MOST_EQUATIONS or not _is_of_few(body) or _has_pair(body):
        return 1
    return 8 if size <= FEW_EQUATIONS and _largest(body) == 1 else 4


def _is_of_few(body: Jaxpr) -> bool:
    names = {eqn.primitive.name for eqn in body.eqns}
    return names <= CAN_STAND and _largest(body) <= MOST_ENTRIES and all(map(_is_of_few, inner_levels(body)))


def _largest(body: Jaxpr) -> int:
    return max((v.aval.size for eqn in body.eqns for v in eqn.outvars), default=1)


def _has_pair(body: Jaxpr) -> bool:
    """Whether both the sine and the cosine of something are taken."""
    sines, cosines = ({id(eqn.invars[0]) for eqn in body.eqns if eqn.primitive.name == name} for name in (SINE, COSINE))
    return bool(sines & cosines) or any(map(_has_pair, inner_levels(body)))
