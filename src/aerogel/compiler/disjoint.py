"""Disjoint sets: which things have been said to be one."""

from typing import Any


class DisjointSets:
    """A union-find over anything that can be hashed; a thing that was never joined is alone."""

    def __init__(self) -> None:
        self.parent: dict[Any, Any] = {}

    def find(self, x: Any) -> Any:
        """The name of the set that `x` is in."""
        parent = self.parent
        above = parent.setdefault(x, x)
        while above != x:
            parent[x] = parent[above]
            x = parent[x]
            above = parent[x]
        return x

    def join(self, a: Any, b: Any) -> None:
        """Makes the sets of `a` and `b` one, under the name of that of `b`."""
        self.parent[self.find(a)] = self.find(b)
