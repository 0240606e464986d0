"""Small numbers that are known before a program runs: what is computed from literals and constants alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerogel._jax import Atom, Var

from ..known.counters import Counters
from ..level import Level

LARGEST = 64  # entries


def folded(level: Level, x: Atom, constants: Mapping[Var, Any]) -> np.ndarray | None:
    """The value of an atom; None if it is not known before the program runs, or has more than 64 entries.

    Args:
        level: where it is.
        x: the atom.
        constants: what the program closes over.
    """

    def constant(v: Var) -> np.ndarray | None:
        return np.asarray(constants[v]) if v in constants and v.aval.size <= LARGEST else None

    found = Counters(level, constant).of(x) if x.aval.size <= LARGEST else None
    return None if found is None else np.broadcast_to(found, x.aval.shape)
