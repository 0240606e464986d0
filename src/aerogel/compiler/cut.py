"""A minimum cut: which part of a graph to take so that what crosses its border costs least."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

# scipy's flow is in 32-bit integers. Costs are scaled to 2**22, so that the total of many edges stays below
# `FORBIDDEN`, which stays below 2**31.
SCALE = 2**22
FORBIDDEN = 2**30
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
        rows, cols, costs = [], [], []
        for (a, b), cost in self.edges.items():
            rows.append(names[a])
            cols.append(names[b])
            costs.append(max(1, round(cost * unit)) if np.isfinite(cost) else FORBIDDEN)
        matrix = csr_array((np.array(costs, np.int32), (rows, cols)), shape=(len(names), len(names)))
        flow = maximum_flow(matrix, 0, 1).flow
        residual = csr_array(matrix - flow)
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, 0, return_predecessors=False)
        order = list(names)
        return {order[i] for i in reached} - {SOURCE}


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
