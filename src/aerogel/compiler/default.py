"""The passes that run by default, in order."""

from .passes.basis_products import BasisProducts
from .passes.batch_last import BatchLast
from .passes.block_sums import BlockSums
from .passes.branch_guard import BranchGuard
from .passes.cancelled_extrema import CancelledExtrema
from .passes.contraction import ContractionOrder
from .passes.counted_loops import CountedLoops
from .passes.early_picks import EarlyPicks
from .passes.equal_cases import EqualCases
from .passes.excerpts import Excerpts
from .passes.factor_products import FactorProducts
from .passes.flat_draws import FlatDraws
from .passes.full_sums import FullSums
from .passes.fused_attention import FusedAttention
from .passes.half_spectra import HalfSpectra
from .passes.in_place import InPlace
from .passes.inverse_products import InverseProducts
from .passes.lane_terms import LaneTerms
from .passes.late_values import LateValues
from .passes.late_writes import LateWrites
from .passes.library_sums import LibrarySums
from .passes.loop_branches import LoopBranches
from .passes.loop_commoning import LoopCommoning
from .passes.loop_contraction import LoopContraction
from .passes.loop_ends import LoopEnds
from .passes.loop_fusion import LoopFusion
from .passes.loop_hoist import LoopHoist
from .passes.loop_kernel import LoopKernel
from .passes.loop_linear import LoopLinear
from .passes.loop_once import LoopOnce
from .passes.loop_parts import LoopParts
from .passes.loop_pieces import LoopPieces
from .passes.loop_rows import LoopRows
from .passes.loop_segments import LoopSegments
from .passes.loop_shifts import LoopShifts
from .passes.loop_slots import LoopSlots
from .passes.loop_split import LoopSplit
from .passes.loop_unroll import LoopUnroll
from .passes.loop_windows import LoopWindows
from .passes.loop_words import LoopWords
from .passes.masked_columns import MaskedColumns
from .passes.masks_of_results import MasksOfResults
from .passes.memory_limit import MemoryLimit
from .passes.mirrored_products import MirroredProducts
from .passes.needless_sorts import NeedlessSorts
from .passes.orientation import Orientation
from .passes.own_broadcasts import OwnBroadcasts
from .passes.padded_terms import PaddedTerms
from .passes.prefix_loops import PrefixLoops
from .passes.reroll import Reroll
from .passes.residual_choice import ResidualChoice
from .passes.seams import Seams
from .passes.shared_chains import SharedChains
from .passes.shared_counters import SharedCounters
from .passes.shared_reciprocals import SharedReciprocals
from .passes.short_calls import ShortCalls
from .passes.short_rows import ShortRows
from .passes.small_axes import SmallAxes
from .passes.stored_sums import StoredSums
from .passes.streaming import Streaming
from .passes.sums_of_rows import SumsOfRows
from .passes.turned_constants import TurnedConstants
from .passes.turned_sums import TurnedSums
from .passes.windows import WindowsOfArrays
from .pipeline import Pass

DEFAULT_PASSES: tuple[Pass, ...] = (
    CountedLoops(),
    FusedAttention(),
    PrefixLoops(),
    Reroll(),
    EqualCases(),
    CancelledExtrema(),
    SharedReciprocals(),
    LaneTerms(),
    Excerpts(),
    FullSums(),
    BasisProducts(),
    LoopLinear(before_products=True),
    ContractionOrder(),
    EarlyPicks(),
    InverseProducts(),
    FactorProducts(),
    HalfSpectra(),
    SharedCounters(),
    InPlace(),
    LoopSlots(),
    LoopWindows(),
    LoopBranches(),
    LoopLinear(),
    LoopCommoning(),
    LoopHoist(),
    LoopSplit(),
    LoopParts(),
    LoopFusion(),
    ResidualChoice(),
    LoopContraction(),
    Orientation(),
    MirroredProducts(),
    Streaming(),
    MaskedColumns(),
    LoopSegments(),
    NeedlessSorts(),
    MemoryLimit(),
    BranchGuard(),
    BatchLast(),
    WindowsOfArrays(),
    SmallAxes(),
    LoopShifts(),
    TurnedSums(),
    TurnedConstants(),
    BlockSums(),
    LoopOnce(),
    LoopPieces(),
    LoopRows(),
    LoopEnds(),
    SumsOfRows(),
    Seams(),
    PaddedTerms(),
    SharedChains(),
    ShortRows(),
    FlatDraws(),
    ShortCalls(),
    LoopUnroll(),
    LoopWords(),
    LoopKernel(),
    StoredSums(),
    OwnBroadcasts(),
    LibrarySums(),
    MasksOfResults(),
    LateValues(),
    LateWrites(),
)
