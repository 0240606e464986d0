"""Cost of equations and programs: flops, bytes moved, peak bytes, and an estimated time on a machine."""

from .account import ASSUMED_TRIPS as ASSUMED_TRIPS
from .account import Cost as Cost
from .account import equation_cost as equation_cost
from .account import has_unknown_trips as has_unknown_trips
from .account import unknown_primitives as unknown_primitives
from .machine import Machine as Machine
from .machine import machine as machine
from .program import program_cost as program_cost
from .seconds import dot_seconds as dot_seconds
from .seconds import equation_seconds as equation_seconds
from .seconds import jaxpr_seconds as jaxpr_seconds
from .seconds import step_launches as step_launches
from .sizes import nbytes as nbytes
