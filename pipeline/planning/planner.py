"""Planner: from a read request to a plan of splits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Final, Self, TypeVar

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.objects.watermark import is_noted
from sidetier.archive.tailed_archive import SharedTails
from sidetier.archive.view import ArchiveView
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.planning.archives import Archives, ArchiveSnapshots
from sidetier.pipeline.planning.discovery import find_partitions
from sidetier.pipeline.planning.log_offsets import Edges, Ends, LogOffsets, UndecidedTail
from sidetier.pipeline.planning.partition_plan import PartitionPlan, PartitionPlanner
from sidetier.pipeline.planning.request import ReadRequest, Selection
from sidetier.pipeline.planning.request_pool import RequestPool
from sidetier.pipeline.planning.resolving import Resolver, check_covered, shares
from sidetier.pipeline.planning.segment_parts import SegmentPart
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory, joined
from sidetier.segments.errors import ArchiveError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.attempt import monotonic

PACK_SECONDS: Final = 5.0
"""Minimum time between two readings of the packs, for a planner that follows a log."""
_MANY: Final = 100
"""Number of segments from which on chapters save requests."""

_T = TypeVar("_T")
_Ranges = Mapping[TopicPartition, OffsetRange]
_Planners = dict[TopicPartition, PartitionPlanner]
_Plans = dict[TopicPartition, PartitionPlan]
_SegmentEnds = dict[StoredLog, Offset]


@dataclass(frozen=True, slots=True)
class RangePlanner:
    """Plans many partitions at once, with parallel requests for their segments."""

    snapshots: ArchiveSnapshots
    ends: Ends

    @property
    def _pool(self) -> RequestPool:
        return self.snapshots.pool

    def plan(self, ranges: _Ranges, request: ReadRequest) -> Plan:
        """Plan fixed ranges. All of the request applies except its selection and limits.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `Planner.plan`.
        """
        tps = sorted(ranges)
        planners = self._planners(tps, ranges, request.isolation)
        plans = self._plans(tps, ranges, planners, request)
        missing = tuple(gap for plan in plans.values() for gap in plan.missing)
        if missing and request.fail_on_data_loss:
            raise MissingRecordsError(missing)
        most = _split_bytes(request, sum(plan.size for plan in plans.values()))
        splits = tuple(self._splits(most, planners, plans))
        pruned = sum(plan.pruned for plan in plans.values())
        with_tail = self.snapshots.archives.tails is not None
        return Plan({tp: ranges[tp] for tp in tps}, splits, missing, pruned, with_tail=with_tail)

    def ends_within(self, ranges: _Ranges, most: int) -> dict[TopicPartition, Offset]:
        """Size and shorten the partitions in the planner's threads."""
        # Only stored bytes count here, so the last stable offsets need not be read.
        planners = self._planners(ranges, ranges, IsolationLevel.READ_UNCOMMITTED)
        sizes = self._pool.of_each(lambda tp: planners[tp].size(ranges[tp]), planners)
        parts = shares(sizes, most)
        cut = [tp for tp, size in sizes.items() if parts[tp] < size]
        ends = self._pool.of_each(lambda tp: planners[tp].end_within(ranges[tp], parts[tp]), cut)
        return {tp: ends.get(tp, span.end) for tp, span in ranges.items()}

    def _planners(
        self, tps: Iterable[TopicPartition], ranges: _Ranges, isolation: IsolationLevel
    ) -> _Planners:
        """Return a planner for each partition of which something is stored."""
        planners = self._pool.of_each(lambda tp: self._planner(tp, ranges[tp].end, isolation), tps)
        return {tp: planner for tp, planner in planners.items() if planner is not None}

    def _planner(
        self, tp: TopicPartition, until: Offset, isolation: IsolationLevel
    ) -> PartitionPlanner | None:
        view = self.snapshots.reaching(tp, until)
        if view is None:
            return None
        archives = self.snapshots.archives
        return PartitionPlanner(
            archives.of(tp),
            view,
            self.ends.up_to(tp, view, isolation, until),
            archives.locator,
            range_reader(archives.access, tp.topic),
            archives.times(tp),
            partial(archives.noted_end, tp),
        )

    def _plans(
        self,
        tps: Iterable[TopicPartition],
        ranges: _Ranges,
        planners: _Planners,
        request: ReadRequest,
    ) -> _Plans:
        gaps = self._gaps(ranges, planners)
        since = request.filters.since_ms
        if request.find_gaps or since is not None:
            # The end or the largest timestamp of each segment is needed below: a request for each
            # segment. Chapters have both for 1,000 segments in one object.
            read = self.snapshots.archives.read_chapters
            many = [
                tp
                for tp, planner in planners.items()
                if len(planner.logs_for(ranges[tp], request.filters)) >= _MANY
            ]
            self._pool.of_each(lambda tp: read(tp, planners[tp].view), many)
        ends = self._segment_ends(ranges, planners, request) if request.find_gaps else None

        def planned(tp: TopicPartition) -> PartitionPlan:
            planner = planners.get(tp)
            if planner is None:
                return PartitionPlan(ranges[tp], missing=self._all_missing(tp, ranges[tp]))
            return planner.plan(ranges[tp], request.filters, gaps.get(tp, []), ends)

        plans = self._pool.of_each(planned, tps)
        return plans if since is None else self._late_enough(since, planners, plans)

    def _gaps(self, ranges: _Ranges, planners: _Planners) -> dict[TopicPartition, Gaps]:
        """Read the recorded gaps of the partitions with a non-empty range.

        Pinterest's uploader records no gaps.
        """
        partitions = [
            tp
            for tp, planner in planners.items()
            if not planner.view.is_pinterest and ranges[tp].start < ranges[tp].end
        ]
        return self.snapshots.gaps(partitions)

    def _segment_ends(
        self, ranges: _Ranges, planners: _Planners, request: ReadRequest
    ) -> _SegmentEnds:
        """Read the end of each segment that may have requested offsets."""
        logs = [
            (planner, log)
            for tp, planner in planners.items()
            for log in planner.logs_for(ranges[tp], request.filters)
        ]
        ends = self._pool.each(lambda pair: pair[0].end_of(pair[1]), logs)
        return {log: end for (_, log), end in zip(logs, ends, strict=True)}

    def _late_enough(self, since: int, planners: _Planners, plans: _Plans) -> _Plans:
        """Return the plans without segments that have no record at or after this time."""
        # One iterator for all partitions, so that their requests run in parallel. Each plan takes
        # its own results, in the order in which they were requested.
        largest = self._of_each_part(planners, plans, lambda by, part: by.times.largest(part.log))
        return {
            tp: plan.since(since, list(islice(largest, len(plan.parts))))
            for tp, plan in plans.items()
        }

    def _splits(self, most: int, planners: _Planners, plans: _Plans) -> Iterator[Split]:
        cuts = self._of_each_part(planners, plans, lambda by, part: by.cut(part, most))
        for tp, planner in planners.items():
            parts = list(chain.from_iterable(islice(cuts, len(plans[tp].parts))))
            yield from planner.splits(parts, most)

    def _of_each_part(
        self,
        planners: _Planners,
        plans: _Plans,
        request: Callable[[PartitionPlanner, SegmentPart], _T],
    ) -> Iterator[_T]:
        """Yield the result of `request` for each part of a segment, in order."""
        parts = [(planner, part) for tp, planner in planners.items() for part in plans[tp].parts]
        return self._pool.each(lambda pair: request(*pair), parts)

    def _all_missing(self, tp: TopicPartition, requested: OffsetRange) -> tuple[Missing, ...]:
        if requested.start >= requested.end:
            return ()
        where = self.snapshots.archives.of(tp).where
        return (Missing(tp, requested, f"nothing is stored at {where}"),)


def _split_bytes(request: ReadRequest, total: int) -> int:
    if request.min_partitions is None or total == 0:
        return request.max_split_bytes
    return max(min(request.max_split_bytes, total // request.min_partitions), 1)


_THREADS: Final = 16


class Planner:
    """Plans reads of one cluster's archive.

    The planner caches snapshots: planning again costs a request or two for each partition, and the
    requests for new segments. If an archive was replaced after it was first seen, every method
    raises ArchiveReplacedError until `renew`. Not thread-safe. Close it, or use it with `with`.

    Requests of a plan:

    - for each partition, its `offset.wm` and a listing: a request for every 1,000 objects, and up
      to three more for a long listing on a store with high latency, which is listed in parallel
      parts;
    - for each topic, a listing of recorded gaps;
    - an index for each segment that is larger than a split, or in which the range begins or ends;
    - with a filter by time, the metadata of each segment, or a few bytes of its time index.

    Args:
        access: the cluster's archive.
        threads: threads of its pool, if `pool` is not given.
        clock: monotonic clock, in seconds.
        max_batch_bytes: as in `ReaderSettings`, for searches by timestamp.
        pool: a pool to share, which the caller closes.
        with_tail: whether tail packs follow the archives.
        pack_age: seconds after which the packs are read again; by default they are read once.
    """

    def __init__(  # noqa: PLR0913 -- all but one have a default
        self,
        access: ArchiveAccess,
        *,
        threads: int = _THREADS,
        clock: Callable[[], float] = monotonic,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        pool: RequestPool | None = None,
        with_tail: bool = False,
        pack_age: float = float("inf"),
    ) -> None:
        tails = SharedTails(access, clock, pack_age) if with_tail else None
        self._archives = Archives(access, clock, max_batch_bytes, tails)
        self._owns_threads = pool is None
        self._pool = RequestPool(threads) if pool is None else pool
        self._ends = Ends(self._archives)
        self._snapshots = ArchiveSnapshots(self._archives, self._pool)
        self._ranges = RangePlanner(self._snapshots, self._ends)
        self._noted_epoch_histories: dict[TopicPartition, tuple[str, EpochHistory]] = {}

    def another(self) -> "Planner":
        """Return a planner that another thread may use at the same time.

        It shares the thread pool, the cache of indexes and the packs, but no snapshots. Close this
        planner last.
        """
        known = self._archives
        made = Planner(
            known.access,
            clock=known.clock,
            max_batch_bytes=known.max_batch_bytes,
            pool=self._pool,
        )
        made._archives.locator = known.locator
        made._archives.tails = known.tails
        return made

    def __enter__(self) -> Self:
        """Return the planner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the planner."""
        self.close()

    def close(self) -> None:
        """Stop the threads. May be called twice. The caller that opened the stores closes them."""
        if self._owns_threads:
            self._pool.shutdown()

    @property
    def reads_tails(self) -> bool:
        """Whether tail packs follow the archives."""
        return self._archives.tails is not None

    def renew(self) -> dict[TopicPartition, Offset]:
        """Drop the cached snapshots of archives that were replaced, so that planning can continue.

        Costs a request for each cached partition. Raises as `ends`; nothing is dropped then.

        Returns:
            For each replaced archive, the first offset whose records are different.
        """
        return self._snapshots.renew()

    def partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """Return the stored partitions of a selection, sorted by topic and partition.

        Raises:
            NoSuchTopicError: nothing is stored of a named topic or partition.
            WrongPlaceError: nothing is stored here, but an archive exists under other entropy bits.
        """
        return find_partitions(self._archives, selection, self._pool)

    def ends(
        self, tps: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, Offset]:
        """Return the present end (exclusive) of the readable offsets; 0 where nothing is stored.

        At read_committed, the end is the last stable offset. For it the last segment is read, once
        for each version. Otherwise a request or two for each partition.

        Raises:
            ArchiveError, StorageError: as `PartitionArchive.snapshot`.
        """
        views = self._snapshots.of_all(tps)
        return self._pool.of_each(lambda tp: self._ends.of(tp, views[tp], isolation), views)

    def undecided(self, topic: str) -> dict[TopicPartition, UndecidedTail]:
        """Return the stored offsets of a topic that wait for a transaction.

        These are the offsets that `ends` excludes at read_committed. Uses the cached snapshots;
        raises as `ends`.
        """
        tps = [tp for tp in self._archives.known if tp.topic == topic]
        views = {tp: self._snapshots.of(tp, float("inf")) for tp in tps}
        tails = self._pool.of_each(lambda tp: self._ends.undecided(tp, views[tp]), views)
        return {tp: tail for tp, tail in tails.items() if tail is not None}

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the first stored offset of each partition; 0 where nothing is stored. Raises as
        `ends`.
        """
        views = self._snapshots.of_all(tps)
        return {tp: Offset(0) if view is None else view.start for tp, view in views.items()}

    def log_offsets(
        self, tps: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, LogOffsets]:
        """Return the present offsets of each stored partition; raises as `ends`."""
        views = self._snapshots.of_all(tps)

        def of_partition(tp: TopicPartition) -> LogOffsets | None:
            view = views[tp]
            if view is None:
                return None
            stable = self._ends.of(tp, view, isolation)
            return LogOffsets(view.start, stable, view.end, view.watermark.topic_id)

        offsets = self._pool.of_each(of_partition, views)
        return {tp: known for tp, known in offsets.items() if known is not None}

    def epoch_histories(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, EpochHistory]:
        """Return the leader epochs of the stored records of each partition.

        A history is empty if none is stored, or if it does not belong to the partition's
        `offset.wm`: a sidecar that lost the race for `offset.wm` may have been the last to write
        the leader epochs. Below the archive end offset, it is that of the archived records, also
        while a later leader has discarded them; above, that of the tail.

        Costs a request for each partition, in addition to those of `ends`. If `offset.wm` has the
        checksum of its leader epochs, the request is made once for each version of it.

        Raises:
            MalformedObjectError: a stored history does not parse.
            ArchiveError, StorageError: as `ends`.
        """
        views = {tp: view for tp, view in self._snapshots.of_all(tps).items() if view is not None}

        return self._pool.of_each(lambda tp: self._epoch_history(tp, views[tp]), views)

    def newest_epoch_histories(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, EpochHistory]:
        """Return the leader epochs of each partition's newest leader, to compare records with that
        were read before.

        Without tail packs above the archive, these are the `epoch_histories`. Otherwise they are
        those of the newest leader in the packs, also above the end of the tail: a claim shows where
        records were discarded. Raises as `epoch_histories`.
        """
        views = self._snapshots.of_all(tps)

        def newest(tp: TopicPartition) -> EpochHistory | None:
            view, in_packs = views[tp], self._archives.of(tp).newest_epochs()
            if in_packs is not None or view is None:
                return in_packs
            return self._epoch_history(tp, view)

        known = self._pool.of_each(newest, views)
        return {tp: history for tp, history in known.items() if history is not None}

    def _epoch_history(self, tp: TopicPartition, view: ArchiveView) -> EpochHistory:
        above = self._archives.of(tp).tail_epochs()
        if not view.etag:
            return above  # nothing is archived
        below = self._archived_epochs(tp, view)
        return below if view.end <= view.archived_end else joined(below, above, view.archived_end)

    def _archived_epochs(self, tp: TopicPartition, view: ArchiveView) -> EpochHistory:
        etag, known = self._noted_epoch_histories.get(tp, (None, NO_EPOCHS))
        if etag == view.etag:
            return known
        stored = self._archives.epoch_history(tp)
        if view.is_pinterest or not is_noted(view.watermark, stored):
            return NO_EPOCHS
        below = stored.up_to(view.archived_end)
        if view.watermark.epoch_history is not None:
            # Without the checksum in `offset.wm`, the leader epochs may change while its etag
            # stays the same.
            self._noted_epoch_histories[tp] = view.etag, below
        return below

    def gaps(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """Read the recorded gaps of the partitions. One listing for each topic."""
        return self._snapshots.gaps(tps)

    def beyond_archive(
        self, ends: Mapping[TopicPartition, Offset], isolation: IsolationLevel
    ) -> dict[TopicPartition, Offset]:
        """Return the ends up to which the archive alone may not be readable; none if tail packs are
        not read.

        These are ends above the archive end offset, and those of partitions of which nothing is
        archived; at read_committed, also those of all partitions with a tail, which decides
        transactions.

        Uses the cached snapshots; raises as `ends`.
        """
        if not self.reads_tails:
            return {}
        is_committed = isolation is IsolationLevel.READ_COMMITTED

        def is_readable(tp: TopicPartition, end: Offset) -> bool:
            view = self._snapshots.of(tp, float("inf"))
            if view is None or not view.etag:
                return False
            has_tail = view.end > view.archived_end
            return end <= view.archived_end and not (is_committed and has_tail)

        return {tp: end for tp, end in ends.items() if not is_readable(tp, end)}

    def topic_id(self, topic: str) -> str | None:
        """Return the topic id in the cached snapshots of the topic's partitions; None if the
        archive has none.

        Raises:
            ArchiveError: the partitions have different topic ids.
        """
        ids = self._archives.topic_ids(topic)
        if len(ids) > 1:
            raise ArchiveError(
                f"topic {topic}: its partitions are archived of topics with the ids "
                f"{', '.join(sorted(ids))}: it was deleted and created again, and not all of the "
                "old archive was retired (`sidetier retire`)"
            )
        return next(iter(ids), None)

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Read Kafka's own id of the archived cluster; None if no sidecar has stored it. One
        request.

        Raises:
            MalformedObjectError: the stored note does not parse.
        """
        note = self._archives.note(topic)
        return None if note is None else note.kafka_cluster_id

    def resolve(self, request: ReadRequest) -> dict[TopicPartition, OffsetRange]:
        """Resolve a request to a range of offsets for each partition.

        Raises:
            NoSuchTopicError: see `partitions`.
            ConfigurationError: offsets do not name exactly the partitions that are read, or no
                record is at or after the starting time.
            ArchiveError, StorageError: as `PartitionArchive.snapshot`.
        """
        tps = self.partitions(request.selection)
        check_covered(request.starting, tps, request.starting_option)
        check_covered(request.ending, tps, request.ending_option)
        wanted = request.filters.partitions
        tps = tuple(tp for tp in tps if wanted is None or tp.partition in wanted)
        views = self._snapshots.of_all(tps)
        resolver = Resolver(self._archives.first_at)
        limits = (request.starting, request.ending)

        def resolved(tp: TopicPartition) -> OffsetRange:
            edges = Edges(tp, views[tp], request.isolation, self._ends)
            return resolver.range(tp, limits, edges, request.no_match)

        return self._pool.of_each(resolved, tps)

    def plan(self, request: ReadRequest) -> Plan:
        """Plan a request.

        `Plan.missing` has the offsets that are known to be missing without asking each segment:
        those below and above the archive, and recorded gaps. The reader finds others, or the
        planner with `request.find_gaps`.

        Raises:
            MissingRecordsError: offsets are missing, and `request.fail_on_data_loss` is set.
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `resolve`.
        """
        return self.plan_ranges(self.resolve(request), request)

    def plan_ranges(
        self, ranges: Mapping[TopicPartition, OffsetRange], request: ReadRequest
    ) -> Plan:
        """Plan fixed ranges. All of the request applies except its selection and limits.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `plan`.
        """
        return self._ranges.plan(ranges, request)

    def ends_within(
        self, ranges: Mapping[TopicPartition, OffsetRange], most_bytes: int
    ) -> dict[TopicPartition, Offset]:
        """Reduce the ranges to about `most_bytes` of stored segments in total; return their ends
        (exclusive).

        The partitions share the bytes in proportion to their sizes. Each partition advances at
        least by one interval of index entries, or by one segment without an index. Missing offsets
        have no bytes and end no range. Reads one index for each partition, at most two.

        Raises:
            ArchiveError, StorageError: as `plan`.
        """
        return self._ranges.ends_within(ranges, most_bytes)
