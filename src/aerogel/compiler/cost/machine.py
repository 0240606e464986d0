"""What the time estimate knows of each platform: one frozen table each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .calibrated import stored_rates
from .primitives import CALLBACKS, RANDOM


@dataclass(frozen=True)
class Machine:
    """Rates and fixed prices of one platform.

    Attributes:
        bytes_per_second: main memory.
        cache_bytes: a value up to this size is read and written at `cache_bytes_per_second`.
        fresh_bytes: a program that allocates more than this pays `seconds_per_fresh_byte` for all of it (glibc gives
            such buffers back, so that every call takes their page faults again).
        flops_per_second: large f32 matrix products; `gemm_scale` has factors for other dtypes.
        vector_flops_per_second: f32 elementwise arithmetic.
        highest_scale: factor of the rate for float32 products at `Precision.HIGHEST`.
        multiplies_bfloat16: whether the processor has instructions for it, and XLA's library takes them.
        masks_vectors: whether its vectors can leave entries out: code for what is left over is vector code, too.
        gemm_half_rows: the smaller of M and N at which a product runs at half its speed; `gemm_half_depth`: K.
        cores: how much faster work that is shared among cores runs; the rates are those of one core.
        seconds_to_share: what it costs to share a kernel's work and to wait for the last part.
        seconds_to_hand_over: until another thread has taken over a program, and the one that called knows its result.
        shared_elements: a kernel over more elements than this is shared, whether that pays or not; a matrix product
            where it pays.
        tiny_flops_per_second: products with N and K up to 4, which have a slow path of their own.
        seconds_per_batched_dot: each matrix of a batched product.
        lapack_half_size: matrix size at which LAPACK runs at half of gemm's speed; `seconds_per_matrix`: each call.
        conv_half_channels: input channels at which a convolution runs at half of gemm's speed; `depthwise_scale`:
            factor for grouped convolutions.
        seconds_per_kernel: starting a kernel; `seconds_per_small_kernel` if it moves up to `small_kernel_bytes`.
        seconds_per_step_kernel: a kernel of a loop's step that fuses with no other: a reduction over a step's values.
        seconds_per_loop_step: a step of `scan` or `while` besides its body.
        seconds_per_step_of_few: a step of a loop that is one kernel, since a step moves less than `one_kernel_bytes`,
            and whose values have no more than `unrolled_elements`; `seconds_per_term_of_few`: each term of a product.
        seconds_per_graph: launching many kernels of a loop's body at once; 0 where each is started by itself.
        merged_axes_seconds: per element, of an outer product as an operand that is summed over several of its
            dimensions: XLA writes it with these as one, and divides to know the place in each factor.
        short_axis_seconds: per element, of a reduction over a last axis shorter than 16.
        row_scale: of the seconds of an element that is gathered or added by a scatter, for each that a row in one piece
            has beyond its first.
        terms_per_row: from so many terms for each row of a narrow left operand on, a product is made in less time the
            other way round where the terms are the last axis of both; `even_rows`: for multiples of so many rows.
        turns_float64: whether a product of float64 whose operands both hold their terms first takes twice as long as
            behind a copy of the smaller one.
        element_seconds: by primitive; per result element for elementwise ones and random numbers, per operand element
            for reductions, cumulative ones and `top_k`, per comparison for `sort`, per update element for scatters.
        call_seconds: by primitive; once per equation.
    """

    name: str
    bytes_per_second: float
    cache_bytes: int
    cache_bytes_per_second: float
    flops_per_second: float
    vector_flops_per_second: float
    seconds_per_kernel: float
    seconds_per_loop_step: float
    seconds_per_small_kernel: float
    small_kernel_bytes: int = 16 << 10
    seconds_per_step_kernel: float = 0.0
    seconds_per_step_of_few: float = 0.0
    seconds_per_term_of_few: float = 0.0
    one_kernel_bytes: int = 0
    seconds_per_graph: float = 0.0
    unrolled_elements: int = 24
    fresh_bytes: int = 1 << 62
    seconds_per_fresh_byte: float = 0.0
    highest_scale: float = 1.0
    multiplies_bfloat16: bool = False
    masks_vectors: bool = False
    gemm_half_rows: float = 1.0
    gemm_half_depth: float = 6.0
    cores: float = 1.0
    seconds_to_share: float = 0.0
    seconds_to_hand_over: float = 0.0
    shared_elements: int = 1 << 15
    tiny_flops_per_second: float = 1e20
    seconds_per_batched_dot: float = 0.0
    lapack_half_size: float = 1000.0
    seconds_per_matrix: float = 0.0
    conv_half_channels: float = 8.0
    depthwise_scale: float = 0.1
    merged_axes_seconds: float = 0.0
    short_axis_seconds: float = 0.0
    row_scale: float = 1.0
    terms_per_row: float = 8.0
    even_rows: int = 1
    turns_float64: bool = False
    gemm_scale: Mapping[str, float] = field(default_factory=dict, hash=False)
    element_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)
    call_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)

    def on_one_core(self) -> "Machine":
        """The machine whose kernels share no work."""
        return replace(self, cores=1.0)

    def at_highest_precision(self) -> "Machine":
        """The machine whose matrix products are made at `Precision.HIGHEST`."""
        return replace(self, flops_per_second=self.flops_per_second * self.highest_scale, highest_scale=1.0)

    def in_cache(self) -> "Machine":
        """The machine as a loop sees it that goes over a large value in small steps: these stay in the cache."""
        return replace(self, bytes_per_second=self.cache_bytes_per_second)


# One core of a Zen 4 server, jaxlib 0.10.2, measured on a 4-core machine of that kind, 2026-11, as minima, by what is
# now benchmarks/machine_constants.py (which prints them next to these); memory, gemm, page faults and sin to rsqrt
# (calls of libm per element) before that. `cores` and what sharing costs are fits to products in a loop's step and of
# all steps (width 512 to 2048, 8 to 64 rows) on all four cores, otherwise idle.
_CPU = Machine(
    name="cpu",
    bytes_per_second=2.2e10,
    cache_bytes=1 << 20,
    cache_bytes_per_second=1e11,
    flops_per_second=1e11,
    vector_flops_per_second=2e10,
    seconds_per_kernel=5e-7,
    seconds_per_small_kernel=3e-8,
    seconds_per_step_kernel=1e-7,
    seconds_per_loop_step=2e-8,
    seconds_per_step_of_few=5e-9,
    seconds_per_term_of_few=4e-10,
    one_kernel_bytes=1 << 10,
    fresh_bytes=32 << 20,
    seconds_per_fresh_byte=4.8e-10,
    cores=2.3,
    seconds_to_share=5.5e-5,
    seconds_to_hand_over=5e-5,
    tiny_flops_per_second=2e9,
    seconds_per_batched_dot=1.5e-7,
    seconds_per_matrix=8e-8,
    depthwise_scale=0.006,
    merged_axes_seconds=8e-10,
    short_axis_seconds=1.4e-9,
    row_scale=0.12,
    gemm_scale={"float64": 0.45, "complex64": 0.7, "complex128": 0.3, "int32": 0.35, "int64": 0.2, "int8": 0.35},
    element_seconds={
        "sin": 6.5e-9, "cos": 5.8e-9, "tan": 1.27e-8, "asin": 1.32e-8, "acos": 1.96e-8, "atan": 1.14e-8,
        "atan2": 1.1e-8, "cbrt": 1.1e-8, "pow": 5e-9, "rsqrt": 2e-9, "exp": 3.5e-10, "exp2": 1.1e-9, "log": 5e-10,
        "tanh": 3e-10, "logistic": 5e-10, "erf": 2.5e-10, "log1p": 1e-9, "expm1": 9e-10, "rem": 2e-9, "div": 1e-10,
        "sqrt": 1.5e-10, "erf_inv": 1.2e-9, "lgamma": 1e-8, "digamma": 7e-9,
        "gather": 1e-9, "transpose": 4e-10,
        "argmax": 4.4e-9, "argmin": 4.4e-9, "top_k": 3e-9, "sort": 1.5e-8,
        "cumsum": 6e-9, "cumprod": 6e-9, "cummax": 1e-8, "cummin": 1e-8, "cumlogsumexp": 2.5e-7,
        **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"), 8e-10),
        **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum", "reduce_window"), 4.5e-9),
        **dict.fromkeys(("select_and_scatter_add", "select_and_gather_add", "select_and_scatter"), 2e-8),
        **dict.fromkeys(RANDOM, 5e-9),
    },
    call_seconds={**dict.fromkeys(RANDOM, 1.5e-6), **dict.fromkeys(CALLBACKS, 3e-5)},
)  # fmt: skip

# NVIDIA H100 80 GB, jaxlib 0.11.2, measured 2026-11 (docs/reference/gpu.md). Large products are in TF32, which is what
# JAX's default precision allows there. A kernel costs less among many, which XLA launches as one graph: its price is
# that in a loop's step of few kernels.
_GPU = Machine(
    name="gpu",
    bytes_per_second=2.9e12,
    cache_bytes=40 << 20,
    cache_bytes_per_second=5e12,
    flops_per_second=4e14,
    vector_flops_per_second=1.5e13,
    seconds_per_kernel=2.5e-6,
    seconds_per_small_kernel=2.5e-6,
    seconds_per_step_kernel=2.5e-6,
    seconds_per_loop_step=5e-6,
    seconds_per_graph=6e-6,
    highest_scale=0.125,
    gemm_half_rows=64.0,
    gemm_half_depth=32.0,
    lapack_half_size=8000.0,
    seconds_per_matrix=1e-7,
    conv_half_channels=32.0,
    depthwise_scale=0.05,
    gemm_scale={"float64": 0.12, "bfloat16": 2.0, "float16": 2.0, "int8": 4.0},
    element_seconds={"sort": 3e-12, "cumlogsumexp": 1e-11},
    call_seconds={**dict.fromkeys(CALLBACKS, 1e-4), "cholesky": 5e-5, "lu": 5e-5, "eigh": 5e-4, "svd": 6e-4},
)  # fmt: skip

# Google TPU v4 data sheet (one chip; f32 products run as bf16 at default precision). Prices: estimates, not measured.
_TPU = Machine(
    name="tpu",
    bytes_per_second=1.2e12,
    cache_bytes=16 << 20,
    cache_bytes_per_second=5e12,
    flops_per_second=2.2e14,
    highest_scale=0.17,
    vector_flops_per_second=4e12,
    seconds_per_kernel=1e-6,
    seconds_per_small_kernel=1e-6,
    seconds_per_step_kernel=1e-6,
    seconds_per_loop_step=1e-6,
    gemm_half_rows=128.0,
    gemm_half_depth=64.0,
    lapack_half_size=8000.0,
    seconds_per_matrix=1e-6,
    conv_half_channels=64.0,
    depthwise_scale=0.02,
    gemm_scale={"float64": 0.01, "int8": 2.0},
    element_seconds={"gather": 1e-9, "scatter-add": 2e-9, "scatter": 2e-9, "sort": 2e-11},
    call_seconds={**dict.fromkeys(CALLBACKS, 1e-4), "cholesky": 5e-5, "lu": 1e-4, "eigh": 1e-3, "svd": 1e-3},
)

# What else was measured of the processors of a vendor, as /proc/cpuinfo names it. Intel: Xeon, Cascade Lake, two
# hyperthreads, jaxlib 0.10.2, 2026-11: 16 to 64 rows of 64 to 512 terms with 512 to 4096 rows, turned 0.75 to 0.96 of
# the time; 28, 31, 50, 56, 60 rows 1.1 to 1.6 below 1,000 terms. Float64: Xeon with AVX-512 (model 207), two cores.
_PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "GenuineIntel": {"terms_per_row": 4.0, "even_rows": 16, "turns_float64": True}
}

_MACHINES = {"cpu": _CPU, "gpu": _GPU, "tpu": _TPU}


@lru_cache(maxsize=8)
def machine(platform: str) -> Machine:
    """The table of a platform as `jax.default_backend()` names it, with what `aerogel calibrate` measured here.

    Read once in a process.
    """
    known = uncalibrated(platform)
    return replace(known, **stored_rates(platform, known))


def uncalibrated(platform: str) -> Machine:
    """The table of a platform, with what was measured of processors of this machine's vendor."""
    return replace(table(platform), **(of_processor(Path("/proc/cpuinfo")) if platform == "cpu" else {}))


def of_processor(described: Path) -> Mapping[str, Any]:
    """What is known of this machine's processor and its vendor; nothing where no file says who that is."""
    try:
        lines = described.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = said.get("flags", "").split()
    can = {"multiplies_bfloat16": "avx512_bf16" in flags, "masks_vectors": "avx512f" in flags}
    return {**_PROCESSORS.get(said.get("vendor_id", ""), {}), **{name: True for name, yes in can.items() if yes}}


def table(platform: str) -> Machine:
    """The table of a platform; one that is not known (a plug-in's) is a GPU."""
    return _MACHINES[platform] if platform in _MACHINES else replace(_GPU, name=platform)
