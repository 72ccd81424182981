"""Run the demo: produce, let the broker delete, read everything back from the store.

Then Kafka's console consumer reads a partition through `sidetier serve --live`, from its first
record on, while a producer goes on. At the end, the broker is stopped, and the consumer reads the
topic from the archive.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Final

from devtools.demo.picture import Held, Sample, draw, sampled, segment_bytes
from devtools.demo.progress import Progress, Step
from devtools.demo.records import HOUR, Ledger, OnBrokerAlone, orders
from devtools.demo.serve import consumed_offsets, consumer_options, served, why_no_serve
from devtools.demo.services import (
    CLUSTER_NAME,
    RETENTION_SECONDS,
    SEGMENT_BYTES,
    TOPIC,
    DemoFailedError,
    PacedProducer,
    Sidecar,
    Topic,
)
from devtools.demo.spark import count_by_minute, what_is_missing, why_no_spark
from devtools.demo.verify import LogOffsets, PartitionProof, prove
from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.kafka_tools import KAFKA_TOOLS
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.brokers.errors import ServerTimeoutError
from sidetier.brokers.jars import jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka import JARS, KAFKA_4_3
from sidetier.cli.arguments import size_text
from sidetier.config.storage import StorageConfig
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.local import LocalStorage
from sidetier.uploader.clock import SYSTEM_CLOCK

_SECONDS_OF_LOAD: Final = 12
_CATCH_UP_SECONDS: Final = 120.0
_VALUE_BYTES: Final = 1000
_RECORD_BYTES: Final = _VALUE_BYTES + 15
_LIVE_RECORDS: Final = 500
_LIVE_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a demo run. The files of broker, sidecar and store are below `directory`.

    Attributes:
        size: Bytes to produce.
        end: End of the hour that the records' timestamps are in, in ms since 1970.
        picture: PNG to draw of what broker and store held over time, and of what Spark counts on
            the store; None for none.
    """

    directory: Path
    size: int
    partitions: int
    seed: int
    end: int
    picture: Path | None = None

    @property
    def store(self) -> Path:
        """Directory of the archive."""
        return self.directory / "store"

    @property
    def records(self) -> int:
        """Number of records to produce."""
        return self.size // _RECORD_BYTES


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Result of the demo."""

    proofs: tuple[PartitionProof, ...]
    seconds: float
    counted: int | None = None
    """Records that Spark has found on the store; None if Spark did not run."""
    consumed: int | None = None
    """Records that Kafka's console consumer has read through `sidetier serve`, each offset once;
    None if it did not run.
    """
    followed: float | None = None
    """Share of the records of a partition that it has read through `sidetier serve --live`, each
    offset once, while a producer went on; None if it did not run.
    """

    @property
    def sound(self) -> bool:
        """Whether every record is stored as it was produced, and all readers have found all."""
        records = sum(proof.found for proof in self.proofs)
        is_stored = all(proof.sound for proof in self.proofs)
        is_read = {self.counted, self.consumed} <= {None, records}
        return is_stored and is_read and self.followed in {None, 1.0}


def run_demo(settings: DemoSettings, progress: Progress) -> DemoOutcome:
    """Run the whole demo; no process is left, whatever happens.

    Raises:
        LocalServerError: Java is missing, Kafka cannot be downloaded, or a server ended.
        DemoFailedError: A part of the demo failed; the text names it.
    """
    progress.say(
        "Kafka keeps records for seconds here; the sidecar archives each segment when it closes."
    )
    with progress.step("Kafka", f"looking for Kafka {KAFKA_4_3} (fetched once, 44 MB)"):
        find_java()
        jars_of(JARS[KAFKA_4_3])
        jars_of(KAFKA_TOOLS)
    # The cluster is fetched before its constructor, so that a slow download has a line of its own.
    with KraftCluster(settings.directory / "kafka", KAFKA_4_3) as cluster:
        return _Demo(settings, progress, cluster).run()


class _Demo:
    """One run of the demo."""

    def __init__(self, settings: DemoSettings, progress: Progress, cluster: KraftCluster) -> None:
        self._settings = settings
        self._progress = progress
        self._cluster = cluster
        self._bootstrap = cluster.bootstrap_servers
        self._topic = Topic(self._bootstrap, settings.partitions)
        self._store = LocalStorage(settings.store)
        self._sidecar = Sidecar(settings.directory / "sidecar", cluster, settings.store.as_uri())
        self._log_dirs = cluster.log_dirs(1)
        self._ledger = Ledger()
        bits: int = StorageConfig.model_fields["prefix_entropy_bits"].default
        self._layout = ArchiveLayout(CLUSTER_NAME, bits)

    def run(self) -> DemoOutcome:
        """Run the steps in order."""
        self._progress.tell("Broker", f"Kafka {KAFKA_4_3} (KRaft) answers on {self._bootstrap}")
        self._topic.create()
        self._progress.tell(
            "Topic",
            f"{TOPIC}: {self._settings.partitions} partitions, segments of "
            f"{SEGMENT_BYTES // 1024**2} MiB, retention of records {RETENTION_SECONDS} s",
        )
        with self._sidecar.process:
            self._start_sidecar()
            with self._watched() as samples:
                self._produce()
                log = self._wait_for_retention()
            self._sidecar.stop()
            self._progress.tell("Sidecar", "stopped by SIGTERM, exit code 0")
        proofs = self._prove(log)
        followed = self._follow()
        self._topic.close()
        self._cluster.stop()
        self._progress.tell("Broker", "stopped: from here on there is no Kafka")
        consumed = self._consume()
        counted = None
        if self._settings.picture is not None:
            counted = self._draw(self._settings.picture, samples, consumed)
        return DemoOutcome(proofs, self._progress.seconds, counted, consumed, followed)

    def _watched(self) -> AbstractContextManager[list[Sample]]:
        """Sample what broker and store hold, if a picture is requested."""
        return nullcontext([]) if self._settings.picture is None else sampled(self._held)

    def _held(self) -> Held:
        bounds = self._topic.bounds()
        archived = {number: self._next_offset(number) for number in bounds}
        return Held(
            produced=sum(log.end for log in bounds.values()),
            deleted=sum(log.start for log in bounds.values()),
            archived=sum(archived.values()),
            pinned=sum(
                max(log.start - archived[partition], 0) for partition, log in bounds.items()
            ),
            broker_bytes=segment_bytes(self._log_dirs, f"{TOPIC}-*/*.log"),
            store_bytes=segment_bytes([self._settings.store], f"**/{TOPIC}-*/*.log"),
        )

    def _start_sidecar(self) -> None:
        with self._progress.step("Sidecar", "starting `sidetier run` beside it"):
            self._sidecar.start()
            self._wait(lambda: len(self._sidecar.safe_ends()) == self._settings.partitions)
        self._progress.tell(
            "Sidecar", f"`sidetier run` beside it archives to {self._settings.store}"
        )

    def _produce(self) -> None:
        settings, alone = self._settings, OnBrokerAlone(monotonic())

        def tick() -> None:
            alone.look(self._ledger.ends(), self._sidecar.safe_ends(), monotonic())
            step.now(self._so_far())

        with self._progress.step("Records", "producing") as step:
            PacedProducer(self._bootstrap, self._ledger).produce(
                orders(
                    settings.seed,
                    settings.records,
                    settings.partitions,
                    _VALUE_BYTES,
                    end=settings.end,
                ),
                settings.size // _SECONDS_OF_LOAD,
                tick,
            )
        self._progress.tell(
            "Records",
            f"{self._ledger.count:,} produced and acknowledged, {size_text(self._ledger.size)}; "
            f"{self._sidecar.count('segment.uploaded')} segments are stored already",
        )
        longest = f"{alone.longest:.1f} s"
        self._progress.tell(
            "Tail", f"no acknowledged record was on the broker alone for longer than {longest}:"
        )
        self._progress.more("tail packs have those of active segments")

    def _so_far(self) -> str:
        stored = self._sidecar.count("segment.uploaded")
        return f"{self._ledger.count:,} of {self._settings.records:,}; {stored} segments stored"

    def _wait_for_retention(self) -> Mapping[int, LogOffsets]:
        """Wait until the broker has deleted every record, and the archive has all of them."""
        latest: dict[int, LogOffsets] = {}
        with self._progress.step(
            "Retention", "waiting for the broker to delete its segments"
        ) as step:

            def deleted_and_archived() -> bool:
                latest.update(self._topic.bounds())
                return self._is_deleted_and_archived(latest, step)

            self._wait(deleted_and_archived)
        gone = sum(log.start for log in latest.values())
        self._progress.tell(
            "Retention",
            f"the broker has deleted its copies: {gone:,} of {self._ledger.count:,} records are on "
            "the store alone",
        )
        return latest

    def _is_deleted_and_archived(self, log: Mapping[int, LogOffsets], step: Step) -> bool:
        gone = sum(bounds.start for bounds in log.values())
        step.now(f"the broker has deleted {gone:,} of {self._ledger.count:,} records")
        return all(
            bounds.start == bounds.end and self._next_offset(number) >= bounds.end
            for number, bounds in log.items()
        )

    def _next_offset(self, number: int) -> int:
        tp = TopicPartition(TOPIC, number)
        return StoredPartition(self._store, self._layout, tp).end().next_offset or 0

    def _wait(self, condition: Callable[[], bool]) -> None:
        try:
            self._sidecar.process.wait_until(condition, _CATCH_UP_SECONDS)
        except ServerTimeoutError as error:
            raise DemoFailedError(
                f"after {_CATCH_UP_SECONDS:.0f} s the broker has not deleted, or the sidecar has "
                f"not stored, everything: {self._so_far()}\n{error}"
            ) from error

    def _prove(self, log: Mapping[int, LogOffsets]) -> tuple[PartitionProof, ...]:
        proofs = []
        with self._progress.step("Proof", "reading every record back from the store") as step:
            for number in range(self._settings.partitions):
                tp = TopicPartition(TOPIC, number)
                produced = self._ledger.records.get(number, {})
                proofs.append(prove(self._store, self._layout, tp, produced, log[number]))
                step.now(f"{sum(proof.found for proof in proofs):,} records read back")
        read_back, expected = sum(p.found for p in proofs), sum(p.expected for p in proofs)
        self._progress.tell(
            "Proof",
            f"{read_back:,} of {expected:,} archived records read back from the store",
        )
        return tuple(proofs)

    def _follow(self) -> float | None:
        """Read a partition with Kafka's console consumer, from the first record on, which the
        broker has deleted, to records that a producer sends meanwhile.

        Returns:
            Share of the records that it has read; None if `sidetier serve` cannot run here.
        """
        if why_no_serve() is not None:
            return None
        tp, ledger = TopicPartition(TOPIC, 0), Ledger()
        # Timestamps of the next hour: the broker deletes older records at once.
        end = int(SYSTEM_CLOCK.wall() * 1000) + HOUR
        newer = orders(self._settings.seed + 1, _LIVE_RECORDS, 1, _VALUE_BYTES, end=end)
        rate = _LIVE_RECORDS * _RECORD_BYTES // _LIVE_SECONDS
        directory = self._settings.directory / "live"
        live = ("--live", self._bootstrap)
        with (
            self._progress.step("Live", "starting `sidetier serve --live`") as step,
            served(self._sidecar.config, directory, *live) as bootstrap,
            ThreadPoolExecutor(1) as producing,
        ):
            self._progress.tell("Live", f"`sidetier serve {' '.join(live)}` answers on {bootstrap}")
            server, partition = map(" ".join, consumer_options(bootstrap, tp))
            self._progress.tell("Consumer", f"kafka-console-consumer.sh {server} \\")
            self._progress.more(partition)
            sent = producing.submit(
                PacedProducer(self._bootstrap, ledger).produce,
                newer,
                rate,
                lambda: step.now(f"{ledger.count:,} newer records produced"),
            )
            archived = self._ledger.records.get(tp.partition, {})
            offsets = consumed_offsets(bootstrap, tp, len(archived) + _LIVE_RECORDS)
            sent.result()
        wanted = [*archived, *ledger.records.get(tp.partition, {})]
        found = len(set(offsets)) if sorted(offsets) == sorted(set(offsets)) else 0
        self._progress.tell(
            "Consumer",
            f"{found:,} of {len(wanted):,} records read by it, while a producer goes on",
        )
        return len(set(offsets) & set(wanted)) / len(wanted) if found else 0.0

    def _consume(self) -> int | None:
        """Read every partition with Kafka's console consumer, without a broker.

        Returns:
            Number of produced records that it has read; None if `sidetier serve` cannot run here.
        """
        missing = why_no_serve()
        if missing is not None:
            self._progress.tell("Serve", f"left out: {missing}")
            return None
        directory, consumed = self._settings.directory / "serve", 0
        with (
            self._progress.step("Serve", "starting `sidetier serve` over the store") as step,
            served(self._sidecar.config, directory) as bootstrap,
        ):
            self._progress.tell("Serve", f"`sidetier serve` answers as Kafka on {bootstrap}")
            for number in range(self._settings.partitions):
                tp = TopicPartition(TOPIC, number)
                server, partition = map(" ".join, consumer_options(bootstrap, tp))
                self._progress.tell("Consumer", f"kafka-console-consumer.sh {server} \\")
                self._progress.more(partition)
                produced = self._ledger.records.get(number, {})
                offsets = consumed_offsets(bootstrap, tp, len(produced))
                consumed += len(produced.keys() & set(offsets))
                step.now(f"{consumed:,} records read")
        self._progress.tell(
            "Consumer",
            f"{consumed:,} of {self._ledger.count:,} records read by Kafka's console consumer, "
            "without a broker",
        )
        return consumed

    def _draw(self, picture: Path, samples: Sequence[Sample], consumed: int | None) -> int | None:
        """Draw the picture; return Spark's record count, None if Spark cannot run here."""
        counts = self._counted()
        missing = what_is_missing("matplotlib")
        if missing is not None or not samples:
            self._progress.tell("Picture", f"left out: {missing or 'the broker told nothing'}")
        else:
            draw(samples, counts, consumed, TOPIC, picture)
            self._progress.tell("Picture", f"records and bytes on broker and store: {picture}")
        return None if counts is None else sum(counts.values())

    def _counted(self) -> Mapping[datetime, int] | None:
        missing = why_no_spark()
        if missing is not None:
            self._progress.tell("Spark", f"left out: {missing}")
            return None
        with self._progress.step("Spark", "counting the archived records by minute"):
            counts = count_by_minute(
                self._sidecar.config, TOPIC, self._settings.directory / "spark"
            )
        self._progress.tell(
            "Spark",
            f"{sum(counts.values()):,} archived records in {len(counts)} minutes, counted without "
            "a broker",
        )
        return counts
