"""Table exports by drivers that can be killed, and what a consumer read of the same data."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from devtools.sandbox.spark import Version
from sidetier.brokers.jars import Distribution
from sidetier.pipeline.export.state import Exported
from sidetier.segments.headers import walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness import table_jobs
from tests.harness.batches import pread_of
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import BrokerSegment
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.spark import SparkDriver, spark_driver

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "segments"
LAYOUT = ArchiveLayout("prod-a", 5)
Row = dict[str, Any]
Offsets = dict[str, dict[str, int]]


@dataclass
class GrowingArchive:
    """The closed segments of some fixtures, of which a test chooses how much is readable."""

    root: Path
    directories: tuple[str, ...]
    segments: dict[str, list[BrokerSegment]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """Path of a sidecar's configuration."""
        return self.root / "sidetier.yaml"

    @property
    def topics(self) -> list[str]:
        return [directory.rpartition("-")[0] for directory in self.directories]

    def create(self) -> "GrowingArchive":
        url = f"file://{self.root}/store"
        store = open_plain(StorageEndpoint(url))
        for directory in self.directories:
            self.segments[directory] = store_broker_segments(store, LAYOUT, directory)
        store.close()
        _configured(self.root, url)
        return self

    def end_at(self, fraction: float) -> None:
        """Set each partition's archive end after this fraction of its segments."""
        store = open_plain(StorageEndpoint(f"file://{self.root}/store"))
        for directory, segments in self.segments.items():
            topic, _, partition = directory.rpartition("-")
            last = segments[max(1, round(len(segments) * fraction)) - 1]
            archive = MadeArchive(store, LAYOUT, TopicPartition(topic, int(partition)))
            archive.mark(last.base, last.next_base)
        store.close()

    def size(self, since: Offsets, until: Offsets) -> int:
        """Return the bytes of the segments between these next offsets of all partitions."""
        return sum(self._size_of(directory, since, until) for directory in sorted(self.directories))

    def _size_of(self, directory: str, since: Offsets, until: Offsets) -> int:
        topic, _, partition = directory.rpartition("-")
        first = since.get(topic, {}).get(partition, 0)
        end = until.get(topic, {}).get(partition, 0)
        logs = [entry.read(FileKind.LOG) for entry in self.segments[directory]]
        batches = (header for log in logs for _, header in walk_headers(pread_of(log), len(log)))
        return sum(
            entry.length
            for entry in batches
            if first < entry.next_offset and entry.base_offset < end
        )


def made_archive(root: Path, values: Sequence[bytes]) -> Path:
    """Archive these values in orders-0, and return the path of a sidecar's configuration."""
    url = f"file://{root}/made"
    with closing(open_plain(StorageEndpoint(url))) as store:
        archive = MadeArchive(store, LAYOUT)
        records = tuple(MadeRecord(at, at, value=value) for at, value in enumerate(values))
        archive.segment(0, [MadeBatch(records)])
        archive.mark(0, len(values))
    return _configured(root, url)


def _configured(root: Path, url: str) -> Path:
    (root / "logs").mkdir(parents=True, exist_ok=True)
    settings = {
        "cluster": {"name": LAYOUT.cluster},
        "log_dirs": [str(root / "logs")],
        "storage": {"url": url},
    }
    path = root / "sidetier.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def iceberg_catalog(warehouse: Path | str, name: str = "lake") -> dict[str, str]:
    """Return session settings for a catalog with its tables in directories."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "hadoop",
        f"{prefix}.cache-enabled": "false",  # the tests read what other processes write
        f"{prefix}.warehouse": str(warehouse),
    }


def ends_of(rows: list[Row]) -> Offsets:
    """Return the offset after the last record of each partition."""
    offsets: Offsets = {}
    for row in rows:
        offsets.setdefault(row["topic"], {})[str(row["partition"])] = row["offset"] + 1
    return offsets


def stored_offsets(
    read: Callable[[RemoteStorage, str], Exported], endpoint: StorageEndpoint
) -> Offsets:
    """Return the offsets that `sidetier gc` reads from a table."""
    with closing(open_plain(endpoint)) as store:
        exported = read(store, LAYOUT.cluster)
    offsets: Offsets = {}
    for tp, offset in exported.next_offsets.items():
        offsets.setdefault(tp.topic, {})[str(tp.partition)] = int(offset)
    return offsets


def consumed(archive: GrowingArchive, offsets: Offsets) -> list[Row]:
    """Return what a read-committed consumer read below these offsets, in order."""
    return [
        row for directory in sorted(archive.directories) for row in _consumed(directory, offsets)
    ]


def _consumed(directory: str, offsets: Offsets) -> Iterator[Row]:
    topic, _, partition = directory.rpartition("-")
    until = offsets.get(topic, {}).get(partition, 0)
    lines = (FIXTURES / directory / "expected.read_committed.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        if row["offset"] < until:
            yield {
                "key": row["key"],
                "value": row["value"],
                "topic": topic,
                "partition": int(partition),
                "offset": row["offset"],
                "timestamp": row["timestamp"],
                "timestampType": ("CreateTime", "LogAppendTime").index(row["timestamp_type"]),
                "headers": row["headers"] or None,  # as in Spark's Kafka source
            }


@dataclass(frozen=True)
class Said:
    """Exit code and output of an export."""

    code: int
    text: str


def exported(driver: SparkDriver, arguments: Iterable[str], **faults: object) -> Said:
    """Run an export in a driver's session, and return its outcome."""
    result = driver.call(table_jobs.export, arguments=list(arguments), **faults)
    return Said(result["code"], result["said"])


class Drivers:
    """Successive drivers of one version; a new one replaces a killed one."""

    def __init__(
        self, version: Version, root: Path, settings: Mapping[str, str], *jars: Distribution
    ) -> None:
        self._start = partial(spark_driver, version, root, settings, *jars)
        self._now = ExitStack()
        self._driver: SparkDriver | None = None
        root.mkdir(exist_ok=True)

    @property
    def driver(self) -> SparkDriver:
        """The running driver; the first access starts it."""
        if self._driver is None:
            self._driver = self._now.enter_context(self._start())
        return self._driver

    def stop(self) -> None:
        self._now.close()
        self._driver = None

    def export(self, arguments: Iterable[str], **faults: object) -> Said:
        return exported(self.driver, arguments, **faults)

    def dies(self, arguments: Iterable[str], die: Mapping[str, object] | None = None) -> None:
        """Run an export that must be killed meanwhile, through `die` or in another way."""
        outcome: Said | None = None
        with suppress(AssertionError, ConnectionError):
            outcome = self.export(arguments, die=die)
        self.stop()
        assert outcome is None, f"the driver lives: {outcome}"

    def die_at_any_moment(self, arguments: Sequence[str], times: int, seconds: float) -> None:
        """Start `times` exports, with drivers that are killed at a random time within `seconds`."""
        moments = random.Random(6)
        for _ in range(times):
            with suppress(AssertionError, ConnectionError):
                self.export(arguments, die={"in": moments.uniform(0.2, seconds)})
            self.stop()
