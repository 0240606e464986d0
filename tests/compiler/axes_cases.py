"""One equation (or a few) per table entry, at small shapes: what the judge of mapped axes runs on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from aerogel._jax import primitives

f32, bf16, i32, u32, u8, b1, c64 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.uint8, jnp.bool_, jnp.complex64


@dataclass(frozen=True)
class Case:
    """`primitive` is what the case is about; `types` are (shape, dtype) of the arguments of `fun`."""

    primitive: str
    fun: Callable[..., Any]
    types: Sequence[tuple[tuple[int, ...], Any]]
    note: str = ""
    in_axes: Sequence[tuple[int | None, ...]] | None = None  # which ones `vmap` is tried with; None: any

    def __str__(self) -> str:
        return f"{self.primitive}-{self.note}" if self.note else self.primitive


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Any:
    """Numbers of a type that every function here takes: floats in (0.1, 0.9), small non-negative integers."""
    if dtype == "key":
        return jax.random.wrap_key_data(jnp.asarray(rng.integers(0, 2**32, (*shape, 2), dtype=np.uint32)))
    dtype = jnp.dtype(dtype)
    if dtype == np.bool_:
        return jnp.asarray(rng.random(shape) < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 4, shape), dtype)
    numbers = rng.uniform(0.1, 0.9, shape)
    return jnp.asarray(
        numbers + 1j * rng.uniform(0.1, 0.9, shape) if jnp.issubdtype(dtype, jnp.complexfloating) else numbers, dtype
    )


def _unary(names: str, dtype: Any) -> list[Case]:
    return [
        Case(name, lambda x, p=primitives[name]: p.bind(x, **_params(p.name)), [((2, 4), dtype)])
        for name in names.split()
    ]


def _params(name: str) -> dict[str, Any]:
    if name in "cbrt cos exp exp2 expm1 log log1p log2 logistic rsqrt sin sqrt tan tanh".split():
        return {"accuracy": None}
    if name == "round":
        return {"rounding_method": lax.RoundingMethod.TO_NEAREST_EVEN}
    return {}


S = (2, 4)
UNARY = (
    _unary(
        "abs acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 "
        "expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh",
        f32,
    )
    + _unary(" ".join(name for name in ("log2", "one_minus_square") if name in primitives), f32)  # new in jax 0.11
    + _unary("clz population_count not", u32)
    + [
        Case("acosh", lambda x: lax.acosh(x + 1), [(S, f32)]),
        Case("conj", lax.conj, [(S, c64)]),
        Case("real", lax.real, [(S, c64)]),
        Case("imag", lax.imag, [(S, c64)]),
        Case("integer_pow", lambda x: lax.integer_pow(x, 3), [(S, f32)]),
        Case("convert_element_type", lambda x: lax.convert_element_type(x, bf16), [(S, f32)]),
        Case("convert_element_type", lambda x: lax.convert_element_type(x, f32), [(S, b1)], "bool"),
        Case("reduce_precision", lambda x: lax.reduce_precision(x, 5, 4), [(S, f32)]),
        Case("copy", jnp.copy, [(S, f32)]),
        Case("name", lambda x: checkpoint_name(x, "x"), [(S, f32)]),
        Case("stop_gradient", lambda x: lax.stop_gradient_p.bind(x), [(S, f32)]),
        Case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, i32), [(S, f32)]),
        Case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, u8), [(S, f32)], "narrower"),
        Case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, f32), [((3, 4), u8)], "wider", [(0,), (1,)]),
    ]
)


def _binary(names: str, dtype: Any) -> list[Case]:
    """At equal shapes, with a rank-0 operand, and with a unit dimension."""
    cases = []
    for name in names.split():
        fun = _binder(primitives[name])
        cases += [
            Case(name, fun, [(S, dtype), (S, dtype)]),
            Case(name, fun, [(S, dtype), ((), dtype)], "scalar"),
            Case(name, fun, [((2, 1), dtype), (S, dtype)], "unit"),
        ]
    return cases


def _binder(primitive: Any) -> Callable[..., Any]:
    params = {"out_dtype": None} if primitive.name == "mul" else {}
    return lambda *args: primitive.bind(*args, **params)


SLOW = ("igamma", "igammac", "igamma_grad_a")  # to compile
NARY = (
    _binary("add sub mul div max min rem pow nextafter atan2 eq ne ge gt le lt", f32)
    + _binary("eq_to le_to lt_to", f32)
    + _binary("and or xor shift_left shift_right_logical shift_right_arithmetic mulhi", i32)
    + [
        *(Case(name, _binder(primitives[name]), [(S, f32), (S, f32)], in_axes=[(0, 0), (1, None)]) for name in SLOW),
        Case("zeta", lambda x, q: lax.zeta(x + 1, q), [(S, f32), (S, f32)]),
        Case("polygamma", lambda m, x: lax.polygamma(jnp.floor(m + 1), x), [(S, f32), (S, f32)]),
        Case("add_any", lambda x, y: primitives["add_any"].bind(x, y), [(S, f32), (S, f32)]),
        Case("complex", lax.complex, [(S, f32), (S, f32)]),
        Case("regularized_incomplete_beta", lax.betainc, [(S, f32), (S, f32), (S, f32)]),
        Case("select_n", lax.select_n, [(S, b1), (S, f32), (S, f32)]),
        Case("select_n", lax.select_n, [((), b1), (S, f32), (S, f32)], "scalar"),
        Case("clamp", lax.clamp, [(S, f32), (S, f32), (S, f32)]),
        Case("clamp", lax.clamp, [((), f32), (S, f32), ((), f32)], "scalar"),
        Case(
            "threefry2x32", lambda *x: primitives["threefry2x32"].bind(*x), [(S, u32)] * 4, in_axes=[(0,) * 4, (2,) * 4]
        ),
        Case(
            "threefry2x32",
            lambda *x: primitives["threefry2x32"].bind(*x),
            [((), u32)] * 2 + [(S, u32)] * 2,
            "scalar",
            [(None, None, 0, 0), (0,) * 4],
        ),
        Case("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), [(S, f32), ((3, 2), i32)]),
    ]
)

SHAPING = [
    Case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (1, 2)), [(S, f32)]),
    Case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (0, 2)), [((1, 4), f32)], "unit"),
    Case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 1, 4), (0, 2)), [(S, f32)], "new-unit"),
    Case("transpose", lambda x: lax.transpose(x, (2, 0, 1)), [((2, 3, 4), f32)]),
    Case("squeeze", lambda x: lax.squeeze(x, (0, 2)), [((1, 4, 1, 2), f32)]),
    Case("rev", lambda x: lax.rev(x, (1,)), [((2, 3, 4), f32)]),
    Case("slice", lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4)), [((2, 3, 4), f32)]),
    Case("slice", lambda x: lax.slice(x, (0, 0), (4, 4), (2, 1)), [((4, 4), f32)], "strided"),
    Case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (0, i, 0), (2, 2, 4)), [((2, 3, 4), f32), ((), i32)]),
    Case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)),
        [(S, f32), ((2, 2), f32), ((), i32)],
    ),
    Case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
        [((3, 4), i32), ((2, 4), i32), ((), i32)],
        "rows",
    ),
    Case("pad", lambda x, v: lax.pad(x, v, ((0, 0, 0), (1, -1, 1))), [(S, f32), ((), f32)]),
    Case("concatenate", lambda x, y: lax.concatenate([x, y], 1), [(S, f32), ((2, 3), f32)]),
    Case("stack", lambda x, y: lax.stack_p.bind(x, y, axis=1), [(S, f32), (S, f32)]),
    Case("unstack", lambda x: lax.unstack_p.bind(x, axis=1), [((3, 2, 4), f32)]),
    Case("split", lambda x: lax.split(x, (1, 3), axis=1), [(S, f32)]),
    Case("tile", lambda x: lax.tile_p.bind(x, reps=(1, 3)), [(S, f32)]),
    Case("reshape", lambda x: lax.reshape(x, (6, 4)), [((2, 3, 4), f32)], "merge"),
    Case("reshape", lambda x: lax.reshape(x, (2, 12)), [((2, 3, 4), f32)], "merge-minor"),
    Case("reshape", lambda x: lax.reshape(x, (24,)), [((2, 3, 4), f32)], "flatten"),
    Case("reshape", lambda x: lax.reshape(x, (4, 3, 2)), [((2, 3, 4), f32)], "cut"),
    Case("reshape", lambda x: lax.reshape(x, (3, 2, 4)), [((3, 8), f32)], "split"),
    Case("reshape", lambda x: lax.reshape(x, (1, 3, 1, 4, 1)), [((3, 4), f32)], "units"),
    Case("reshape", lambda x: lax.reshape(x, (3, 4)), [((3, 1, 4), f32)], "unit-gone"),
    Case("reshape", lambda x: lax.reshape(x, (4, 0)), [((2, 0, 4), f32)], "empty"),
]

REDUCTIONS = [
    *(
        Case(name, lambda x, p=primitives[name]: p.bind(x, axes=(1,), out_sharding=None), [((2, 4, 3), f32)])
        for name in "reduce_sum reduce_prod reduce_max reduce_min".split()
    ),
    *(
        Case(
            name,
            lambda x, p=primitives[name]: p.bind(x, axes=(0, 2), out_sharding=None),
            [((2, 4, 3), dtype)],
            str(jnp.dtype(dtype)),
        )
        for name in "reduce_sum reduce_prod reduce_max reduce_min".split()
        for dtype in (bf16, i32)
    ),
    *(
        Case(name, lambda x, p=primitives[name]: p.bind(x, axes=(1,)), [((2, 4, 3), dtype)], str(jnp.dtype(dtype)))
        for name in "reduce_and reduce_or reduce_xor".split()
        for dtype in (b1, i32)
    ),
    *(
        Case(name, lambda x, f=fun: f(x, 1, i32), [((3, 4, 2), dtype)], str(jnp.dtype(dtype)))
        for name, fun in (("argmax", lax.argmax), ("argmin", lax.argmin))
        for dtype in (f32, i32, bf16)
    ),
    Case(
        "reduce",
        lambda x, v: lax.reduce(x, v, lambda a, b: a * b + a + b, (1,)),
        [((2, 4, 3), f32), ((), f32)],
        in_axes=[(0, None), (2, None)],
    ),
]

CONTRACTIONS = [
    Case(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
        [((2, 3, 4), f32), ((2, 4, 2), f32)],
    ),
    Case(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, (((0, 2), (2, 0)), ((1,), (1,)))),
        [((3, 2, 4, 2), f32), ((4, 2, 3), f32)],
        "many",
    ),
    Case("dot_general", lambda x, y: x @ y, [((3, 4), bf16), ((4, 2), bf16)], "bf16"),
    Case("dot_general", lambda x, y: lax.dot(x, y), [((3, 4), bf16), ((4, 2), bf16)], "bf16-plain"),
    Case(
        "dot_general",
        lambda x, y: lax.dot(x, y, preferred_element_type=f32),
        [((3, 4), bf16), ((4, 2), bf16)],
        "bf16-f32",
    ),
    Case("dot_general", lambda x, y: lax.dot(x, y), [((3, 4), i32), ((4, 2), i32)], "int"),
    Case("dot_general", lambda x: x @ x, [((4, 4), f32)], "same"),
    Case(
        "conv_general_dilated",
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        [((2, 3, 4, 4), f32), ((4, 3, 2, 2), f32)],
        in_axes=[(0, None), (2, None), (None, 1)],
    ),
    Case(
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        ),
        [((3, 4, 4), f32), ((2, 2, 4), f32)],
        "groups",
        [(0, None), (3, None)],
    ),
    Case(
        "conv_general_dilated",
        lambda x, w: lax.conv(x, w, (1,), "SAME", precision=None),
        [((2, 4, 3), bf16), ((2, 4, 2), bf16)],
        "bf16",
        [(0, None), (None, 0)],
    ),
]

GATHER_ROWS = lax.GatherDimensionNumbers(offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(1,))
GATHER_ALONG = lax.GatherDimensionNumbers((), (1,), (1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,))
SCATTER_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
SCATTER_ALONG = lax.ScatterDimensionNumbers(
    (), (1,), (1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,)
)


SCATTER_ROW = lax.ScatterDimensionNumbers(
    update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
SCATTER_PART = lax.ScatterDimensionNumbers(
    update_window_dims=(0, 1), inserted_window_dims=(), scatter_dims_to_operand_dims=(1,)
)


def _gather(numbers: Any, sizes: tuple[int, ...], mode: str) -> Callable[..., Any]:
    return lambda x, i: lax.gather(x, i[..., None], numbers, sizes, mode=mode, fill_value=-1)


def _scatter(name: str, numbers: Any, mode: str = "drop") -> Callable[..., Any]:
    fun = {
        "scatter": lax.scatter,
        "scatter-add": lax.scatter_add,
        "scatter-sub": lax.scatter_sub,
        "scatter-mul": lax.scatter_mul,
        "scatter-min": lax.scatter_min,
        "scatter-max": lax.scatter_max,
    }[name]
    return lambda x, i, u: fun(x, i[..., None], u, numbers, mode=mode, unique_indices=False)


INDEXING = [
    *(
        Case("gather", _gather(GATHER_ROWS, (2, 1, 4), mode), [((2, 3, 4), f32), ((5,), i32)], mode)
        for mode in ("fill", "clip")
    ),
    Case("gather", _gather(GATHER_ALONG, (1, 1), "fill"), [((3, 5), f32), ((3, 2), i32)], "along"),
    Case("gather", lambda x, i: x[..., i], [((2, 3, 4), f32), ((3, 2), i32)], "numpy"),
    Case("gather", lambda x, i: x[i[0], :, i[1]], [((2, 3, 4), f32), ((2, 3), i32)], "points"),
    *(
        Case(name, _scatter(name, SCATTER_ROWS), [((3, 4), f32), ((2,), i32), ((2, 4), f32)])
        for name in "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split()
    ),
    *(
        Case(name, _scatter(name, SCATTER_ROW, mode), [((3, 4), f32), ((), i32), ((4,), f32)], f"one row, {mode}")
        for name in "scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split()
        for mode in ("drop", "clip")
    ),
    *(
        Case(name, _scatter(name, SCATTER_PART, mode), [((3, 4), bf16), ((), i32), ((3, 2), bf16)], f"columns, {mode}")
        for name in ("scatter", "scatter-add")
        for mode in ("drop", "clip")
    ),
    Case("scatter-add", _scatter("scatter-add", SCATTER_ROWS), [((3, 4), bf16), ((5,), i32), ((5, 4), bf16)], "narrow"),
    Case("scatter-add", _scatter("scatter-add", SCATTER_ALONG), [((3, 4), i32), ((3, 2), i32), ((3, 2), i32)], "along"),
]

W = {
    "window_dimensions": (1, 2),
    "window_strides": (1, 1),
    "padding": ((0, 0), (0, 1)),
    "base_dilation": (1, 1),
    "window_dilation": (1, 1),
}
WINDOWS = [
    *(
        Case(name, lambda x, p=primitives[name]: p.bind(x, **W), [((3, 4), f32)])
        for name in "reduce_window_sum reduce_window_max reduce_window_min".split()
    ),
    Case(
        "reduce_window",
        lambda x: lax.reduce_window(x, 0.0, lambda a, b: a * b + a + b, (1, 2), (1, 2), "VALID"),
        [((3, 4), f32)],
    ),
    Case(
        "select_and_scatter_add",
        lambda s, x: primitives["select_and_scatter_add"].bind(
            s, x, select_prim=lax.ge_p, window_dimensions=(1, 2), window_strides=(1, 2), padding=((0, 0), (0, 0))
        ),
        [((3, 2), f32), ((3, 4), f32)],
        in_axes=[(0, 0), (1, 0), (2, 2)],
    ),
    Case(
        "select_and_gather_add",
        lambda t, x: primitives["select_and_gather_add"].bind(t, x, select_prim=lax.ge_p, **W),
        [((3, 4), f32)] * 2,
        in_axes=[(0, 0), (2, 1)],
    ),
    *(
        Case(name, lambda x, p=primitives[name]: p.bind(x, axis=1, reverse=False), [((2, 4), f32)])
        for name in "cumsum cumprod cummax cummin cumlogsumexp".split()
    ),
    Case("cumsum", lambda x: lax.cumsum(x, 0, reverse=True), [((2, 4), bf16)], "reverse"),
    Case("sort", lambda x: lax.sort(x, dimension=1), [((2, 4), f32)]),
    Case("sort", lambda x, y: lax.sort((x, y), dimension=0, num_keys=1), [((3, 2), i32), ((3, 2), f32)], "pairs"),
    Case("top_k", lambda x: lax.top_k(x, 2, axis=0), [((3, 2), f32)]),
    Case("approx_top_k", lambda x: lax.approx_max_k(x, 2), [((2, 4), f32)]),
]


def _spd(x: Any) -> Any:
    """Positive definite from any square matrix."""
    return x @ jnp.swapaxes(x, -1, -2) + 3 * jnp.eye(x.shape[-1], dtype=x.dtype)


M = [((2, 3, 3), f32)]
BATCHED = [
    Case("cholesky", lambda x: lax.linalg.cholesky(_spd(x), symmetrize_input=False), M),
    Case("eigh", lambda x: lax.linalg.eigh(_spd(x), symmetrize_input=False)[1], M),
    Case("eig", lambda x: lax.linalg.eig(_spd(x))[0], M),
    Case("hessenberg", lax.linalg.hessenberg, M),
    Case("householder_product", lax.linalg.householder_product, [((2, 3, 3), f32), ((2, 3), f32)]),
    Case("lu", lax.linalg.lu, M),
    Case(
        "lu_pivots_to_permutation", lambda p: lax.linalg.lu_pivots_to_permutation(jnp.minimum(p, 2), 3), [((2, 3), i32)]
    ),
    Case("ormqr", lambda a, t, c: lax.linalg.ormqr(a, t, c), [((2, 3, 3), f32), ((2, 3), f32), ((2, 3, 4), f32)]),
    Case("qr", lambda x: lax.linalg.qr(x, full_matrices=False), M),
    Case("schur", lambda x: lax.linalg.schur(_spd(x))[0], M),
    Case("svd", lambda x: lax.linalg.svd(x, compute_uv=False), M),
    Case(
        "symmetric_product",
        lambda a, c: lax.linalg.symmetric_product(a, c, symmetrize_output=False),
        [((2, 3, 2), f32), ((2, 3, 3), f32)],
    ),
    Case(
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(a + jnp.eye(3), b, left_side=True),
        [((2, 3, 3), f32), ((2, 3, 2), f32)],
    ),
    Case("tridiagonal", lambda x: lax.linalg.tridiagonal(_spd(x))[1:3], M),
    Case(
        "tridiagonal_solve",
        lambda a, d, u, b: lax.linalg.tridiagonal_solve(a, d + 2, u, b),
        [((2, 3), f32)] * 3 + [((2, 3, 2), f32)],
        in_axes=[(0,) * 4, (1, 0, 2, 3)],
    ),
    Case("fft", lambda x: lax.fft(x, "FFT", (4,)), [((2, 4), c64)]),
    Case("fft", lambda x: lax.fft(x, "RFFT", (2, 4)), [((3, 2, 4), f32)], "real"),
    Case("random_bits", lambda k: jax.random.bits(k, (3,)), [((), "key")]),
    Case("random_bits", jax.vmap(lambda k: jax.random.bits(k, (3,))), [((2,), "key")], "many"),
    Case("random_split", lambda k: jax.random.split(k, 2), [((), "key")]),
    Case("random_fold_in", lambda k, i: jax.random.fold_in(k, i), [((), "key"), ((), u32)]),
    Case(
        "random_gamma",
        lambda k, a: primitives["random_gamma"].bind(k, a, log_space=False),
        [((2,), "key"), ((2,), f32)],
        in_axes=[(0, 0)],
    ),
    Case("random_seed", jax.random.key, [((), u32)]),
    Case("random_unwrap", jax.random.key_data, [((2,), "key")]),
    Case("random_wrap", jax.random.wrap_key_data, [((2, 2), u32)], in_axes=[(0,), (1,)]),
]

CASES = [*UNARY, *NARY, *SHAPING, *REDUCTIONS, *CONTRACTIONS, *INDEXING, *WINDOWS, *BATCHED]
