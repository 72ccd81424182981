"""The comparison of a copy with its archive reports each difference."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tailed_archive import SharedTails
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.offset_map import OffsetMap, Run
from sidetier.mirror.hydrate.digest import COLUMNS
from sidetier.mirror.restore.copy_check import ArchivedRecords, CheckedCopy, CopiedRange, check_copy
from sidetier.segments.arrow.schema import schema_of
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from tests.harness.cut_logs import note_as_earlier
from tests.harness.made_archive import TP, MadeArchive, access_to, batches, encoded
from tests.harness.mirror_target import TARGET
from tests.harness.record_batches import TransactionalLog
from tests.harness.tailed_log import tailed

Row = dict[str, Any]
MOVED = 100
"""Difference between target offsets and source offsets."""


@dataclass
class FakeBrokers:
    """The visible records of the target partition."""

    rows: list[Row]

    def records(
        self, tp: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        assert (tp, isolation) == (TARGET, IsolationLevel.READ_COMMITTED)
        seen = [row for row in self.rows if start <= row["offset"] < end]
        for at in range(0, len(seen), 7):
            yield pa.RecordBatch.from_pylist(seen[at : at + 7], schema=schema_of(COLUMNS))


def rows(first: int = 0, end: int = 40) -> list[Row]:
    """Copies of these source records."""
    return [
        {
            **{name: row[name] for name in COLUMNS},
            "offset": row["offset"] + MOVED,
        }
        for batch in batches(first, end)
        for row in batch.rows
    ]


def check(
    archive: MadeArchive,
    copied: CopiedRange,
    there: list[Row],
    runs: tuple[Run, ...],
    *,
    log_start: int = 0,
    with_timestamps: bool = True,
) -> CheckedCopy:
    access = access_to(archive.store)
    with closing(ArchivedRecords(access)) as archived:
        return check_copy(
            copied,
            OffsetMap(runs),
            Offset(log_start),
            archived.records(copied, ArchiveSource(access).view(TP)),
            FakeBrokers(there),
            with_timestamps=with_timestamps,
        )


def problems(
    there: list[Row],
    *,
    start: int = 0,
    end: int = 40,
    log_start: int = 0,
    copied: tuple[Run, ...] = (Run(0, MOVED, 40),),
    with_timestamps: bool = True,
) -> str:
    archive = MadeArchive()
    archive.segments(0, 20, 40)
    checked = check(
        archive,
        CopiedRange(TP, TARGET, Offset(start), Offset(end), Offset(40)),
        there,
        copied,
        log_start=log_start,
        with_timestamps=with_timestamps,
    )
    assert checked.records == end - start
    return "\n".join(checked.problems)


def test_equal_copy_passes() -> None:
    assert problems(rows()) == ""
    assert problems(rows(), start=7, end=33) == ""


def test_other_records_before_and_behind_the_copy_are_not_compared() -> None:
    (other,) = rows(0, 1)
    assert problems([{**other, "offset": 3}, *rows(), {**other, "offset": 500}]) == ""


@pytest.mark.parametrize("missing", [0, 17, 39])
def test_a_missing_record_is_reported(missing: int) -> None:
    there = rows()
    del there[missing]
    assert problems(there) == "copy.orders-0: 39 records, expected 40 (source offsets)"


def test_records_below_the_log_start_are_missing() -> None:
    assert "30 records, expected 40" in problems(rows(), log_start=MOVED + 10)


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("key", b"another"),
        ("value", None),
        ("headers", [{"key": "a", "value": None}]),
        ("timestamp", 5),
    ],
)
def test_other_content_is_reported(column: str, other: object) -> None:
    there = rows()
    there[20][column] = other
    assert "the checksum over keys, values, headers and timestamps differs" in problems(there)


def test_timestamps_replaced_by_the_target_can_be_ignored() -> None:
    there = [{**row, "timestamp": 1, "timestamp_type": 1} for row in rows()]
    assert problems(there, with_timestamps=False) == ""


def test_a_record_that_was_not_copied_is_reported() -> None:
    split = (Run(0, MOVED, 20), Run(20, MOVED + 21, 20))
    there = rows(0, 20) + [{**row, "offset": row["offset"] + 1} for row in rows(20, 40)]
    assert problems(there, copied=split) == ""
    foreign = {**rows(0, 1)[0], "offset": MOVED + 20}
    there.insert(20, foreign)
    assert "the record at offset 120 is not one that was copied" in problems(there, copied=split)


def test_another_order_is_reported() -> None:
    swapped = (Run(0, MOVED + 20, 20), Run(20, MOVED, 20))
    first = [{**row, "offset": row["offset"] - 20} for row in rows(20, 40)]
    second = [{**row, "offset": row["offset"] + 20} for row in rows(0, 20)]
    assert "comes after that of 39" in problems(first + second, copied=swapped)


def test_partition_that_was_never_copied_has_no_records() -> None:
    assert "0 records, expected 40" in problems(rows(), copied=())


def test_gap_is_missing_on_both_sides() -> None:
    archive = MadeArchive()
    archive.segment(0, batches(0, 20))
    archive.segment(30, batches(30, 40))
    archive.mark(30, 40)
    there = [row for row in rows() if not MOVED + 20 <= row["offset"] < MOVED + 30]
    runs = (Run(0, MOVED, 20), Run(30, MOVED + 30, 10))
    copied = CopiedRange(TP, TARGET, Offset(0), Offset(40), Offset(40))
    checked = check(archive, copied, there, runs)
    assert checked == replace(checked, records=30, problems=())


def test_open_transactions_count_as_aborted_if_copied_with_that_option() -> None:
    """Producer 7 is open at the end; 8 commits and 9 aborts after the end of the copied segment."""
    log = TransactionalLog()
    log.write(8, 2, transactional=False)  # 0 to 1
    log.write(7, 2)  # 2 to 3
    log.write(8, 2)  # 4 to 5
    log.write(9, 2)  # 6 to 7
    first, second_base = list(log.batches), log.next_offset
    log.mark(9, commit=False)  # 8
    log.mark(8, commit=True)  # 9
    log.write(8, 2, transactional=False)  # 10 to 11
    archive = MadeArchive()
    archive.segment(0, first)
    archive.segment(second_base, log.batches[len(first) :])
    archive.mark(second_base, log.next_offset)
    copied = CopiedRange(TP, TARGET, Offset(0), Offset(12), Offset(2))
    access = access_to(archive.store)
    with closing(ArchivedRecords(access)) as archived:
        view = ArchiveSource(access).view(TP)
        seen = [
            offset
            for records in archived.records(copied, view)
            for offset in records.column("offset").to_pylist()
        ]
    assert seen == [0, 1, 4, 5, 10, 11]


def test_segments_are_compared_with_what_was_noted_when_they_were_archived() -> None:
    """The copy was made from a segment without its third batch, and equals it."""
    archive = MadeArchive()
    archive.segments(0, 20, 40)
    notes = dict(archive.store.get_object(archive.key(20)).head.metadata)
    left = [batch for batch in batches(20, 40) if batch.first != 30]
    data = encoded(left)
    archive.put(archive.key(20), data, notes)
    copied = CopiedRange(TP, TARGET, Offset(0), Offset(40), Offset(40))
    there = [row for row in rows() if not 130 <= row["offset"] < 135]

    with pytest.raises(DamagedArchiveError, match=f"{archive.key(20)} has {len(data)} bytes, but"):
        check(archive, copied, there, (Run(0, MOVED, 40),))

    # An earlier version noted no size.
    note_as_earlier(archive.store, archive.key(20))
    with pytest.raises(DamagedArchiveError, match="has 15 records, but 20 were archived"):
        check(archive, copied, there, (Run(0, MOVED, 40),))
    part = replace(copied, end=Offset(25))
    assert check(archive, part, rows(0, 25), (Run(0, MOVED, 25),)).problems == ()


@pytest.mark.parametrize("aborts", [False, True])
def test_records_of_tail_packs_are_compared_too(*, aborts: bool) -> None:
    log = tailed()
    log.pack(3, 0, (12, 19))  # begins in the middle of nothing that is read
    access = access_to(log.store)
    source = ArchiveSource(access, tails=SharedTails(access, monotonic))
    view, stable = source.view(TP), source.last_stable_offset(TP)
    assert view is not None
    assert stable is not None
    end = Offset(log.next_offset) if aborts else stable
    expected = log.offsets(IsolationLevel.READ_COMMITTED, log.next_offset)
    if aborts:
        expected += [r.offset for b in log.batches[-1:] for r in b.records]
    for start in (0, 13, stable):
        copied = CopiedRange(TP, TARGET, Offset(start), end, stable)
        with closing(ArchivedRecords(access, with_tail=True)) as archived:
            found = [
                offset
                for records in archived.records(copied, view)
                for offset in records.column("offset").to_pylist()
            ]
        assert found == [offset for offset in expected if offset >= start]


def test_records_that_are_gone_are_not_waited_for() -> None:
    log = tailed()
    access = access_to(log.store)
    view = ArchiveSource(access, tails=SharedTails(access, monotonic)).view(TP)
    copied = CopiedRange(TP, TARGET, Offset(0), Offset(20), Offset(20))
    log.elected_uncleanly(14).claim(3, 0)
    with (
        closing(ArchivedRecords(access, with_tail=True)) as archived,
        pytest.raises(ArchiveError, match="end at offset 14 now, and ended at 20"),
    ):
        list(archived.records(copied, view))
