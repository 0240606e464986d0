"""Loop unroll: on a GPU several steps of a loop stand in one body, which XLA launches as one graph.

See docs/explanation/loop-unroll.md.
"""

from collections.abc import Container, Sequence
from typing import ClassVar

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..cost import step_launches
from ..cost.primitives import DEAR, KIND, Kind
from ..cost.work import dot_shape
from ..exactness import Exactness
from ..levels import rewrite_levels
from ..loop import Loop, as_loop
from ..pipeline import Context
from ..program import Program, is_var, where, with_equations
from ..record import record
from ..report import Decision

NAME = "loop-unroll"
# So many kernels are to stand in a body: XLA launches five or more as one graph, and a graph takes as long to launch
# as three kernels.
KERNELS = 32
MOST_STEPS = 16
# An unrolled body takes longer to compile, by what it holds.
MOST_EQUATIONS = 600
# Multiplications of a product that is no call of cuBLAS.
SMALL_PRODUCT = 16 << 10
# XLA does not compute these again where they are read.
COMPUTED_ONCE = DEAR | {"div"}
# A kernel that runs so long hides the launch of the next one.
LONG_KERNEL = 2e-5


@record
class LoopUnroll:
    """The pass. Bound: each loop is looked at once. It runs after all rules, which would read steps many times."""

    platforms: ClassVar = ("gpu",)  # plug-ins take the prices of GPUs, but how they launch kernels is not known
    after_differentiation: ClassVar = True
    after_rules: ClassVar = True
    keeps_devices: ClassVar = True

    name: str = NAME
    exactness: Exactness = Exactness.BITWISE

    def __call__(self, program: Program, context: Context) -> tuple[Program, list[Decision]]:
        """The program with such loops unrolled, and a decision for each loop."""
        decisions: list[Decision] = []

        def level(jaxpr: Jaxpr) -> Jaxpr:
            eqns = [_unrolled(eqn, context, decisions) for eqn in jaxpr.eqns]
            changed = any(new is not old for new, old in zip(eqns, jaxpr.eqns, strict=True))
            return with_equations(jaxpr, eqns) if changed else jaxpr

        return rewrite_levels(program, level), decisions


def _unrolled(eqn: JaxprEqn, context: Context, decisions: list[Decision]) -> JaxprEqn:
    """A loop with several steps in its body; the same object for another equation, or if it stays as it is."""
    loop = as_loop(eqn)
    if loop is None or loop.unroll != 1:
        return eqn
    steps, reason = _steps(loop, context)
    what = f"{steps} steps of {loop.length} stand in one" if steps > 1 else f"a loop of {loop.length} steps"
    decisions.append(Decision(NAME, what, where(eqn), steps > 1, reason, exactness=Exactness.BITWISE))
    return loop.unrolled(steps) if steps > 1 else eqn


def _steps(loop: Loop, context: Context) -> tuple[int, str]:
    """How many steps are to stand in one, and why."""
    launches = step_launches(loop.eqn, context.machine)
    if launches.nested:
        return 1, "a step of it holds another loop, or a branch"
    if _sums_of_sums(loop):
        return 1, "XLA would compute a step's sums again for each sum of the next one"
    if launches.seconds > LONG_KERNEL * launches.count:
        return 1, "its kernels run longer than the launch of the next one takes"
    equations = max(1, len(loop.body.eqns))
    most = min(MOST_STEPS, -(-KERNELS // launches.count), loop.length // 2, MOST_EQUATIONS // equations)
    steps = next((n for n in range(most, most // 2, -1) if loop.length % n == 0), most)  # else some are left over
    if steps < 2:
        return 1, "a step of it has many kernels" if loop.length > 3 else "it is short"
    return steps, f"{steps * launches.count} kernels are one launch"


def _sums_of_sums(loop: Loop) -> bool:
    """Whether sums of a step are next summed in the next one, with nothing between that XLA computes once only.

    It fuses the one into the other, and computes each anew for all that the other reads: five steps of a linear system
    of 12 states took 24 times as long in one as one by one.
    """
    # Of each value that is cheap to make, the carries that it is made of, and whether they were summed.
    made_of: dict[Var, dict[int, bool]] = {v: {k: False} for k, v in enumerate(loop.body_carry)}
    dear: set[Var] = set()
    for eqn in loop.body.eqns:
        ins = [x for x in eqn.invars if is_var(x)]
        kind = KIND.get(eqn.primitive.name, Kind.OPAQUE)
        is_sum = kind is Kind.REDUCE or _is_summed_in_place(eqn)
        if eqn.primitive.name in COMPUTED_ONCE or not (is_sum or kind <= Kind.CHEAP) or any(x in dear for x in ins):
            dear.update(eqn.outvars)
            continue
        carries = {k: False for x in ins for k in made_of.get(x, {})}
        summed = {k for x in ins for k, was in made_of.get(x, {}).items() if was or is_sum}
        made_of.update(dict.fromkeys(eqn.outvars, carries | dict.fromkeys(summed, True)))
    steps = [made_of.get(x, {}) if is_var(x) else {} for x in loop.next_carry]
    return any(was and _leads_to(steps, j, k) for j, step in enumerate(steps) for k, was in step.items())


def _leads_to(steps: Sequence[Container[int]], start: int, end: int) -> bool:
    """Whether a carry is made of another one, in some step."""
    found, todo = {start}, [start]
    while todo:
        here = todo.pop()
        todo += (new := [k for k, step in enumerate(steps) if here in step and k not in found])
        found.update(new)
    return end in found


def _is_summed_in_place(eqn: JaxprEqn) -> bool:
    """Whether XLA makes a sum of a product: one with a vector, or a small one, for which no library is called."""
    if eqn.primitive.name != "dot_general":
        return False
    _, m, n, k = dot_shape(eqn)
    return min(m, n) == 1 or m * n * k <= SMALL_PRODUCT
