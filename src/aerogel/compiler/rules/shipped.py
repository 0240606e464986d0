"""The rules that run unless a user gives others. Each comes with a measurement that it pays."""

from .ruleset import RuleSet
from .small_determinants import small_det, small_log_det, small_slogdet
from .small_products import small_product
from .small_solves import small_cholesky, small_lu, small_solve, small_triangular_solve

default = RuleSet(
    (
        small_solve,
        small_triangular_solve,
        small_cholesky,
        small_lu,
        small_product,
        small_slogdet,
        small_log_det,
        small_det,
    )
)
