"""A table as data, and two ways to draw it: with rich where it is installed, and without."""

import textwrap
from dataclasses import dataclass
from typing import Any

SEPARATOR = "  "
NARROWEST_CELL = 10


@dataclass(frozen=True)
class Line:
    """One line in a cell, with a style: "", "bold", "green", "dim" or "red". Continued lines are indented."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, and how wide a column may become. One of a table's columns takes what is left."""

    heading: str
    width: int = 0  # 0: as wide as its content
    is_number: bool = False
    takes_rest: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells, each cell some lines."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[Line, ...], ...], ...]


def widths(table: Table, total: int) -> list[int]:
    """The columns' widths, so that the whole is at most `total` wide."""
    natural = []
    for index, column in enumerate(table.columns):
        lines = [len(line.text) for row in table.rows for line in row[index]]
        wanted = max([len(column.heading), *lines])
        natural.append(max(min(wanted, column.width or wanted), len(column.heading)))
    rest = next(i for i, column in enumerate(table.columns) if column.takes_rest)
    others = sum(natural) - natural[rest] + len(SEPARATOR) * (len(natural) - 1)
    natural[rest] = max(min(natural[rest], total - others), NARROWEST_CELL)
    # On a very narrow terminal the first column, which holds words too, gives way.
    excess = max(others + natural[rest] - total, 0)
    natural[0] = max(natural[0] - excess, min(natural[0], NARROWEST_CELL))
    return natural


def wrap(cell: tuple[Line, ...], width: int) -> list[Line]:
    """The cell's lines, broken to fit; a word that is too long is broken too."""
    broken: list[Line] = []
    for line in cell:
        parts = textwrap.wrap(line.text, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        broken += [Line(part, line.style) for part in parts]
    return broken


def draw_plain(table: Table, total: int) -> str:
    """The table in spaces and dashes, without colours and without spaces at line ends."""
    size = widths(table, total)
    rule = "-" * min(total, sum(size) + len(SEPARATOR) * (len(size) - 1))
    heads = tuple((Line(column.heading),) for column in table.columns)
    blocks = [plain_row(heads, table.columns, size), [rule]]
    for row in table.rows:
        blocks.append(plain_row(row, table.columns, size))
        if any(len(wrap(cell, width)) > 1 for cell, width in zip(row, size, strict=True)):
            blocks.append([""])
    lines = [line for block in blocks for line in block]
    while lines[-1] == "":
        lines.pop()
    return "\n".join([*textwrap.wrap(table.title, total), rule, *lines, rule])


def plain_row(row: tuple[tuple[Line, ...], ...], columns: tuple[Column, ...], size: list[int]) -> list[str]:
    """One row's lines of text."""
    cells = [wrap(cell, width) for cell, width in zip(row, size, strict=True)]
    height = max(len(cell) for cell in cells)
    lines = []
    for index in range(height):
        texts = [cell[index].text if index < len(cell) else "" for cell in cells]
        padded = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(texts, size, columns, strict=True)
        ]
        lines.append(SEPARATOR.join(padded).rstrip())
    return lines


def draw_rich(table: Table, total: int) -> Any:
    """The same table, without its title, for a `rich.console.Console` that is `total` wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    size = widths(table, total)
    # One column of padding and the box's divider, a space, are the two columns of `SEPARATOR`.
    drawn = RichTable(box=SIMPLE_HEAD)
    drawn.show_edge, drawn.pad_edge, drawn.padding = False, False, (0, 1, 0, 0)
    for column, width in zip(table.columns, size, strict=True):
        drawn.add_column(column.heading, justify="right" if column.is_number else "left", width=width, no_wrap=True)
    for row in table.rows:
        cells = []
        for cell, width in zip(row, size, strict=True):
            text = Text()
            for index, line in enumerate(wrap(cell, width)):
                text.append(("\n" if index else "") + line.text, style=line.style or None)
            cells.append(text)
        drawn.add_row(*cells, end_section=False)
    return drawn
