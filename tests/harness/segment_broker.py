"""A real broker whose partitions have the segments of the fixtures, and their archive.

The broker and the archive then have the same records, offsets and topic ids, so that the answers of
an endpoint over the archive can be compared with the broker's.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from devtools.sandbox.kafka import KraftCluster
from sidetier.brokers.kafka import KAFKA_4_3
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import BrokerSegment, closed_segments, directories
from tests.harness.made_archive import MadeArchive
from tests.harness.topics import create_topic

_KEPT: Mapping[str, int] = {"retention.ms": -1, "file.delete.delay.ms": 1000}


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition, and the closed segments that it has.

    Attributes:
        tp: The partition.
        fixture: Name of the fixture that its segments are copied from.
        first: Number of the first of these segments.
    """

    tp: TopicPartition
    fixture: str
    first: int = 0

    @property
    def segments(self) -> list[BrokerSegment]:
        """The segments, in order."""
        named = [segment for segment in closed_segments() if segment.directory.name == self.fixture]
        return named[self.first :]

    @property
    def start(self) -> int:
        """First offset."""
        return int(self.segments[0].base)

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.segments[-1].next_base


def _of_fixture(name: str) -> HeldPartition:
    topic, _, number = name.rpartition("-")
    return HeldPartition(TopicPartition(topic, int(number)), name)


HELD: tuple[HeldPartition, ...] = (
    *(_of_fixture(path.name) for path in directories()),
    HeldPartition(TopicPartition("late", 0), "comp-none-0", first=2),
    HeldPartition(TopicPartition("many", 0), "comp-lz4-0"),
    HeldPartition(TopicPartition("many", 2), "tx-0"),
)
"""Every fixture; a log that begins above 0; a topic whose partition 1 is empty."""


class SegmentBroker:
    """A cluster of one broker with the partitions of `HELD`. Leaving the context kills it."""

    def __init__(self, directory: Path, version: str = KAFKA_4_3) -> None:
        self.version = version
        self._cluster = KraftCluster(directory, version)
        self.topic_ids: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Create the topics, replace the files of their partitions, and start the broker again."""
        self._cluster.start()
        try:
            sizes: dict[str, int] = {}
            for held in HELD:
                sizes[held.tp.topic] = max(sizes.get(held.tp.topic, 0), held.tp.partition + 1)
            for topic, partitions in sizes.items():
                create_topic(self.bootstrap, topic, partitions=partitions, configs=_KEPT)
            self._cluster.stop_broker(1)
            for held in HELD:
                self.topic_ids[held.tp.topic] = self._place(held)
            self._cluster.start_broker(1)
        except BaseException:
            self._cluster.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.kill()

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return self._cluster.bootstrap_servers

    def _place(self, held: HeldPartition) -> str:
        """Replace the files of a partition, and return the topic's id.

        The broker was stopped cleanly: it takes the segments as they are. The last closed segment
        becomes the active one, so that the partition ends where the archive does.
        """
        (log_dir,) = self._cluster.log_dirs(1)
        target = log_dir / str(held.tp)
        for path in target.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        source = held.segments[0].directory
        for segment in held.segments:
            for path in source.glob(f"{segment.base:020d}.*"):
                shutil.copy2(path, target)
        shutil.copy2(source / "leader-epoch-checkpoint", target)
        snapshot = source / f"{held.end:020d}.snapshot"
        if snapshot.exists():
            shutil.copy2(snapshot, target)
        lines = (target / "partition.metadata").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "topic_id" in line)


def store_held(
    store: RemoteStorage, layout: ArchiveLayout, topic_ids: Mapping[str, str] | None = None
) -> None:
    """Store the archive of `HELD`."""
    for held in HELD:
        topic_id = (topic_ids or {}).get(held.tp.topic)
        store_broker_segments(
            store, layout, held.fixture, held.tp, topic_id=topic_id, first=held.first
        )
        archive = MadeArchive(store, layout, held.tp)
        archive.epoch_history((LeaderEpoch(0), Offset(held.start)))
