"""Products whose batch dimensions all have the length one, without them.

XLA's CPU backend sends a product with batch dimensions to another kernel, even if they have the length one: with
transposed operands it takes two to three times as long (jaxlib 0.10.2). Loops over examples make such products.
"""

from collections.abc import Sequence
from typing import Any

from jax import lax

from aerogel._jax import Jaxpr, JaxprEqn, Var

from ..axes.rebind import bind
from ..program import Builder, rename, with_equations


def without_unit_batches(jaxpr: Jaxpr) -> Jaxpr:
    """One level with these products; the same object if there are none."""
    if not any(map(_has_unit_batch, jaxpr.eqns)):
        return jaxpr
    eqns: list[JaxprEqn] = []
    env: dict[Var, Any] = {}
    for old in jaxpr.eqns:
        eqn = rename(old, env)
        if not _has_unit_batch(eqn):
            eqns.append(eqn)
            continue
        builder = Builder(eqn)
        (env[eqn.outvars[0]],) = builder.call(lambda a, b, eqn=eqn: _product(eqn, (a, b)), *eqn.invars)
        eqns += builder.eqns
    return with_equations(jaxpr, eqns, [env.get(x, x) if isinstance(x, Var) else x for x in jaxpr.outvars])


def _has_unit_batch(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "dot_general" or eqn.params["out_sharding"] is not None:
        return False
    (left, _) = eqn.params["dimension_numbers"][1]
    shape = eqn.invars[0].aval.shape
    return bool(left) and all(shape[d] == 1 for d in left)


def _product(eqn: JaxprEqn, operands: Sequence[Any]) -> Any:
    contract, batch = eqn.params["dimension_numbers"]
    squeezed = [lax.squeeze(x, dims) for x, dims in zip(operands, batch, strict=True)]
    numbers = tuple(
        tuple(d - sum(gone < d for gone in dims) for d in kept) for kept, dims in zip(contract, batch, strict=True)
    )
    (out,) = bind(eqn, squeezed, eqn.params | {"dimension_numbers": (numbers, ((), ()))})
    return lax.expand_dims(out, range(len(batch[0])))
