"""The cheapest order in which a sum of products is taken, by dynamic programming over its labels alone.

Labels are small numbers and sets of them the bits of an integer; a plan depends on nothing else, so that what stands in
a program many times is planned once.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..cost import Machine
from ..cost.seconds import dot_seconds, merged_seconds, transfer_seconds, transposed_seconds
from ..cost.work import is_copied
from ..record import record
from .label_orders import bits, is_swapped, mixed, product_labels
from .network import Labels

# With more factors than these, the cheapest pair is contracted first.
MOST_BY_SUBSETS = 7


@record
class Task:
    """What is to be planned.

    Attributes:
        sizes: of each label.
        out: the labels that are kept.
        factors: the labels of each factor, in the order of its dimensions.
        picked: for each factor the label that it picks along, -1 if it is not one-hot.
        masks: which factors, as bits, are read by their indices or not at all: a tree without them takes for ever.
        order: the labels that are kept, in the order of the result's dimensions.
    """

    sizes: tuple[int, ...]
    out: int
    factors: tuple[Labels, ...]
    picked: tuple[int, ...]
    masks: int
    order: Labels


@record
class Node:
    """A value on the way: a factor (`left` is None), or what two nodes give.

    Attributes:
        mask: which factors it holds, as bits.
        labels: what is left of their labels, as bits, and `order` as its dimensions.
        seconds: of all that makes it; `merging` are those among them that the cost of equations does not know: of outer
            products that are summed over several of their dimensions.
        how: "leaf", "product" or, of a one-hot factor on the left, "gather" or "scatter".
    """

    mask: int
    labels: int
    order: Labels
    seconds: float
    how: str
    left: "Node | None" = None
    right: "Node | None" = None
    merging: float = 0.0


@lru_cache(maxsize=4096)
def plan(task: Task, dtype: Any, machine: Machine) -> Node | None:
    """The last node of the cheapest tree; None if there is no factor."""
    planner = _Planner(task, dtype, machine)
    leaves = planner.merged([planner.leaf(k) for k in range(len(task.factors))])
    if not leaves:
        return None
    whole = planner.by_subsets(leaves) if len(leaves) <= MOST_BY_SUBSETS else None
    return whole or planner.greedily(leaves)


class _Planner:
    def __init__(self, task: Task, dtype: Any, machine: Machine):
        self.task, self.dtype, self.machine = task, np.dtype(dtype), machine
        self.factors = tuple(map(bits, task.factors))
        self._sizes: dict[int, int] = {}

    def size(self, labels: int) -> int:
        """Places under labels."""
        found = self._sizes.get(labels)
        if found is None:
            found = 1
            for one, n in enumerate(self.task.sizes):
                found *= n if labels >> one & 1 else 1
            self._sizes[labels] = found
        return found

    def _bytes(self, labels: int) -> int:
        return self.size(labels) * self.dtype.itemsize

    def _needed(self, mask: int) -> int:
        """Labels that what is not in `mask`, or the result, still has."""
        needed = self.task.out
        for k, own in enumerate(self.factors):
            needed |= 0 if mask >> k & 1 else own
        return needed

    def leaf(self, k: int) -> Node:
        """A factor, summed over what nobody else has."""
        own = self.factors[k]
        labels = own & self._needed(1 << k)
        order = tuple(one for one in dict.fromkeys(self.task.factors[k]) if labels >> one & 1)
        seconds = 0.0 if labels == own else self._bytes(own) / self.machine.bytes_per_second
        return Node(1 << k, labels, order, seconds, "leaf")

    def merged(self, nodes: list[Node]) -> list[Node]:
        """The nodes with those of equal labels multiplied entry by entry: no order does that for less."""
        found: list[Node] = []
        for node in nodes:
            for j, other in enumerate(found):
                if other.labels == node.labels and self._picked(node) < 0 and self._picked(other) < 0:
                    found[j] = self._pair(other, node)
                    break
            else:
                found.append(node)
        return found if len(found) == len(nodes) else self.merged(found)

    def by_subsets(self, leaves: list[Node]) -> Node | None:
        """The cheapest tree without outer products on the way; None if there is none."""
        best = {1 << k: node for k, node in enumerate(leaves)}
        full = (1 << len(leaves)) - 1
        for mask in range(1, full + 1):
            part = (mask - 1) & mask
            while part:
                left, right = best.get(part), best.get(mask ^ part)
                if left and right and (left.labels & right.labels or mask == full):
                    known = best.get(mask)
                    if known is None or left.seconds + right.seconds < known.seconds:
                        node = self._pair(left, right)
                        if known is None or node.seconds < known.seconds:
                            best[mask] = node
                part = (part - 1) & mask
        return best.get(full)

    def greedily(self, nodes: list[Node]) -> Node:
        """A tree in which each step is the cheapest one left."""
        known: dict[tuple[int, int], Node] = {}  # of pairs that a step before looked at, too
        while len(nodes) > 1:
            pairs = [(a, b) for a in nodes for b in nodes if a is not b and a.labels & b.labels]
            pairs = pairs or [(nodes[0], nodes[1]), (nodes[1], nodes[0])]
            for a, b in pairs:
                if (a.mask, b.mask) not in known:
                    known[a.mask, b.mask] = self._pair(a, b)
            made = min((known[a.mask, b.mask] for a, b in pairs), key=_added)
            nodes = [node for node in nodes if not node.mask & made.mask] + [made]
        return nodes[0]

    def _pair(self, left: Node, right: Node) -> Node:
        mask = left.mask | right.mask
        labels = (left.labels | right.labels) & self._needed(mask)
        seconds, how = self._product_seconds(left, right, labels), "product"
        if self._is_mask(left):
            seconds = math.inf
        picked = self._picked(left)
        if picked >= 0:
            other = self._picked_seconds(1 << picked, left, right, labels)
            if other is not None and other[0] < seconds:
                seconds, how = other
        if how == "product" and mask == (1 << len(self.factors)) - 1:
            seconds += self._turning_seconds(left, right, labels)
        merging = self._merging_seconds(left, right, labels) if how == "product" else 0.0
        if self._is_mask(right):
            seconds = math.inf
        order = product_labels(left.order, right.order, labels)
        total = left.seconds + right.seconds + seconds + merging
        return Node(mask, labels, order, total, how, left, right, left.merging + right.merging + merging)

    def _picked(self, node: Node) -> int:
        """The label that a node picks along, with all of its own; -1 if it does not."""
        if node.how != "leaf":
            return -1
        k = node.mask.bit_length() - 1
        return self.task.picked[k] if node.labels == self.factors[k] else -1

    def _is_mask(self, node: Node) -> bool:
        return node.how == "leaf" and bool(node.mask & self.task.masks)

    def _picked_seconds(self, label: int, hot: Node, dense: Node, labels: int) -> tuple[float, str] | None:
        rest = hot.labels & ~label
        price, speed = self.machine.element_seconds, self.machine.bytes_per_second
        if label & dense.labels and not label & labels:
            size, rows = self.size((dense.labels | rest) & ~label), self.size(rest)
            dear = rows + (size - rows) * self.machine.row_scale
            moved = min(self._bytes(dense.labels), size * self.dtype.itemsize) + size * self.dtype.itemsize
            # Measured for 1 to 256 numbers a row: rows are read while those before them are written.
            return max(dear * price.get("gather", 0.0), moved / speed) + self.machine.seconds_per_kernel, "gather"
        if label & labels & ~dense.labels and not rest & (labels | ~dense.labels):
            moved = self._bytes(dense.labels) + 2 * self._bytes(labels)
            rows, entries = self.size(dense.labels & hot.labels), self.size(dense.labels)
            dear = rows + (entries - rows) * self.machine.row_scale
            # Measured for 2 to 512 numbers a row (two cores): rows are read while those before them are added.
            return max(dear * price.get("scatter-add", 0.0), moved / speed) + self.machine.seconds_per_kernel, "scatter"
        return None

    def _product_seconds(self, left: Node, right: Node, labels: int) -> float:
        shared = left.labels & right.labels
        batch, contracted = shared & labels, shared & ~labels
        one, other = left.labels & ~shared, right.labels & ~shared
        sizes = [self._bytes(own) for own in (left.labels, right.labels, labels)]
        memory = sum(transfer_seconds(size, size, self.machine) for size in sizes)
        arithmetic = self.size(left.labels | right.labels) / self.machine.vector_flops_per_second
        if contracted and (one or other):
            of = self.size
            if is_swapped(left.order, right.order, contracted, self.task.sizes):
                (left, one), (right, other) = (right, other), (left, one)
            arithmetic = dot_seconds(of(batch), of(one), of(other), of(contracted), self.dtype, self.machine)
            arithmetic += self._copy_seconds(left, batch, contracted, True)
            arithmetic += self._copy_seconds(right, batch, contracted, False)
        return max(memory, arithmetic) + self.machine.seconds_per_kernel

    def _merging_seconds(self, left: Node, right: Node, labels: int) -> float:
        """Of what XLA takes more where it makes one dimension of several, and of copies then.

        So it does with those that are summed over, last on the left and first on the right (an operand that has them
        in another place is copied), and with those of one operand that are kept. An operand that is multiplied for it
        is then written with divisions for each entry, and so is a vector's product with such a matrix.
        """
        shared = left.labels & right.labels
        contracted = shared & ~labels
        if not contracted or left.labels == right.labels:
            return 0.0
        seconds = 0.0
        for node, other in ((left, right), (right, left)):
            kept = node.labels & ~shared
            summed = contracted.bit_count() > 1 and _is_outer(node, contracted)
            if summed or (kept.bit_count() > 1 and _is_scaled(node, kept)):
                seconds += merged_seconds(self.size(node.labels), self.machine)
            if kept.bit_count() > 1 and not other.labels & ~shared:
                seconds += merged_seconds(self.size(labels), self.machine)
            if summed and other.how == "leaf" and other.order and not contracted >> other.order[0] & 1:
                seconds += transposed_seconds(self.size(other.labels), self.dtype.itemsize, self.machine)
        return seconds

    def _turning_seconds(self, left: Node, right: Node, labels: int) -> float:
        """Of the transpose of the result, if no product has its free dimensions in the order that is wanted."""
        shared = left.labels & right.labels
        if not shared & ~labels or not labels & ~shared:  # it is no product of matrices, and made in any order
            return 0.0
        order = [k for k in self.task.order if self.task.sizes[k] > 1 and not shared >> k & 1]
        sides = ["left" if left.labels >> k & 1 else "right" for k in order]
        is_turned = mixed(sides)
        for node, side in ((left, "left"), (right, "right")):
            own = [k for k, at in zip(order, sides, strict=True) if at == side]
            is_turned |= node.how == "leaf" and own != [k for k in node.order if k in own]
        return transposed_seconds(self.size(labels), self.dtype.itemsize, self.machine) if is_turned else 0.0

    def _copy_seconds(self, node: Node, batch: int, contracted: int, is_left: bool) -> float:
        """Of the copy that XLA makes of an operand whose dimensions do not come in an order that it reads."""
        sizes = [self.task.sizes[one] for one in node.order]
        roles = [(bool(batch >> one & 1), bool(contracted >> one & 1)) for one in node.order]
        if not is_copied(sizes, roles, is_left):
            return 0.0
        return transposed_seconds(self.size(node.labels), self.dtype.itemsize, self.machine)


def _is_outer(node: Node, contracted: int) -> bool:
    """Whether a node multiplies, without a sum, two that each lack some of these labels."""
    return all(contracted & ~part for part in _multiplied(node))


def _is_scaled(node: Node, kept: int) -> bool:
    """Whether a node multiplies, without a sum, what has these labels with what has some of them."""
    shared = [part & kept for part in _multiplied(node)]
    return kept in shared and any(part not in (0, kept) for part in shared)


def _multiplied(node: Node) -> list[int]:
    """The labels of the factors that a node multiplies without a sum."""
    if node.left is None or node.right is None or node.how != "product":
        return [node.labels]
    one, other = node.left.labels, node.right.labels
    return [one, other] if node.labels == one | other else [node.labels]


def _added(node: Node) -> tuple[float, int]:
    return node.seconds - sum(part.seconds for part in (node.left, node.right) if part), node.mask
