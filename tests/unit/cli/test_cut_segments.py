"""A `.log` that has lost its last batches, at a batch border and with its metadata: no reader takes
it for a whole or a compacted segment.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.reader import Failed, ReachedEnd
from sidetier.consumer.tiered_consumer import TieredConsumer
from sidetier.mirror.copy.archive_source import ArchivedBatches, ArchiveEnd, ArchiveSource
from sidetier.mirror.copy.batches import select_batches
from sidetier.mirror.hydrate.log_dir import destinations, locked_log_dirs
from sidetier.mirror.hydrate.place import Journal, PlaceSettings, place
from sidetier.mirror.hydrate.plan import PreparedTopic, with_prepared
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.mirror.hydrate.verify import ArchiveSide
from sidetier.mirror.restore.copy_check import ArchivedRecords, CopiedRange
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import DamagedSegmentError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import HEADER_BYTES, SEALED_BYTES, is_encrypted, marker_key
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import PutOptions, RemoteStorage
from tests.harness.command_line import CommandLine
from tests.harness.cut_logs import cut_log, note_as_earlier
from tests.harness.encryption import encryption
from tests.harness.endpoint import endpoint_over
from tests.harness.made_archive import (
    LAYOUT,
    TP,
    MadeArchive,
    access_to,
    batches,
    read_from,
    reading,
)
from tests.harness.made_archive import offsets as offsets_of
from tests.harness.record_batches import TransactionalLog
from tests.harness.splits import plan_of, read_splits
from tests.harness.waiting import wait_until

Read = Callable[[MadeArchive, Path], list[int]]
"""Returns the offsets that a reader delivers as the whole archive; raises an error, or asserts that
one is reported.
"""


def consumer(isolation: IsolationLevel) -> Read:
    def read(archive: MadeArchive, _: Path) -> list[int]:
        taken = read_from(archive, 0, isolation=isolation)
        if isinstance(taken[-1], Failed):
            raise taken[-1].error
        assert isinstance(taken[-1], ReachedEnd)
        return offsets_of(taken)

    return read


def search(archive: MadeArchive, _: Path) -> list[int]:
    """Search each record by its timestamp, which equals its offset."""
    with reading(archive.store) as reader:
        return [int(reader.offset_for_time(TP, at) or -1) for at in range(1, 60)]


def mirror(archive: MadeArchive, _: Path) -> list[int]:
    source, at = ArchiveSource(access_to(archive.store), chunk_bytes=500), Offset(0)
    copied: list[int] = []
    while isinstance(read := source.read(TP, at), ArchivedBatches):
        selection = select_batches(read.data, at, read.aborted, until=read.end)
        for batch in selection.batches:
            copied += range(batch.header.base_offset, batch.header.next_offset)
        at = selection.next_offset if read.data else read.end
    assert read == ArchiveEnd(Offset(60))
    return copied


def restored(archive: MadeArchive, _: Path) -> list[int]:
    """The records that `sidetier restore` compares its copy with."""
    with closing(ArchivedRecords(access_to(archive.store))) as records:
        copied = CopiedRange(TP, TP, Offset(0), Offset(60), Offset(60))
        found = records.records(copied, None)
        return [at for batch in found for at in batch.column("offset").to_pylist()]


def spark(*columns: str) -> Read:
    def read(archive: MadeArchive, _: Path) -> list[int]:
        return read_splits(archive.store, plan_of(archive.store).splits, columns=columns).offsets

    return read


def endpoint(archive: MadeArchive, _: Path) -> list[int]:
    found: list[int] = []
    with endpoint_over(archive.store) as parts, capture_logs() as logs:
        at = 0
        while at < 60:
            data = parts.read(at)
            if data.error_code is ErrorCode.corrupt_message:
                raise DamagedArchiveError(str(logs[-1]["error"]), "", 0, (0, 0))  # type: ignore[arg-type]
            assert data.error_code is ErrorCode.none
            if not data.records:
                break
            selection = select_batches(memoryview(bytearray(data.records)), Offset(at), ())
            for batch in selection.batches:
                found += range(batch.header.base_offset, batch.header.next_offset)
            at = selection.next_offset
    return found


def hydrated(archive: MadeArchive, root: Path) -> list[int]:
    directory = root / "kafka-logs" / str(TP)
    directory.mkdir(parents=True)
    (directory.parent / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=new\n")
    for kind in (FileKind.LOG, FileKind.INDEX):
        (directory / f"{0:020d}{kind}").write_bytes(b"")
    access = access_to(archive.store)
    plan = make_plan(access, lambda _: True, Cut(), {})
    plan = with_prepared(plan, "new", {TP.topic: PreparedTopic(None, (1,))})
    with locked_log_dirs([directory.parent]) as log_dirs:
        journals = {item.path: Journal(item.path, plan.plan_id) for item in log_dirs}
        (placed,) = place(plan, access, destinations(plan, log_dirs, {}), journals, PlaceSettings())
    shutil.rmtree(directory.parent)
    if placed.problem is not None:
        raise DamagedArchiveError(placed.problem, "", 0, (0, 0))  # type: ignore[arg-type]
    return list(range(60))


def compared_by_bytes(archive: MadeArchive, _: Path) -> list[int]:
    """The archived bytes that `sidetier hydrate verify` compares the brokers with."""
    access = access_to(archive.store)
    plan = make_plan(access, lambda _: True, Cut(), {})
    with closing(ArchiveSide(access)) as side:
        size = sum(map(len, side.placed(plan.partitions[0]).chunks()))
    assert size
    return list(range(60))


READERS: dict[str, Read] = {
    "consumer": consumer(IsolationLevel.READ_UNCOMMITTED),
    "committed consumer": consumer(IsolationLevel.READ_COMMITTED),
    "search by time": search,
    "mirror": mirror,
    "restore's comparison": restored,
    "Spark": spark("offset", "value"),
    "Spark, offsets only": spark("offset"),
    "endpoint": endpoint,
    "hydrate place": hydrated,
    "hydrate verify": compared_by_bytes,
}


def as_now(_store: RemoteStorage, _key: str) -> None:
    """Keep all metadata."""


def with_checksum(store: RemoteStorage, key: str) -> None:
    """Keep what earlier versions noted of a segment."""
    data = memoryview(store.get_object(key).data)
    note_as_earlier(store, key, checksum=f"{crc64nvme(data):016x}")


def with_count(store: RemoteStorage, key: str) -> None:
    """Keep the number of records, but no checksum."""
    note_as_earlier(store, key)


@pytest.mark.parametrize("notes", [as_now, with_checksum, with_count])
@pytest.mark.parametrize("base", [20, 40], ids=["middle", "last"])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_delivers_a_cut_segment_as_a_whole_one(
    reader: str, base: int, notes: Callable[[RemoteStorage, str], None], tmp_path: Path
) -> None:
    archive = MadeArchive()
    archive.segments(0, 20, 40, 60)
    read, key = READERS[reader], archive.key(base)
    notes(archive.store, key)
    expected = list(range(1 if reader == "search by time" else 0, 60))
    assert read(archive, tmp_path) == expected
    was = archive.store.get_object(key).data

    reached = cut_log(archive.store, key, batches=2)

    with pytest.raises((DamagedArchiveError, MissingRecordsError)) as caught:
        read(archive, tmp_path)
    assert key in str(caught.value)
    assert reached == base + 10
    if notes is as_now:
        sizes = f"{len(was) // 2} bytes, but {len(was)} bytes were archived"
        assert sizes in str(caught.value)


@pytest.mark.parametrize("notes", [as_now, with_checksum])
@pytest.mark.parametrize("base", [20, 40], ids=["middle", "last"])
@pytest.mark.parametrize("reader", READERS)
def test_a_compacted_segment_that_ends_below_its_noted_end_is_whole(
    reader: str, base: int, notes: Callable[[RemoteStorage, str], None], tmp_path: Path
) -> None:
    archive = MadeArchive()
    archive.segments(0, 20, 40, 60)
    archive.segment(base, batches(base, base + 10), next_offset=base + 20)
    notes(archive.store, archive.key(base))
    left = [*range(base + 10), *range(base + 20, 60)]
    found = READERS[reader](archive, tmp_path)
    if reader == "search by time":
        assert found == [next((at for at in left if at >= time), -1) for time in range(1, 60)]
    elif not reader.startswith("hydrate"):
        assert found == left


def transaction_ends(archive: MadeArchive, _: Path) -> list[int]:
    with Planner(access_to(archive.store), threads=1) as planner:
        return [planner.ends([TP], IsolationLevel.READ_COMMITTED)[TP]]


def mirror_ends(archive: MadeArchive, _: Path) -> list[int]:
    end = ArchiveSource(access_to(archive.store)).last_stable_offset(TP)
    return [] if end is None else [end]


def transactional_plan(archive: MadeArchive, _: Path) -> list[int]:
    access = access_to(archive.store)
    plan = make_plan(access, lambda _: True, Cut(), {}, is_transaction_consistent=True)
    return [plan.partitions[0].end]


@pytest.mark.parametrize(
    "read",
    [
        transaction_ends,
        mirror_ends,
        transactional_plan,
        consumer(IsolationLevel.READ_COMMITTED),
        spark("offset", "value"),
    ],
)
@pytest.mark.parametrize("notes", [as_now, with_checksum])
def test_a_transaction_whose_marker_is_lost_is_no_open_transaction(
    read: Read, notes: Callable[[RemoteStorage, str], None], tmp_path: Path
) -> None:
    log = TransactionalLog()
    log.write(7, 10, transactional=False)
    log.write(8, 5)
    log.mark(8, commit=True)
    archive = MadeArchive()
    archive.segment(0, log.batches)
    archive.mark(0, log.next_offset)
    notes(archive.store, archive.key(0))
    assert read(archive, tmp_path)[-1] in {14, 16}

    cut_log(archive.store, archive.key(0))

    with pytest.raises((DamagedArchiveError, MissingRecordsError), match="its noted end is 16"):
        read(archive, tmp_path)


@pytest.fixture
def cut(cli: CommandLine) -> str:
    """An archive of orders-0, 40 records in four segments; the third has lost its last batch."""
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(4)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0, cli.err
    key = MadeArchive(layout=LAYOUT).key(20)
    assert 20 < cut_log(LocalStorage(cli.store), key) < 30
    return key


def test_commands_name_the_cut_segment(cli: CommandLine, cut: str) -> None:
    assert cli.run("consume", "orders", "0") == 1
    assert cut in cli.err
    assert "bytes were archived" in cli.err

    assert cli.run("export", "files", "orders", "--into", f"file://{cli.root}/files") != 0
    assert cut in cli.err

    assert cli.json("verify")["findings"] == []
    (finding,) = cli.json("verify", "--heads", code=3)["findings"]
    assert (finding["kind"], finding["key"]) == ("wrong_size", cut)

    (finding,) = cli.json("verify", "--local", code=3)["findings"]
    assert (finding["kind"], finding["key"]) == ("local_difference", cut)
    assert "bytes were archived" in finding["detail"]


def test_a_cut_encrypted_segment_is_not_whole(cli: CommandLine) -> None:
    """Cut at the border of two encrypted chunks, with the marker that fits the new size."""
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(3, records=3000)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0, cli.err
    key, store = MadeArchive(layout=LAYOUT).key(3000), LocalStorage(cli.store)
    stored = store.get_object(key)
    assert is_encrypted(stored.data)
    size = HEADER_BYTES + SEALED_BYTES
    assert len(stored.data) > size
    store.put_object(
        key, BytesBody(stored.data[:size]), PutOptions(metadata=dict(stored.head.metadata))
    )
    store.delete_object(marker_key(key, len(stored.data)))
    store.put_object(marker_key(key, size), BytesBody(b""))

    assert cli.run("consume", "orders", "0") == 1
    assert key in cli.err
    (finding,) = cli.json("verify", "--heads", code=3)["findings"]
    assert (finding["kind"], finding["key"]) == ("wrong_size", key)


@pytest.mark.parametrize("reader", [name for name in READERS if name != "Spark, offsets only"])
def test_an_object_that_ends_before_its_listed_size_is_damaged(reader: str, tmp_path: Path) -> None:
    """The store's disk has lost the end: listing, metadata and etag are as before."""
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 20, 40, 60)
    store.cut(archive.key(20), len(store.contents()[archive.key(20)]) // 2)
    with pytest.raises((DamagedSegmentError, MissingRecordsError), match=r"0{18}20\.log"):
        READERS[reader](archive, tmp_path)


def test_tiered_consumer_returns_an_error_for_the_cut_segment(cli: CommandLine, cut: str) -> None:
    consumer = TieredConsumer(
        {
            "tiered.storage.mode": "TIERED_STORAGE_ONLY",
            "tiered.storage.url": f"file://{cli.store}",
            "tiered.storage.cluster.name": "prod-a",
            "tiered.storage.prefix.entropy.bits": 3,
            "auto.offset.reset": "error",
        }
    )
    offsets: list[int | None] = []
    texts: list[str] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            error = message.error()
            if error is None:
                offsets.append(message.offset())
            else:
                texts.append(error.str())
        return bool(texts)

    try:
        consumer.assign([Place("orders", 0, 0)])
        wait_until(read, 20, "an error")
    finally:
        consumer.close()
    assert offsets == list(range(len(offsets)))
    assert 20 < len(offsets) < 30
    assert cut in texts[0]
    assert "bytes were archived" in texts[0]


@pytest.mark.parametrize("check", ["--heads", "--deep"])
def test_a_segment_of_another_partition_with_the_same_offsets_is_found(
    cli: CommandLine, check: str
) -> None:
    """A copy on the store keeps the metadata, and all of its checksums fit."""
    for number in (0, 1):
        cli.log_dir.create("orders", number).closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0, cli.err
    keys = [
        MadeArchive(layout=LAYOUT, tp=TopicPartition("orders", number)).key(10) for number in (0, 1)
    ]
    LocalStorage(cli.store).copy_object(keys[1], keys[0])
    findings = cli.json("verify", check, code=3)["findings"]
    finding = next(found for found in findings if found["kind"] == "wrong_place")
    assert (finding["key"], finding["severity"]) == (keys[0], "error")
    assert finding["detail"] == f"{keys[0]} was archived as the segment orders-1/{10:020d}"


def test_an_index_that_ends_before_its_listed_size_is_not_used() -> None:
    """The end of Pinterest's archive is otherwise read from the last entry of the last index."""
    store = FakeStorage()
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200)
    index = archive.key(100, FileKind.INDEX)
    store.cut(index, len(store.contents()[index]) - 3)
    assert offsets_of(read_from(archive, 0)) == list(range(200))
