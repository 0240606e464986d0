"""The classes, primitives and functions of JAX that are used as they are."""

from typing import Any

import jax
import numpy as np
from jax._src import core, util
from jax._src import dtypes as dtypes
from jax._src.compute_on import extend_compute_type
from jax._src.interpreters import ad as ad
from jax._src.interpreters import batching as batching
from jax._src.interpreters import mlir as mlir
from jax._src.lax import lax as lax_internal
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import JaxprEqn as JaxprEqn
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive
from jax.extend.core import Var as Var
from jax.extend.core import check_jaxpr as check_jaxpr
from jax.extend.core import jaxpr_as_fun as jaxpr_as_fun
from jax.extend.core import jaxprs_in_params as jaxprs_in_params
from jax.extend.random import threefry2x32_p

# The original functions, taken at import: `aerogel run` replaces `jax.jit`, and we would call ourselves.
original_jit = jax.jit
shaped_abstractify = core.shaped_abstractify
ShapedArray = core.ShapedArray
DropVar = core.DropVar
Tracer = core.Tracer
Atom = Var | Literal


# The equations made inside are computed elsewhere, on "device_host" say: tests use it. `jax.experimental.compute_on`
# was this in jax 0.10.2; since 0.11 it wraps a function, and this is left inside.
computed_on = extend_compute_type

wraps = util.wraps
# Words from a key's two words and the two halves of their numbers: what `random_bits` computes.
threefry2x32 = threefry2x32_p.bind
convert_element_type = lax_internal._convert_element_type
JaxprTypeError = core.JaxprTypeError


def _named_primitives() -> dict[str, Primitive]:
    import jax.extend.core.primitives as extend_primitives
    from jax._src.random import prng

    found: dict[str, Primitive] = {}
    for module in (jax.lax, jax.lax.linalg, extend_primitives, prng, core, lax_internal):
        found |= {p.name: p for p in vars(module).values() if isinstance(p, core.Primitive)}
    return found


# JAX's primitives by their names in printed programs, for tables over primitives. `jax.lax` exports most of them,
# but not random_wrap, random_unwrap, optimization_barrier and the linear algebra ones.
primitives = _named_primitives()


def is_known_array(x: Any) -> bool:
    """Whether the entries of a constant can be looked at: no tracer, ref or shape, and no part in another process."""
    is_array = isinstance(x, (np.ndarray, np.generic, jax.Array)) and not isinstance(x, Tracer)
    return is_array and getattr(x, "is_fully_addressable", True)
