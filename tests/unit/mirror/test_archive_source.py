"""Raw batches of archives are those that a read-committed consumer of the broker saw."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from sidetier.archive.errors import ArchiveReplacedError, UnreadTailError
from sidetier.archive.objects.layout import write_or_check_note
from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tail.pack import PackBuilder, claim
from sidetier.archive.tailed_archive import SharedTails
from sidetier.mirror.copy.archive_source import (
    ArchivedBatches,
    ArchiveEnd,
    ArchiveGap,
    ArchiveSource,
)
from sidetier.mirror.copy.batches import reencode, select_batches
from sidetier.mirror.copy.engine import Copy, Engine, Limits
from sidetier.mirror.copy.source import KafkaSource, OnGap
from sidetier.segments.errors import ConfigurationError, DamagedSegmentError, MirrorError
from sidetier.segments.headers import walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.txn_index import AbortedTxn
from sidetier.storage.attempt import monotonic
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness import broker_segments
from tests.harness.broker_archive import store_broker_segments
from tests.harness.cut_logs import cut_log
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, access_to, batches
from tests.harness.mirror_target import TARGET, FakeTarget
from tests.harness.record_batches import TransactionalLog
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, store_pack, tailed


def archive_of(directory: str, chunk_bytes: int = 8 << 20) -> tuple[ArchiveSource, TopicPartition]:
    store, layout = FakeStorage(), ArchiveLayout("prod-a", 3)
    store_broker_segments(store, layout, directory)
    topic, _, partition = directory.rpartition("-")
    source = ArchiveSource(access_to(store, layout), chunk_bytes=chunk_bytes)
    return source, TopicPartition(topic, int(partition))


def offsets_from(source: ArchiveSource, tp: TopicPartition, position: int) -> Iterator[int]:
    """Source offsets that a mirror copies, from a position to the archive's end."""
    at = Offset(position)
    while isinstance(read := source.read(tp, at), ArchivedBatches):
        selection = select_batches(read.data, at, read.aborted, until=read.end)
        for batch in selection.batches:
            for other in reencode(batch, 1 << 24, str(tp)):
                yield from other.source_offsets
        at = selection.next_offset if read.data else read.end
    assert isinstance(read, ArchiveEnd), read


@pytest.mark.parametrize("chunk_bytes", [1000, 8 << 20])
@pytest.mark.parametrize("directory", ["tx-0", "compacted-0", "idempotent-0", "append-time-0"])
def test_records_equal_the_brokers_consumer_output(directory: str, chunk_bytes: int) -> None:
    source, tp = archive_of(directory, chunk_bytes)
    end = source.last_stable_offset(tp)
    assert end is not None
    path = next(item for item in broker_segments.directories() if item.name == directory)
    rows = broker_segments.consumed(path, "read_committed")
    seen = [row["offset"] for row in rows if row["offset"] < end]
    assert list(offsets_from(source, tp, 0)) == seen
    middle = seen[len(seen) // 2]
    assert list(offsets_from(source, tp, middle)) == [entry for entry in seen if entry >= middle]


def test_archive_of_a_former_topic_id_is_ignored() -> None:
    stored = "AAAAAAAAAAAAAAAAAAAAAQ"  # 1, in Kafka's text form
    archive = MadeArchive()
    archive.segment(0, batches(0, 20))
    archive.mark(0, 20, topic_id=stored)
    source = ArchiveSource(access_to(archive.store))
    assert source.last_stable_offset(TP) == 20
    assert source.view(TP, topic_id=UUID(int=2)) is None
    source.expect({TP.topic: UUID(int=1)})
    assert source.last_stable_offset(TP) == 20
    source.expect({TP.topic: UUID(int=2)})
    assert source.read(TP, Offset(0)) == ArchiveEnd(Offset(0))


@pytest.mark.parametrize("with_indexes", [True, False])
def test_transactions_are_read_from_transaction_indexes_or_from_markers(
    with_indexes: bool,  # noqa: FBT001
) -> None:
    """Producer 7 aborts over two segments, 8 commits, 9 is open at the end."""
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2
    log.write(8, 2)  # 3 to 4
    first, second_base = list(log.batches), log.next_offset
    log.mark(7, commit=False)  # 5
    log.mark(8, commit=True)  # 6
    log.write(8, 2, transactional=False)  # 7 to 8
    log.write(9, 2)  # 9 to 10
    log.write(8, 1, transactional=False)  # 11
    archive = MadeArchive()
    archive.segment(0, first)
    archive.segment(second_base, log.batches[len(first) :])
    if with_indexes:
        archive.transaction_indexes(0, [], {})
        aborted = AbortedTxn(7, Offset(0), Offset(5), Offset(3))
        archive.transaction_indexes(second_base, [aborted], {7: 0, 8: 3})
    archive.mark(second_base, log.next_offset)
    source = ArchiveSource(access_to(archive.store))
    assert source.last_stable_offset(TP) == 9
    assert list(offsets_from(source, TP, 0)) == [3, 4, 7, 8]
    source = ArchiveSource(access_to(archive.store), abort_open=True)
    assert source.last_stable_offset(TP) == 12
    assert list(offsets_from(source, TP, 0)) == [3, 4, 7, 8, 11]


def test_a_recorded_gap_is_reported() -> None:
    archive = MadeArchive()
    archive.segment(0, batches(0, 20))
    archive.segment(40, batches(40, 60))
    archive.gap(20, 40)
    archive.mark(40, 60)
    read = ArchiveSource(access_to(archive.store)).read(TP, Offset(20))
    assert isinstance(read, ArchiveGap)
    assert (read.start, read.end) == (20, 40)
    assert "the broker had deleted them before they were stored" in read.detail


def test_transactions_of_an_archive_of_pinterest_are_refused() -> None:
    log = TransactionalLog()
    log.write(7, 3)
    log.mark(7, commit=False)
    archive = MadeArchive(is_pinterest=True)
    archive.segment(0, log.batches)
    archive.mark(0, 4)
    with pytest.raises(ConfigurationError, match="mirror this topic from its brokers"):
        ArchiveSource(access_to(archive.store)).read(TP, Offset(0))


def copy_archive(archive: MadeArchive, on_gap: OnGap, end: int) -> tuple[Engine, FakeTarget]:
    source = KafkaSource(
        None, ArchiveSource(access_to(archive.store)), until={TP: Offset(end)}, on_gap=on_gap
    )
    target = FakeTarget()
    copies = {TP: Copy(TP, TARGET)}
    engine = Engine(
        source,
        target,
        lambda: copies,
        lambda partitions: dict.fromkeys(partitions, Offset(0)),
        offsets_topic="map",
        limits=Limits(transaction_bytes=500),
        refresh_seconds=None,
    )
    try:
        engine.run()
    finally:
        source.close()
    return engine, target


def test_archive_is_copied_by_the_engine() -> None:
    archive = MadeArchive()
    archive.segments(0, 20, 40, 60)
    engine, target = copy_archive(archive, OnGap.STOP, 60)
    assert target.committed[TARGET].offset == 60
    assert len(target.placed()) == engine.counts.records == 60


def test_gap_of_an_archive_ends_the_copy_or_is_counted() -> None:
    archive = MadeArchive()
    archive.segment(0, batches(0, 20))
    archive.segment(40, batches(40, 60))
    archive.mark(40, 60)
    with pytest.raises(MirrorError, match=r"offsets \[20, 40\) .* --on-gap skip"):
        copy_archive(archive, OnGap.STOP, 60)
    engine, target = copy_archive(archive, OnGap.SKIP, 60)
    assert [(gap.start, gap.end) for gap in engine.counts.gaps] == [(20, 40)]
    assert len(target.placed()) == 40
    assert target.committed[TARGET].offset == 60


@pytest.mark.parametrize(
    ("noted", "brokers", "fits"),
    [("a", "a", True), ("a", "b", False), ("a", None, True), (None, "b", True)],
)
def test_archive_of_another_cluster_is_not_read(
    noted: str | None, brokers: str | None, *, fits: bool
) -> None:
    archive = MadeArchive()
    archive.segment(0, batches(0, 20))
    archive.mark(0, 20)
    write_or_check_note(archive.store, archive.layout, noted)
    source = ArchiveSource(access_to(archive.store), cluster_id=brokers)
    if fits:
        source.require_same_cluster()
        assert source.view(TP) is not None
        return
    with pytest.raises(ConfigurationError, match="Kafka cluster b, and the archive to a"):
        source.require_same_cluster()
    with pytest.raises(ConfigurationError, match="Kafka cluster b, and the archive to a"):
        source.view(TP)


def test_a_segment_that_has_lost_its_last_batches_stops_its_partition_alone() -> None:
    store, other = FakeStorage(), TopicPartition("pay", 0)
    archive = MadeArchive(store)
    for made in (archive, MadeArchive(store, tp=other)):
        made.segments(0, 20, 40, 60)
        for base in (0, 20, 40):
            made.transaction_indexes(base, [], {})
    key = archive.key(20)
    reached = cut_log(store, key)
    copies = {TP: Copy(TP, TARGET), other: Copy(other, TopicPartition("copy.pay", 0))}
    source = KafkaSource(
        None, ArchiveSource(access_to(store)), until=dict.fromkeys(copies, Offset(60))
    )
    target = FakeTarget()
    engine = Engine(
        source,
        target,
        lambda: copies,
        lambda partitions: dict.fromkeys(partitions, Offset(0)),
        offsets_topic="map",
        refresh_seconds=None,
        leave_out=True,
    )
    try:
        engine.run()
    finally:
        source.close()
    assert {tp: int(offset.offset) for tp, offset in target.committed.items()} == {
        TARGET: reached,
        copies[other].target: 60,
    }
    assert list(engine.counts.left_out) == [TP]
    assert key in engine.counts.left_out[TP]
    assert "bytes were archived" in engine.counts.left_out[TP]


def test_an_object_that_ends_before_its_listed_size_is_not_the_end_of_its_segment() -> None:
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 20, 40, 60)
    data = store.contents()[archive.key(20)]
    cut = list(walk_headers(lambda at, size: data[at : at + size], len(data)))[-1][0]
    store.cut(archive.key(20), cut)
    source = ArchiveSource(access_to(store))
    with pytest.raises(DamagedSegmentError, match="bytes are stored"):
        list(offsets_from(source, TP, 0))


def with_tail(log: TailedLog, *, abort_open: bool = False) -> ArchiveSource:
    access = access_to(log.store)
    tails = SharedTails(access, monotonic)
    return ArchiveSource(access, abort_open=abort_open, chunk_bytes=300, tails=tails)


def test_records_of_tail_packs_follow_those_of_the_archive() -> None:
    log = tailed()
    end = log.next_offset
    source, stable = with_tail(log), log.offsets(IsolationLevel.READ_COMMITTED, end)
    assert list(offsets_from(source, TP, 0)) == stable
    assert list(offsets_from(source, TP, 13)) == [offset for offset in stable if offset >= 13]
    # Producer 4 is open at the end.
    behind = [r.offset for b in log.batches[-1:] for r in b.records]
    assert list(offsets_from(with_tail(log, abort_open=True), TP, 0)) == stable + behind
    assert source.last_stable_offset(TP) == log.batches[-2].first
    log.archived(0, 5, 12, end)
    for key in [row.key for row in log.store.list_objects(LAYOUT.tails_prefix())]:
        log.store.delete_object(key)
    assert list(offsets_from(source, TP, 13)) == [offset for offset in stable if offset >= 13]


def test_a_tail_that_a_later_leader_has_discarded_is_an_error() -> None:
    log = tailed()
    source = with_tail(log)
    assert isinstance(source.read(TP, Offset(0)), ArchivedBatches)
    builder = PackBuilder()
    builder.add(claim(TP, TOPIC_ID, history((0, 0), (1, 15)), Offset(0), Offset(15)))
    store_pack(log.store, LAYOUT, builder, 3, 0)
    with pytest.raises(ArchiveReplacedError, match="discarded the records from offset 15 on"):
        source.read(TP, Offset(0))
    # A restore that begins now reads what the later leader has.
    assert max(offsets_from(with_tail(log), TP, 0)) < 15
    log.store.put_object(LAYOUT.tail_pack_key(4, 0), BytesBody(b"damaged"))
    with pytest.raises(UnreadTailError, match="cannot be read"):
        with_tail(log).read(TP, Offset(0))
