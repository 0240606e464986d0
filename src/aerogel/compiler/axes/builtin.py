"""The list of all families of JAX primitives in the table."""

from . import (
    barrier,
    batched,
    branches,
    calls,
    contractions,
    creation,
    custom,
    elementwise,
    indexing,
    loops,
    reductions,
    reshape,
    reverse_rules,
    shaping,
    windows,
)
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
    calls,
    branches,
    loops,
    custom,
    reverse_rules,
):
    install(family.ENTRIES)
