"""The rows of the table, in its order."""

from __future__ import annotations

from . import _flux, _loops, _mooncake

ROWS = (*_mooncake.ROWS, *_flux.ROWS, *_loops.ROWS, _flux.LARGE)
