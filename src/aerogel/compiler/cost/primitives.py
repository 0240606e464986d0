"""What kind of work each primitive is, for fusion and for counting: one table by name, as names outlive modules.

Sources: XLA's `instruction_fusion.cc` (which operations fuse, which are never computed twice) and `HloCostAnalysis`.
"""

import enum


class Kind(enum.IntEnum):
    """How XLA schedules an equation."""

    VIEW = 0  # another name for the same bytes
    CHEAP = 1  # one result element from a few input elements; fuses, and may be computed once per user
    DEAR = 2  # the same, but never computed twice
    REDUCE = 3  # fuses what feeds it, is written itself
    CALL = 4  # XLA inlines it
    LOOP = 5  # scan, while
    BRANCH = 6  # cond
    UPDATE = 7  # writes part of its first operand, in place if nobody needs the old value
    OPAQUE = 8  # reads whole inputs from memory, writes whole outputs


VIEW = frozenset(
    """reshape squeeze bitcast_convert_type optimization_barrier sharding_constraint random_wrap random_unwrap
    random_clone name reshard layout_constraint stop_gradient pvary pbroadcast to_edtype from_edtype after_all dce_sink
    reduced_vary_cast reduced_vary_cast_p vary_unreduced_cast_p stage pin unpin device_put inspect_sharding preduced tie
    new_ref freeze free_ref assume""".split()
)

# Flops per output element. Moving data costs no flops. Transcendentals: about what a vectorised polynomial takes.
ELEMENTWISE_FLOPS: dict[str, int] = {
    **dict.fromkeys(
        """broadcast_in_dim broadcast_to iota iota_2x32_shape slice dynamic_slice gather rev pad concatenate transpose
        copy real imag complex tile stack unstack split empty empty2 empty_ref zeros_like create_token create_linear
        axis_index platform_index dimension_size dim_as_value""".split(),
        0,
    ),
    **dict.fromkeys(
        """add add_any sub mul neg abs max min and or xor not eq ne lt le gt ge eq_to lt_to le_to sign floor ceil round
        is_finite select_n convert_element_type reduce_precision square shift_left shift_right_logical
        shift_right_arithmetic clz population_count conj integer_pow mulhi""".split(),
        1,
    ),
    **dict.fromkeys(["clamp", "one_minus_square"], 2),
    "nextafter": 4,
    **dict.fromkeys(["div", "sqrt", "rsqrt"], 4),
    "rem": 10,
    **dict.fromkeys(["exp", "exp2", "log", "log2", "polynomial"], 10),
    **dict.fromkeys(["expm1", "log1p", "tanh", "logistic", "erf", "cbrt"], 14),
    **dict.fromkeys(["sin", "cos", "sinh", "cosh", "erfc", "pow"], 20),
    **dict.fromkeys(["tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "erf_inv"], 30),
    **dict.fromkeys(["bessel_i0e", "bessel_i1e"], 60),
    **dict.fromkeys(["lgamma", "digamma"], 80),
    **dict.fromkeys(["polygamma", "zeta", "igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta"], 500),
}

# XLA does not recompute these (`InstructionFusion::IsExpensive`), so a value with two fused readers is stored.
DEAR = frozenset(name for name, weight in ELEMENTWISE_FLOPS.items() if weight >= 4) | {"gather", "concatenate"}
# The part that is read is as large as the result, whatever the size of the operand.
SLICES = frozenset(["slice", "dynamic_slice", "gather", "unstack", "split"])

REDUCE = frozenset(
    """reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor reduce argmax argmin""".split()
)
# A variadic reduction yields a tuple, and ends its kernel; the others may fuse into their one reader.
ENDS_KERNEL = frozenset(["reduce", "argmax", "argmin"])
# What computes each element from the same element of its operands may write over one of them.
MOVES_ELEMENTS = frozenset(
    """broadcast_in_dim broadcast_to slice dynamic_slice gather rev pad concatenate transpose tile stack unstack
    split""".split()
)
UPDATE = frozenset(
    "dynamic_update_slice scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max swap addupdate".split()
)
LOOP = frozenset(["scan", "while"])
LINALG = frozenset(
    """cholesky cholesky_update lu qr geqrf geqp3 householder_product ormqr svd eig eigh schur hessenberg
    tridiagonal triangular_solve tridiagonal_solve symmetric_product lu_pivots_to_permutation""".split()
)
RANDOM = frozenset(
    """random_bits random_split random_fold_in random_seed threefry2x32 threefry4x32 philox2x32 philox4x32
    rng_bit_generator rng_uniform random_gamma""".split()
)
CUMULATIVE = frozenset(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
WINDOWS = frozenset(
    """reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_scatter select_and_scatter_add
    select_and_gather_add""".split()
)
COLLECTIVES = frozenset(
    """psum psum_invariant unreduced_psum pmax pmin ppermute all_gather all_gather_invariant all_gather_reduced
    all_to_all ragged_all_to_all reduce_scatter unreduced_reduce_scatter psend precv psum_start psum_done
    psum_invariant_start all_gather_start all_gather_done all_gather_reduced_start all_to_all_start all_to_all_done
    ppermute_start ppermute_done pbroadcast_start pbroadcast_done reduce_scatter_start reduce_scatter_done
    unreduced_psum_start unreduced_reduce_scatter_start""".split()
)
CALLBACKS = frozenset(
    """pure_callback io_callback debug_callback debug_print ffi_call call_exported custom_partitioning shape_assertion
    unreachable""".split()
)
ATTENTION = frozenset(
    """dot_product_attention_fwd dot_product_attention_fwd_wrapper dot_product_attention_bwd
    dot_product_attention_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
    dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper cudnn_fusion""".split()
)
OPAQUE = (
    frozenset("dot_general ragged_dot_general scaled_dot scaled_matmul scaled_matmul_wrapper get".split())
    | frozenset("conv_general_dilated sort top_k approx_top_k fft".split())
    | LINALG | RANDOM | CUMULATIVE | WINDOWS | COLLECTIVES | CALLBACKS | ATTENTION
)  # fmt: skip

# The parameter that holds the program of a call.
CALL_PARAMETER = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # since jax 0.11 instead of closed_call
    "call": "call_jaxpr",
    "remat2": "jaxpr",
    "remat_opt": "fwd_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "custom_lin": "jaxpr",
    "custom_linear_solve": "jaxprs",
    "linear_call": "callee",
    "composite": "jaxpr",
    "shard_map": "jaxpr",
    "run_state": "jaxpr",
    "one_kernel": "call",  # ours
}

KIND: dict[str, Kind] = {
    **dict.fromkeys(OPAQUE, Kind.OPAQUE),
    **{name: Kind.DEAR if name in DEAR else Kind.CHEAP for name in ELEMENTWISE_FLOPS},
    **dict.fromkeys(VIEW, Kind.VIEW),
    **dict.fromkeys(REDUCE, Kind.REDUCE),
    **dict.fromkeys(UPDATE, Kind.UPDATE),
    **dict.fromkeys(CALL_PARAMETER, Kind.CALL),
    **dict.fromkeys(LOOP, Kind.LOOP),
    "cond": Kind.BRANCH,
}
