import io
import json
from collections.abc import Sequence

import pytest

from sidetier.cli.output import Cell, Columns, OutputFormat, Table, cell_text, emit, table_of


class Found:
    def as_json(self) -> object:
        return {"partitions": [{"topic": "é", "lag": 12}]}

    def as_tables(self) -> Sequence[Table]:
        rows: list[tuple[Cell, ...]] = [("é [red]x[/]", 12, None), ("a" * 300, 1234.5, "z")]
        return (Table(("TOPIC", "LAG", "WHY"), rows, footer="2 partitions"),)


def test_json_output_is_complete_and_ends_with_a_newline() -> None:
    stream = io.StringIO()
    emit(Found(), OutputFormat.JSON, stream)
    assert json.loads(stream.getvalue()) == {"partitions": [{"topic": "é", "lag": 12}]}
    assert stream.getvalue().endswith("}\n")
    assert "é" in stream.getvalue()


def test_piped_table_is_neither_cut_nor_coloured_nor_parsed_as_markup() -> None:
    stream = io.StringIO()
    emit(Found(), OutputFormat.TABLE, stream)
    head, first, second, footer = stream.getvalue().splitlines()
    assert head.split() == ["TOPIC", "LAG", "WHY"]
    assert first.split() == ["é", "[red]x[/]", "12", "-"]
    assert second.split() == ["a" * 300, "1,234.5", "z"]
    assert footer == "2 partitions"
    assert not any(line.endswith(" ") for line in (head, first, second, footer))
    assert "\x1b" not in stream.getvalue()


def test_control_characters_do_not_reach_the_terminal() -> None:
    class Hostile(Found):
        def as_tables(self) -> Sequence[Table]:
            row = ("a\x1b[2Jb\x9b\ud800é",)
            return (Table(("TOPIC",), [row], title="t[b]\x1b", footer="c\x1b]0;d\x07\ne"),)

        def as_json(self) -> object:
            return {"topic": "a\x1b[2Jb\x9b\ud800é"}

    stream = io.StringIO()
    emit(Hostile(), OutputFormat.TABLE, stream)
    assert stream.getvalue().splitlines() == ["t[b]?", "TOPIC", "a?[2Jb??é", "c?]0;d?", "e"]
    stream = io.StringIO()
    emit(Hostile(), OutputFormat.JSON, stream)
    assert not {"\x1b", "\x9b", "\ud800"} & set(stream.getvalue())
    assert json.loads(stream.getvalue()) == {"topic": "a\x1b[2Jb\x9b\ud800é"}


def test_numbers_are_right_aligned() -> None:
    class Numbers(Found):
        def as_tables(self) -> Sequence[Table]:
            return (Table(("N",), [(5,), (1000,)]),)

    stream = io.StringIO()
    emit(Numbers(), OutputFormat.TABLE, stream)
    assert stream.getvalue().splitlines() == ["   N", "   5", "1000"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1.0, "1"),
        (0.12345, "0.123"),
        (1e6, "1,000,000"),
        ("x", "x"),
        ("", ""),
    ],
)
def test_cells_are_formatted_by_type(cell: Cell, text: str) -> None:
    assert cell_text(cell) == text


def test_table_shows_an_optional_column_only_with_a_value_and_its_names_only_with_rows() -> None:
    columns: Columns[str] = {
        "TEXT": lambda text: text,
        "SIZE": len,
        "DIGITS": lambda text: sum(map(str.isdigit, text)),
    }
    hidden = table_of(["a", "bc"], columns, "two", optional=("DIGITS",))
    assert hidden == Table(("TEXT", "SIZE"), [("a", 1), ("bc", 2)], footer="two")
    shown = table_of(["a", "b1"], columns, optional=("DIGITS",))
    assert shown == Table(("TEXT", "SIZE", "DIGITS"), [("a", 1, 0), ("b1", 2, 1)])
    assert table_of([], columns, "none") == Table((), [], footer="none")
