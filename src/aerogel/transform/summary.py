"""`summary`: what a model is made of, and what its parts do in one call, as data and as a table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax

from aerogel.compiler.cost import nbytes
from aerogel.module._display import show_array
from aerogel.module._frozen import frozen_mask, is_inexact, state_mask
from aerogel.module._kinds import Kind, kind_of
from aerogel.module._paths import Path, show_path
from aerogel.module._places import Skeleton, places_of
from aerogel.module._steps import leaf_paths

from .calls import Called, calls_of

WIDTH = 80


@dataclass(frozen=True)
class Row:
    """One part of a model.

    Attributes:
        path: from the model; "" for the model itself.
        name: its last step; the class for the model itself.
        depth: the number of its steps.
        type: the class, or dtype and shape of an array: "f32[64,4]".
        params: floating-point numbers in it but for values of variables; tied ones count where they stand.
        bytes: of all arrays in it.
        tied_to: the path of the part that this one is, for a tied place.
        frozen: whether all of its parameters are frozen.
        output: the type of its result, if it was called.
        flops: of its calls, if it was called.
    """

    path: str
    name: str
    depth: int
    type: str
    params: int
    bytes: int
    tied_to: str | None = None
    frozen: bool = False
    output: str | None = None
    flops: int | None = None


@dataclass(frozen=True)
class Summary:
    """The parts of a model, outer ones first; the first row is the model itself. Prints as a table."""

    rows: tuple[Row, ...]
    trainable: int

    @property
    def params(self) -> int:
        """The number of parameters of the model."""
        return self.rows[0].params

    @property
    def bytes(self) -> int:
        """The bytes of all of its arrays."""
        return self.rows[0].bytes

    @property
    def flops(self) -> int | None:
        """The flops of one call, if it was called."""
        return self.rows[0].flops

    def table(self, depth: int | None = None, width: int = WIDTH) -> str:
        """The table as text, of parts at most `depth` steps down, in lines of at most `width` characters."""
        rows = [row for row in self.rows if depth is None or row.depth <= depth]
        called = any(row.output is not None for row in self.rows)
        head = ["part", "type", "params", "bytes", "output", "flops"][: 6 if called else 4]
        cells = [head] + [_cells(row)[: len(head)] for row in rows]
        widths = _fitted([max(map(len, column)) for column in zip(*cells, strict=True)], width)
        lines = [_line(each, widths) for each in cells]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], "", self._total()])

    def _total(self) -> str:
        frozen = f", {self.params - self.trainable:,} of them not trained" if self.trainable != self.params else ""
        flops = f", {_short(self.flops, 1000, '')} flops a call" if self.flops is not None else ""
        return f"{self.params:,} parameters{frozen}, {_short(self.bytes, 1024, 'B')}{flops}"

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


def summary(model: Any, *args: Any, **kwargs: Any) -> Summary:
    """The parts of a model: path, type, parameters and bytes; with arguments also results and flops of each part.

    Nothing is computed and nothing allocated: a model of shapes, `ag.summary(jax.eval_shape(Model, key))`, shows
    what a model would be that fits no memory. Arguments are those of a call of the model, arrays or shapes. A tied
    place shows where its data stands, and counts nothing.

    Args:
        model: a module, or any pytree.
        args: the arguments of a call, or none, for no call.
        kwargs: likewise.

    >>> import jax, jax.numpy as jnp, aerogel as ag
    >>> class Linear(ag.Module):
    ...     weight: jax.Array
    ...     def __call__(self, x):
    ...         return x @ self.weight
    >>> class Net(ag.Module):
    ...     inner: Linear
    ...     outer: Linear
    ...     def __call__(self, x):
    ...         return self.outer(jnp.tanh(self.inner(x)))
    >>> net = ag.freeze(Net(Linear(jnp.ones((3, 4))), Linear(jnp.ones((4, 2)))), "inner")
    >>> print(ag.summary(net, jnp.ones((8, 3))))
    part        type              params  bytes  output    flops
    ------------------------------------------------------------
    Net         Net                   20   80 B  f32[8,2]    768
      inner     Linear, frozen        12   48 B  f32[8,4]    192
        weight  f32[3,4], frozen      12   48 B
      outer     Linear                 8   32 B  f32[8,2]    128
        weight  f32[4,2]               8   32 B
    <BLANKLINE>
    20 parameters, 12 of them not trained, 80 B, 768 flops a call
    """
    called = calls_of(model, args, kwargs) if args or kwargs else {}
    rows = tuple(_rows(model, called))
    leaves = zip(jax.tree.leaves(model), frozen_mask(model), strict=True)
    return Summary(rows, sum(math.prod(x.shape) for x, is_frozen in leaves if is_inexact(x) and not is_frozen))


def _rows(model: Any, called: dict[Path, Called]) -> Iterator[Row]:
    skeleton = Skeleton(model)
    own = _own_leaves(model)
    tied: set[Path] = set()
    for place in places_of(model, skeleton):
        path = place.path
        is_structure = place.is_static or (place.is_leaf and id(place.part) not in skeleton.leaves)
        if is_structure or any(path[:n] in tied for n in range(len(path))):
            continue
        shown = _shown_type(place.value)
        row = Row(show_path(path), show_path(path[-1:]) or shown, len(path), shown, 0, 0)
        if path != place.home:
            tied.add(path)
            yield replace(row, tied_to=show_path(place.home))
        else:
            yield _filled(row, own.get(path, []), called.get(path))


class _Leaf(NamedTuple):
    value: Any
    is_frozen: bool
    is_state: bool


def _own_leaves(model: Any) -> dict[Path, list[_Leaf]]:
    """The leaves in each part, without those that stand elsewhere."""
    found: dict[Path, list[_Leaf]] = {}
    leaves = map(_Leaf, jax.tree.leaves(model), frozen_mask(model), state_mask(model))
    for path, leaf in zip(leaf_paths(model), leaves, strict=True):
        for n in range(len(path) + 1):
            found.setdefault(path[:n], []).append(leaf)
    return found


def _filled(row: Row, leaves: list[_Leaf], call: Called | None) -> Row:
    floats = [leaf for leaf in leaves if is_inexact(leaf.value)]
    return replace(
        row,
        params=sum(math.prod(leaf.value.shape) for leaf in floats if not leaf.is_state),
        bytes=sum(nbytes(leaf.value) for leaf in leaves if kind_of(leaf.value) is Kind.ARRAY),
        frozen=bool(floats) and all(leaf.is_frozen for leaf in floats),
        output=None if call is None else _shown_types(call.output),
        flops=None if call is None else call.flops,
    )


def _shown_type(value: Any) -> str:
    if kind_of(value) is Kind.ARRAY:
        return show_array(value)
    ours = (list, tuple, dict) if kind_of(value) is Kind.NODE else ()  # frozen ones: users know them by these names
    return next((base.__name__ for base in ours if isinstance(value, base)), type(value).__name__)


def _shown_types(output: Any) -> str:
    found = jax.tree.leaves(output, is_leaf=lambda part: part is None)
    leaves = ["None" if leaf is None else _shown_type(leaf) for leaf in found]
    return leaves[0] if len(leaves) == 1 else f"({', '.join(leaves)})"


def _cells(row: Row) -> list[str]:
    return [
        "  " * row.depth + row.name,
        f"= {row.tied_to}" if row.tied_to is not None else row.type + ", frozen" * row.frozen,
        "" if row.tied_to is not None else f"{row.params:,}",
        "" if row.tied_to is not None else _short(row.bytes, 1024, "B"),
        row.output or "",
        "" if row.flops is None else _short(row.flops, 1000, ""),
    ]


def _short(number: int, base: int, unit: str) -> str:
    """Three digits and a prefix: "1.23 M", "4.00 KiB"."""
    value, prefixes = float(number), ["", "k", "M", "G", "T", "P", "E"]
    if base == 1024:
        prefixes = ["", *(f"{p}i" for p in "KMGTPE")]
    for prefix in prefixes:
        if value < base or prefix == prefixes[-1]:
            return f"{value:.3g} {prefix}{unit}".rstrip() if prefix else f"{number} {unit}".rstrip()
        value /= base
    raise AssertionError("the last prefix returns")


def _fitted(widths: list[int], width: int) -> list[int]:
    """The widths of the columns, the three that hold text made narrower until a line fits."""
    widths = list(widths)
    columns = [i for i in (0, 1, 4) if i < len(widths)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths[i] for i in columns) > 8:
        widths[max(columns, key=lambda i: widths[i])] -= 1
    return widths


def _line(cells: list[str], widths: list[int]) -> str:
    cut = [text if len(text) <= w else text[: w - 3] + "..." for text, w in zip(cells, widths, strict=True)]
    is_text = (True, True, False, False, True, False)
    return "  ".join(
        text.ljust(w) if left else text.rjust(w) for text, w, left in zip(cut, widths, is_text, strict=False)
    ).rstrip()
