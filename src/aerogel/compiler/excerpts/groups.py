"""Equations that are rewritten together."""

from collections.abc import Iterable

from aerogel._jax import JaxprEqn, Var

from ..disjoint import DisjointSets
from ..level import Edit
from ..record import record


@record
class Group:
    """An edit, the equations that go with it, and those of their results that others read."""

    edit: Edit
    eqns: tuple[JaxprEqn, ...]
    results: tuple[Var, ...]


def joined(links: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """What hangs together, of pairs that do; in the order of the smallest."""
    sets = DisjointSets()
    for a, b in links:
        sets.join(a, b)
    found: dict[int, set[int]] = {}
    for k in sorted(sets.parent):
        found.setdefault(sets.find(k), set()).add(k)
    return [frozenset(one) for one in found.values()]
