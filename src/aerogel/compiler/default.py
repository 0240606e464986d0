"""The passes that run by default, in order."""

from .pipeline import Pass

DEFAULT_PASSES: tuple[Pass, ...] = ()
