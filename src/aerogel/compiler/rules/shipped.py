"""The rules that run unless a user gives others. Each comes with a measurement that it pays: docs/reference."""

from .bfloat16_products import bfloat16_product
from .convolution_rows import convolution_by_rows
from .cumulative import (
    cumlogsumexp_by_rows,
    cumlogsumexp_in_a_loop,
    cummax_by_rows,
    cummin_by_rows,
    cumprod_by_rows,
    cumsum_by_rows,
)
from .diagonal_sums import diagonal_sum
from .elementary import rules as elementary
from .extrema import argmax_by_blocks, argmin_by_blocks
from .few_terms import few_term_convolution
from .folds import window_max, window_min, window_sum
from .kernel_gradient import depthwise_kernel_gradient
from .long_convolution import long_convolution
from .lookups import searched_at_once, searched_evenly, searched_short
from .pooling import max_pool_gradient
from .powers import root_power
from .reductions import last_of_cummax, last_of_cummin, last_of_cumsum
from .ruleset import RuleSet
from .selection import (
    first_of_argsorted,
    first_of_argsorted_down,
    first_of_sorted,
    last_of_argsorted,
    last_of_sorted,
    one_of_sorted,
    top_one,
)
from .small_determinants import (
    small_cholesky_diagonal,
    small_cholesky_log_det,
    small_det,
    small_log_det,
    small_slogdet,
)
from .small_products import small_product
from .small_solves import small_cholesky, small_lu, small_solve, small_triangular_solve
from .softmax_gradient import softmax_gradient
from .sorting import sort_places
from .term_orders import terms_as_stored
from .turned_products import turned_product
from .unit_sums import unit_axis_sum

default = RuleSet(
    (
        # orders: catalogue-order.md
        last_of_cumsum,
        last_of_cummax,
        last_of_cummin,
        first_of_sorted,
        last_of_sorted,
        one_of_sorted,
        first_of_argsorted,
        first_of_argsorted_down,
        last_of_argsorted,
        top_one,
        sort_places,
        argmax_by_blocks,
        argmin_by_blocks,
        searched_short,
        searched_evenly,
        searched_at_once,
        cumlogsumexp_in_a_loop,
        cumlogsumexp_by_rows,
        cumsum_by_rows,
        cumprod_by_rows,
        cummax_by_rows,
        cummin_by_rows,
        # small matrices: catalogue-linear-algebra.md
        small_solve,
        small_triangular_solve,
        small_cholesky_log_det,
        small_cholesky_diagonal,
        small_cholesky,
        small_lu,
        small_product,
        bfloat16_product,
        terms_as_stored,
        turned_product,
        small_slogdet,
        small_log_det,
        small_det,
        # elementary functions, convolutions and pooling: catalogue-elementary.md
        root_power,
        *elementary,
        softmax_gradient,
        max_pool_gradient,
        window_sum,
        window_max,
        window_min,
        convolution_by_rows,
        long_convolution,
        few_term_convolution,
        depthwise_kernel_gradient,
        # sums: docs/reference/catalogue-linear-algebra.md
        unit_axis_sum,
        diagonal_sum,
    )
)
