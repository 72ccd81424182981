"""Run garbage collection over an archive: retention, orphans and unfinished uploads."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, groupby
from types import TracebackType
from typing import Final, Self

from sidetier.archive.access import ArchiveAccess, require_fencing
from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.listing import AbsentArchiveError, NotCollectableError
from sidetier.archive.gc.needs import Consumer, UnknownProgressError, read_needs
from sidetier.archive.gc.orphans import (
    NEVER_DELETED,
    Orphan,
    OrphanKind,
    delete_orphan,
    find_orphans,
    find_quarantined,
)
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.objects.layout import check_stored_note
from sidetier.archive.topics import archived_partitions
from sidetier.config.retention import RetentionConfig, StoreRetention
from sidetier.config.storage import StorageConfig
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage, UnfinishedUpload
from sidetier.storage.retrying import multipart_uploads
from sidetier.storage.token_bucket import TokenBucket

CONNECTIONS: Final = 16
"""Maximum number of concurrent requests to one store."""

ConsumersOf = Callable[[StoreRetention], Sequence[Consumer]]
"""Returns the consumers of a rule; sends no request. Raises ConfigurationError."""


def refuse_consumers(rule: StoreRetention) -> Sequence[Consumer]:
    """Return no consumer for a rule without any.

    Raises:
        ConfigurationError: The rule has consumers, whose progress the caller cannot read.
    """
    if any(consumers for _, consumers in rule.keep_for):
        raise ConfigurationError(
            f"retention.store: the rule for {', '.join(rule.topics)} has keep_for: its consumers "
            "must be given"
        )
    return ()


@dataclass(frozen=True, slots=True)
class GcRequest:
    """What garbage collection covers.

    Attributes:
        topics: Names of topics; empty for all.
        max_deletes_per_second: Maximum number of objects deleted per second, over all topics.
    """

    topics: tuple[str, ...] = ()
    max_deletes_per_second: float = 1000


@dataclass(frozen=True, slots=True)
class CollectedPartition:
    """What is deleted of one partition.

    Attributes:
        start_offset: Start of the archive before; None if it is not known.
        new_start_offset: Start of the archive afterwards.
        segments: Number of segments that are deleted.
        size_bytes: Size of all objects that are deleted.
        reason: Why not more is deleted.
        blocked: Whether nothing may be deleted now.
        problem: What has failed; None for a success.
    """

    topic: str
    partition: int
    start_offset: int | None = None
    new_start_offset: int | None = None
    segments: int = 0
    size_bytes: int = 0
    reason: str | None = None
    blocked: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The partitions of all topics with a retention, by topic and partition.

    Attributes:
        rows: The partitions.
        dry_run: Whether the segments would be deleted.
    """

    rows: Sequence[CollectedPartition]
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        """Size of all objects that are deleted."""
        return sum(row.size_bytes for row in self.rows)

    @property
    def segments(self) -> int:
        """Number of all segments that are deleted."""
        return sum(row.segments for row in self.rows)


@dataclass(frozen=True, slots=True)
class OrphansReport:
    """Objects that are not part of an archive, and those among them that are deleted.

    Attributes:
        orphans: The objects.
        deleted: Keys of the objects that are deleted.
        dry_run: Whether they would be deleted.
        kept: Why the other objects are kept, by key.
        problems: Partitions that could not be read.
    """

    orphans: Sequence[Orphan]
    deleted: frozenset[str]
    dry_run: bool
    kept: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class UploadsReport:
    """Unfinished multipart uploads, and those among them that are aborted.

    Attributes:
        uploads: The uploads.
        aborted: Ids of the uploads that are aborted.
        dry_run: Whether they would be aborted.
        not_applicable: URLs of the stores that keep no unfinished uploads.
    """

    uploads: Sequence[UnfinishedUpload]
    aborted: frozenset[str]
    dry_run: bool
    not_applicable: Sequence[str] = ()


class GarbageCollector:
    """Garbage collection of one archive, as a context manager. Sidecars may run meanwhile.

    A run that was interrupted or killed leaves a readable archive, and the next run finishes it.
    Open the archive with `CONNECTIONS` connections, and with permission to delete objects.

    Args:
        archive: The archive.
        storage: Its configuration; only `fencing` is read.
        request: What is covered.
        stop: Ends waits, and deletes nothing more, when it is set. Set at the end.
        now_ms: Returns the present time in ms since 1970.

    Raises:
        ConfigurationError: On entry. A store belongs to another cluster, has no conditional writes,
            or is a directory that does not exist.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        storage: StorageConfig,
        request: GcRequest,
        *,
        stop: threading.Event | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._archive = archive
        self._storage = storage
        self._topics = request.topics
        self._bucket = TokenBucket(request.max_deletes_per_second, time.monotonic)
        self._stop = stop or threading.Event()
        self._now_ms = now_ms
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gc")
        # Conditional deletes of several partitions. Threads of the first pool wait for this one.
        self._deletes = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gc-delete")

    def __enter__(self) -> Self:
        self._archive.require_directories()
        for endpoint, store in self._archive.by_endpoint.items():
            require_fencing(self._storage, store, endpoint.url)
            check_stored_note(store, self._archive.layout, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An interrupted run must not begin with what waits in the pools. Threads of the first pool
        # wait for the second one, so that is ended before it.
        self._stop.set()
        self._deletes.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def _partitions(self) -> list[TopicPartition]:
        return archived_partitions(self._archive, self._topics, self._pool.map)

    # -- retention ---------------------------------------------------------------------------------

    def retention(
        self,
        rules: RetentionConfig,
        consumers_of: ConsumersOf = refuse_consumers,
        *,
        dry_run: bool,
    ) -> RetentionReport:
        """Delete what is past its retention; with `dry_run`, only show it.

        Args:
            rules: The rules; archives of topics without one are kept.
            consumers_of: Returns the consumers in `keep_for` of a rule. Nothing that they need is
                deleted, and nothing of a topic while the progress of one is unknown.
            dry_run: Delete nothing.

        Raises:
            ConfigurationError: No rule applies, or a named topic has none, or the progress of a
                consumer cannot be read with this configuration. Nothing was deleted.
        """
        if not rules.store:
            raise ConfigurationError(
                "retention.store is not set, so archives are kept for good: there is nothing to do"
            )
        for topic in self._topics:
            if rules.of_topic(topic) is None:
                raise ConfigurationError(
                    f"retention.store has no rule for topic {topic}: its archive is kept for good"
                )
        # Before anything is deleted: a wrong setting must not show only at the second topic.
        due = [
            (rule, list(partitions), consumers_of(rule))
            for topic, partitions in groupby(
                self._partitions(),
                lambda tp: tp.topic,
            )
            if (rule := rules.of_topic(topic)) is not None
        ]
        rows = [row for topic in due for row in self._topic(*topic, dry_run=dry_run)]
        return RetentionReport(rows, dry_run)

    def _topic(
        self,
        rule: StoreRetention,
        partitions: Sequence[TopicPartition],
        consumers: Sequence[Consumer],
        *,
        dry_run: bool,
    ) -> Iterable[CollectedPartition]:
        try:
            needs = read_needs(self._archive, consumers, partitions)
        except UnknownProgressError as error:
            # Also for the other partitions: a consumer that is set up wrongly reads all of them.
            return [CollectedPartition(*tp, reason=str(error), blocked=True) for tp in partitions]

        def row(tp: TopicPartition) -> CollectedPartition | None:
            return self._partition(tp, rule, needs.get(tp, []), dry_run=dry_run)

        return [row for row in self._pool.map(row, partitions) if row is not None]

    def _partition(
        self, tp: TopicPartition, rule: StoreRetention, needs: Sequence[Need], *, dry_run: bool
    ) -> CollectedPartition | None:
        collector = PartitionCollector(
            self._archive.store(tp.topic),
            self._archive.layout,
            tp,
            Retention(rule.age, rule.bytes),
            needs=needs,
            wait=self._wait,
            for_each=self._deletes.map,
            now_ms=self._now_ms,
        )
        try:
            done = collector.survey() if dry_run else collector.collect()
        except AbsentArchiveError:
            return None
        except NotCollectableError as error:
            return CollectedPartition(*tp, reason=str(error), blocked=True)
        except SidetierError as error:
            return CollectedPartition(*tp, problem=str(error))
        return CollectedPartition(
            *tp, done.start, done.new_start, done.segments, done.size_bytes, done.reason
        )

    def _wait(self, objects: int) -> None:
        if self._stop.wait(self._bucket.reserve(objects)):
            raise SidetierError("interrupted; the next run deletes the rest")

    # -- orphans -----------------------------------------------------------------------------------

    def orphans(self, older_than: float, *, quarantined: bool, dry_run: bool) -> OrphansReport:
        """Delete orphans older than a number of seconds; with `dry_run`, only show them."""
        problems: list[str] = []

        def orphans_of(tp: TopicPartition) -> list[tuple[RemoteStorage, Orphan]]:
            store = self._archive.store(tp.topic)
            try:
                return [(store, orphan) for orphan in find_orphans(store, self._archive.layout, tp)]
            except SidetierError as error:
                problems.append(f"{tp}: {error}")
                return []

        found = list(chain.from_iterable(self._pool.map(orphans_of, self._partitions())))
        for store in self._archive.by_endpoint.values():
            quarantined_objects = find_quarantined(store, self._archive.layout, self._topics)
            found += [(store, orphan) for orphan in quarantined_objects]
        limit_ms = self._now_ms() - older_than * 1000

        kept = {
            orphan.row.key: reason
            for _, orphan in found
            if (reason := _reason_to_keep(orphan, limit_ms, quarantined=quarantined)) is not None
        }
        due = [(store, orphan) for store, orphan in found if orphan.row.key not in kept]

        def delete(entry: tuple[RemoteStorage, Orphan]) -> str | None:
            store, orphan = entry
            if not dry_run:
                self._wait(1)
                if not delete_orphan(store, orphan):
                    return None
            return orphan.row.key

        deleted = frozenset(key for key in self._pool.map(delete, due) if key is not None)
        return OrphansReport([orphan for _, orphan in found], deleted, dry_run, kept, problems)

    # -- unfinished uploads ------------------------------------------------------------------------

    def uploads(self, older_than: float, *, dry_run: bool) -> UploadsReport:
        """Abort uploads older than a number of seconds; with `dry_run`, only show them."""
        found: list[UnfinishedUpload] = []
        aborted, not_applicable = set(), []
        limit_ms = self._now_ms() - older_than * 1000
        for endpoint, store in self._archive.by_endpoint.items():
            keeper = multipart_uploads(store)
            if keeper is None:
                not_applicable.append(endpoint.url)
                continue
            for upload in keeper.unfinished_uploads(""):
                if not self._is_ours(upload.key):
                    continue
                found.append(upload)
                if upload.started_ms < limit_ms:
                    if not dry_run:
                        self._wait(1)
                        keeper.abort_upload(upload)
                    aborted.add(upload.upload_id)
        return UploadsReport(found, frozenset(aborted), dry_run, not_applicable)

    def _is_ours(self, key: str) -> bool:
        """Return whether the key is of the configured cluster. Clusters may share a bucket."""
        parts = key.split("/")
        at = 1 if self._archive.layout.bits > 0 or parts[0] == "_sidetier" else 0
        if len(parts) <= at + 1 or parts[at] != self._archive.layout.cluster:
            return False
        directory = parts[at + 1].rpartition("-")[0]
        return not self._topics or directory in self._topics


def _reason_to_keep(orphan: Orphan, limit_ms: float, *, quarantined: bool) -> str | None:
    """Return why an orphan is not deleted; None if it is."""
    if orphan.kind in NEVER_DELETED:
        return "it may be the only copy of its records"
    if orphan.kind is OrphanKind.QUARANTINED and not quarantined:
        return "only --quarantined deletes it"
    return None if orphan.row.modified_ms < limit_ms else "younger than --older-than"
