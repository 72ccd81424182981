"""Write chapters: the metadata of 1,000 segments in one object (see `stored_chapters`).

No other work waits for them. After a kill, a chapter is stored completely or not at all. Each
chapter is written once, with If-None-Match: an entry is valid for the version of the segment that
it names, also under a later leader.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.chapters import (
    SEGMENTS,
    ChapterEntry,
    chapter_entry,
    encode_chapter,
    stored_chapters,
)
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError, SidetierError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, ObjectSummary, PutOptions, RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import WorkerPool

log: Final = structlog.get_logger()

_AGAIN_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class LongArchive:
    """An archive whose segments may fill a chapter.

    Attributes:
        store: The store.
        layout: The keys on it.
        topic_partition: The partition.
        topic_id: Kafka's topic id; None where it is not known.
        last: The base offset of the last committed segment.
        segments: Number of its segments.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    topic_partition: TopicPartition
    topic_id: str | None
    last: BaseOffset
    segments: int


class LongArchives:
    """The archives that have grown, from `ArchiveWriter` for `Chapters`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grown: dict[TopicPartition, LongArchive] = {}

    def put(self, archive: LongArchive) -> None:
        """Add an archive, or replace its earlier entry. Ignore it if it cannot fill a chapter."""
        if archive.segments >= SEGMENTS:
            with self._lock:
                self._grown[archive.topic_partition] = archive

    def take(self) -> LongArchive | None:
        """Remove an archive and return it; None if there is none."""
        with self._lock:
            return self._grown.popitem()[1] if self._grown else None


def write_chapters(archive: LongArchive, is_stopped: Callable[[], bool]) -> int:
    """Write the missing chapters at the archive's end.

    Returns:
        The number of segments behind the last chapter.
    """
    store, layout, tp = archive.store, archive.layout, archive.topic_partition
    known = stored_chapters(store, layout, tp, archive.topic_id)
    logs = _committed_logs(archive, known[-1].end if known else Offset(0))
    while len(logs) >= SEGMENTS and not is_stopped():
        chapter, logs = logs[:SEGMENTS], logs[SEGMENTS:]
        entries = [entry for entry in _entries(store, chapter, is_stopped) if entry is not None]
        # After a stop, `entries` may be cut short, and a chapter is never replaced.
        if is_stopped() or not entries:
            break  # segments of Pinterest's uploader have no metadata
        end = max(entry.next_offset for entry in entries)
        key = layout.chapter_key(tp, archive.topic_id, Offset(chapter[0][0]), end)
        try:
            store.put_object(
                key, BytesBody(encode_chapter(entries)), PutOptions(condition=IfAbsent())
            )
        except PreconditionFailedError:
            continue  # another sidecar has written this chapter: go on behind it
        log.info("chapter.written", key=key, segments=len(entries))
    return len(logs)


def _committed_logs(archive: LongArchive, start: Offset) -> list[tuple[BaseOffset, ObjectSummary]]:
    stored = StoredPartition(archive.store, archive.layout, archive.topic_partition)
    return [(segment.base_offset, segment.log) for segment in stored.logs(start, archive.last + 1)]


def _entries(
    store: RemoteStorage,
    logs: Sequence[tuple[BaseOffset, ObjectSummary]],
    is_stopped: Callable[[], bool],
) -> Iterator[ChapterEntry | None]:
    for base, row in logs:
        if is_stopped():
            return
        try:
            yield chapter_entry(base, row, store.head_object(row.key))
        except ObjectNotFoundError:
            yield None


@dataclass(frozen=True, slots=True)
class ChaptersWritten:
    """The chapters of an archive are written. `left` segments follow the last chapter."""

    archive: LongArchive
    left: int


@dataclass(frozen=True, slots=True)
class ChaptersFailed:
    """Writing an archive's chapters has raised an error."""

    archive: LongArchive
    error: Exception


ChapterEvent = ChaptersWritten | ChaptersFailed


class Chapters:
    """Writes the chapters of archives that have grown by enough segments, one archive at a time.

    Args:
        archives: The archives that have grown.
        pool: A pool with one worker.
        now: Monotonic seconds.
        metrics: Counts failures.
        errors: Delays the next attempt after an unexpected error.
    """

    def __init__(
        self,
        archives: LongArchives,
        pool: WorkerPool[ChapterEvent],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._archives = archives
        self._task = PeriodicTask(
            "writing chapters",
            pool,
            now,
            metrics,
            errors,
            expected=(SidetierError,),
            pause=_AGAIN_SECONDS,
        )
        self._in_chapters: dict[TopicPartition, int] = {}
        """Number of an archive's segments that chapters cover, as of the last writing."""
        self._segments: dict[TopicPartition, int] = {}
        """Number of an archive's segments when it was taken last."""
        self._stopped = threading.Event()

    def write_if_due(self) -> None:
        """Begin with the next archive unless one is under way. Call on the daemon's thread."""
        if not self._task.is_due:
            return
        while not self._stopped.is_set() and (archive := self._archives.take()) is not None:
            tp = archive.topic_partition
            if archive.segments < self._segments.get(tp, 0):
                # `sidetier gc` has deleted segments, and chapters with them. How many are still
                # covered shows when the chapters are listed.
                self._in_chapters.pop(tp, None)
            self._segments[tp] = archive.segments
            if archive.segments - self._in_chapters.get(tp, 0) >= SEGMENTS:
                self._begin(archive)
                return

    def stop(self) -> None:
        """End the writing under way after its present request."""
        self._stopped.set()

    def _begin(self, archive: LongArchive) -> None:
        self._task.begin(
            lambda: ChaptersWritten(archive, write_chapters(archive, self._stopped.is_set)),
            partial(ChaptersFailed, archive),
        )

    def handle(self, event: ChapterEvent) -> None:
        """Take the result of a writing."""
        archive = event.archive
        if isinstance(event, ChaptersFailed):
            self._failed(archive, event.error)
            return
        self._task.succeeded()
        self._in_chapters[archive.topic_partition] = archive.segments - event.left % SEGMENTS

    def _failed(self, archive: LongArchive, error: Exception) -> None:
        self._archives.put(archive)
        if self._task.failed(error):
            tp = archive.topic_partition
            log.warning("chapter.failed", topic=tp.topic, partition=tp.partition, error=str(error))
