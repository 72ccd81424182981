"""The parts of the engine, put together: which of them knows which."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.config.uploader import UploaderConfig
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.health import StoresHealth
from sidetier.uploader.archive.history import Histories
from sidetier.uploader.archive.request_work import RequestWork
from sidetier.uploader.archive.requests import Requests
from sidetier.uploader.archive.unresolved import StoreRecords, UnresolvedReader
from sidetier.uploader.chapters import Chapters
from sidetier.uploader.cluster_snapshots import ClusterSnapshots, SnapshotWriter, TurnResult
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.gates.cleaner import CleanerCheckpoints
from sidetier.uploader.gates.high_watermark import CommittedGate
from sidetier.uploader.gates.high_watermark_asker import HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.pinning.bounds import allowed_files
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.running.loop import Inbox, Timers
from sidetier.uploader.running.workers import WorkerPool
from sidetier.uploader.scheduler import PartitionScheduler, SchedulerContext
from sidetier.uploader.sending.queue import UploadQueue
from sidetier.uploader.sending.throttle import capped
from sidetier.uploader.sending.upload import ReadingRules, Uploader
from sidetier.uploader.state.partition import Happened, Partition
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.hints import HintBoard
from sidetier.uploader.watching.watcher import Watcher

_MOST_DIRECTORIES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the engine hears from its parts, on its own thread but for `archive_moves`."""

    dropped: Callable[[Partition], None]
    happened: Happened
    touch_all_of: Callable[[Iterable[TopicPartition]], None]
    touch_topics: Callable[[Iterable[str]], None]
    archive_moves: Callable[[TopicPartition, str | None], None]
    store_records: Callable[[StoreRecords], None]
    cluster_snapshots: Callable[[TurnResult], None]


@dataclass(frozen=True, slots=True)
class DaemonComponents:
    """Each has its own state; all but the inbox and the hint board are for the engine's thread."""

    inbox: Inbox
    timers: Timers
    board: HintBoard
    watcher: Watcher
    leads: LedPartitions
    pins: PinTable
    gate: CommittedGate
    pools: Mapping[str, WorkerPool]
    health: StoresHealth
    uploads: UploadQueue
    requests: Requests
    rules: TopicRules
    scheduler: PartitionScheduler
    asker: HighWatermarkAsker
    unresolved: UnresolvedReader
    cluster_snapshots: ClusterSnapshots
    chapters: Chapters


def assemble(
    config: UploaderConfig,
    around: DaemonContext,
    inbox: Inbox,
    errors: UnexpectedErrors,
    back: Callbacks,
) -> DaemonComponents:
    """All of them, nothing started."""
    now = around.clock.monotonic
    timers, pins = Timers(now), PinTable(allowed_files(config.pins.max_files))
    board = HintBoard(inbox.wake, now, _MOST_DIRECTORIES)
    gate = CommittedGate(
        now,
        use_checkpoint=config.high_watermark.checkpoint,
        brokers_tell=around.high_watermarks is not None,
        on_checkpoint=errors.file_was_read,
    )
    pools = _pools(config, inbox)
    health = StoresHealth(around.places)
    uploads = UploadQueue(
        _uploader(config, around),
        pools["upload"],
        pins,
        around.places,
        around.broker_id,
        health,
        back.happened,
        now,
    )
    histories = Histories(
        config.on_divergence,
        config.on_recreated,
        now,
        around.metrics,
        back.archive_moves,
        around.clock.wall,
    )
    requests = Requests(
        pools["request"],
        around.places,
        RequestWork(around.broker_id, gate.named_at, histories),
        health,
        back.happened,
        now,
    )
    rules = TopicRules(
        around.topic_configs,
        pools["topic-config"],
        back.touch_topics,
        now,
        around.metrics,
        errors,
        around.topics.compacted,
    )
    leads = LedPartitions(around.log_dirs, around.metrics, errors, back.dropped, now)
    shop = SchedulerContext(
        config,
        around.clock,
        gate,
        pins,
        timers,
        uploads,
        requests,
        rules,
        around.broker_id,
        errors,
        leads.locate,
        CleanerCheckpoints(now, errors.file_was_read),
    )
    asker = HighWatermarkAsker(
        around.high_watermarks,
        pools["high-watermark"],
        gate,
        back.touch_all_of,
        now,
        around.metrics,
        errors,
    )
    return DaemonComponents(
        inbox=inbox,
        timers=timers,
        board=board,
        watcher=Watcher(around.log_dirs.paths, board, config.watch, around.metrics),
        leads=leads,
        pins=pins,
        gate=gate,
        pools=pools,
        health=health,
        uploads=uploads,
        requests=requests,
        rules=rules,
        scheduler=PartitionScheduler(shop),
        asker=asker,
        unresolved=UnresolvedReader(
            around.places,
            around.cluster_place,
            pools["unresolved"],
            back.store_records,
            now,
            around.metrics,
        ),
        cluster_snapshots=ClusterSnapshots(
            _snapshot_writer(config, around),
            config.cluster_snapshots.interval,
            pools["cluster-snapshot"],
            back.cluster_snapshots,
            now,
            around.metrics,
            errors,
        ),
        chapters=Chapters(around.long_archives, pools["chapter"], now, around.metrics, errors),
    )


def _snapshot_writer(config: UploaderConfig, around: DaemonContext) -> SnapshotWriter | None:
    source, place = around.cluster_state, around.cluster_place
    if source is None or place is None or not config.cluster_snapshots.enabled:
        return None
    return SnapshotWriter(config.cluster_snapshots, source, place, around.broker_id, around.clock)


def _pools(config: UploaderConfig, inbox: Inbox) -> dict[str, WorkerPool]:
    sizes = {
        "upload": config.threads,
        "request": config.request_threads,
        "high-watermark": 1,
        "topic-config": 1,
        "unresolved": 1,
        "cluster-snapshot": 1,
        "chapter": 1,
    }
    return {name: WorkerPool(name, size, inbox.put) for name, size in sizes.items()}


def _uploader(config: UploaderConfig, around: DaemonContext) -> Uploader:
    """Sending and verifying have a cap each: a segment that is only looked at must not come off the
    disk, and keep a CPU busy, as fast as it can.
    """

    def cap() -> Callable[[int], None]:
        return capped(
            config.max_bytes_per_second,
            around.clock.monotonic,
            around.abandoned,
            around.metrics.throttled,
        )

    give_back = config.page_cache == "give_back_cold"
    return Uploader(ReadingRules(cap(), give_back, cap()))
