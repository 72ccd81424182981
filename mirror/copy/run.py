"""Run a copy: the request that mirror and restore share, the engine's threads, the report."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.mirror.copy.engine import Counts, Engine, Limits
from sidetier.mirror.copy.source import OnGap
from sidetier.mirror.metrics import MirrorCollector
from sidetier.mirror.offsets.offset_sync import OffsetSync
from sidetier.mirror.topics.rules import TopicRules, topic_rules

_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    r"""Which topics a mirror or a restore copies, and how.

    Attributes:
        topics: Regular expressions that match whole names of source topics.
        exclude: Regular expressions of topics to leave out.
        rename: `PATTERN=NAME`: names of the copies of topics that match; `\1` is the first group.
        replication_factor: Of created topics; None for the target's default.
        accept_log_append_time: Copy also into topics whose brokers replace the timestamps.
        on_gap: What to do where the source no longer has a record.
        max_rate: Maximum bytes per second; None for no limit. Concurrent Spark tasks share it.
        transaction_bytes: Commit a transaction after this number of bytes.
        transaction_interval: Commit a transaction after this number of seconds.
        max_batch_bytes: Maximum decompressed size of one record batch.
    """

    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    replication_factor: int | None = None
    accept_log_append_time: bool = False
    on_gap: OnGap = OnGap.STOP
    max_rate: int | None = None
    transaction_bytes: int = 256 << 20
    transaction_interval: float = 1.0
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    @property
    def rules(self) -> TopicRules:
        """The rules for topics. Raises ConfigurationError."""
        return topic_rules(self.topics, self.exclude, self.rename)

    @property
    def limits(self) -> Limits:
        """The limits of the engine."""
        return Limits(
            transaction_bytes=self.transaction_bytes,
            transaction_seconds=self.transaction_interval,
            bytes_per_second=self.max_rate,
            max_batch_bytes=self.max_batch_bytes,
        )


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Result of a copy.

    Attributes:
        counts: Counts of the engine, or of all tasks.
        seconds: Duration of the copy.
        refused: Topics that were left out, with the reason.
        groups_problem: Why the consumer groups could not be set at the end; None if they are set.
    """

    counts: Counts
    seconds: float
    refused: Mapping[str, str] = field(default_factory=dict)
    groups_problem: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no record is missing on the target, and the consumer groups are set."""
        return not (
            self.counts.gaps
            or self.counts.left_out
            or self.refused
            or self.groups_problem is not None
        )


OnCounts = Callable[[Counts], None]
"""Receives the counts of a running copy every second."""


def run_engine(
    engine: Engine,
    stop: threading.Event,
    *,
    registry: CollectorRegistry | None = None,
    refused: Callable[[], Mapping[str, str]] = dict,
    offset_sync: OffsetSync | None = None,
    on_counts: OnCounts = lambda _: None,
) -> CopyReport:
    """Run until the engine ends, or `stop` is set.

    Args:
        engine: Runs in a thread of its own.
        stop: Ends the copy when it is set. Also set after a failure.
        registry: Gets the metrics of the copy.
        refused: Returns the topics that are left out now, with the reason.
        offset_sync: Runs beside the engine, and a last time after it. If `stop` ended the engine,
            a failure of the last time does not matter: the mirror will be started again.
        on_counts: Called every second.

    Raises:
        SidetierError: As `Engine.run`.
    """
    if registry is not None:
        sync_counts = offset_sync.counts if offset_sync is not None else None
        registry.register(MirrorCollector(engine.counts, sync_counts, refused=refused))
    failures: list[BaseException] = []
    ended = threading.Event()
    threads = [_thread("mirror-engine", engine.run, failures, stop, ended)]
    if offset_sync is not None:
        work = partial(offset_sync.run, ended, stop)
        threads.append(_thread("mirror-offset-sync", work, failures, stop, threading.Event()))
    started = time.monotonic()
    for thread in threads:
        thread.start()
    while not ended.wait(_LOOK_SECONDS):
        on_counts(engine.counts)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    groups_problem = None
    if offset_sync is not None and not stop.is_set():
        groups_problem = offset_sync.groups_problem
    return CopyReport(engine.counts, time.monotonic() - started, refused(), groups_problem)


def _thread(
    name: str,
    work: Callable[[], None],
    failures: list[BaseException],
    has_failed: threading.Event,
    ended: threading.Event,
) -> threading.Thread:
    """Return a thread that runs `work` and keeps its error."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- `run_engine` raises it
            failures.append(error)
            has_failed.set()
        finally:
            ended.set()

    return threading.Thread(target=run, name=name)
