"""The list of all families of JAX primitives in the table."""

from . import barrier, batched, contractions, creation, elementwise, indexing, reductions, reshape, shaping, windows
from .table import install
from .table import known_primitives as known_primitives

for family in (
    elementwise,
    shaping,
    reshape,
    creation,
    reductions,
    contractions,
    indexing,
    windows,
    batched,
    barrier,
):
    install(family.ENTRIES)
