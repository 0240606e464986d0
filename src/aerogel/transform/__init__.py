"""Transformations of functions."""

from .explain import explain as explain
from .explain import verify as verify
from .optimize import optimize as optimize
from .stateful import assign as assign
from .stateful import stateful as stateful
from .summary import Row as Row
from .summary import Summary as Summary
from .summary import summary as summary
