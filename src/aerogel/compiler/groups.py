"""Equations that are rewritten together."""

from collections.abc import Iterable
from dataclasses import dataclass

from aerogel._jax import JaxprEqn, Var

from .level import Edit


@dataclass(frozen=True)
class Group:
    """An edit, the equations that go with it, and those of their results that others read."""

    edit: Edit
    eqns: tuple[JaxprEqn, ...]
    results: tuple[Var, ...]


def joined(links: Iterable[tuple[int, int]]) -> list[frozenset[int]]:
    """What hangs together, of pairs that do; in the order of the smallest."""
    leader: dict[int, int] = {}

    def find(k: int) -> int:
        while leader.setdefault(k, k) != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    for a, b in links:
        a, b = find(a), find(b)
        leader[max(a, b)] = min(a, b)
    found: dict[int, set[int]] = {}
    for k in leader:
        found.setdefault(find(k), set()).add(k)
    return [frozenset(found[k]) for k in sorted(found)]
