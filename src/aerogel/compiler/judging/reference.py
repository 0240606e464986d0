"""A program's results at float64, and how much of them its own precision can decide.

The program is interpreted equation by equation with every floating type widened (complex to complex128); integers,
booleans and keys stay as they are. The same interpreter also runs with noise: each rounding is replaced by a random
error of the size that the equation's own type would make, sums by errors in proportion to their *terms*. What the
results then do is the `spread`: the effect of rounding as this program amplifies it (stochastic arithmetic, Vignes
1993). A cancelling sum has a large spread, an `argmax` between near ties a spread of one, an exact copy none.

`jnp.max` and `jnp.min` of jaxlib 0.10.2 on CPU drop NaN or not, depending on the size. One of the runs lets these
reductions drop NaN, the others keep it: where the two answers differ, the spread is infinite.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aerogel import _jax

from ..record import record
from .convolved import convolved
from .rounding_noise import perturbed, rounded, summed

_NOISY_PAIRS = 4
_WHILE_STEPS = 10_000


@record
class Reference:
    """Results at float64.

    Attributes:
        values: one array per output: float64 or complex128 for inexact outputs, key data for keys, else the own type.
        spread: one float64 array per output, of its shape: how far rounding moves the value, in the value's units.
            Zero where it cannot, infinite where the value hangs on it altogether (NaN or not, overflow or not).
        kept: primitives that ran in their own precision, because they look at bits or are not known here.
    """

    values: tuple[np.ndarray, ...]
    spread: tuple[np.ndarray, ...]
    kept: frozenset[str] = frozenset()


@record
class NoReference:
    """Why a program has none, as a sentence."""

    reason: str


class _Impossible(RuntimeError):
    pass


def float64_reference(jaxpr: _jax.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> Reference | NoReference:
    """The results of a program at float64 and their spread, computed on the CPU; or why there are none.

    A `while_loop` that does not end within 10,000 steps at float64 gives NaN. Prints are not repeated.
    """
    kept: set[str] = set()

    def results(consts: Any, args: Any, amplitude: Any, seed: Any, drop_nan: Any) -> list[Any]:
        run = _Interpreter(amplitude, seed, drop_nan, kept)
        wide = [_widen(x, v.aval.dtype) for x, v in zip(consts, jaxpr.constvars, strict=True)]
        wide_args = [_widen(x, v.aval.dtype) for x, v in zip(args, jaxpr.invars, strict=True)]
        return [_key_data(x) for x in run.jaxpr(jaxpr, wide, wide_args)]

    cpu = jax.devices("cpu")[0]
    inputs = [[x if _is_key(x) else np.asarray(x, v.aval.dtype) for x, v in zip(xs, vs, strict=True)]
              for xs, vs in ((consts, jaxpr.constvars), (args, jaxpr.invars))]  # fmt: skip
    try:
        with jax.default_device(cpu), jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            inputs = jax.device_put(inputs, cpu)
            # Compile time matters here, run time does not.
            options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
            lowered = _jax.original_jit(results, compiler_options=options).lower(*inputs, 0.0, np.uint64(0), False)
            run = lowered.compile()
            # Each draw of noise runs with both signs, so that whatever hangs on a sign shows it.
            noisy = [(sign, 0x5EED + i, i % 2 == 1) for i in range(_NOISY_PAIRS) for sign in (1.0, -1.0)]
            settings = [(0.0, 0, False), (0.0, 0, True), *noisy]
            runs = [[np.asarray(x) for x in run(*inputs, a, np.uint64(s), d)] for a, s, d in settings]
    except _Impossible as error:
        return NoReference(str(error))
    spread = tuple(_spread(list(column)) for column in zip(*runs, strict=True))
    return Reference(tuple(runs[0]), spread, frozenset(kept))


def _spread(runs: list[np.ndarray]) -> np.ndarray:
    """The largest distance from the first run; infinite between finite and not."""
    first, worst = runs[0], np.zeros(runs[0].shape)
    for other in runs[1:]:
        if first.dtype.kind in "fc":
            with np.errstate(invalid="ignore", over="ignore"):
                distance = np.abs(other - first)
            same = (first == other) | (np.isnan(first) & np.isnan(other))
            distance = np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))
        else:
            distance = (first != other).astype(np.float64)
        worst = np.maximum(worst, distance)
    return worst


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", np.dtype(type(x))), jax.dtypes.prng_key)


def _key_data(x: Any) -> Any:
    return jax.random.key_data(x) if _is_key(x) else x


def _wide(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if jnp.issubdtype(dtype, jnp.complexfloating) else dtype


def _widen(x: Any, dtype: Any) -> Any:
    """`x`, whose own type is `dtype`, as the interpreter holds it: wide and strongly typed."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return x if hasattr(x, "dtype") and x.dtype == dtype else np.asarray(x, dtype)
    return jnp.asarray(x).astype(_wide(dtype))


# --- what each primitive needs -----------------------------------------------------------------------------------

# No rounding: the result's elements are elements of the inputs, or no floats.
_EXACT = frozenset(
    "abs and argmax argmin assume broadcast_in_dim ceil clamp clz concatenate conj copy cummax cummin dynamic_slice "
    "dynamic_update_slice empty empty2 eq eq_to floor gather ge gt imag iota is_finite le le_to lt lt_to max min name "
    "ne neg not optimization_barrier or pad population_count real complex reduce_and reduce_max reduce_min reduce_or "
    "reduce_xor reshape rev round scatter scatter-max scatter-min select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign slice sort split squeeze stack stop_gradient tile top_k transpose unstack xor "
    "zeros_like select_and_gather_add reduce_window_max reduce_window_min mulhi tie stage".split()
)
# The error grows with the terms, not with the result.
_ADDS = frozenset({"add", "sub", "add_any"})
_SUMS = frozenset(
    "reduce_sum cumsum dot_general ragged_dot_general conv_general_dilated reduce_window_sum scatter-add scatter-sub "
    "reduce_prod cumprod scatter-mul cumlogsumexp fft select_and_scatter_add".split()
)
# One rounding of the result.
_ROUNDS = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma div erf erf_inv erfc exp exp2 expm1 igamma igammac "
    "igamma_grad_a integer_pow lgamma log log1p log2 logistic mul one_minus_square pow rem rsqrt sin sinh sqrt square "
    "tan tanh bessel_i0e bessel_i1e cholesky eig eigh geqrf householder_product lu qr schur svd triangular_solve "
    "tridiagonal tridiagonal_solve polygamma regularized_incomplete_beta zeta convert_element_type".split()
)
_CALLS = {
    name: param
    for param, names in {
        "jaxpr": "jit remat2",
        "call_jaxpr": "call closed_call eval_jaxpr custom_jvp_call custom_vjp_call",
        "call": "custom_vmap_call",
    }.items()
    for name in names.split()
}
_PRINTS = frozenset({"debug_callback", "debug_print"})
_NAN_LOSERS = {"reduce_max": -math.inf, "reduce_min": math.inf, "cummax": -math.inf, "cummin": math.inf}


class _Interpreter:
    """Evaluates jaxprs on wide values, inside one trace."""

    def __init__(self, amplitude: Any, seed: Any, drop_nan: Any, kept: set[str]) -> None:
        self.amplitude, self.seed, self.drop_nan, self.kept = amplitude, seed, drop_nan, kept
        self.special: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
            "scan": self.scan, "while": self.while_loop, "cond": self.cond, "custom_linear_solve": self.linear_solve,
            "convert_element_type": self.convert,
        }  # fmt: skip

    def closed(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        if not isinstance(closed, _jax.ClosedJaxpr):
            return self.jaxpr(closed, [], args)
        consts = [_widen(x, v.aval.dtype) for x, v in zip(closed.consts, closed.jaxpr.constvars, strict=True)]
        return self.jaxpr(closed.jaxpr, consts, args)

    def jaxpr(self, jaxpr: _jax.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            if isinstance(atom, _jax.Literal):
                return _widen(np.asarray(atom.val, atom.aval.dtype), atom.aval.dtype)
            return env[atom]

        for eqn in jaxpr.eqns:
            with _jax.equation_context(eqn):
                env.update(zip(eqn.outvars, self.equation(eqn, [read(x) for x in eqn.invars]), strict=True))
        return [read(x) for x in jaxpr.outvars]

    def equation(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if name in _CALLS and _CALLS[name] in eqn.params:
            return self.closed(eqn.params[_CALLS[name]], args)
        if name in self.special:
            return self.special[name](eqn, args)
        if name in _PRINTS:
            return []
        if eqn.effects:
            raise _Impossible(f"`{name}` has effects, which a second run would repeat")
        if not any(_is_inexact(v) for v in (*eqn.invars, *eqn.outvars)):
            return self.bind(eqn, args)
        if name in _EXACT:
            return self.bind(eqn, self.nan_rule(name, args), wide=True, keep_nan=args)
        if name in _SUMS:
            dtype = eqn.outvars[0].aval.dtype
            outs = self.bind(eqn, [self.perturbed(x, dtype) if _is_wide(x) else x for x in args], wide=True)
            return [self.rounded(x, v.aval.dtype) for x, v in zip(outs, eqn.outvars, strict=True)]
        if name in _ADDS:
            (out,), dtype = self.bind(eqn, args, wide=True), eqn.outvars[0].aval.dtype
            return [self.summed(args[0], args[1], out, dtype)]
        if name in _ROUNDS:
            outs = self.bind(eqn, args, wide=True)
            return [self.rounded(x, v.aval.dtype) for x, v in zip(outs, eqn.outvars, strict=True)]
        # It looks at bits (bitcasts, random numbers, reduce_precision) or is not known here.
        self.kept.add(name)
        narrow = [x.astype(v.aval.dtype) if _is_wide(x) else x for x, v in zip(args, eqn.invars, strict=True)]
        return self.bind(eqn, narrow)

    def bind(self, eqn: _jax.JaxprEqn, args: Sequence[Any], wide: bool = False, keep_nan: Any = None) -> list[Any]:
        params = eqn.primitive.get_bind_params(eqn.params)
        if wide:
            if eqn.primitive.name.startswith("scatter"):
                return [_scatter(eqn.primitive.name, args, params)]
            params = {k: _wide_param(k, v) for k, v in params.items()}
            if eqn.primitive.name == "conv_general_dilated":
                return [convolved(args[0], args[1], params)]
        outs = eqn.primitive.bind(*args, **params)
        outs = list(outs) if eqn.primitive.multiple_results else [outs]
        if keep_nan is not None and eqn.primitive.name in _NAN_LOSERS:
            outs = [self.with_nan(eqn, keep_nan[0], outs[0])]
        return [_widen(x, v.aval.dtype) for x, v in zip(outs, eqn.outvars, strict=True)]

    # --- rounding ------------------------------------------------------------------------------------------------

    def summed(self, x: Any, y: Any, out: Any, dtype: Any) -> Any:
        """`out`, which is `x + y` or `x - y` in `dtype`: noise of the size of the terms."""
        return summed(x, y, out, self.amplitude, self.seed, dtype=dtype)

    def rounded(self, x: Any, dtype: Any) -> Any:
        """A result of type `dtype`: noise, unless the type holds the value exactly."""
        return rounded(x, self.amplitude, self.seed, dtype=dtype) if _is_wide(x) else x

    def perturbed(self, x: Any, dtype: Any) -> Any:
        """A term of a sum that is accumulated in `dtype`; small integers add exactly."""
        inexact = jnp.issubdtype(dtype, jnp.inexact)
        return perturbed(x, self.amplitude, self.seed, dtype=dtype) if inexact else x

    # --- max and min ---------------------------------------------------------------------------------------------

    def nan_rule(self, name: str, args: list[Any]) -> list[Any]:
        """The operand without its NaN; `with_nan` puts the result's back."""
        if name not in _NAN_LOSERS:
            return args
        return [jnp.where(jnp.isnan(args[0]), _NAN_LOSERS[name], args[0]), *args[1:]]

    def with_nan(self, eqn: _jax.JaxprEqn, operand: Any, out: Any) -> Any:
        nan = jnp.isnan(operand)
        if eqn.primitive.name.startswith("cum"):
            lost = lax.cummax(nan.astype(jnp.int32), axis=eqn.params["axis"], reverse=eqn.params["reverse"]) > 0
        else:
            lost = jnp.any(nan, axis=tuple(eqn.params["axes"]))
        return jnp.where(lost & ~self.drop_nan, jnp.nan, out)

    # --- primitives with programs inside -------------------------------------------------------------------------

    def convert(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        dtype, x = eqn.params["new_dtype"], args[0]
        if not jnp.issubdtype(dtype, jnp.inexact):
            return [x.astype(dtype)]
        if not _is_wide(x):  # an integer: its rounding is no noise, but a fact
            return [_widen(x.astype(dtype), dtype)]
        x = jnp.real(x) if jnp.issubdtype(dtype, jnp.floating) else x
        return [self.rounded(x.astype(_wide(dtype)), dtype)]

    def scan(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        p = eqn.params
        consts, carry, xs = _parts(args, *_jax.scan_counts(p))

        def body(carry: Any, x: Any) -> Any:
            outs = self.closed(p["jaxpr"], [*consts, *carry, *x])
            return outs[: len(carry)], outs[len(carry) :]

        carry, ys = lax.scan(body, carry, xs, length=p["length"], reverse=p["reverse"])
        return [*carry, *ys]

    def while_loop(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        p = eqn.params
        cond_consts, body_consts, carry = _parts(args, p["cond_nconsts"], p["body_nconsts"])

        def going(carry: Any) -> Any:
            return self.closed(p["cond_jaxpr"], [*cond_consts, *carry])[0]

        def body(state: Any) -> Any:
            step, carry = state
            new = self.closed(p["body_jaxpr"], [*body_consts, *carry])
            # Under vmap the condition has axes (JAX selects per element when it lowers the loop).
            go = going(carry)
            chosen = [jnp.where(_trailing(go, x), y, x) if go.ndim else y for x, y in zip(carry, new, strict=True)]
            return step + 1, chosen

        def more(state: Any) -> Any:
            return jnp.any(going(state[1])) & (state[0] < _WHILE_STEPS)

        step, carry = lax.while_loop(more, body, (np.int32(0), carry))
        return [jnp.where(step < _WHILE_STEPS, x, jnp.nan) if _is_wide(x) else x for x in carry]

    def cond(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        branches = [lambda *xs, branch=b: self.closed(branch, xs) for b in eqn.params["branches"]]
        return list(lax.switch(jnp.asarray(args[0]).astype(jnp.int32), branches, *args[1:]))

    def linear_solve(self, eqn: _jax.JaxprEqn, args: list[Any]) -> list[Any]:
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        start, consts = lengths.matvec + lengths.vecmat, sum(lengths)
        return self.closed(jaxprs.solve, [*args[start : start + lengths.solve], *args[consts:]])


def _is_inexact(atom: Any) -> bool:
    return jnp.issubdtype(getattr(atom.aval, "dtype", np.dtype(np.int32)), jnp.inexact)


def _is_wide(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _wide_param(name: str, value: Any) -> Any:
    if name in ("new_dtype", "dtype", "preferred_element_type") and value is not None:
        return _wide(value)
    if name == "weak_type":
        return False
    return None if name == "precision" else value


def _scatter(name: str, args: Sequence[Any], params: Any) -> Any:
    """A scatter with its update function traced anew: the one in the parameters has the narrow types."""
    public: Any = {
        "scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub,
        "scatter-mul": lax.scatter_mul, "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max,
    }[name]  # fmt: skip
    kept = ("indices_are_sorted", "unique_indices", "mode")
    return public(*args, params["dimension_numbers"], **{k: params[k] for k in kept})


def _parts(args: list[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    return args[:first], args[first : first + second], args[first + second :]


def _trailing(flags: Any, x: Any) -> Any:
    """`flags`, whose axes are the first ones of `x`, with axes of size one for the others."""
    return flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))
