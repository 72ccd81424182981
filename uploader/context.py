"""The ports that the daemon works with."""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidetier.config.model import TopicsConfig
from sidetier.config.retention import LocalRetentionConfig
from sidetier.leadership.port import (
    ClusterStateSource,
    LeadershipSource,
    LogOffsetSource,
    RecordDeleter,
    TopicConfigSource,
)
from sidetier.segments.offsets import BrokerId
from sidetier.storage.store_calls import StoreCalls
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.chapters import LongArchives
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.high_watermark import HighWatermarkSource
from sidetier.uploader.stores import Place, PlaceOf
from sidetier.uploader.watching.log_dirs import LogDirs

if TYPE_CHECKING:
    from sidetier.uploader.tail.writer import TailWriter


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """The broker's files, the sources of leadership, the stores, the metrics and the clock."""

    log_dirs: LogDirs
    leadership: LeadershipSource
    places: PlaceOf
    high_watermarks: HighWatermarkSource | None
    broker_id: BrokerId
    cluster: str
    metrics: Metrics
    clock: Clock
    topic_configs: TopicConfigSource | None = None
    cluster_state: ClusterStateSource | None = None
    cluster_place: Place | None = None
    """Where snapshots of the cluster's state, and the record of the last drill, are stored."""
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    local_retention: LocalRetentionConfig = field(default_factory=LocalRetentionConfig)
    record_deleter: RecordDeleter | None = None
    """None where local retention is off."""
    log_offsets: LogOffsetSource | None = None
    """None where nothing is archived early."""
    tail: "TailWriter | None" = None
    """None where no tail is stored."""
    store_calls: StoreCalls = field(default_factory=StoreCalls)
    """The requests under way at the stores of all places."""
    long_archives: LongArchives = field(default_factory=LongArchives)
    """Archives that have grown, from the `ArchiveWriter` of each store, for the chapters."""
    warnings: tuple[str, ...] = ()
    """For the status: see `StatusSnapshot.warnings`."""
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Set when the daemon abandons its uploads and requests. Also ends pauses between attempts."""
