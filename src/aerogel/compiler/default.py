"""The passes that run by default, in order."""

from .passes.contraction import ContractionOrder
from .passes.inverse_products import InverseProducts
from .passes.loop_fusion import LoopFusion
from .passes.loop_hoist import LoopHoist
from .passes.loop_once import LoopOnce
from .passes.loop_parts import LoopParts
from .passes.loop_pieces import LoopPieces
from .passes.loop_slots import LoopSlots
from .passes.loop_split import LoopSplit
from .passes.orientation import Orientation
from .passes.reroll import Reroll
from .passes.residual_choice import ResidualChoice
from .passes.small_axes import SmallAxes
from .passes.streaming import Streaming
from .pipeline import Pass

DEFAULT_PASSES: tuple[Pass, ...] = (
    Reroll(),
    InverseProducts(),
    ContractionOrder(),
    LoopSlots(),
    LoopHoist(),
    LoopSplit(),
    LoopParts(),
    LoopFusion(),
    ResidualChoice(),
    Streaming(),
    Orientation(),
    SmallAxes(),
    LoopOnce(),
    LoopPieces(),
)
