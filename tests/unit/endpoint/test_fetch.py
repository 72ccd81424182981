"""What a Fetch returns: which batches, up to where, and which errors."""

import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sidetier.archive.access import ArchiveAccess
from sidetier.endpoint.blocks import SegmentBytes
from sidetier.endpoint.catalog import CatalogSettings
from sidetier.endpoint.session import Session
from sidetier.endpoint.users import EVERYTHING
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.headers import walk_headers
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.txn_index import AbortedTxn
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from tests.harness.endpoint import Parts, earliest, endpoint_over, fetch_of
from tests.harness.made_archive import LAYOUT, MadeArchive, batches, encoded
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.waiting import wait_until


@pytest.fixture(params=["objects", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStorage:
    return FakeStorage() if request.param == "objects" else LocalStorage(tmp_path)


@pytest.fixture
def archive(store: RemoteStorage) -> MadeArchive:
    """orders-0 with the offsets 0 to 59 in three segments, in batches of 5."""
    made = MadeArchive(store)
    made.segments(0, 20, 40, 60)
    return made


@pytest.fixture
def parts(archive: MadeArchive) -> Iterator[Parts]:
    with endpoint_over(archive.store) as made:
        yield made


def bases(records: bytes | None) -> list[int]:
    """Base offsets of the whole batches."""
    data = bytes(records or b"")
    found = []
    try:
        for _, header in walk_headers(lambda at, size: data[at : at + size], len(data)):
            found.append(int(header.base_offset))
    except Exception:  # noqa: BLE001 - the last batch may be cut
        return found
    return found


def test_a_fetch_begins_with_the_batch_that_has_the_offset(parts: Parts) -> None:
    data = parts.read(12)
    assert bases(data.records) == [10, 15]
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (60, 60, 0)
    assert data.aborted_transactions is None


@pytest.mark.parametrize(("offset", "error"), [(-1, 1), (60, 0), (61, 1), (10**15, 1)], ids=str)
def test_the_end_is_no_error_and_outside_is_out_of_range(
    parts: Parts, offset: int, error: int
) -> None:
    data = parts.read(offset)
    assert (int(data.error_code), data.records or b"") == (error, b"")


def test_the_first_batch_is_whole_whatever_the_limits(parts: Parts) -> None:
    data = parts.read(0, max_bytes=1, partition_max_bytes=1)
    assert bytes(data.records) == encoded(batches(0, 5))


def test_one_header_is_read_for_a_large_batch(
    store: RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an index entry, so the batch before it need not be read."""
    archive = MadeArchive(store)
    large = [
        MadeBatch(
            tuple(MadeRecord(offset, offset, value=bytes(4096)) for offset in range(at, at + 5))
        )
        for at in range(0, 40, 5)
    ]
    archive.segment(0, large)
    archive.mark(0, 40)
    reads: list[int] = []
    read = SegmentBytes.read

    def counted(self: SegmentBytes, *arguments: Any, **more: Any) -> bytes:  # noqa: ANN401
        reads.append(arguments[-1])
        return read(self, *arguments, **more)

    with endpoint_over(store) as parts:
        parts.read(0)
        monkeypatch.setattr(SegmentBytes, "read", counted)
        for offset in range(5, 40):
            assert bases(parts.read(offset, max_bytes=1).records) == [offset // 5 * 5]
        assert reads == [61] * 35


def test_only_the_first_batch_of_a_response_exceeds_the_limit(archive: MadeArchive) -> None:
    other = MadeArchive(archive.store, tp=archive.tp._replace(partition=1))
    other.segments(0, 20)
    with endpoint_over(archive.store) as parts:
        values = fetch_of("orders", 0, max_bytes=1)
        asked = values["topics"][0]["partitions"]
        asked.append({**asked[0], "partition": 1})
        first, second = parts.fetch(**values).responses[0].partitions
    assert bases(first.records) == [0]
    assert not second.records
    assert second.high_watermark == 20


def test_limits_cut_the_last_batch(parts: Parts) -> None:
    size = len(encoded(batches(0, 5)))
    assert len(parts.read(0, partition_max_bytes=size + 10).records) == size + 10
    assert len(parts.read(0, max_bytes=size + 10).records) == size + 10


def test_unknown_topics_partitions_and_ids(parts: Parts) -> None:
    def error(**values: Any) -> ErrorCode:  # noqa: ANN401 - the fields of a Fetch
        code: ErrorCode = parts.fetch(**values).responses[0].partitions[0].error_code
        return code

    assert error(**fetch_of("nothing", 0)) is ErrorCode.unknown_topic_or_partition
    assert error(**fetch_of("orders", 0, partition=1)) is ErrorCode.unknown_topic_or_partition
    by_id = fetch_of("orders", 0)
    by_id.pop("replica_id")
    topic = by_id["topics"][0]
    topic.pop("topic")
    topic["topic_id"] = UUID(int=5)
    assert error(version=16, **by_id) is ErrorCode.unknown_topic_id
    topic["topic_id"] = parts.catalog.topics["orders"].topic_id
    assert error(version=16, **by_id) is ErrorCode.none


def test_sessions_are_never_given_out(parts: Parts) -> None:
    response = parts.fetch(11, **fetch_of("orders", 0), session_id=0, session_epoch=0)
    assert (response.session_id, int(response.error_code)) == (0, 0)
    response = parts.fetch(11, **fetch_of("orders", 0), session_id=5, session_epoch=1)
    assert response.error_code is ErrorCode.fetch_session_id_not_found


def test_an_end_that_another_endpoint_has_shown_is_in_range(store: RemoteStorage) -> None:
    """Endpoints behind one address read the archive at different times."""
    archive = MadeArchive(store)
    archive.segments(0, 20)
    slow = CatalogSettings(3600, 3600, 3600, 3600)
    with endpoint_over(store, settings=slow) as parts:
        assert parts.read(20).high_watermark == 20
        archive.segment(20, batches(20, 40))
        archive.mark(20, 40)
        assert parts.read(20).high_watermark == 20  # the snapshot is an hour old at most
        data = parts.read(30)
        assert (int(data.error_code), data.high_watermark) == (0, 40)
        assert bases(data.records) == [30, 35]
        assert int(parts.read(41).error_code) == 1


def test_a_fetch_without_partitions_is_answered_at_once(parts: Parts) -> None:
    values = fetch_of("orders", 60, max_wait=60_000)
    values["topics"] = []
    assert parts.fetch(**values).responses == ()


def test_a_recorded_gap_is_out_of_range_and_the_log_names_it(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 20))
    archive.segment(40, batches(40, 60))
    archive.gap(20, 40)
    archive.mark(40, 60)
    with endpoint_over(store) as parts, capture_logs() as logs:
        assert [int(parts.read(at).error_code) for at in (19, 20, 39, 40)] == [0, 1, 1, 0]
    details = [row["detail"] for row in logs if row["event"] == "endpoint.offset_out_of_range"]
    assert len(details) == 2
    assert all("[20, 40)" in text or "[39, 40)" in text for text in details)
    assert all("the broker had deleted them" in text for text in details)


def test_a_client_in_a_gap_goes_on_behind_it_once(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segments(0, 20)
    archive.segment(40, batches(40, 60))
    archive.mark(40, 60)
    session, other = Session("client:1"), Session("client:2")
    with endpoint_over(store) as parts:

        def read(offset: int) -> None:
            fields = fetch_of("orders", offset)
            parts.fetch_as(EVERYTHING, 11, session.progress, **fields)

        read(20)
        assert earliest(other, parts.handlers, "orders") == 0
        assert earliest(session, parts.handlers, "orders") == 40
        assert earliest(session, parts.handlers, "orders") == 0
        read(39)
        read(5)  # it has gone elsewhere by itself
        assert earliest(session, parts.handlers, "orders") == 0


def test_removed_records_at_a_segments_end_are_no_gap(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 15), next_offset=20)
    archive.segment(20, batches(25, 30))
    archive.mark(20, 30)
    with endpoint_over(store) as parts:
        assert bases(parts.read(17).records) == [25]
        assert bases(parts.read(21).records) == [25]


def test_overlapping_segments_give_each_offset_once(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 40))
    archive.segment(20, batches(20, 30))
    archive.mark(20, 40)
    with endpoint_over(store) as parts:
        assert bases(parts.read(0).records) == [0, 5, 10, 15]
        assert bases(parts.read(20).records) == [20, 25]
        assert bases(parts.read(31).records) == [30, 35]


def test_records_below_the_start_offset_are_out_of_range(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 20))
    archive.mark(0, 20, start_offset=7)
    with endpoint_over(store) as parts:
        data = parts.read(7)
        assert (data.log_start_offset, bases(data.records)[0]) == (7, 5)
        assert int(parts.read(6).error_code) == 1


def test_read_committed_ends_at_the_last_stable_offset(store: RemoteStorage) -> None:
    """Producer 7 aborts in the second segment, producer 9 is open at the end."""
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2
    log.write(8, 2)  # 3 to 4
    first, second_base = list(log.batches), log.next_offset
    log.mark(7, commit=False)  # 5
    log.mark(8, commit=True)  # 6
    log.write(7, 1)  # 7
    log.mark(7, commit=True)  # 8
    log.write(9, 2)  # 9 to 10
    log.write(8, 1, transactional=False)  # 11
    archive = MadeArchive(store)
    archive.segment(0, first)
    archive.segment(second_base, log.batches[len(first) :])
    archive.transaction_indexes(0, [], {})
    aborted = AbortedTxn(7, Offset(0), Offset(5), Offset(3))
    archive.transaction_indexes(second_base, [aborted], {7: 0, 8: 3})
    archive.mark(second_base, log.next_offset)
    with endpoint_over(store) as parts:
        data = parts.read(0, isolation=1)
        assert (data.last_stable_offset, data.high_watermark) == (9, 12)
        assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 0)]
        data = parts.read(5, isolation=1)
        assert bases(data.records) == [5, 6, 7, 8]
        assert len(data.aborted_transactions) == 1
        # The transaction ended below 6; sent again, it would hide the producer's record 7.
        assert parts.read(6, isolation=1).aborted_transactions == ()
        data = parts.read(9, isolation=1)
        assert (int(data.error_code), data.records or b"") == (0, b"")
        assert bases(parts.read(9).records) == [9, 11]


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_segment_without_a_producer_snapshot_does_not_end_transactions(
    store: RemoteStorage, *, is_rebuilt: bool
) -> None:
    """A broker that loads its log after a crash deletes the snapshot at its log start, and may
    rebuild the transaction index there without the transactions that began below.
    """
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2
    log.write(8, 2)  # 3 to 4
    first, second_base = list(log.batches), log.next_offset
    log.mark(7, commit=False)  # 5
    log.write(8, 1)  # 6
    archive = MadeArchive(store)
    archive.segment(0, first)
    archive.segment(second_base, log.batches[len(first) :])
    archive.transaction_indexes(0, [], {})
    aborted = AbortedTxn(7, Offset(0), Offset(5), Offset(3))
    archive.transaction_indexes(second_base, [] if is_rebuilt else [aborted], {})
    archive.mark(second_base, log.next_offset)
    with endpoint_over(store) as parts:
        data = parts.read(0, isolation=1)
        assert data.last_stable_offset == 3
        assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 0)]


def test_a_long_poll_ends_when_the_archive_grows(archive: MadeArchive, parts: Parts) -> None:
    answers: list[Any] = []
    reader = threading.Thread(
        target=lambda: answers.append(parts.read(60, max_wait=30_000)), daemon=True
    )
    reader.start()
    archive.segment(60, batches(60, 70))
    archive.mark(60, 70)
    reader.join(10)
    assert not reader.is_alive()
    assert bases(answers[0].records) == [60, 65]


def test_a_long_poll_ends_when_another_request_has_read_the_new_end(archive: MadeArchive) -> None:
    settings = CatalogSettings(poll_interval=0.5, discovery_interval=3600.0)
    with endpoint_over(archive.store, settings=settings) as parts:
        answers: list[Any] = []
        reader = threading.Thread(
            target=lambda: answers.append(parts.read(60, max_wait=30_000)), daemon=True
        )
        reader.start()
        wait_until(lambda: bool(parts.catalog._watchers), 10, "the long poll")
        archive.segment(60, batches(60, 70))
        archive.mark(60, 70)
        partition = parts.catalog.partition("orders", 0)
        assert partition is not None
        partition.view(max_age=0.0)
        reader.join(20)
        assert [bases(answer.records) for answer in answers] == [[60, 65]]


def test_an_unexpected_error_does_not_end_the_refreshing_thread(
    archive: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_prefix: str) -> list[str]:
        raise ZeroDivisionError

    with endpoint_over(archive.store) as parts:
        monkeypatch.setattr(archive.store, "list_directories", fail)
        with capture_logs() as logged:
            wait_until(
                lambda: any(event.get("exc_info") for event in logged), 10, "the logged error"
            )
        assert all(thread.is_alive() for thread in parts.catalog.threads)


def test_a_store_that_hangs_delays_no_long_poll_of_another_store() -> None:
    """Nor its other partitions; and its own late answers end the waits when they arrive."""
    stores = {"memory://fast": FakeStorage(), "memory://slow": FakeStorage()}
    provider = PatternEndpointProvider(
        StorageEndpoint("memory://fast"), [("slow", StorageEndpoint("memory://slow"))]
    )
    access = ArchiveAccess(provider, OpenStores(provider, lambda at: stores[at.url]), LAYOUT)
    fast = MadeArchive(stores["memory://fast"])
    slow = [
        MadeArchive(stores["memory://slow"], tp=TopicPartition("slow", number))
        for number in range(20)
    ]
    for made in (fast, *slow):
        made.segments(0, 20)
    with endpoint_over(stores["memory://fast"], archive=access) as parts, ExitStack() as held:
        clients = held.enter_context(ThreadPoolExecutor(21))
        tps = [made.tp for made in (*slow, fast)]
        polls = [
            clients.submit(
                parts.fetch,
                **fetch_of(tp.topic, 20, partition=tp.partition, max_wait=30_000),
            )
            for tp in tps
        ]
        wait_until(lambda: len(parts.catalog._watchers) == 21, 10, "the long polls")
        with stores["memory://slow"].hold("get"):
            wait_until(lambda: len(parts.catalog._refreshing) >= 20, 10, "the reads that hang")
            for made in (slow[0], fast):
                made.segment(20, batches(20, 40))
                made.mark(20, 40)
            (data,) = polls[20].result(10).responses[0].partitions
            assert bases(data.records) == [20, 25, 30, 35]
            assert not any(poll.done() for poll in polls[:20])
        (data,) = polls[0].result(10).responses[0].partitions
        assert bases(data.records) == [20, 25, 30, 35]
        parts.catalog.close()


def test_a_long_poll_ends_after_its_wait(parts: Parts) -> None:
    assert not parts.read(60, max_wait=30).records


def test_a_long_poll_ends_when_the_endpoint_stops(archive: MadeArchive) -> None:
    with endpoint_over(archive.store) as parts:
        reader = threading.Thread(target=lambda: parts.read(60, max_wait=60_000), daemon=True)
        reader.start()
    reader.join(10)
    assert not reader.is_alive()


def test_a_replaced_segment_is_a_retriable_error_and_never_mixed(archive: MadeArchive) -> None:
    settings = CatalogSettings(max_age=3600.0)
    for base in (0, 20, 40):  # otherwise the search for open transactions reads all segments
        archive.transaction_indexes(base, [], {})
    with endpoint_over(archive.store, settings=settings) as parts, capture_logs() as logs:
        assert bases(parts.read(0).records) == [0, 5, 10, 15]
        # Not the next segment: it is fetched ahead.
        replaced = encoded(batches(40, 60, each=4))
        archive.segment(40, replaced)
        archive.mark(40, 60, leader_epoch=4)
        data = parts.read(40)
        assert data.error_code is ErrorCode.not_leader_or_follower
        assert not data.records
        assert bytes(parts.read(40).records) == replaced
    events = {row["event"] for row in logs}
    assert {"endpoint.segment_replaced", "endpoint.archive_replaced"} <= events


def test_a_recreated_topic_has_another_id(archive: MadeArchive) -> None:
    """A client must not continue in the new topic at the offset that it reached in the old one."""
    old, new = (uuid4() for _ in range(2))
    archive.mark(40, 60, topic_id=text_of_id(old))
    with endpoint_over(archive.store) as parts:

        def read(topic_id: UUID) -> Any:  # noqa: ANN401 - kio's
            return parts.fetch(13, **by_id(fetch_of("", 20), topic_id)).responses[0].partitions[0]

        assert bases(read(old).records) == [20, 25, 30, 35]
        archive.mark(40, 60, topic_id=text_of_id(new))
        assert read(old).error_code is ErrorCode.unknown_topic_id
        assert bases(read(new).records) == [20, 25, 30, 35]
        assert parts.catalog.topics["orders"].topic_id == new


def test_partitions_with_ids_of_different_topics_are_served_by_the_first_one(
    archive: MadeArchive,
) -> None:
    first, second = (uuid4() for _ in range(2))
    archive.mark(40, 60, topic_id=text_of_id(first))
    other = MadeArchive(archive.store, tp=TopicPartition("orders", 1))
    other.segments(0, 20)
    other.mark(0, 20, topic_id=text_of_id(second))
    with endpoint_over(archive.store) as parts:
        asked = by_id(fetch_of("", 0, partition=1), first)
        for _ in range(2):
            data = parts.fetch(13, **asked).responses[0].partitions[0]
            assert bases(data.records) == [0, 5, 10, 15]


def by_id(asked: dict[str, Any], topic_id: UUID) -> dict[str, Any]:
    """Return the fields of a Fetch that names its topic by id."""
    return asked | {
        "topics": [{"topic_id": topic_id, "partitions": asked["topics"][0]["partitions"]}]
    }


def text_of_id(topic_id: UUID) -> str:
    """Return an id as Kafka writes it."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def test_a_store_that_is_away_is_a_retriable_error() -> None:
    store = FakeStorage()
    MadeArchive(store).segments(0, 20)
    with endpoint_over(store) as parts:
        store.fail("stream", StoreUnavailableError("away"))
        assert parts.read(0).error_code is ErrorCode.kafka_storage_error
        assert bases(parts.read(0).records) == [0, 5, 10, 15]


def test_damaged_bytes_where_a_batch_must_begin_are_reported(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    log = archive.segment(0, batches(0, 20))
    archive.put(archive.key(0), b"\x55" * len(log))
    archive.mark(0, 20)
    with endpoint_over(store) as parts:
        assert parts.read(0).error_code is ErrorCode.corrupt_message


def test_damage_in_the_last_segment_does_not_hide_the_others(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 20))
    log = TransactionalLog(next_offset=20)
    log.write(7, 5)
    data = archive.segment(20, log.batches)
    archive.put(archive.key(20), data[:-1] + b"x" * 9)
    archive.mark(20, 25)
    with endpoint_over(store) as parts:
        assert bases(parts.read(0).records) == [0, 5, 10, 15]
        assert parts.read(0, isolation=1).error_code is ErrorCode.corrupt_message


def test_memory_is_returned_when_aborted_transactions_cannot_be_read() -> None:
    store = FakeStorage()
    log = TransactionalLog()
    log.write(7, 3)
    first = list(log.batches)
    log.mark(7, commit=False)
    archive = MadeArchive(store)
    archive.segment(0, first)
    archive.segment(3, log.batches[len(first) :])
    archive.transaction_indexes(0, [], {})
    archive.transaction_indexes(3, [AbortedTxn(7, Offset(0), Offset(3), Offset(4))], {7: 0})
    archive.mark(3, 4)
    settings = CatalogSettings(max_age=3600.0)
    with endpoint_over(store, settings=settings, memory=4 << 20) as parts:
        assert parts.read(3, isolation=1).error_code is ErrorCode.none
        key = archive.key(3, FileKind.SNAPSHOT)
        store.fail("get", StoreUnavailableError("away"), key=key)
        assert parts.read(0, isolation=1).error_code is ErrorCode.kafka_storage_error
        assert all(not block.pins for block in parts.blocks._blocks.values())
        assert len(parts.read(0, isolation=1).aborted_transactions) == 1


def test_transactions_in_archives_of_pinterest_are_read_from_markers() -> None:
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2
    log.mark(7, commit=False)  # 3
    log.write(8, 2, transactional=False)  # 4 to 5
    archive = MadeArchive(FakeStorage(), is_pinterest=True)
    archive.segment(0, log.batches)
    archive.mark(0, 6)
    with endpoint_over(archive.store) as parts:
        assert len(parts.read(0, isolation=1).aborted_transactions) == 1
        assert parts.read(4, isolation=1).aborted_transactions == ()


def test_open_transactions_in_archives_of_pinterest_are_held_back() -> None:
    """No record of a transaction is skipped whose marker is archived later."""
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2
    log.mark(7, commit=False)  # 3
    log.write(8, 2)  # 4 to 5, open at the end
    log.write(9, 1, transactional=False)  # 6
    archive = MadeArchive(FakeStorage(), is_pinterest=True)
    archive.segment(0, log.batches)
    archive.mark(0, 7)
    with endpoint_over(archive.store) as parts:
        data = parts.read(0, isolation=1)
        assert (data.last_stable_offset, data.high_watermark) == (4, 7)
        assert bases(data.records) == [0, 3]
        assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 0)]
        for offset in (4, 5):
            data = parts.read(offset, isolation=1)
            assert (int(data.error_code), data.records or b"") == (0, b"")
        assert bases(parts.read(4).records) == [4, 6]
        grown, first = log.next_offset, len(log.batches)
        log.mark(8, commit=True)  # 7
        archive.segment(grown, log.batches[first:])
        archive.mark(grown, log.next_offset)
        data = parts.read(4, isolation=1)
        assert (bases(data.records), data.aborted_transactions) == ([4, 6], ())
        assert data.last_stable_offset == 8


def test_open_transaction_of_pinterests_archive_leaves_its_room_to_other_partitions() -> None:
    store, log = FakeStorage(), TransactionalLog()
    log.write(8, 2)  # 0 to 1, open at the end
    archive = MadeArchive(store, is_pinterest=True)
    archive.segment(0, log.batches)
    archive.mark(0, 2)
    other = MadeArchive(store, tp=TopicPartition("orders", 1), is_pinterest=True)
    other.segment(0, batches(0, 5))
    other.mark(0, 5)
    wanted = fetch_of("orders", 1, isolation=1, max_bytes=1)
    fields = fetch_of("orders", 0, partition=1)["topics"][0]["partitions"]
    wanted["topics"][0]["partitions"] += fields
    with endpoint_over(store) as parts:
        first, second = parts.fetch(**wanted).responses[0].partitions
        assert (int(first.error_code), first.records or b"") == (0, b"")
        assert (first.last_stable_offset, first.high_watermark) == (0, 2)
        assert bases(second.records) == [0]


def test_segments_without_index_are_read(store: RemoteStorage) -> None:
    archive = MadeArchive(store)
    archive.segments(0, 2000)
    archive.lose(0, FileKind.INDEX)
    with endpoint_over(store) as parts:
        for offset in (0, 999, 1500, 1999):
            assert bases(parts.read(offset).records)[0] == offset // 5 * 5


def test_archives_of_pinterest_are_read(store: RemoteStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segment(0, batches(0, 20))
    archive.segment(20, batches(20, 40))
    archive.mark(20, 40)
    with endpoint_over(store) as parts:
        data = parts.read(22, isolation=1)
        assert (data.high_watermark, bases(data.records)[0]) == (40, 20)


def test_memory_is_returned_after_each_answer(archive: MadeArchive) -> None:
    with endpoint_over(archive.store, memory=1 << 20) as parts:
        for _ in range(50):
            for offset in range(0, 60, 5):
                parts.read(offset)
        wait_until(lambda: parts.blocks.used <= 1 << 20, 5, "the budget to be kept")


def test_a_response_with_records_does_not_wait_for_another_partition() -> None:
    """The other one's blocks are fetched meanwhile, and the client asks again."""
    store = FakeStorage()
    for number in range(2):
        MadeArchive(store, tp=TopicPartition("orders", number)).segments(0, 20)
    values = fetch_of("orders", 0)
    asked = values["topics"][0]["partitions"]
    asked.append({**asked[0], "partition": 1})
    with endpoint_over(store) as parts:
        first, second = parts.fetch(**values).responses[0].partitions
        assert bases(first.records) == [0, 5, 10, 15]
        assert (second.error_code, second.records) == (ErrorCode.none, b"")
        assert second.high_watermark == 20
        wait_until(lambda: not parts.blocks._pinned, 10, "the blocks")
        first, second = parts.fetch(**values).responses[0].partitions
        assert bases(first.records) == bases(second.records) == [0, 5, 10, 15]
