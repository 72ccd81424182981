"""Output of results in two forms: a table for people, JSON for scripts."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TextIO, TypeVar

import click

from sidetier.cli import exits

_UNPRINTABLE: Final = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)} - {*b"\t\n"}, "?"
)
"""Control characters, which could change what a terminal shows, and surrogates, which no stream can
encode. Texts come from elsewhere: names in a store, answers of a sidecar.
"""
_JSON_ESCAPES: Final = {
    code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))
}
"""The same for JSON, whose other control characters are escaped anyway."""
_WIDE: Final = 4096
"""Width without a terminal, in columns, so that lines for other programs are not cut."""


def printable(text: str) -> str:
    """Return a text without what could change what a terminal shows."""
    return text.translate(_UNPRINTABLE)


def say(text: str) -> None:
    """Print a message to standard error."""
    click.echo(f"sidetier: {printable(text)}", err=True)


class OutputFormat(StrEnum):
    """Form in which a result is written."""

    TABLE = "table"
    JSON = "json"


Cell = str | int | float | None
Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], Cell]]
"""The name of each column, and its cell of a row."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns. Numbers are right-aligned; None is shown as a dash.

    Without columns, only the footer is shown.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]] = field(default=())
    title: str | None = None
    footer: str | None = None
    """A line below the rows, such as totals."""


def table_of(
    rows: Sequence[Row],
    columns: Columns[Row],
    footer: str | None = None,
    *,
    optional: Collection[str] = (),
) -> Table:
    """Return a table; without rows, only its footer is shown.

    A column of `optional` is left out if all its cells are None or 0.
    """
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = [name for name in cells if rows and (name not in optional or any(cells[name]))]
    return Table(tuple(shown), [*zip(*(cells[name] for name in shown), strict=True)], footer=footer)


MAX_ROWS: Final = 40


def first_rows(columns: tuple[str, ...], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return a table of at most `MAX_ROWS` rows, with the number of the others."""
    more = len(rows) - MAX_ROWS
    footer = f"and {more} more: --output json has them all" if more > 0 else None
    return Table(columns, rows[:MAX_ROWS], footer=footer)


class Shown(Protocol):
    """A value that is shown as JSON or as tables."""

    def as_json(self) -> object:
        """Return mappings, lists, strings, numbers, booleans and None, under stable names."""
        ...

    def as_tables(self) -> Sequence[Table]:
        """Return the same for people."""
        ...


class Result(Shown, Protocol):
    """Result of a command. A subclass without an `exit_code` of its own is a success."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return exits.OK


def emit(result: Shown, output: OutputFormat, stream: TextIO | None = None) -> None:
    """Write the result to standard output, or to the stream."""
    target = stream if stream is not None else sys.stdout
    if output is OutputFormat.JSON:
        text = json.dumps(result.as_json(), indent=2, ensure_ascii=False)
        target.write(text.translate(_JSON_ESCAPES) + "\n")
    else:
        for table in result.as_tables():
            _print_table(table, target)
    target.flush()


def _print_table(table: Table, target: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415 -- load rich only for a table
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=target, width=None if target.isatty() else _WIDE, highlight=False)
    title = None if table.title is None else Text(printable(table.title), style="table.title")
    drawn = RichTable(title=title, box=None, pad_edge=False, title_justify="left")
    for i, column in enumerate(table.columns):
        drawn.add_column(column, justify=_justify(table.rows, i), overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell_text(cell))) for cell in row))
    with console.capture() as captured:
        if table.columns:
            console.print(drawn)
        if table.footer is not None:
            console.print(Text(printable(table.footer)))
    target.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _justify(rows: Sequence[Sequence[Cell]], column: int) -> Any:  # noqa: ANN401 -- rich's type is a Literal
    cells = [row[column] for row in rows if row[column] is not None]
    numbers = all(isinstance(cell, int | float) for cell in cells)
    return "right" if cells and numbers else "left"


def range_text(start: int | None, end: int | None) -> str:
    """Return a range of offsets as every command shows it: `[start, end)`, `?` if unknown."""
    first, last = ("?" if offset is None else str(offset) for offset in (start, end))
    return f"[{first}, {last})"


def cell_text(cell: Cell) -> str:
    """Return the text of a cell: a dash for None, at most three decimals for a float."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.3f}".rstrip("0").rstrip(".")
    return str(cell)
