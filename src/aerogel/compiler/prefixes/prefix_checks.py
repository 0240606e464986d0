"""Whether what joins the elements of a tree may join them in any order: tried on random numbers.

`jax.lax.associative_scan` asks for an associative function and takes any. Of another, a loop would give other results
than a tree: such a one keeps its tree.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aerogel import _jax
from aerogel._jax import ClosedJaxpr, Jaxpr

from ..same import Body

LARGEST_ENTRY = 1 << 22  # numbers of one entry
TOLERANCE = 2.0**12  # rounding errors
MOST_KEPT = 256
# What is associative and made of these has derivatives that are, too; those of equal maxima depend on the order.
SMOOTH = frozenset(
    "add add_any sub mul neg div exp exp2 log log1p expm1 sin cos tanh logistic sqrt rsqrt square integer_pow "
    "dot_general reduce_sum broadcast_in_dim reshape squeeze expand_dims transpose convert_element_type slice "
    "concatenate rev copy real imag conj complex pad select_n".split()
)
_known: OrderedDict[Body, bool] = OrderedDict()


def is_smooth(step: Jaxpr) -> bool:
    """Whether all operations on numbers that are no integers have derivatives everywhere."""
    return all(eqn.primitive.name in SMOOTH or not any(_is_inexact(x) for x in eqn.invars) for eqn in step.eqns)


def _is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.aval.dtype, jnp.inexact)


def associates(step: Jaxpr, elements: int) -> bool:
    """Whether a function of two neighbours, of so many elements each, seems to be associative.

    Random numbers of two sizes are joined both ways, on the CPU; the results may differ by rounding errors.
    """
    key = Body(step)
    if key not in _known:
        _known[key] = all(_agrees(step, elements, scale) for scale in (0.5, 2.0))
        if len(_known) > MOST_KEPT:
            _known.popitem(last=False)
    return _known[key]


def _agrees(step: Jaxpr, n: int, scale: float) -> bool:
    entries, constants = step.invars[:n], step.invars[2 * n :]
    avals = [*entries * 3, *constants]
    if any(not _is_number(v.aval) or v.aval.size > LARGEST_ENTRY for v in avals):
        return False

    def both(*x: Any) -> Any:
        a, b, c, rest = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n :]

        def join(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
            return _jax.evaluate(ClosedJaxpr(step, ()), [*first, *second, *rest])

        return join(join(a, b), c), join(a, join(b, c))

    random = np.random.default_rng(0)
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), jax.enable_x64(True), jax.debug_nans(False), jax.debug_infs(False):
        args = [_drawn(random, v.aval, scale) for v in avals]
        options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        left, right = _jax.original_jit(both, compiler_options=options).lower(*args).compile()(*args)
        return all(_close(np.asarray(x), np.asarray(y)) for x, y in zip(left, right, strict=True))


def _is_number(aval: Any) -> bool:
    return isinstance(aval.dtype, np.dtype) and aval.dtype != jax.dtypes.float0


def _drawn(random: np.random.Generator, aval: Any, scale: float) -> np.ndarray:
    if aval.dtype == np.bool_:
        return random.integers(0, 2, aval.shape).astype(bool)
    if jnp.issubdtype(aval.dtype, jnp.integer):
        low = 0 if jnp.issubdtype(aval.dtype, jnp.unsignedinteger) else -9
        return random.integers(low, 10, aval.shape).astype(aval.dtype)
    drawn = scale * random.normal(size=(2, *aval.shape))
    if jnp.issubdtype(aval.dtype, jnp.complexfloating):
        return (drawn[0] + 1j * drawn[1]).astype(aval.dtype)
    return drawn[0].astype(aval.dtype)


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return bool(np.array_equal(x, y))
    eps = float(jnp.finfo(x.dtype).eps)
    wide = np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64
    x, y = x.astype(wide), y.astype(wide)
    finite = np.isfinite(x) & np.isfinite(y)
    if 2 * finite.sum() < x.size or not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return False
    x, y = x[finite], y[finite]
    size = max(float(np.abs(x).max(initial=0.0)), float(np.abs(y).max(initial=0.0)), 1e-30)
    return bool(np.abs(x - y).max(initial=0.0) <= min(TOLERANCE * eps, 0.1) * size)
