"""Strong structure that weighs nothing: write JAX programs the natural way, run the expert's form."""

from ._errors import AerogelError as AerogelError
from ._errors import Disagreement as Disagreement
from ._errors import InternalError as InternalError
from ._errors import UsageError as UsageError
from .transform import explain as explain
from .transform import optimize as optimize
from .transform import verify as verify
