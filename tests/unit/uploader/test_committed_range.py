"""Which bytes of a growing log are committed: each row of the rule, and what each step refuses."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sidetier.segments.epoch_history import Entry
from sidetier.segments.errors import LeadershipError, SidetierError
from sidetier.segments.headers import CONTROL, TRANSACTIONAL, BatchHeader, walk_headers
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset
from sidetier.uploader.gates.committed_range import (
    CommittedRange,
    LedLog,
    NotCommittedError,
    ReadLog,
    choose,
    confirm,
    refusal,
)
from sidetier.uploader.watching.disk import LogFile, log_file
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from tests.harness.batches import make_batch, pread_of
from tests.harness.daemons import OffsetsByHand
from tests.harness.log_dir import LogDir, PartitionLog

FILE = LogFile(1, 2, "topic")
EPOCH = LeaderEpoch(3)
MARKER = TRANSACTIONAL | CONTROL


def led(high_watermark: int, last_stable: int | None = None, epoch: int = EPOCH) -> LedLog:
    stable = high_watermark if last_stable is None else last_stable
    return LedLog(Offset(high_watermark), Offset(stable), LeaderEpoch(epoch))


def again(high_watermark: int, epoch: int = EPOCH) -> AnsweredOffset:
    return AnsweredOffset(Offset(high_watermark), LeaderEpoch(epoch))


def log_of(*batches: tuple[int, int, int] | tuple[int, int, int, int]) -> bytes:
    """Return batches of base offset, records, epoch, and attributes."""
    return b"".join(
        make_batch(base, count, epoch=epoch, attributes=rest[0] if rest else 0)
        for base, count, epoch, *rest in batches
    )


TEN = log_of((0, 10, 1), (10, 10, 2), (20, 10, 3), (30, 10, 3))
BATCH = len(TEN) // 4


def chosen(
    log: bytes, start: int, answer: LedLog, max_bytes: int = 1 << 20
) -> CommittedRange | None:
    batches = walk_headers(pread_of(log), len(log))
    return choose(batches, BaseOffset(0), Offset(start), answer, FILE, max_bytes)


@pytest.mark.parametrize(
    ("start", "answer", "max_bytes", "expected"),
    [
        (0, led(40), 1 << 20, (0, 40, 0, 4 * BATCH)),
        (0, led(30), 1 << 20, (0, 30, 0, 3 * BATCH)),
        (0, led(39), 1 << 20, (0, 30, 0, 3 * BATCH)),  # never a part of a batch
        (10, led(40), 1 << 20, (10, 40, BATCH, 3 * BATCH)),
        (0, led(40), 1, (0, 10, 0, BATCH)),  # at least one batch
        (0, led(40), BATCH + 1, (0, 20, 0, 2 * BATCH)),  # the limit, and one batch
        (40, led(40), 1 << 20, None),
        (40, led(60), 1 << 20, None),  # the log ends below the high watermark: later
        (0, led(9), 1 << 20, None),
        (30, led(20), 1 << 20, None),  # the archive is ahead: nothing is said about it here
    ],
)
def test_whole_batches_up_to_the_high_watermark_are_chosen(
    start: int, answer: LedLog, max_bytes: int, expected: tuple[int, int, int, int] | None
) -> None:
    found = chosen(TEN, start, answer, max_bytes)
    assert (found and (found.start, found.end, found.position, found.size)) == expected


def test_nothing_is_read_behind_the_high_watermark() -> None:
    """The broker may be writing the next batch at this moment."""

    def batches() -> Iterator[tuple[int, BatchHeader]]:
        yield from walk_headers(pread_of(TEN), len(TEN))
        raise AssertionError("read behind the high watermark")

    found = choose(batches(), BaseOffset(0), Offset(0), led(40), FILE, 1 << 20)
    assert found is not None
    assert found.end == 40


@pytest.mark.parametrize(
    ("log", "start", "answer"),
    [
        (log_of((0, 10, 4)), 0, led(10)),  # of an epoch behind the answer's
        (log_of((0, 10, 3), (10, 10, 2)), 0, led(20)),  # epochs fall
        (log_of((0, 10, 3)), 5, led(10)),  # the archive ends within a batch: another history
        (log_of((0, 10, 3), (5, 10, 3)), 0, led(15)),  # batches overlap
    ],
)
def test_batches_that_contradict_the_answer_are_refused(
    log: bytes, start: int, answer: LedLog
) -> None:
    headers = [
        (at, next(walk_headers(pread_of(log[at:]), len(log) - at))[1])
        for at in range(0, len(log), len(make_batch(0)))
    ]
    with pytest.raises(NotCommittedError):
        choose(headers, BaseOffset(0), Offset(start), answer, FILE, 1 << 20)


@pytest.mark.parametrize(
    ("last_stable", "end"),
    [
        (31, 31),  # all transactions are decided, and all aborted ones are in the index
        (5, 30),  # another transaction is open: the entry of the last marker may be missing
        (30, 30),
    ],
)
def test_last_marker_waits_until_its_index_entry_is_certain(last_stable: int, end: int) -> None:
    log = log_of((0, 30, 3, TRANSACTIONAL), (30, 1, 3, MARKER))
    found = chosen(log, 0, led(31, last_stable))
    assert found is not None
    assert found.end == end
    # With a batch behind it, the append of the marker is complete.
    longer = log + log_of((31, 1, 3))
    found = chosen(longer, 0, led(32, last_stable))
    assert found is not None
    assert found.end == 32


def test_marker_alone_waits_with_a_reason() -> None:
    """It may wait for long, while a transaction hangs."""
    with pytest.raises(NotCommittedError, match="another transaction is open"):
        chosen(log_of((0, 1, 3, MARKER)), 0, led(1, 0))


WANTED = CommittedRange(BaseOffset(0), Offset(10), Offset(40), 100, 300, EPOCH, FILE)
READ: tuple[Entry, ...] = ((LeaderEpoch(2), Offset(10)), (EPOCH, Offset(20)))
FALLING: tuple[Entry, ...] = ((EPOCH, Offset(10)), (LeaderEpoch(2), Offset(20)))


@pytest.mark.parametrize(
    ("epochs", "end", "answer", "file", "text"),
    [
        (READ, 40, again(40), FILE, None),
        (READ, 40, again(99), FILE, None),  # the log grows
        (READ, 40, LeadershipError("fenced"), FILE, "fenced"),
        (READ, 40, again(40, epoch=4), FILE, "reports epoch 4"),
        (READ, 40, again(39), FILE, "high watermark 39"),
        (READ, 40, again(40), None, "the path leads to None"),
        (READ, 40, again(40), FILE._replace(inode=9), "the path leads to"),
        (READ, 40, again(40), FILE._replace(device=9), "the path leads to"),
        (READ, 40, again(40), FILE._replace(topic_id="another"), "another"),
        (READ, 40, again(40), FILE._replace(topic_id=None), "the path leads to"),
        (READ, 30, again(40), FILE, "others were read"),
        ((), None, again(40), FILE, "others were read"),
        (((EPOCH, Offset(9)),), 40, again(40), FILE, "others were read"),
        (((LeaderEpoch(4), Offset(10)),), 40, again(40), FILE, "leader epochs [4]"),
        (
            ((EPOCH, Offset(10)), (LeaderEpoch(2), Offset(20))),
            40,
            again(40),
            FILE,
            "leader epochs [3, 2]",
        ),
    ],
)
def test_bytes_count_only_with_all_steps_of_the_rule(
    epochs: tuple[Entry, ...],
    end: int | None,
    answer: AnsweredOffset | SidetierError,
    file: LogFile | None,
    text: str | None,
) -> None:
    until = None if end is None else Offset(end)
    reason = refusal(WANTED, epochs, until, answer, file)
    if text is None:
        assert reason is None
    else:
        assert reason is not None
        assert text in reason


def test_broker_without_topic_ids_is_known_by_the_file_alone() -> None:
    old = FILE._replace(topic_id=None)
    wanted = replace(WANTED, file=old)
    assert refusal(wanted, READ, Offset(40), again(40), old) is None
    assert refusal(wanted, READ, Offset(40), again(40), FILE) is not None


def test_one_request_confirms_all_and_the_look_follows_its_answer(
    log_dir: LogDir, log: PartitionLog
) -> None:
    """A topic that is created again has leader epoch 0 again, so only the look shows it."""
    log.append(10)
    file, epoch = log_file(str(log.path), log.active), LeaderEpoch(0)
    assert file is not None
    size = log.file(log.active).stat().st_size
    wanted = CommittedRange(log.active, Offset(0), Offset(10), 0, size, epoch, file)
    claim = ReadLog(log.tp, str(log.path), log.topic_id, epoch)
    read = claim._replace(wanted=wanted, epochs=((epoch, Offset(0)),), end=Offset(10))
    source = OffsetsByHand([log_dir])
    assert confirm(source, [claim, read]) == [None, None]
    assert source.asked == [(OffsetKind.HIGH_WATERMARK, 1)]

    def reasons() -> list[str]:
        return [reason or "" for reason in confirm(source, [claim, read])]

    source.high_watermarks[log.tp] = 9
    assert [text[-18:] for text in reasons()] == ["", "e high watermark 9"]
    del source.high_watermarks[log.tp]
    log.epoch = LeaderEpoch(1)
    assert all("does not confirm leader epoch 0" in text for text in reasons())
    log.epoch = epoch

    def recreate() -> None:
        log.delete_topic()
        log_dir.create(log.tp.topic, topic_id="AAAAAAAAAAAAAAAAAAAAAg").append(10)

    source.before[OffsetKind.HIGH_WATERMARK] = [recreate]
    claimed, stored = reasons()
    assert "belongs to another topic" in claimed
    assert "the path leads to" in stored
