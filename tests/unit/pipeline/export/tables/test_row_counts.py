"""Rows of tables: each record is a row, a dead letter or left out, in each task and commit."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.errors import RecordCountError
from sidetier.pipeline.export.sinks.tables import columns as columns_module
from sidetier.pipeline.export.sinks.tables.columns import ValueColumns
from sidetier.pipeline.export.sinks.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.sinks.tables.frames import decoded_rows
from sidetier.pipeline.export.sinks.tables.row_counts import RowCounts, Tally, require_rows
from sidetier.pipeline.export.values.options import ValueFormat
from tests.unit.pipeline.export.tables.test_values import ORDER, Told, batch, columns

if TYPE_CHECKING:
    from pyspark import Accumulator

    from sidetier.pipeline.planning.split import Split

VALUES = (b'{"id": 1}', None, b"[", b'{"id": 2}')


def counts() -> RowCounts:
    return RowCounts(cast("Accumulator[Any]", Told()))


def work(how: ValueColumns, made: RowCounts) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """Return a function that reads a split by its number; each split holds the same records."""
    counter = made.of_new_frame()

    def rows(number: int) -> Iterator[pa.RecordBatch]:
        split = (number, cast("Split", None))
        return decoded_rows(lambda _split: iter([batch(*VALUES)]), how, counter, split)

    return rows


@pytest.fixture
def how(tmp_path: Path) -> ValueColumns:
    letters = DeadLetters(
        StorageConfig(url=f"file://{tmp_path}/letters"),
        cast("Accumulator[dict[str, None]]", Told()),
    )
    made = columns(ValueFormat.JSON, ORDER, flat=True)
    return replace(made, letters=letters, null_values="skip")


def test_rows_of_a_frame_are_counted_once_for_each_part(how: ValueColumns) -> None:
    made = counts()
    rows = work(how, made)
    for _ in range(2):  # another attempt, or another job
        assert sum(each.num_rows for number in range(3) for each in rows(number)) == 6
    assert made.rows() == 6
    unfinished = rows(3)
    next(unfinished)
    assert made.rows() == 6
    work(how, made)
    assert made.rows() == 0, "a new frame"
    list(unfinished)
    assert made.rows() == 0, "a late task of the frame before"


def test_task_counts_each_record(how: ValueColumns) -> None:
    tally = Tally()
    list(how([batch(*VALUES), batch(None), batch(b"{")], tally))
    assert tally == Tally(read=6, left_out=2, dead=2, rows=2)


Patch = pytest.MonkeyPatch


def _row_lost(patch: Patch) -> None:
    replaced = columns_module._replaced

    def spoiled(*given: Any, **named: Any) -> pa.RecordBatch:  # noqa: ANN401 -- passed on
        return replaced(*given, **named).slice(1)

    patch.setattr(columns_module, "_replaced", spoiled)


def _letter_lost(patch: Patch) -> None:
    def without(*_given: object) -> pa.Array:
        return pa.array([0], pa.int64())

    patch.setattr(ValueColumns, "_fitting", without)


@pytest.mark.parametrize("spoil", [_row_lost, _letter_lost])
def test_task_that_loses_a_row_ends_with_an_error(
    how: ValueColumns, monkeypatch: Patch, spoil: Callable[[Patch], None]
) -> None:
    made = counts()
    rows = work(how, made)
    spoil(monkeypatch)
    with pytest.raises(RecordCountError, match="4 records were read: 1 are rows, 1 dead letters"):
        list(rows(0))
    assert made.rows() == 0


@pytest.mark.parametrize(
    ("given", "written", "merges", "fits"),
    [
        (3, 3, False, True),
        (3, 2, False, False),
        (3, 4, False, False),
        (3, 2, True, True),
        (3, 4, True, False),
        (0, 0, False, True),
    ],
)
def test_commit_has_the_rows_of_its_tasks(
    given: int,
    written: int,
    merges: bool,  # noqa: FBT001
    fits: bool,  # noqa: FBT001
) -> None:
    if fits:
        require_rows("a commit", given, written, merges=merges)
        return
    with pytest.raises(RecordCountError, match=f"returned {given} rows, and the commit has"):
        require_rows("a commit", given, written, merges=merges)
