"""Mapped axes: for an equation and an axis, is it the same computation once per index, and what is it for a block?"""

from .answer import Axis as Axis
from .answer import Mapped as Mapped
from .answer import No as No
from .answer import Onto as Onto
from .answer import Reduced as Reduced
from .blocks import append_block as append_block
from .blocks import stack_blocks as stack_blocks
from .blocks import take_block as take_block
from .builtin import known_primitives as known_primitives
from .declare import declare as declare
from .entry import Answer as Answer
from .linear import linear_in as linear_in
from .linear import linear_together as linear_together
from .linear_programs import is_linear as is_linear
from .monoid import MONOIDS as MONOIDS
from .monoid import Monoid as Monoid
from .nested import jaxpr_along as jaxpr_along
from .table import along as along
from .table import along_output as along_output
from .table import has_entry as has_entry
