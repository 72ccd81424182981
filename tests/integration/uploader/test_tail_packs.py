"""Tail packs beside a real broker: what is left when broker, sidecar and disk are gone at once."""

import shutil
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.leader_epochs import read_epoch_history
from sidetier.archive.objects.watermark import read_watermark
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.archive_check import ArchiveReader
from tests.harness.archive_objects import file_store
from tests.harness.ledger import Ledger, make_producer
from tests.harness.local_segments import small_segments
from tests.harness.served_archive import serving
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.stored_log import Record, read_records
from tests.harness.tail_packs import read_tail
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until
from tests.integration.cli.test_backfill import sidetier

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

INTERVAL = 2
SLACK = 2.0
SECONDS = 120.0
PARTITIONS = 4
LAYOUT = ArchiveLayout("test", 5)


class AckTimes(dict[int, Record]):
    """Acknowledged records of a partition, with the time of each acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, float] = {}

    def __setitem__(self, offset: int, record: Record) -> None:
        super().__setitem__(offset, record)
        self.at[offset] = time.monotonic()


def tail_of(store: RemoteStorage, tp: TopicPartition, topic_id: str | None = None) -> MergedTail:
    """The tail of a partition as readers merge it."""
    stored = read_watermark(store, LAYOUT.watermark_key(tp))
    contents = TailInventory(store, LAYOUT).read()
    assert not contents.problems
    archived = ArchivedPart(topic_id=topic_id)
    if stored is not None:
        epochs = read_epoch_history(store, LAYOUT, tp).epoch_history
        archived = ArchivedPart(
            stored.watermark.next_offset, epochs, stored.watermark.topic_id or topic_id
        )
    return contents.merged(tp, archived)


def records_of(store: RemoteStorage, tail: MergedTail) -> dict[int, Record]:
    """The records of a merged tail."""
    data = b"".join(bytes(batch.data) for batch in read_tail(store, tail))
    return dict(read_records(data, "the tail"))


def test_a_cluster_that_is_destroyed_comes_back_but_for_the_last_seconds(  # noqa: C901, PLR0915 - one cluster
    topic: str, tmp_path: Path
) -> None:
    store = file_store(tmp_path / "store")
    objects = open_plain(StorageEndpoint(f"file://{tmp_path / 'store'}"))
    ledger = Ledger()
    acked = [AckTimes() for _ in range(PARTITIONS)]
    for number, times in enumerate(acked):
        ledger.records[topic, number] = times
    properties = {"log.preallocate": "true"}
    with KraftCluster(tmp_path / "kafka", properties=properties) as kafka:
        bootstrap = kafka.bootstrap_servers
        segments = small_segments(size=1 << 20)
        create_topic(bootstrap, topic, partitions=PARTITIONS, configs=segments)
        settings = merged(
            beside(kafka, store, topics=[topic]), {"uploader": {"tail": {"interval": INTERVAL}}}
        )
        stop = threading.Event()

        def load(producer: Producer) -> None:
            number = 0
            while not stop.wait(0.01):
                number += 1
                # The last partition is slow: only the tail has its records.
                for partition in range(PARTITIONS - 1 if number % 50 else PARTITIONS):
                    ledger.send(producer, topic, partition)
            producer.purge()

        with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
            slow = TopicPartition(topic, PARTITIONS - 1)
            ledger.produce(bootstrap, topic, 3, partitions=[slow.partition])
            wait_until(lambda: tail_of(objects, slow).end == 3, SECONDS, "the tail of few records")

            def status() -> tuple[int, int] | None:
                row = sidecar.partition(topic, slow.partition)
                return None if row is None else (row["next_offset"], row["safe_to"])

            wait_until(lambda: status() == (0, 3), SECONDS, "the status to show it")
            sidecar.kill()
            packs = len(list(objects.list_objects(LAYOUT.tails_prefix())))
            sidecar.start()
            producer = make_producer(bootstrap, {"acks": "all"})
            thread = threading.Thread(target=load, args=(producer,))
            thread.start()
            try:
                wait_until(
                    lambda: sidecar.metric("sidetier_tail_packs_total") >= 3, SECONDS, "some packs"
                )
                wait_until(
                    lambda: sidecar.metric("sidetier_watermark_next_offset", topic=topic) > 0,
                    SECONDS,
                    "an archived segment",
                )
                cycles = sidecar.metric("sidetier_tail_cycle_seconds_sum")
                count = sidecar.metric("sidetier_tail_cycle_seconds_count")
            finally:
                died = time.monotonic()
                for node in kafka.brokers.values():
                    node.process.kill()
                sidecar.kill()
                stop.set()
                thread.join()
            assert len(list(objects.list_objects(LAYOUT.tails_prefix()))) > packs
            assert not sidecar.seen("tail.unexpected_error")
        for directory in kafka.log_dirs(1):
            shutil.rmtree(directory)

    reader = ArchiveReader(store.objects)
    views = reader.views()
    oldest_missing = 0.0
    safe: list[dict[int, Record]] = []
    for number, times in enumerate(acked):
        tp = TopicPartition(topic, number)
        view = views.get((topic, number))
        found = {} if view is None else dict(reader.records(view))
        tail = tail_of(objects, tp)
        archived_end = tail.start
        assert all(offset < archived_end for offset in found)
        found |= {at: r for at, r in records_of(objects, tail).items() if at >= archived_end}
        wrong = [at for at, record in times.items() if at in found and found[at] != record]
        assert not wrong
        assert tail.end > Offset(0)
        safe.append(found)
        missing = [died - times.at[at] for at in times if at not in found]
        oldest_missing = max([oldest_missing, *missing])
    assert oldest_missing <= INTERVAL + SLACK, f"mean cycle {cycles / max(count, 1):.2f} s"
    for name, options in (("archive", ()), ("live", ("--live", bootstrap, "--groups", "none"))):
        with serving(tmp_path / name, "--with-tail", *options, store=store) as endpoint:
            for number, found in enumerate(safe):
                read = endpoint.read(topic, number, settings={"isolation.level": "read_committed"})
                served = {each.offset(): Record(each.key(), each.value()) for each in read}
                assert served == found
    # The topic goes with its cluster: its records are in the retired archive, and in no pack.
    # No broker says that partitions without an archive, such as the slow one, are deleted.
    names = [f"{topic}-{n}" for n in range(PARTITIONS) if (topic, n) not in views]
    assert str(slow) in names
    promotion = ("tail", "promote", *(word for name in names for word in ("--partition", name)))
    assert sidetier(tmp_path, settings, store, *promotion)["code"] == 0
    assert sidetier(tmp_path, settings, store, "retire", topic, "--offline")["code"] == 0
    for number, found in enumerate(safe):
        prefix = LAYOUT.retired_prefix(TopicPartition(topic, number))
        logs = [each.key for each in objects.list_objects(prefix) if each.key.endswith(".log")]
        data = b"".join(objects.get_object(key).data for key in logs)
        assert dict(read_records(data, prefix)) == found
    words = ("gc", "--tail-packs", "--older-than", "0s", "--yes")
    [cleaned] = sidetier(tmp_path, settings, store, *words)["brokers"]
    assert (cleaned["dropped_packs"], cleaned["kept"]) == (cleaned["packs"], {})
    assert not TailInventory(objects, LAYOUT).read().packs
