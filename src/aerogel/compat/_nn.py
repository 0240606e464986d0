"""`eqx.nn`, which has no layers yet: Equinox's own work with everything here."""

from typing import NoReturn

from ._errors import MissingNameError
from ._tree import tree_inference as inference_mode

__all__ = ["inference_mode"]


def __getattr__(name: str) -> NoReturn:
    raise MissingNameError(
        missing=name,
        namespace="aerogel.compat.equinox.nn",
        to_fix="`from equinox import nn`: Equinox's own layers may stand in Aerogel's modules and transformations",
    )
