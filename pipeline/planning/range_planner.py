"""Planning of fixed offset ranges: splits of bounded size."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Final, TypeVar

from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.ranged import range_reader
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.pipeline.planning.helpers import Helpers
from sidetier.pipeline.planning.log_offsets import Ends
from sidetier.pipeline.planning.partition_plan import PartitionPlan, PartitionPlanner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.snapshots import ArchiveSnapshots
from sidetier.pipeline.planning.spans import Span
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.pipeline.planning.trigger import shares
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_MANY: Final = 100
"""Number of segments from which on chapters save requests."""

_A = TypeVar("_A")
_Ranges = Mapping[TopicPartition, OffsetRange]
_Planners = dict[TopicPartition, PartitionPlanner]
_Plans = dict[TopicPartition, PartitionPlan]
_SegmentEnds = dict[StoredLog, Offset]


@dataclass(frozen=True, slots=True)
class RangePlanner:
    """Plans many partitions at once, with parallel requests for their segments."""

    looks: ArchiveSnapshots
    ends: Ends

    @property
    def _helpers(self) -> Helpers:
        return self.looks.helpers

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
        return Plan({tp: ranges[tp] for tp in tps}, splits, missing, pruned)

    def ends_within(self, ranges: _Ranges, most: int) -> dict[TopicPartition, Offset]:
        """See `Planner.ends_within`."""
        planners = self._planners(ranges, ranges, IsolationLevel.READ_UNCOMMITTED)
        sizes = self._helpers.of_each(lambda tp: planners[tp].size(ranges[tp]), planners)
        parts = shares(sizes, most)
        cut = [tp for tp, size in sizes.items() if parts[tp] < size]
        ends = self._helpers.of_each(lambda tp: planners[tp].end_within(ranges[tp], parts[tp]), cut)
        return {tp: ends.get(tp, span.end) for tp, span in ranges.items()}

    def _planners(
        self, tps: Iterable[TopicPartition], ranges: _Ranges, isolation: IsolationLevel
    ) -> _Planners:
        """Return a planner for each partition of which something is stored."""
        planners = self._helpers.of_each(
            lambda tp: self._planner(tp, ranges[tp].end, isolation), tps
        )
        return {tp: planner for tp, planner in planners.items() if planner is not None}

    def _planner(
        self, tp: TopicPartition, until: Offset, isolation: IsolationLevel
    ) -> PartitionPlanner | None:
        view = self.looks.reaching(tp, until)
        if view is None:
            return None
        archives = self.looks.archives
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
            # Below, each segment is asked for its end or its largest timestamp. Chapters have
            # both for 1,000 segments in one object.
            read = self.looks.archives.read_chapters
            many = [
                tp
                for tp, planner in planners.items()
                if len(planner.logs_for(ranges[tp], request.filters)) >= _MANY
            ]
            self._helpers.of_each(lambda tp: read(tp, planners[tp].view), many)
        ends = self._segment_ends(ranges, planners, request) if request.find_gaps else None

        def planned(tp: TopicPartition) -> PartitionPlan:
            planner = planners.get(tp)
            if planner is None:
                return PartitionPlan(ranges[tp], missing=self._all_missing(tp, ranges[tp]))
            return planner.plan(ranges[tp], request.filters, gaps.get(tp, []), ends)

        plans = self._helpers.of_each(planned, tps)
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
        return self.looks.gaps(partitions)

    def _segment_ends(
        self, ranges: _Ranges, planners: _Planners, request: ReadRequest
    ) -> _SegmentEnds:
        """Read the end of each segment that may have requested offsets."""
        logs = [
            (planner, log)
            for tp, planner in planners.items()
            for log in planner.logs_for(ranges[tp], request.filters)
        ]
        ends = self._helpers.each(lambda pair: pair[0].end_of(pair[1]), logs)
        return {log: end for (_, log), end in zip(logs, ends, strict=True)}

    def _late_enough(self, since: int, planners: _Planners, plans: _Plans) -> _Plans:
        """Return the plans without segments that have no record at or after this time."""
        largest = self._of_each_span(planners, plans, lambda by, span: by.times.largest(span.log))
        return {
            tp: plan.since(since, list(islice(largest, len(plan.spans))))
            for tp, plan in plans.items()
        }

    def _splits(self, most: int, planners: _Planners, plans: _Plans) -> Iterator[Split]:
        cuts = self._of_each_span(planners, plans, lambda by, span: by.cut(span, most))
        for tp, planner in planners.items():
            parts = list(chain.from_iterable(islice(cuts, len(plans[tp].spans))))
            yield from planner.splits(parts, most)

    def _of_each_span(
        self, planners: _Planners, plans: _Plans, ask: Callable[[PartitionPlanner, Span], _A]
    ) -> Iterator[_A]:
        """Yield `ask` of each span, in order, with at most one request for each."""
        spans = [(planner, span) for tp, planner in planners.items() for span in plans[tp].spans]
        return self._helpers.each(lambda pair: ask(*pair), spans)

    def _all_missing(self, tp: TopicPartition, asked: OffsetRange) -> tuple[Missing, ...]:
        if asked.start >= asked.end:
            return ()
        where = self.looks.archives.of(tp).where
        return (Missing(tp, asked, f"nothing is stored at {where}"),)


def _split_bytes(request: ReadRequest, total: int) -> int:
    if request.min_partitions is None or total == 0:
        return request.max_split_bytes
    return max(min(request.max_split_bytes, total // request.min_partitions), 1)
