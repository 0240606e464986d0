"""The passes that run by default, in order."""

from .passes.loop_fusion import LoopFusion
from .pipeline import Pass

DEFAULT_PASSES: tuple[Pass, ...] = (LoopFusion(),)
