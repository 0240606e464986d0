"""Constants of a loop that every step reads against their rows are turned once, before the loop.

A recurrent layer whose weights are [gates, inputs], as in PyTorch and Equinox, multiplies the few rows of a batch with
the transpose of one in each step; one whose weights are [inputs, gates] does so on its way back. XLA's matrix library
then puts the entries of the weight into another order, in each step anew. With many rows that is little beside the
product, and with one the product goes along the rows as they are.
"""

from typing import Any

import numpy as np
from jax import lax

from aerogel import _jax
from aerogel._jax import Atom, Jaxpr, JaxprEqn, Var

from ..cost import nbytes
from ..loop import Loop
from ..normalize import drop_dead
from ..program import Builder, is_var, producers, rename, substitute
from ..record import record

# What a step pays for an entry of a constant that it reads against its rows (jaxlib 0.10.2, AMD EPYC with AVX-512; 15
# shapes, 2 to 32 rows). Beyond the cache of a core, 0.03 to 0.05 ns; below, 0.06 to 0.07.
STEP_SECONDS = 6e-11
LARGE_STEP_SECONDS = 3.5e-11
LARGE_BYTES = 1 << 18
ROWS = range(2, 33)  # 64 rows took 0.94 to 1.07 of the time; one row 1.0 to 1.4
# To turn an entry once took 0.3 to 1.1 ns, what a small program pays for its kernels included.
TURNED_SECONDS = 1e-9
MARGIN = 1.5
LEAST_SECONDS = 5e-6  # less was lost again on the kernel more (0.05 ms of 50 steps of 2 x 32: 1.2 of the time)
WHY_SHORT = "to turn it once takes what so few steps save"


@record
class TurnedConstant:
    """A constant that products of a loop's steps read against its rows.

    Attributes:
        constant: in the body.
        products: the equations in the body that read it so.
        made: what it is the transpose of, if that is known: then there is nothing to turn.
        seconds: predicted to be saved in all steps, what it takes to turn it not subtracted.
        refusal: why it stays as it is, or None.
    """

    constant: Var
    products: list[JaxprEqn]
    made: Atom | None
    seconds: float
    refusal: str | None


def turned_constants(loop: Loop, level: Jaxpr) -> list[TurnedConstant]:
    """The constants that products read against their rows, in the order of the loop's constants.

    Args:
        loop: one of the level's equations.
        level: where it stands.
    """
    constants = set(loop.body_consts)
    turned = {eqn.outvars[0]: eqn.invars[0] for eqn in loop.body.eqns if _is_turn(eqn) and eqn.invars[0] in constants}
    found: dict[Var, list[JaxprEqn]] = {}
    for eqn in loop.body.eqns:
        if eqn.primitive.name == "dot_general" and is_var(eqn.invars[1]):
            right = eqn.invars[1]
            constant = right if right in constants else turned.get(right)
            if constant is not None and _is_against_rows(eqn, right is constant):
                found.setdefault(constant, []).append(eqn)
    if not found:
        return []
    outside = dict(zip(loop.body_consts, loop.consts, strict=True))
    return [_priced(loop, v, found[v], _source(level, outside[v])) for v in loop.body_consts if v in found]


def _source(level: Jaxpr, x: Atom) -> Atom | None:
    """What a value is the transpose of."""
    place = producers(level).get(x) if is_var(x) else None
    return level.eqns[place].invars[0] if place is not None and _is_turn(level.eqns[place]) else None


def _is_turn(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "transpose" and tuple(eqn.params["permutation"]) == (1, 0) and is_var(eqn.invars[0])


def _is_against_rows(eqn: JaxprEqn, as_it_is: bool) -> bool:
    """Whether an equation multiplies a few rows of 32-bit floats with the transpose of a matrix of them."""
    left, right = (x.aval for x in eqn.invars)
    if right.ndim != 2 or left.ndim < 2 or any(aval.dtype != np.float32 for aval in (left, right, eqn.outvars[0].aval)):
        return False
    plain = eqn.params.get("precision") is None and eqn.params.get("out_sharding") is None
    along = eqn.params["dimension_numbers"] == (((left.ndim - 1,), (int(as_it_is),)), ((), ()))
    return plain and along and right.size > 0 and left.size // left.shape[-1] in ROWS


def _priced(loop: Loop, constant: Var, products: list[JaxprEqn], made: Atom | None) -> TurnedConstant:
    rate = LARGE_STEP_SECONDS if nbytes(constant.aval) > LARGE_BYTES else STEP_SECONDS
    seconds = loop.length * len(products) * constant.aval.size * rate
    price = 0.0 if made is not None else MARGIN * TURNED_SECONDS * constant.aval.size
    return TurnedConstant(
        constant, products, made, seconds, None if seconds >= max(LEAST_SECONDS, price) else WHY_SHORT
    )


def with_turned(loop: Loop, constants: list[TurnedConstant]) -> list[JaxprEqn]:
    """What turns these constants, and the loop that reads them turned."""
    before, inside = Builder(loop.eqn), Builder(loop.eqn)
    outside = dict(zip(loop.body_consts, loop.consts, strict=True))
    products = {eqn.outvars[0]: one.constant for one in constants for eqn in one.products}
    turned: dict[Var, tuple[Atom, Var]] = {}
    for one in constants:
        made = one.made or before.call(lambda w: lax.transpose(w, (1, 0)), outside[one.constant])[0]
        turned[one.constant] = made, _jax.new_var(made.aval)
    env: dict[Var, Atom] = {}
    for eqn in loop.body.eqns:
        constant = products.get(eqn.outvars[0]) if eqn.outvars else None
        if constant is None:
            inside.eqns.append(rename(eqn, env))
        else:
            rows = substitute(eqn.invars[0], env)
            (env[eqn.outvars[0]],) = inside.call(_along_rows, rows, turned[constant][1])
    results = [substitute(x, env) for x in loop.body.outvars]
    steps = [*loop.body_carry, *loop.body_xs]
    consts = [*((outer, v) for v, outer in outside.items()), *turned.values()]
    body = drop_dead(_jax.new_jaxpr(loop.body, [*(v for _, v in consts), *steps], results, inside.eqns))
    read = {x for eqn in body.eqns for x in eqn.invars if is_var(x)} | {x for x in results if is_var(x)}
    consts = [(outer, v) for outer, v in consts if v in read]
    body = _jax.new_jaxpr(loop.body, [*(v for _, v in consts), *steps], results, body.eqns)
    params = _jax.scan_params(loop.eqn.params, _jax.ClosedJaxpr(body, ()), len(consts), len(loop.init))
    return [*before.eqns, loop.eqn.replace(invars=[*(x for x, _ in consts), *loop.init, *loop.xs], params=params)]


def _along_rows(rows: Any, turned: Any) -> Any:
    return lax.dot_general(rows, turned, (((rows.ndim - 1,), (0,)), ((), ())))
