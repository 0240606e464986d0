"""Facts about the operands at a site."""

from collections.abc import Sequence

import numpy as np

from ..._errors import UsageError
from ..._jax import Atom, Literal
from ..known.assume import ENTRYWISE, OF_MATRICES, OF_ROWS, closed
from ..known.words import words_of
from .constants import facts_of
from .graph import Graph

WORDS = frozenset((*ENTRYWISE, *OF_ROWS, *OF_MATRICES, "broadcast", "constant", "kronecker", "one_hot"))


class Facts(frozenset[str]):
    """What is known of a value. To ask for a word that is none of a fact is an error, not a no."""

    def __contains__(self, word: object) -> bool:
        if word not in WORDS:
            raise UsageError(argument="facts", got=word, wanted=sorted(WORDS))
        return super().__contains__(word)


def facts_at(graph: Graph, x: Atom, dims: Sequence[int] | None = None) -> Facts:
    """What is known of a value of a level; with `dims`, of each example, which has these dimensions of it."""
    shape = tuple(x.aval.shape)
    mine = tuple(range(len(shape)) if dims is None else dims)
    found = words_of(graph.known(x), mine, shape)
    value = np.asarray(x.val, x.aval.dtype) if isinstance(x, Literal) else graph.value(x)
    if value is not None:
        batch = tuple(d for d in range(len(shape)) if d not in mine)
        found |= facts_of(value, (*batch, *mine) if batch else None)
        found -= {"constant"} if batch else frozenset()
    return Facts(closed(found))
