"""Programs for the tests of single files: traced, run, and their bits compared."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from aerogel._jax import ClosedJaxpr, JaxprEqn, evaluate
from aerogel.compiler.exactness import allowed
from aerogel.compiler.loop import Loop
from aerogel.compiler.pipeline import Context

FAST, STRICT = (Context(allowed(word), "cpu") for word in ("fast", "strict"))


def traced(f: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    """The program of `f`."""
    return jax.make_jaxpr(f)(*args)


def run(program: ClosedJaxpr, *args: Any) -> list[Any]:
    """Results of a program, compiled."""
    return jax.jit(lambda *xs: evaluate(program, xs))(*jax.tree.leaves(args))


def bits(values: Any) -> list[Any]:
    """Bytes and types of results, for exact comparison (of keys, those of their data)."""
    leaves = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in values]
    return [(np.asarray(x).tobytes(), np.asarray(x).dtype, np.shape(x)) for x in leaves]


def scans(program: Any) -> list[JaxprEqn]:
    """The loops at the outermost level."""
    return [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]


def only_loop(f: Callable[..., Any], *args: Any) -> Loop:
    """The one loop of a function."""
    (eqn,) = scans(traced(f, *args))
    return Loop(eqn)
