"""Mapped axes: for an equation and an axis, is it the same computation once per index, and what is it for a block?"""

from .answer import Axis as Axis
from .answer import Mapped as Mapped
from .answer import No as No
from .answer import Reduced as Reduced
from .blocks import stack_blocks as stack_blocks
from .blocks import take_block as take_block
from .builtin import known_primitives as known_primitives
from .entry import Answer as Answer
from .monoid import Monoid as Monoid
from .table import along as along
from .table import along_output as along_output
