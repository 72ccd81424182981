"""Verify the archives of many partitions, a bounded number at the same time.

First the light check of all partitions. With `deep` or `local`, each partition is then listed again
and its segments are read. An error of one object or partition is recorded, and the others go on.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.contents import Inventory, NotedSegment
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.progress import Amount, OnProgress, Progress, ignore_progress
from sidetier.archive.topics import select_partitions
from sidetier.archive.verify.deep import SegmentChecker, SegmentMovedError
from sidetier.archive.verify.findings import Finding, FindingKind, Severity, Unread
from sidetier.archive.verify.light import check_partition, read_partition
from sidetier.archive.verify.local import closed_local_segments, compare_with_local
from sidetier.archive.verify.progress_file import FinishedSegment, ProgressFile, version_of
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.token_bucket import TokenBucket

T = TypeVar("T")
R = TypeVar("R")

_NOT_OF_VERSION: Final = {FindingKind.WRONG_EPOCHS, FindingKind.MISSING_MARKER}
_READINGS: Final = 3
"""Readings of a partition whose segments move while they are checked."""
_PARTITIONS_PER_THREAD: Final = 8
"""Partitions that the light check reads at the same time, for each of `VerifyRequest.threads`: it
makes about eight small requests for each partition, one after the other, and waits for answers.
"""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is checked.

    Attributes:
        topics: Regular expressions that match whole topic names; empty for all topics.
        partitions: Partition numbers; empty for all.
        deep: Read every byte of the segments.
        heads: Read the end of each segment from its metadata, one request each.
        since_ms: Check only segments that were last written to at this time or later, in ms since
            1970. Light checks of a partition as a whole are made in any case.
        until_ms: Check only segments that have records from before this time.
        sample: Share of the segments to read, above 0 and up to 1.
        seed: Another seed samples other segments.
        threads: Maximum number of segments, or of partitions with more than 1,000 objects, that are
            read at the same time. The light check reads eight times as many smaller partitions.
        rate: Maximum bytes read per second; None for no limit.
        resume: File that records the finished segments of `deep`; segments that it has are not read
            again. Deleted at the end of a complete run. None to not record them.
    """

    topics: tuple[str, ...] = ()
    partitions: frozenset[int] = frozenset()
    deep: bool = False
    heads: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    sample: float = 1.0
    seed: int = 0
    threads: int = 4
    rate: int | None = None
    resume: Path | None = None

    @property
    def light_threads(self) -> int:
        """Maximum number of partitions that the light check reads at the same time."""
        return self.threads * _PARTITIONS_PER_THREAD

    def takes(self, key: str) -> bool:
        """Return whether a segment is in the sample: always the same for one key and seed."""
        if self.sample >= 1:
            return True
        # Not for security: it must be the same in each process.
        return random.Random(f"{self.seed}/{key}").random() < self.sample  # noqa: S311


@dataclass(slots=True)
class VerifyTotals:
    """Counts of a run; sizes in bytes."""

    partitions: int = 0
    segments: int = 0
    size: int = 0
    checked_segments: int = 0
    checked_size: int = 0
    compared_segments: int = 0


@dataclass(slots=True)
class VerifyReport:
    """The result of a run. It grows while the run goes on.

    Attributes:
        totals: How much was checked.
        of_partitions: Findings of the newest light check of each partition.
        of_segments: Findings about the bytes of segments.
        unread: What could not be checked, by key.
        is_stopped: Whether the run was stopped before its end.
    """

    totals: VerifyTotals = field(default_factory=VerifyTotals)
    of_partitions: dict[TopicPartition, list[Finding]] = field(default_factory=dict)
    of_segments: list[Finding] = field(default_factory=list)
    unread: dict[str, Unread] = field(default_factory=dict)
    is_stopped: bool = False

    def findings(self) -> list[Finding]:
        """Return the findings, the most severe first, then by partition and offset."""
        order = {kind: index for index, kind in enumerate(FindingKind)}
        severities = list(Severity)
        # The light check and the reading of a segment may find the same.
        findings = set(self.of_segments).union(*self.of_partitions.values())
        return sorted(
            findings,
            key=lambda f: (
                severities.index(f.severity),
                f.topic_partition,
                f.offsets or (-1, -1),
                order[f.kind],
                f.key,
                f.detail,
            ),
        )


def verify(
    archive: ArchiveAccess,
    request: VerifyRequest,
    *,
    directories: Mapping[TopicPartition, str] | None = None,
    stop: threading.Event | None = None,
    on_progress: OnProgress = ignore_progress,
) -> VerifyReport:
    """Check that the archive is complete and undamaged. Sidecars may upload meanwhile.

    Nothing is written to the archive. Open it with `request.light_threads` connections.

    Args:
        archive: The archive.
        request: What is checked.
        directories: Directories of partitions in a broker's log dirs, to compare with.
        stop: Ends the run, when it is set, after the segments that are being read; the report then
            has the findings so far, and `is_stopped`.
        on_progress: Called after each segment that was read.

    Raises:
        ConfigurationError: As `select_partitions`, or the file of `resume` is of another run.
        StorageError: The partitions could not be listed. Later errors are in the report.
    """
    partitions = select_partitions(archive, request.topics, request.partitions)
    with ExitStack() as stack:
        progress_file = None
        if request.resume is not None:
            progress_file = ProgressFile(request.resume, _identity(archive, request))
            stack.callback(progress_file.close)
        report = Verification(
            archive, request, stop=stop, progress_file=progress_file, directories=directories
        ).run(partitions, on_progress)
        if progress_file is not None and not report.is_stopped:
            progress_file.remove()
    return report


def _identity(archive: ArchiveAccess, request: VerifyRequest) -> Mapping[str, object]:
    """Return what decides the result of a segment, for the file of `resume`."""
    cluster, url = archive.layout.cluster, archive.provider.default.url
    return {"cluster": cluster, "url": url, "deep": request.deep}


class Verification:
    """One run over some partitions.

    Args:
        archive: The stores and the layout.
        request: What is checked.
        now_ms: This host's clock, in ms since 1970.
        stop: Ends the run, when it is set, after the segments that are being read.
        progress_file: Records finished segments; None to not record them.
        directories: The directories of partitions in the broker's log dirs, to compare with.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        request: VerifyRequest,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        stop: threading.Event | None = None,
        progress_file: ProgressFile | None = None,
        directories: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        self._archive = archive
        self._request = request
        self._now_ms = now_ms
        self._bucket = None if request.rate is None else TokenBucket(request.rate, time.monotonic)
        self._progress_file = progress_file
        self._directories = directories or {}
        self._report_progress: OnProgress = ignore_progress
        self._stop = stop or threading.Event()
        self._guard = threading.Lock()
        self._checkers: dict[str, SegmentChecker] = {}
        self._last: dict[TopicPartition, BaseOffset] = {}
        self._long_listings = threading.BoundedSemaphore(request.threads)
        self.report = VerifyReport()

    def run(
        self, partitions: Sequence[TopicPartition], on_progress: OnProgress = ignore_progress
    ) -> VerifyReport:
        """Run all light checks first, then read the segments for `deep` or local log dirs."""
        self.light(partitions)
        if self._request.deep or self._directories:
            self.segments(partitions, on_progress)
        return self.report

    def light(self, partitions: Iterable[TopicPartition]) -> None:
        """Check partitions by their listings and small objects."""
        at_once = self._request.light_threads
        with ThreadPoolExecutor(at_once, "verify") as pool:
            for _ in _bounded(pool, self._light, partitions, at_once):
                pass
        self.report.is_stopped = self._stop.is_set()

    def segments(
        self,
        partitions: Iterable[TopicPartition],
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        """Read the segments of partitions, one partition after the other.

        Args:
            partitions: The partitions.
            on_progress: Called after each segment.
        """
        self._report_progress = on_progress
        with ThreadPoolExecutor(self._request.threads, "verify") as pool:
            for tp in partitions:
                if self._stop.is_set():
                    break
                self._guarded(tp, partial(self._segments_of, pool))
        self.report.is_stopped = self._stop.is_set()

    def _light(self, tp: TopicPartition) -> None:
        if not self._stop.is_set():
            self._guarded(tp, self._light_check)

    def _guarded(self, tp: TopicPartition, work: Callable[[TopicPartition], None]) -> None:
        """Do the work; an error concerns this partition only."""
        try:
            work(tp)
        except (SidetierError, OSError) as error:
            self._unread(tp, self._archive.layout.partition_prefix(tp), error)

    def _light_check(self, tp: TopicPartition) -> None:
        with ExitStack() as held:

            def before_more() -> None:
                held.close()  # of an earlier reading of the partition
                held.enter_context(self._long_listings)

            self._judge_read(tp, *self._read(tp, before_more))

    def _judge_read(
        self, tp: TopicPartition, inventory: Inventory, findings: list[Finding]
    ) -> None:
        wanted = self._wanted(inventory)
        result = findings or self._judge(inventory)
        with self._guard:
            totals = self.report.totals
            totals.partitions += 1
            totals.segments += len(wanted)
            totals.size += sum(segment.log.size for segment in wanted)
            self.report.of_partitions[tp] = result
            if inventory.watermark is not None:
                # A growing archive is read only up to the totals.
                self._last[tp] = inventory.watermark.watermark.base_offset

    def _judge(self, inventory: Inventory) -> list[Finding]:
        return check_partition(inventory, self._archive.layout, self._now_ms())

    def _read(
        self, tp: TopicPartition, before_more: Callable[[], object] = lambda: None
    ) -> tuple[Inventory, list[Finding]]:
        stored = self._archive.partition(tp)
        inventory, findings = read_partition(stored, before_more)
        if self._request.heads:
            unknown = [log for log in inventory.logs if log.base_offset not in inventory.noted]
            inventory = inventory.with_noted(stored.heads(unknown, inventory.topic_id))
        return inventory, list(findings)

    def _segments_of(self, pool: ThreadPoolExecutor, tp: TopicPartition) -> None:
        finished: dict[str, FinishedSegment] = {}
        for attempt in range(1, _READINGS + 1):
            inventory, findings = self._read(tp)
            if findings:
                return
            check = partial(self._segment, inventory, finished, is_last=attempt == _READINGS)
            window = self._request.threads * 2
            outcomes = _bounded(pool, check, self._wanted(inventory), window)
            if not any(list(outcomes)) or self._stop.is_set():
                break
        # With all ends known, missing offsets show that a listing alone cannot prove.
        noted = (
            inventory.noted.get(log.base_offset, NotedSegment(log.base_offset))._replace(
                next_offset=finished[log.log.key].next_offset
            )
            for log in inventory.logs
            if log.log.key in finished
        )
        inventory = inventory.with_noted(noted)
        with self._guard:
            self.report.of_partitions[tp] = self._judge(inventory)

    def _segment(
        self,
        inventory: Inventory,
        finished: dict[str, FinishedSegment],
        segment: SegmentFiles,
        *,
        is_last: bool,
    ) -> bool:
        """Check one segment. Return whether it has moved since it was listed."""
        tp, key = inventory.topic_partition, segment.log.key
        version = version_of(segment)
        known = finished.get(key)
        if self._stop.is_set() or (known is not None and known.version == version):
            return False
        try:
            result = FinishedSegment(version, None, ())
            if self._request.deep:
                result = self._deep(inventory, segment, version)
            local = self._local(tp, segment)
        except SegmentMovedError as error:
            if is_last:
                self._unread(tp, key, error)
            return True
        except (SidetierError, OSError) as error:
            self._unread(tp, key, error)
            return False
        with self._guard:
            finished[key] = result
            totals = self.report.totals
            totals.checked_segments += 1
            totals.checked_size += segment.log.size
            self.report.of_segments += [*result.findings, *local]
            done = Amount(totals.checked_segments, totals.checked_size)
            self._report_progress(Progress(done, Amount(totals.segments, totals.size)))
        return False

    def _wanted(self, inventory: Inventory) -> list[SegmentFiles]:
        """Return the stored segments of the archive that the options select."""
        entries = () if inventory.metadata is None else inventory.metadata.metadata.entries
        times = {entry.base_offset: entry.timestamp for entry in entries}
        since, until = self._request.since_ms, self._request.until_ms
        last = self._last.get(inventory.topic_partition)
        wanted, begins = [], -1
        for segment in inventory.logs:
            if last is not None and segment.base_offset > last:
                break
            ends = times.get(segment.base_offset, segment.log.modified_ms)
            is_in_time = (since is None or ends >= since) and (until is None or begins < until)
            if is_in_time and self._request.takes(segment.log.key):
                wanted.append(segment)
            begins = ends
        return wanted

    def _deep(self, inventory: Inventory, segment: SegmentFiles, version: str) -> FinishedSegment:
        key = segment.log.key
        known = self._progress_file.finished(key, version) if self._progress_file else None
        # The version of a segment includes neither the stored leader epochs nor markers, which may
        # have been repaired since. So a segment with such a finding is read again.
        if known and not any(f.kind in _NOT_OF_VERSION for f in known.findings):
            return known
        epochs = None if inventory.epochs is None else inventory.epochs.epoch_history
        if epochs is not None and not epochs.entries:
            epochs = None
        tp = inventory.topic_partition
        checked = self._checker(tp.topic).check(tp, segment, epochs, inventory.topic_id)
        result = FinishedSegment(version, checked.next_offset, checked.findings)
        if self._progress_file is not None:
            self._progress_file.add(key, result)
        return result

    def _local(self, tp: TopicPartition, segment: SegmentFiles) -> list[Finding]:
        """Compare a segment with the broker's file, if the broker still has it."""
        directory = self._directories.get(tp)
        if directory is None:
            return []
        next_base = closed_local_segments(directory).get(segment.base_offset)
        if next_base is None:
            return []
        checker = self._checker(tp.topic)
        finding = compare_with_local(checker, tp, segment, directory, next_base)
        with self._guard:
            self.report.totals.compared_segments += 1
        return [] if finding is None else [finding]

    def _checker(self, topic: str) -> SegmentChecker:
        url = self._archive.url(topic)
        with self._guard:
            if url not in self._checkers:
                deadline = self._archive.provider.endpoint(topic).deadline
                store = self._archive.store(topic)
                self._checkers[url] = SegmentChecker(store, self._before_read, deadline)
            return self._checkers[url]

    def _before_read(self, size: int) -> None:
        """Wait until `size` more bytes keep to the rate, or the run is stopped."""
        if self._bucket is not None:
            self._stop.wait(self._bucket.reserve(size))

    def _unread(self, tp: TopicPartition, key: str, error: Exception) -> None:
        with self._guard:
            self.report.unread[key] = Unread(tp, key, str(error) or type(error).__name__)


def _bounded(
    pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T], most: int
) -> Iterator[R]:
    """Yield the results in order, with at most `most` items submitted and not yielded."""
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
