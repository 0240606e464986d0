"""Transformations of functions."""

from ._errors import CarryError as CarryError
from ._errors import GradientError as GradientError
from ._errors import TooManyTraces as TooManyTraces
from .explain import explain as explain
from .explain import verify as verify
from .jit import Jitted as Jitted
from .jit import jit as jit
from .optimize import optimize as optimize
from .recompiles import assert_max_traces as assert_max_traces
