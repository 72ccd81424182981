"""The whole daemon in this process: synthetic log dir, in-memory store, set leadership."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from sidetier.archive.objects.watermark import Watermark, decode_watermark
from sidetier.config.model import TopicsConfig
from sidetier.config.retention import LocalRetentionConfig
from sidetier.config.uploader import UploaderConfig
from sidetier.leadership.port import (
    ClusterStateSource,
    HighWatermark,
    LeadershipView,
    LogOffsetSource,
    RecordDeleter,
    TopicConfig,
    TopicConfigSource,
    ViewListener,
)
from sidetier.leadership.worker import ViewPublisher
from sidetier.segments.errors import (
    BrokerUnavailableError,
    LeadershipError,
    LeadershipUnavailableError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.storage.store_calls import StoreCalls
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionStatus
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.clock import SYSTEM_CLOCK, Clock
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.daemon import Daemon
from sidetier.uploader.gates.high_watermark import HighWatermarkSource
from sidetier.uploader.stores import Place, PlaceOf
from sidetier.uploader.tail.writer import TailWriter
from sidetier.uploader.watching.log_dirs import LogDirs
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from tests.harness.log_dir import LogDir
from tests.harness.waiting import wait_until

LAYOUT = ArchiveLayout("c", 0)
DEADLINE = 10.0


class LeadershipByHand:
    """A LeadershipSource that shows what the test sets, also before and after `start`."""

    def __init__(self, leads: Mapping[TopicPartition, int] | None = None) -> None:
        self._publisher = ViewPublisher()
        self._leads = dict(leads or {})
        self.death: BaseException | None = None
        self.stopped = False

    def lead(self, tp: TopicPartition, epoch: int) -> None:
        self._leads[tp] = epoch
        self._publish()

    def lose(self, tp: TopicPartition) -> None:
        self._leads.pop(tp, None)
        self._publish()

    def doubt(self) -> None:
        """Make the source unreliable until the next `lead` or `lose`."""
        self._publisher.publish(LeadershipView())

    def start(self, listener: ViewListener) -> None:
        self._publisher.open(listener)
        self._publish()

    def view(self) -> LeadershipView:
        return self._publisher.view

    def failure(self) -> BaseException | None:
        return self.death

    def stop(self) -> None:
        self._publisher.close()
        self.stopped = True

    def _publish(self) -> None:
        leads = {tp: LeaderEpoch(epoch) for tp, epoch in self._leads.items()}
        self._publisher.publish(LeadershipView(leads=leads, known=True))


class ConfigsByHand:
    """A TopicConfigSource that returns what the test sets."""

    def __init__(self, answers: Mapping[str, TopicConfig | None]) -> None:
        self.answers = dict(answers)
        self.asked: list[list[str]] = []
        self.away = False
        self.left_out: set[str] = set()

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        wanted = list(topics)
        self.asked.append(wanted)
        if self.away:
            raise LeadershipUnavailableError("away for the test")
        return {topic: self.answers.get(topic) for topic in wanted if topic not in self.left_out}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class HighWatermarksByHand:
    """A HighWatermarkSource that returns what the test sets."""

    def __init__(self, answers: Mapping[TopicPartition, HighWatermark] | None = None) -> None:
        self.answers = dict(answers or {})
        self.asked: list[list[TopicPartition]] = []
        self.closed = False

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        wanted = list(partitions)
        self.asked.append(wanted)
        return {tp: self.answers[tp] for tp in wanted if tp in self.answers}

    def close(self) -> None:
        self.closed = True


class OffsetsByHand:
    """A LogOffsetSource for logs without a broker: it leads each in the epoch of its log. By name,
    as a broker answers.

    All records are committed, below `high_watermarks` where the test sets it, and all transactions
    decided, below `last_stable`.
    """

    def __init__(self, log_dirs: Iterable[LogDir]) -> None:
        self._log_dirs = list(log_dirs)
        self.asked: list[tuple[OffsetKind, int]] = []
        self.topics: set[str] = set()
        """The topics that were asked for."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.last_stable: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.before: dict[OffsetKind, list[Callable[[], object]]] = {}
        """Called in turn before the answers, one for each request of this kind."""
        self.down = False
        self.refused: set[tuple[OffsetKind, TopicPartition]] = set()
        """What the broker does not answer."""
        self.closed = False

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        self.asked.append((kind, len(partitions)))
        self.topics |= {tp.topic for tp, _ in partitions}
        if self.before.get(kind):
            self.before[kind].pop(0)()
        if self.down:
            raise BrokerUnavailableError("connection refused")
        return [self._answer(kind, tp, epoch) for tp, epoch in partitions]

    def _answer(
        self, kind: OffsetKind, tp: TopicPartition, epoch: LeaderEpoch
    ) -> AnsweredOffset | SidetierError:
        if (kind, tp) in self.refused:
            return LeadershipError("TOPIC_AUTHORIZATION_FAILED")
        log = next((d.partitions[tp] for d in self._log_dirs if tp in d.partitions), None)
        if log is None or log.epoch != epoch:
            return LeadershipError(f"{tp} is not led in epoch {epoch}")
        end = self.high_watermarks.get(tp, log.log_end)
        known = {
            OffsetKind.HIGH_WATERMARK: end,
            OffsetKind.LAST_STABLE: self.last_stable.get(tp, end),
            OffsetKind.LOG_START: self.log_starts.get(tp, log.bases()[0]),
        }
        return AnsweredOffset(Offset(known[kind]), epoch)

    def close(self) -> None:
        self.closed = True


def place_of(store: RemoteStorage, cache_bytes: int = 1 << 20) -> Place:
    """Return the same place for all topics."""
    return Place(store, LAYOUT, ArchiveWriter(store, LAYOUT, MetadataCache(cache_bytes)))


def uploader_config(**settings: object) -> UploaderConfig:
    """Return defaults with few threads, short polls, no minimum of free disk, no rescue."""
    defaults: dict[str, Any] = {
        "threads": 2,
        "request_threads": 2,
        "high_watermark": {"poll_interval": 0.02},
        "pins": {"min_free_disk": "0"},
        "rescue": {"enabled": False},
        "shutdown_grace": 5.0,
    }
    return UploaderConfig.model_validate(defaults | settings)


@dataclass
class Site:
    """Environment of a daemon, kept over its restarts."""

    log_dirs: list[LogDir]
    store: RemoteStorage
    leadership: LeadershipByHand | None = None
    high_watermarks: HighWatermarkSource | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    clock: Clock = SYSTEM_CLOCK
    broker_id: int = 1
    topic_configs: TopicConfigSource | None = None
    cluster_state: ClusterStateSource | None = None
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    local_retention: LocalRetentionConfig = field(default_factory=LocalRetentionConfig)
    record_deleter: RecordDeleter | None = None
    log_offsets: LogOffsetSource | None = None
    tail: TailWriter | None = None
    store_calls: StoreCalls = field(default_factory=StoreCalls)
    abandoned: threading.Event | None = None
    """None makes a new one for each daemon."""
    places: PlaceOf | None = None
    """None puts all topics on `store`."""
    make_log_dirs: Callable[[list[str], Callable[[str], bool]], LogDirs] = LogDirs
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    """Metrics of the last daemon."""

    def daemon(self, **settings: object) -> Daemon:
        """Create a new daemon, which does not run yet.

        By default it leads every partition of the log dirs, each in the epoch of its log.
        """
        leadership = self.leadership or LeadershipByHand(
            {
                tp: log.epoch
                for directory in self.log_dirs
                for tp, log in directory.partitions.items()
            }
        )
        place = place_of(self.store)
        self.registry = CollectorRegistry()
        return Daemon(
            uploader_config(**{**self.settings, **settings}),
            DaemonContext(
                log_dirs=self.make_log_dirs(
                    [str(directory.path) for directory in self.log_dirs], _every
                ),
                leadership=leadership,
                places=self.places or (lambda _: place),
                high_watermarks=self.high_watermarks,
                broker_id=BrokerId(self.broker_id),
                cluster=LAYOUT.cluster,
                metrics=Metrics(self.registry),
                clock=self.clock,
                topic_configs=self.topic_configs,
                cluster_state=self.cluster_state,
                cluster_place=place,
                topics=self.topics,
                local_retention=self.local_retention,
                record_deleter=self.record_deleter,
                log_offsets=self.log_offsets,
                tail=self.tail,
                store_calls=self.store_calls,
                abandoned=self.abandoned or threading.Event(),
            ),
        )

    def settle(self, **settings: object) -> Daemon:
        """Run a daemon until everything that can be stored is stored."""
        daemon = self.daemon(**settings)
        daemon.run_until_settled()
        return daemon

    def running(self, **settings: object) -> "RunningDaemon":
        """Return a daemon for a thread of its own: a context manager that starts and stops it."""
        return RunningDaemon(self.daemon(**settings))


def _every(_: str) -> bool:
    return True


class RunningDaemon:
    """A daemon's `run` on a thread."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="daemon-under-test")

    def _run(self) -> None:
        try:
            self.daemon.run()
        except BaseException as error:  # noqa: BLE001  the test checks it
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = DEADLINE) -> None:
        """Stop the daemon as a signal does, and wait for its end."""
        self.daemon.stop()
        self.join(timeout)

    def join(self, timeout: float = DEADLINE) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the daemon did not end"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if kind is None and self.error is not None:
            raise self.error

    def status(self, tp: TopicPartition) -> PartitionStatus | None:
        partitions = self.daemon.status.snapshot().partitions
        return next((status for status in partitions if status.topic_partition == tp), None)

    def wait(self, condition: Callable[[], object], what: str, timeout: float = DEADLINE) -> None:
        """Wait for a condition; a daemon that died raises its error."""

        def probe() -> object:
            if self.error is not None:
                raise AssertionError(f"the daemon died: {self.error!r}") from self.error
            return condition()

        wait_until(probe, timeout, what)


def watermark_of(store: FakeStorage, tp: TopicPartition) -> Watermark | None:
    """Return the stored `offset.wm`, without a request."""
    key = LAYOUT.watermark_key(tp)
    data = store.contents().get(key)
    return None if data is None else decode_watermark(data, key)


def stored_next(store: FakeStorage, tp: TopicPartition) -> int | None:
    """Return the stored archive end offset; None without an `offset.wm`."""
    watermark = watermark_of(store, tp)
    return None if watermark is None else watermark.next_offset


def is_killed_before(site: "Site", store: FakeStorage, tp: TopicPartition, end: int) -> bool:
    """Run a sidecar until its store kills it, or `store` has all up to `end`; return which."""
    killed = site.running()
    killed.start()
    wait_until(lambda: killed.error or stored_next(store, tp) == end, 10, "a kill, or the end")
    killed.stop()
    return killed.error is not None


def stored_logs(store: FakeStorage, tp: TopicPartition) -> dict[int, bytes]:
    """Return the bytes of each stored `.log` by base offset."""
    prefix = LAYOUT.partition_prefix(tp)
    return {
        int(key.removeprefix(prefix)[:20]): data
        for key, data in store.contents().items()
        if key.startswith(prefix) and key.endswith(FileKind.LOG.value)
    }


def key_of(tp: TopicPartition, base: int, kind: FileKind = FileKind.LOG) -> str:
    """Return the key of one file of a segment."""
    return LAYOUT.object_key(tp, BaseOffset(base), kind)
