"""The rules that run unless a user gives others. Each comes with a measurement that it pays."""

from .convolution import few_term_convolution
from .elementary import rules as elementary
from .kernel_gradient import depthwise_kernel_gradient
from .pooling import max_pool_gradient
from .ruleset import RuleSet

default = RuleSet((*elementary, max_pool_gradient, few_term_convolution, depthwise_kernel_gradient))
