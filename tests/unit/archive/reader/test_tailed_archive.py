"""Reading archive and tail as one log."""

from collections.abc import Callable

import pytest

from sidetier.archive.errors import ArchiveReplacedError, TailMovedError, UnreadTailError
from sidetier.archive.reader import (
    Failed,
    Gap,
    IsolationLevel,
    ReachedEnd,
    Records,
)
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.tail.pack import PackBuilder, TailRow, claim, epochs_from
from sidetier.segments.offsets import BrokerId, Offset
from sidetier.storage.fake import FakeStorage
from tests.harness.intercepted_store import InterceptedStore, StoreCall
from tests.harness.made_archive import LAYOUT, TP, reading, take_to_end, take_until
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, mixed_log, read_offsets, store_pack, tailed

LEVELS = list(IsolationLevel)
QUICK = 0.02


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("start", [0, 4, 12, 13, 17, 19, 24, 27])
def test_every_offset_once_across_the_border(start: int, isolation: IsolationLevel) -> None:
    log = tailed()
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        bounds = reader.bounds(TP)
        assert bounds is not None
        assert (bounds.start_offset, bounds.next_offset) == (0, log.next_offset)
        reader.assign(TP, start)
        taken = take_to_end(reader)
    expected = [offset for offset in log.offsets(isolation, log.next_offset) if offset >= start]
    assert read_offsets(taken) == expected
    if isolation is IsolationLevel.READ_UNCOMMITTED:
        assert taken[-1] == ReachedEnd(TP, Offset(log.next_offset))


def test_without_the_option_packs_are_not_read() -> None:
    log = tailed()
    with reading(log.store, isolation=IsolationLevel.READ_UNCOMMITTED) as reader:
        reader.assign(TP, 0)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(12))
        bounds = reader.bounds(TP)
        assert bounds is not None
        assert bounds.next_offset == 12


@pytest.mark.parametrize("isolation", LEVELS)
def test_records_that_arrive_as_segments_are_not_read_again(isolation: IsolationLevel) -> None:
    """Packs grow, become segments and are deleted, while a reader follows."""
    log = mixed_log()
    log.archived(0, 12)
    first = log.pack(1, 0, (12, 14))
    got: list[int] = []
    with reading(log.store, with_tail=True, isolation=isolation, look_interval=QUICK) as reader:
        reader.assign(TP, 0)

        def follow(end: int) -> None:
            expected = log.offsets(isolation, end)
            while got != expected:
                got.extend(read_offsets(reader.take(100, 1.0)))
                assert got == expected[: len(got)]

        follow(14)
        log.archived(0, 12, 14)  # the same records as a segment
        log.pack(1, 1, (14, 18))
        follow(18)
        log.store.delete_object(first)
        log.pack(1, 2, (18, 20))
        follow(20)
        log.archived(0, 12, 14, 24)  # further than the packs
        log.pack(1, 3, (20, log.next_offset))
        follow(log.next_offset)
        log.archived(0, 12, 14, 24, log.next_offset)
        log.mark(4, commit=True)
        log.archived(0, 12, 14, 24, 25, log.next_offset)
        follow(log.next_offset)


class DeletedMeanwhile(InterceptedStore):
    """Cleaning deletes a pack just before its ranges are read, once it has an equal one."""

    def __init__(self, store: FakeStorage, key: str, action: Callable[[], object]) -> None:
        super().__init__(store)
        self._key = key
        self._action: Callable[[], object] | None = action
        self.reads = 0

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "stream" and call.key == self._key:
            self.reads += 1
            if self.reads == 2 and self._action is not None:  # the first reads its rows
                action, self._action = self._action, None
                action()
                self.store.delete_object(self._key)
        return super().intercept(call)


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("becomes", ["pack", "segment"])
def test_pack_that_is_cleaned_while_it_is_read(isolation: IsolationLevel, becomes: str) -> None:
    log = mixed_log()
    end = log.next_offset
    log.archived(0, 12)
    key = log.pack(1, 0, (12, 18), (18, end))
    moved = (
        (lambda: log.pack(1, 1, (12, end)))
        if becomes == "pack"
        else (lambda: log.archived(0, 12, end))
    )
    assert isinstance(log.store, FakeStorage)
    store = DeletedMeanwhile(log.store, key, moved)
    with reading(store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 0)
        assert read_offsets(take_to_end(reader)) == log.offsets(isolation, end)


@pytest.mark.parametrize("isolation", LEVELS)
def test_packs_that_are_cleaned_after_the_archive_was_read(isolation: IsolationLevel) -> None:
    """A sidecar archives and cleans between a reader's requests: nothing is cut off."""
    log = mixed_log()
    end = log.next_offset
    log.archived(0, 12)
    first = log.pack(1, 0, (12, 18))
    log.pack(1, 1, (18, end))
    assert isinstance(log.store, FakeStorage)
    real = log.store

    class CleanedBetween(InterceptedStore):
        done = False

        def intercept(self, call: StoreCall) -> object:
            # The first request for packs, whenever that is.
            if "/tail" in call.key and not self.done:
                self.done = True
                log.archived(0, 12, 18)
                real.delete_object(first)
            return super().intercept(call)

    store = CleanedBetween(real)
    with reading(store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 0)
        assert read_offsets(take_to_end(reader)) == log.offsets(isolation, end)
    assert store.done


def test_reader_hears_of_packs_that_cannot_be_read_or_contradict_each_other() -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 18))
    claim_key = LAYOUT.tail_pack_key(BrokerId(2), 0)
    log.archive.put(claim_key, b"damaged")
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 0)
        taken = take_to_end(reader)
    assert read_offsets(taken[:-1]) == log.offsets(isolation, 12)
    assert isinstance(taken[-1], Failed)
    assert isinstance(taken[-1].error, UnreadTailError)
    assert claim_key in str(taken[-1].error)
    log.store.delete_object(claim_key)
    builder = PackBuilder()
    log.row(12, 18, builder)
    row = builder.rows[0]
    other = PackBuilder()
    other.add(row, bytes(row.size))
    store_pack(log.store, LAYOUT, other, 2, 1)
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 12)
        [failed] = take_to_end(reader)
    assert isinstance(failed, Failed)
    assert "other bytes" in str(failed.error)


def test_records_that_are_gone_from_packs_and_archive_are_an_error() -> None:
    """No archive and no pack has what the reader has begun to read: that is no end."""
    log = mixed_log()
    log.archived(0, 12)
    key = log.pack(1, 0, (12, 18), (18, log.next_offset))
    assert isinstance(log.store, FakeStorage)
    store = DeletedMeanwhile(log.store, key, lambda: None)
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 12)
        failed = take_to_end(reader)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, TailMovedError)


def test_gap_ends_the_tail_until_it_is_filled() -> None:
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 14))
    log.pack(1, 2, (18, 19))
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(log.store, with_tail=True, isolation=isolation, look_interval=QUICK) as reader:
        reader.assign(TP, 12)
        taken = take_to_end(reader)
        assert taken[-1] == ReachedEnd(TP, Offset(14))
        log.pack(1, 1, (14, 18))
        taken += take_until(reader, lambda item: item == ReachedEnd(TP, Offset(19)))
    assert read_offsets(taken) == [o for o in log.offsets(isolation, 19) if o >= 12]


def test_partition_that_only_packs_have() -> None:
    log = mixed_log()
    log.log_start = 7
    log.pack(1, 0, (7, log.next_offset))
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        bounds = reader.bounds(TP)
        assert bounds is not None
        assert (bounds.start_offset, bounds.next_offset) == (7, log.next_offset)
        assert bounds.topic_id == TOPIC_ID
        reader.assign(TP, 0)
        [gap] = take_to_end(reader)
        assert isinstance(gap, Gap)
        assert gap.offsets == (0, 7)
        reader.seek(TP, 7)
        taken = take_to_end(reader)
    assert read_offsets(taken) == [o for o in log.offsets(isolation, log.next_offset) if o >= 7]


def test_damage_is_named_with_its_pack() -> None:
    log = mixed_log()
    log.archived(0, 12)
    builder = PackBuilder()
    log.row(12, 18, builder)
    data = bytearray(b"".join(map(bytes, builder.body().pieces)))
    data[70] ^= 1
    log.archive.put(LAYOUT.tail_pack_key(BrokerId(1), 0), bytes(data))
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 12)
        failed = take_to_end(reader)[-1]
    assert isinstance(failed, Failed)
    assert LAYOUT.tail_pack_key(BrokerId(1), 0) in str(failed.error)


def test_compacted_end_of_a_range_is_no_damage() -> None:
    log = mixed_log()
    log.archived(0, 12)
    builder = PackBuilder()
    batch = log.between(12, 13)[0].encoded()
    builder.add(
        TailRow(
            TP,
            TOPIC_ID,
            epochs_from(log.epochs, 12),
            Offset(12),
            Offset(14),
            Offset(0),
            Offset(14),
            1,
            1,
        ),
        batch,
    )
    store_pack(log.store, LAYOUT, builder, 1, 0)
    log.pack(1, 1, (14, log.next_offset))
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 0)
        offsets = read_offsets(take_to_end(reader))
    assert offsets == log.offsets(isolation, log.next_offset)


def first(reader: ArchiveReader, timestamp: int) -> Offset | None:
    return reader.offset_for_time(TP, timestamp)


def test_times_and_bounds() -> None:
    log = tailed()
    moment = log.batches[0].records[0].timestamp
    with reading(log.store, with_tail=True) as reader:
        assert first(reader, moment) == 0
        assert first(reader, moment + 10**9) is None
    log = mixed_log()
    log.log_start = 7
    log.pack(1, 0, (7, log.next_offset))
    with reading(log.store, with_tail=True) as reader:
        assert first(reader, moment) == 7
    isolation = IsolationLevel.READ_COMMITTED
    log = tailed()
    with reading(log.store, with_tail=True, isolation=isolation) as reader:
        reader.assign(TP, 0, until=16)
        taken = take_to_end(reader)
    assert taken[-1] == ReachedEnd(TP, Offset(16))
    wanted = [offset for offset in log.offsets(isolation, log.next_offset) if offset < 16]
    records = [item for item in taken if isinstance(item, Records)]
    assert read_offsets(records) == wanted


def after_election(log: TailedLog, epoch: int, at: int, *sizes: int) -> TailedLog:
    """The log of a leader that lost everything from an offset on, and has written other records."""
    other = TailedLog(store=log.store, epochs=history((0, 0), (epoch, at)))
    other.batches[:] = [batch for batch in log.batches if batch.first < at]
    other.next_offset = at
    for size in sizes:
        other.write(9, size, transactional=False)
    return other


@pytest.mark.parametrize("how", ["longer", "claim", "archived", "clean"])
@pytest.mark.parametrize("has_archive", [True, False])
def test_reader_hears_that_an_election_has_discarded_what_it_has_read(
    how: str,
    has_archive: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    log = mixed_log()
    if has_archive:
        log.archived(0, 12)
    first = log.pack(1, 0, (12 if has_archive else 0, 18), (18, log.next_offset))
    end = log.next_offset
    with reading(log.store, with_tail=True, isolation=isolation, look_interval=QUICK) as reader:
        reader.assign(TP, 12)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(end))
        other = after_election(log, 1, end if how == "clean" else 18, 9, 9)
        if how == "claim":
            builder = PackBuilder()
            builder.add(claim(TP, TOPIC_ID, other.epochs, Offset(18), Offset(18)))
            store_pack(log.store, LAYOUT, builder, 2, 0)
        elif how == "archived":
            other.stored |= log.stored
            other.archived(0, 12, 18, other.next_offset)
            log.store.delete_object(first)
        else:
            other.pack(2, 0, (end if how == "clean" else 18, other.next_offset))
        taken = take_until(reader, lambda item: item != ReachedEnd(TP, Offset(end)))
        if how == "clean":
            taken += take_until(reader, lambda item: isinstance(item, ReachedEnd))
            assert read_offsets(taken) == list(range(end, other.next_offset))
            return
        assert isinstance(taken[-1], Failed)
        error = taken[-1].error
        assert isinstance(error, ArchiveReplacedError)
        assert error.first == 18
        assert "unclean election" in str(error)
        reader.assign(TP, 18)
        if how != "claim":
            assert read_offsets(take_to_end(reader)) == list(range(18, other.next_offset))


def test_reader_below_the_records_that_an_election_has_discarded_reads_on() -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 14))
    with reading(log.store, with_tail=True, isolation=isolation, look_interval=QUICK) as reader:
        reader.assign(TP, 12)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(14))
        log.pack(1, 1, (14, 18))
        other = after_election(log, 1, 14, 9)
        other.pack(2, 0, (14, other.next_offset))
        taken = take_until(reader, lambda item: item == ReachedEnd(TP, Offset(other.next_offset)))
    assert [o for o in read_offsets(taken) if o >= 14] == list(range(14, other.next_offset))


def test_reader_hears_of_a_topic_that_was_created_again_and_is_not_archived() -> None:
    log = mixed_log()
    log.pack(1, 0, (0, 18))
    isolation = IsolationLevel.READ_UNCOMMITTED
    with reading(log.store, with_tail=True, isolation=isolation, look_interval=QUICK) as reader:
        reader.assign(TP, 0)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(18))
        builder, made = PackBuilder(), PackBuilder()
        row = log.row(0, log.next_offset, made)
        batches = [batch.encoded() for batch in log.between(0, log.next_offset)]
        builder.add(row._replace(topic_id="BBBBBBBBBBBBBBBBBBBBBA"), *batches)
        store_pack(log.store, LAYOUT, builder, 1, 1)
        taken = take_until(reader, lambda item: item != ReachedEnd(TP, Offset(18)))
    assert isinstance(taken[-1], Failed)
    assert isinstance(taken[-1].error, ArchiveReplacedError)
    assert "created again" in str(taken[-1].error)


@pytest.mark.parametrize("reason", ["damaged", "contradicts"])
def test_reader_goes_on_when_the_tail_is_known_again(reason: str) -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 18))
    key = LAYOUT.tail_pack_key(BrokerId(2), 0)
    if reason == "damaged":
        log.archive.put(key, b"damaged")
    else:
        builder = PackBuilder()
        row = log.row(12, 18, PackBuilder())
        builder.add(row, bytes(row.size))
        store_pack(log.store, LAYOUT, builder, 2, 0)
    with reading(
        log.store,
        with_tail=True,
        isolation=isolation,
        look_interval=QUICK,
        failed_pause=QUICK,
    ) as reader:
        reader.assign(TP, 12)
        failed = take_to_end(reader)[-1]
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, UnreadTailError)
        assert failed.error.retry
        log.store.delete_object(key)
        taken = take_until(reader, lambda item: item == ReachedEnd(TP, Offset(18)))
    assert read_offsets(item for item in taken if not isinstance(item, Failed)) == [
        offset for offset in log.offsets(isolation, 18) if offset >= 12
    ]


def test_partition_that_only_packs_have_and_that_is_not_known_is_an_error() -> None:
    log = mixed_log()
    log.pack(1, 0, (0, 18))
    log.archive.put(LAYOUT.tail_pack_key(BrokerId(2), 0), b"damaged")
    with reading(log.store, with_tail=True) as reader, pytest.raises(UnreadTailError):
        reader.bounds(TP)


def test_partition_without_an_archive_is_read_once_its_first_pack_is_there() -> None:
    isolation = IsolationLevel.READ_UNCOMMITTED
    log = mixed_log()
    log.pack(1, 1, (7, log.next_offset))
    with reading(
        log.store,
        with_tail=True,
        isolation=isolation,
        look_interval=QUICK,
        failed_pause=QUICK,
    ) as reader:
        with pytest.raises(UnreadTailError, match=r"no pack has the offsets \[0, 7\)"):
            reader.bounds(TP)
        reader.assign(TP, 0)
        failed = take_to_end(reader)[-1]
        assert isinstance(failed, Failed)
        assert failed.error.retry
        log.pack(1, 0, (0, 7))
        end = ReachedEnd(TP, Offset(log.next_offset))
        taken = take_until(reader, lambda item: item == end)
    found = read_offsets(item for item in taken if not isinstance(item, Failed))
    assert found == log.offsets(isolation, log.next_offset)
