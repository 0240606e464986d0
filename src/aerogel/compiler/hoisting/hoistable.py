"""Which equations of a loop's body could run once for all steps, and what that is worth.

An equation runs *batched* as `jax.vmap` of its primitive over the values of all steps, constants unmapped: a product of
a step's rows with a constant matrix becomes one product of all rows, custom derivative rules stay with their functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from aerogel import _jax
from aerogel._jax import JaxprEqn, Literal, Var

from ..axes.rebind import bind
from ..cost import Machine, equation_seconds, jaxpr_seconds, nbytes, unknown_primitives
from ..cost.primitives import CALLBACKS, COLLECTIVES, CUMULATIVE, DEAR, KIND, LINALG, RANDOM, Kind
from ..loop import all_steps
from ..program import inner_jaxprs, is_var

# What costs something beyond its elements when it runs step by step; elementwise work and reductions do not.
HEAVY = (
    frozenset("dot_general ragged_dot_general conv_general_dilated sort top_k fft scan".split())
    | LINALG | RANDOM | CUMULATIVE
)  # fmt: skip
# What computes the same bits however many steps it runs for at once.
SAME_BITS = (
    RANDOM
    | frozenset("sort top_k clamp dynamic_slice custom_jvp_call custom_vjp_call jit closed_call eval_jaxpr".split())
    | frozenset(name for name, kind in KIND.items() if kind <= Kind.DEAR)
)
_STATEFUL = frozenset("rng_uniform rng_bit_generator random_gamma random_seed".split())
_NEVER = (
    CALLBACKS | COLLECTIVES | _STATEFUL
    | frozenset("optimization_barrier sharding_constraint layout_constraint shard_map pallas_call axis_index".split())
    | frozenset("custom_vmap_call custom_lin linear_call composite run_state dot_product_attention_fwd".split())
)  # fmt: skip
# How much faster all steps of an inner loop at once must be: its values for all steps leave the cache, and a loop that
# starts kernels of 10,000 entries took 0.4 of the time that 20 of them took at once, where 0.9 were predicted.
LEAST_GAIN_OF_LOOPS = 2.0
# A draw of fewer numbers than this is as fast in the step: threefry then is one small kernel of the body.
SMALLEST_DRAW = 5
# Keys from keys are heavier than so few numbers.
KEYS_FROM_KEYS = frozenset(["random_split", "random_fold_in"])


def refusal(eqn: JaxprEqn, strict: bool) -> str | None:
    """Why an equation may not run batched; None if it may."""
    name = eqn.primitive.name
    if eqn.effects:
        return f"`{name}` has effects"
    for atom in (*eqn.invars, *eqn.outvars):
        generator = _jax.prng_name(atom.aval)
        if generator not in (None, "threefry2x32"):
            return f"many {generator} keys at once draw other bits than each alone"
        if _jax.explicit_mesh(atom.aval):
            return f"the result of `{name}` is sharded by its type"
    if name in ("while", "cond"):
        return f"`{name}` takes another course in each step"
    if name in _NEVER or name not in KIND:
        return f"`{name}` cannot be run for all steps at once"
    if strict and name not in SAME_BITS:
        return f"`{name}` of all steps may round in another order, and numerics is strict"
    inner = inner_jaxprs(eqn)
    if any(unknown_primitives(j) for j in inner):
        return f"`{name}` holds an unknown primitive"
    return next((r for j in inner for one in j.eqns if (r := refusal(one, strict)) is not None), None)


def is_heavy(eqn: JaxprEqn) -> bool:
    """Whether an equation is worth moving for its own sake."""
    name = eqn.primitive.name
    if name in RANDOM and name not in KEYS_FROM_KEYS and sum(v.aval.size for v in eqn.outvars) < SMALLEST_DRAW:
        return False
    return name in HEAVY or any(is_heavy(one) for j in inner_jaxprs(eqn) for one in j.eqns)


def is_dear(eqn: JaxprEqn) -> bool:
    """Whether an elementwise equation takes many instructions per element."""
    return eqn.primitive.name in DEAR or any(is_dear(one) for j in inner_jaxprs(eqn) for one in j.eqns)


def batched(eqn: JaxprEqn, stacked: Sequence[bool]) -> Callable[..., list[Any]]:
    """The equation for all steps: a function of its inputs; those in `stacked` have a leading axis of steps."""
    axes = tuple(0 if yes else None for yes in stacked)
    return jax.vmap(lambda *args: bind(eqn, args, eqn.params), in_axes=axes, out_axes=0)


def steps_saved(eqn: JaxprEqn, stacked: Sequence[bool], length: int, machine: Machine) -> float:
    """Seconds that running an equation once for all steps saves over running it in each; 0 if none."""
    avals = [all_steps(x.aval, length) if yes else x.aval for x, yes in zip(eqn.invars, stacked, strict=True)]
    with _jax.equation_context(eqn):
        whole = _jax.trace_small(batched(eqn, stacked), avals)
    before, after = length * equation_seconds(eqn, machine), jaxpr_seconds(whole, machine)
    if eqn.primitive.name == "scan" and before < LEAST_GAIN_OF_LOOPS * after:
        return 0.0
    return max(0.0, before - after)


def crossing_seconds(value: Var | Literal, length: int, machine: Machine) -> float:
    """Seconds to write a step's value for all steps and to read it again."""
    size = length * nbytes(value.aval)
    speed = machine.bytes_per_second if size > machine.cache_bytes else machine.cache_bytes_per_second
    return 2 * size / speed + machine.seconds_per_kernel


def stacked_inputs(eqn: JaxprEqn, constant: set[Var]) -> list[bool]:
    """For each input of an equation whether it is another value in each step."""
    return [is_var(x) and x not in constant for x in eqn.invars]
