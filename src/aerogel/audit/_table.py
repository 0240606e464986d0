"""A table as data, and its layout: lines of styled text that fit a width. Who prints them needs to know no more."""

import textwrap
from dataclasses import dataclass

SEPARATOR = "  "
INDENT = "  "
NARROWEST_CELL = 10
WIDEST = 72  # numbers that stand far from the name of their row are hard to read


@dataclass(frozen=True)
class Line:
    """A piece of text with a style: "", "bold", "green", "dim" or "red"."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A heading. The first column takes the width that the others leave; its entries are words."""

    heading: str
    is_number: bool = True


@dataclass(frozen=True)
class Row:
    """A cell for each column, and lines below them that take the whole width."""

    cells: tuple[Line, ...]
    below: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Table:
    """A title, columns, and rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def layout(table: Table, total: int, rule: str = "-") -> list[list[Line]]:
    """The table as lines of at most `total` columns; each line is pieces that stand side by side."""
    size = widths(table, total)
    border = [Line(rule * min(total, sum(size) + len(SEPARATOR) * (len(size) - 1)))]
    heads = row_lines(tuple(Line(column.heading) for column in table.columns), table.columns, size)
    lines = [[Line(part, "bold")] for part in textwrap.wrap(table.title, total)]
    lines += [*heads, border]
    for index, row in enumerate(table.rows):
        if index and (row.below or table.rows[index - 1].below):
            lines.append([])
        lines += row_lines(row.cells, table.columns, size)
        lines += [[part] for line in row.below for part in hang(line, total)]
    return lines


def plain(lines: list[list[Line]]) -> str:
    """The lines as text, without styles and without spaces at their ends."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def widths(table: Table, total: int) -> list[int]:
    """The columns' widths, so that the whole is at most `total` wide; below that the first column gives way."""
    entries = [heads.heading for heads in table.columns]
    size = [
        max(len(entry), *(len(row.cells[index].text) for row in table.rows), 0) for index, entry in enumerate(entries)
    ]
    others = sum(size[1:]) + len(SEPARATOR) * (len(size) - 1)
    below = max((len(INDENT + line.text) for row in table.rows for line in row.below), default=0)
    # Numbers stand at the right border of what is below them, if that is not too far.
    size[0] = max(min(max(size[0], min(below, WIDEST) - others), total - others), NARROWEST_CELL)
    return size


def row_lines(cells: tuple[Line, ...], columns: tuple[Column, ...], size: list[int]) -> list[list[Line]]:
    """One row; the first cell is broken where it is too long, the others fit."""
    first = textwrap.wrap(cells[0].text, size[0], subsequent_indent=INDENT, break_on_hyphens=False) or [""]
    pieces = [Line(first[0].ljust(size[0]), cells[0].style)]
    for cell, column, width in zip(cells[1:], columns[1:], size[1:], strict=True):
        text = cell.text.rjust(width) if column.is_number else cell.text.ljust(width)
        pieces += [Line(SEPARATOR), Line(text, cell.style)]
    return [pieces, *([Line(part, cells[0].style)] for part in first[1:])]


def hang(line: Line, total: int) -> list[Line]:
    """A line below a row, indented, and further where it goes on; a word that is too long is broken."""
    parts = textwrap.wrap(line.text, total, initial_indent=INDENT, subsequent_indent=INDENT * 3, break_on_hyphens=False)
    return [Line(part, line.style) for part in parts]
