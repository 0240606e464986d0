"""`eqx.nn`, which has no layers yet: Equinox's own work with everything here."""

from typing import NoReturn

from ._missing import refusal
from ._tree import tree_inference as inference_mode

__all__ = ["inference_mode"]


def __getattr__(name: str) -> NoReturn:
    reason = "`from equinox import nn`: Equinox's own layers may stand in Aerogel's modules and transformations"
    raise refusal(name, "aerogel.compat.equinox.nn", __all__, reason)
