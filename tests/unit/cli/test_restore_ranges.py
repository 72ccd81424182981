"""Offset and time ranges of a restore are exact to the record."""

from contextlib import closing

import pytest

from sidetier.archive.positions import BEGINNING, END, Position, PositionKind, plan_ranges
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.restore.copy_check import ArchivedRecords
from sidetier.mirror.restore.run import ArchiveRanges
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.record_batches import TransactionalLog

NOW_MS = 10**13


def range_of(
    archive: MadeArchive, begin: Position, end: Position, *, aborts_open: bool = False
) -> tuple[int, int | None]:
    access = access_to(archive.store)
    with closing(ArchivedRecords(access)) as records:
        ranges = ArchiveRanges(ArchiveSource(access), records.committed, [0], aborts_open)
        [planned] = plan_ranges(ranges, "orders", begin, end, NOW_MS)
    return planned.start, planned.end


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (BEGINNING, END, (0, 60)),
        (Position(PositionKind.OFFSET, 7), Position(PositionKind.OFFSET, 33), (7, 33)),
        (Position(PositionKind.BEFORE_END, 10), END, (50, 60)),
        (Position(PositionKind.TIME, 12), Position(PositionKind.TIME, 48), (12, 48)),
        (Position(PositionKind.TIME, 12), Position(PositionKind.TIME, 5000), (12, 60)),
    ],
)
def test_range_is_exact_to_the_record(
    begin: Position, end: Position, expected: tuple[int, int]
) -> None:
    archive = MadeArchive()
    archive.segments(0, 20, 40, 60)  # timestamps equal offsets
    assert range_of(archive, begin, end) == expected


def test_range_ends_before_an_open_transaction_unless_it_counts_as_aborted() -> None:
    log = TransactionalLog()
    log.write(8, 3, transactional=False)
    log.write(7, 2)
    log.write(8, 2, transactional=False)
    archive = MadeArchive()
    archive.segment(0, log.batches)
    archive.mark(0, log.next_offset)
    assert range_of(archive, BEGINNING, END) == (0, 3)
    assert range_of(archive, BEGINNING, END, aborts_open=True) == (0, 7)
