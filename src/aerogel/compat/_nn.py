"""`eqx.nn`, which has no layers yet: Equinox's own work with everything here."""

from typing import NoReturn

from ._tree import tree_inference as inference_mode

__all__ = ["inference_mode"]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"aerogel.compat.equinox.nn has no {name!r} yet. To fix: `from equinox import nn`; Equinox's own layers may "
        "stand in Aerogel's modules, and Aerogel's transformations take them."
    )
