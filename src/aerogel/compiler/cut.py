"""A minimum cut: which part of a graph to take so that what crosses its border costs least."""

import sys
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

# Flows are integers, of 32 bits in SciPy. Costs are scaled to 2**22, so that the total of many edges stays below
# `FORBIDDEN`, which stays below 2**31.
SCALE = 2**22
FORBIDDEN = 2**30
# So many edges the search in Python looks at (0.05 us each) before SciPy takes over: what SciPy takes to set up, or,
# where nothing has imported it yet, to be imported (0.2 s on an idle machine). Most graphs have ten nodes and take less
# than 1,000; the largest of 60 programs, 269 nodes, took 200,000.
LOOKS, LOOKS_FOR_IMPORT = 16_000, 2_000_000
SOURCE, SINK = "source", "sink"


@dataclass
class Graph:
    """Nodes by name, `SOURCE` and `SINK` among them; edges with costs, `inf` for one that must not be cut."""

    edges: dict[tuple[Hashable, Hashable], float] = field(default_factory=dict)

    def edge(self, a: Hashable, b: Hashable, cost: float) -> None:
        """Cutting between `a` (taken) and `b` (left) costs `cost` more."""
        if cost > 0:
            self.edges[a, b] = self.edges.get((a, b), 0.0) + cost

    def implies(self, a: Hashable, b: Hashable) -> None:
        """If `a` is taken, `b` is."""
        self.edge(a, b, np.inf)

    def cost(self, taken: set[Hashable]) -> float:
        """The cost of taking just these nodes."""
        side = taken | {SOURCE}
        return sum(cost for (a, b), cost in self.edges.items() if a in side and b not in side)

    def taken(self) -> set[Hashable]:
        """The nodes on the source's side of a minimum cut; the smallest such set."""
        names: dict[Hashable, int] = {SOURCE: 0, SINK: 1}
        for pair in self.edges:
            for name in pair:
                names.setdefault(name, len(names))
        finite = [c for c in self.edges.values() if np.isfinite(c)]
        unit = SCALE / max(max(finite, default=1.0), 1e-30)
        room = {
            (names[a], names[b]): max(1, round(cost * unit)) if np.isfinite(cost) else FORBIDDEN
            for (a, b), cost in self.edges.items()
        }
        looks = LOOKS if "scipy.sparse.csgraph" in sys.modules else LOOKS_FOR_IMPORT
        reached = _reached(room, len(names), looks)
        if reached is None:
            reached = _reached_by_scipy(room, len(names))
        return {name for name, i in names.items() if i in reached} - {SOURCE}


# How much can flow from one node to another; by index, source and sink are 0 and 1.
Room = dict[tuple[int, int], int]


def _reached_by_scipy(room: Room, nodes: int) -> set[int]:
    """The nodes that the source still reaches when as much flows from it to the sink as can."""
    # Here and not above: SciPy's graphs take 0.2 s to import, a quarter of what Aerogel takes, and hardly any script
    # has a graph that wants it.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    places = np.array(list(room), np.int32).reshape(-1, 2)
    matrix = csr_array((np.array(list(room.values()), np.int32), tuple(places.T)), shape=(nodes, nodes))
    residual = csr_array(matrix - maximum_flow(matrix, 0, 1).flow)
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, 0, return_predecessors=False).tolist())


def _reached(room: Room, nodes: int, looks: int) -> set[int] | None:
    """The same, by shortest paths that are not full (Edmonds and Karp); None after looking at so many edges."""
    free: list[dict[int, int]] = [{} for _ in range(nodes)]
    for (a, b), amount in room.items():
        free[a][b] = amount
        free[b].setdefault(a, 0)
    while True:
        before: dict[int, int] = {0: 0}
        queue = [0]
        for a in queue:
            looks -= len(free[a])
            for b, amount in free[a].items():
                if amount and b not in before:
                    before[b] = a
                    queue.append(b)
        if 1 not in before:
            return set(before)
        if looks < 0:
            return None
        path, node = [], 1
        while node:
            path.append((before[node], node))
            node = before[node]
        amount = min(free[a][b] for a, b in path)
        for a, b in path:
            free[a][b] -= amount
            free[b][a] += amount


def reachable(start: Iterable[Hashable], edges: dict[Hashable, list[Hashable]]) -> set[Hashable]:
    """All nodes that can be reached from `start`."""
    seen = set(start)
    stack = list(seen)
    while stack:
        for nxt in edges.get(stack.pop(), []):
            if nxt not in seen:
                seen.add(nxt)
                stack.append(nxt)
    return seen
