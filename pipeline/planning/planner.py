"""From what is asked for to a plan: which stored segments hold it, in splits of bounded size."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Self

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.ranged import range_reader
from sidetier.archive.view import ArchiveView
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.planning.archives import Archives
from sidetier.pipeline.planning.discovery import find_partitions
from sidetier.pipeline.planning.edges import Edges, Ends
from sidetier.pipeline.planning.partition_plan import PartitionPlan, PartitionPlanner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.resolving import Resolver, check_covered
from sidetier.pipeline.planning.selection import Selection
from sidetier.pipeline.planning.split import Missing, OffsetRange, Plan, Split
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.storage.endpoints import ArchiveAccess

_THREADS: Final = 16
_NOTHING: Final = OffsetRange(Offset(0), Offset(0))


class Planner:
    """Plans reads of one cluster's archive.

    It keeps what it has seen: planning again costs a request or two for each partition, and what is
    new. An archive that was replaced since it was seen first is an error, ArchiveReplacedError,
    from every method. One caller at a time; close it, or use it with `with`.

    What a plan costs: for each partition its watermark, a listing (a request for every 1,000
    objects) and one of its recorded gaps; an index for each segment that is larger than a split, or
    in which the range begins or ends; with a filter by time, a few bytes of each segment's time
    index.
    """

    def __init__(
        self,
        access: ArchiveAccess,
        *,
        threads: int = _THREADS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._archives = Archives(access, clock)
        self._helpers = ThreadPoolExecutor(threads, "planner")
        self._ends = Ends(self._archives)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End its threads; may be called twice. The stores are closed by who opened them."""
        self._helpers.shutdown()

    def partitions(self, selection: Selection) -> tuple[TopicPartition, ...]:
        """The stored partitions that are meant, by topic and partition.

        Raises:
            NoSuchTopicError: nothing is stored of a topic, or a partition, that was named.
            WrongPlaceError: nothing is stored here, but something is under other entropy bits.
            StorageError: as the port says.
        """
        return find_partitions(self._archives, selection, self._helpers)

    def ends(
        self, tps: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, Offset]:
        """Where what can be read ends now: one past the last offset, 0 where nothing is stored.

        Read committed that is the last stable offset: the last segment is read for it, once in each
        version. Otherwise a request or two for each partition.

        Raises:
            ArchiveError, StorageError: as `PartitionArchive.look`.
        """
        views = self._look(list(tps))
        stable = self._helpers.map(lambda tp: self._ends.of(tp, views[tp], isolation), views)
        return dict(zip(views, stable, strict=True))

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Where what is stored begins now, 0 where nothing is; raises as `ends`."""
        views = self._look(list(tps))
        return {tp: Offset(0) if view is None else view.start for tp, view in views.items()}

    def resolve(self, request: ReadRequest) -> dict[TopicPartition, OffsetRange]:
        """What a request asks for, partition by partition, as offsets.

        Raises:
            NoSuchTopicError: see `partitions`.
            ConfigurationError: offsets do not name just the partitions that are read, or no record
                is as late as a time where reading is to begin.
            ArchiveError, StorageError: as `PartitionArchive.look`.
        """
        tps = self.partitions(request.selection)
        check_covered(request.starting, tps, "startingOffsets")
        check_covered(request.ending, tps, "endingOffsets")
        wanted = request.filters.partitions
        tps = tuple(tp for tp in tps if wanted is None or tp.partition in wanted)
        views = self._look(tps)
        resolver = Resolver(self._archives.first_at)
        limits = (request.starting, request.ending)

        def resolved(tp: TopicPartition) -> OffsetRange:
            edges = Edges(tp, views[tp], request.isolation, self._ends)
            return resolver.range(tp, limits, edges, request.no_match)

        return dict(zip(tps, self._helpers.map(resolved, tps), strict=True))

    def plan(self, request: ReadRequest) -> Plan:
        """What is read for a request.

        Offsets that are known to be missing without asking each segment are in `Plan.missing`:
        below and above what is stored, recorded gaps. Others are met by who reads, or found with
        `request.find_holes`.

        Raises:
            MissingRecordsError: some are missing, and `request.fail_on_data_loss` is set.
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `resolve`.
        """
        return self.plan_ranges(self.resolve(request), request)

    def plan_ranges(
        self, ranges: Mapping[TopicPartition, OffsetRange], request: ReadRequest
    ) -> Plan:
        """What is read for fixed ranges: of a request all else counts.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `plan`.
        """
        tps = sorted(tp for tp in ranges)

        def planner_of(tp: TopicPartition) -> PartitionPlanner | None:
            return self._planner(tp, ranges[tp].until, request)

        planners = dict(zip(tps, self._helpers.map(planner_of, tps), strict=True))

        def planned(tp: TopicPartition) -> PartitionPlan:
            planner = planners[tp]
            if planner is None:
                return PartitionPlan(ranges[tp], missing=self._all_missing(tp, ranges[tp]))
            return planner.plan(ranges[tp], request.filters)

        plans = dict(zip(tps, self._helpers.map(planned, tps), strict=True))
        missing = tuple(one for plan in plans.values() for one in plan.missing)
        if missing and request.fail_on_data_loss:
            raise MissingRecordsError(missing)
        most = _split_bytes(request, sum(plan.size for plan in plans.values()))

        def split(tp: TopicPartition) -> tuple[Split, ...]:
            planner = planners[tp]
            return () if planner is None else tuple(planner.splits(plans[tp].spans, most))

        splits = tuple(one for found in self._helpers.map(split, tps) for one in found)
        pruned = sum(plan.pruned for plan in plans.values())
        return Plan({tp: ranges[tp] for tp in tps}, splits, missing, pruned)

    def _look(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, ArchiveView | None]:
        wanted = list(tps)
        looks = self._helpers.map(self._view, wanted)
        return dict(zip(wanted, looks, strict=True))

    def _view(self, tp: TopicPartition, max_age: float = 0.0) -> ArchiveView | None:
        """What one look shows, as long as it is the same archive that was seen before."""
        look = self._archives.of(tp).look(max_age)
        for change in look.changes:
            if change.message is not None:
                raise ArchiveReplacedError(change.message, change.first)
        return look.view

    def _planner(
        self, tp: TopicPartition, until: Offset, request: ReadRequest
    ) -> PartitionPlanner | None:
        view = self._view(tp, float("inf"))
        if view is None or view.end < until:
            view = self._view(tp)
        if view is None:
            return None
        return PartitionPlanner(
            self._archives.of(tp),
            view,
            self._ends.up_to(tp, view, request.isolation, until),
            self._archives.locator,
            range_reader(self._archives.access, tp.topic),
            self._archives.times(tp),
            request.find_holes,
        )

    def _all_missing(self, tp: TopicPartition, asked: OffsetRange) -> tuple[Missing, ...]:
        if asked.first >= asked.until:
            return ()
        return (Missing(tp, asked, f"nothing is stored at {self._archives.of(tp).where}"),)


def without_loss(request: ReadRequest) -> ReadRequest:
    """The same request, told all that is missing and not refused for it: for who shows a plan."""
    return replace(request, fail_on_data_loss=False, find_holes=True)


def _split_bytes(request: ReadRequest, total: int) -> int:
    if request.min_partitions is None or total == 0:
        return request.max_split_bytes
    return max(min(request.max_split_bytes, total // request.min_partitions), 1)
