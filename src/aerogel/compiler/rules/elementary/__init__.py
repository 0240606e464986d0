"""Functions of one number that XLA's CPU backend asks the C library for, one element at a time."""

from .arctangent import acos as acos
from .arctangent import asin as asin
from .arctangent import atan as atan
from .arctangent import atan2 as atan2
from .double import log as log
from .power import cbrt as cbrt
from .power import power as power
from .rules import rules as rules
from .sine import cos as cos
from .sine import cos_of_many as cos_of_many
from .sine import sin as sin
from .sine import sin_of_many as sin_of_many
from .sine import tan as tan
from .sine import tan_of_many as tan_of_many
