"""Source that exports the archived records of one topic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.epoch_history import Position, Truncated
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.files.ports import ranges_of
from sidetier.pipeline.export.histories import archived_positions, find_truncated
from sidetier.pipeline.export.state.changes import Tail, epochs_of
from sidetier.pipeline.export.state.manifest import Span
from sidetier.pipeline.export.tail.logs import StillOnBrokerError
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import (
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
    NoMatch,
    ReadRequest,
    Topics,
)
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_WHOLE: Final = 1 << 40
"""Split size in bytes, larger than any range: one task reads a Kafka partition from the first
record to the last, so each range is one split.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One end of a requested range: an edge of the log, an offset for all partitions, or a time in
    ms.
    """

    edge: Edge | None = None
    offset: int | None = None
    time_ms: int | None = None

    def limit(self, tps: tuple[TopicPartition, ...]) -> Limit:
        """Return the limit for the planner."""
        if self.edge is not None:
            return self.edge
        if self.time_ms is not None:
            return AtTimes(self.time_ms)
        return AtOffsets(dict.fromkeys(tps, self.offset or 0))

    def __str__(self) -> str:
        """The text that a manifest stores."""
        if self.edge is not None:
            return self.edge.value
        return f"@{self.time_ms}" if self.time_ms is not None else str(self.offset)


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested range, the same for every partition. `until` is exclusive."""

    first: Place
    until: Place

    def __str__(self) -> str:
        """The text that a manifest stores."""
        return f"{self.first} to {self.until}"


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Source of one topic's archived records; with read committed, up to the last stable offset."""

    planner: Planner
    topic: str
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    asked: Asked | None = None
    said: Callable[[str], None] = field(default=lambda _text: None)

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """See `Source.truncated`. Raises the errors of `find_truncated`."""
        return find_truncated(
            self.planner,
            {
                TopicPartition(self.topic, partition): position
                for partition, position in positions.items()
            },
        )

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> dict[int, Span]:
        """See `Source.spans`.

        Raises:
            NoSuchTopicError: no records of the topic are stored.
            BehindError: the archive ends below what was exported.
            ArchiveError, StorageError: see `Planner.ends`.
        """
        if self.asked is None:
            spans = self._incremental(next_offsets, tail, behind)
        else:
            spans = self._given(next_offsets)
        return {partition: span for partition, span in spans.items() if span.first < span.until}

    def undecided(self, next_offsets: Mapping[int, int]) -> dict[int, UndecidedTail]:
        """See `Source.undecided`. With a requested range, only transactions within it are returned.

        Raises:
            ArchiveError, StorageError: see `Planner.ends`.
        """
        if self.isolation is IsolationLevel.READ_UNCOMMITTED:
            return {}
        tails = self.planner.undecided(self.topic)
        if self.asked is not None and tails:
            asked = self._resolved(self.asked, tuple(sorted(tails)))
            tails = {tp: tail for tp, tail in tails.items() if tail.first < asked[tp].end}
        return {
            tp.partition: tail
            for tp, tail in tails.items()
            if next_offsets.get(tp.partition, tail.start) >= tail.first
        }

    def within(self, spans: Mapping[int, Span], most_bytes: int) -> dict[int, Span]:
        """See `Source.within`."""
        ranges = ranges_of(self.topic, spans)
        ends = self.planner.ends_within(ranges, most_bytes)
        return {
            tp.partition: Span(first=offsets.start, until=ends[tp])
            for tp, offsets in ranges.items()
        }

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """See `Source.plan`."""
        self._require_archived(tail, IsolationLevel(options.isolation))
        return self.planner.plan_ranges(ranges, self.request(options))

    def tail(self, spans: Mapping[int, Span]) -> Tail:
        """See `Source.tail`. No span ends on the brokers; only the epoch history is returned."""
        ends = {
            TopicPartition(self.topic, partition): Offset(span.until)
            for partition, span in spans.items()
        }
        positions = archived_positions(self.planner, ends)
        return Tail(topic_id=self.topic_id(), epochs=epochs_of(positions))

    def topic_id(self) -> str | None:
        """See `Source.topic_id`. The id is that of the planner's last archive snapshot."""
        return self.planner.topic_id(self.topic)

    def request(self, options: FilesOptions) -> ReadRequest:
        """Return the planner's request for a plan with these options."""
        return replace(
            self._request(),
            isolation=IsolationLevel(options.isolation),
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def ends(self) -> dict[int, Offset]:
        """Where what can be exported ends now, by partition; none where nothing is stored yet."""
        try:
            tps = self.planner.partitions(Topics((self.topic,)))
        except NoSuchTopicError:
            return {}
        ends = self.planner.ends(tps, self.isolation)
        return {tp.partition: offset for tp, offset in ends.items()}

    def _request(self) -> ReadRequest:
        return ReadRequest(
            Topics((self.topic,)),
            isolation=self.isolation,
            no_match=NoMatch.LATEST,
            max_split_bytes=_WHOLE,
        )

    def _require_archived(self, tail: Mapping[int, int], isolation: IsolationLevel) -> None:
        if not tail:
            return
        tps = {
            partition_number: TopicPartition(self.topic, partition_number)
            for partition_number in tail
        }
        ends = self.planner.ends(tps.values(), isolation)
        for partition, until in sorted(tail.items()):
            tp = tps[partition]
            if ends[tp] < until:
                raise StillOnBrokerError(
                    f"{tp}: a run was begun with --tail kafka, up to offset {until}, and has not "
                    f"ended; the archive ends at {ends[tp]}. Run the export with --tail kafka "
                    "again, or once it is archived that far"
                )

    def _incremental(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None,
    ) -> dict[int, Span]:
        tps = self._partitions(next_offsets, tail)
        ends = self.planner.ends(tps, self.isolation)
        new = self.planner.starts([tp for tp in tps if tp.partition not in next_offsets])
        spans = {}
        for tp in tps:
            first = next_offsets.get(tp.partition, new.get(tp, Offset(0)))
            if first > ends[tp] and tail.get(tp.partition) == first:
                continue  # records up to `first` came from the brokers and are not archived yet
            if first > ends[tp]:
                error = BehindError(
                    tp,
                    f"{tp}: is exported up to offset {first}, and its archive ends at {ends[tp]}",
                    "the topic was created anew, or its archive set aside; export it into another "
                    "directory",
                )
                if behind is None:
                    raise error
                behind.append(error)
                continue
            spans[tp.partition] = Span(first=first, until=ends[tp])
        return spans

    def _partitions(
        self, next_offsets: Mapping[int, int], tail: Mapping[int, int]
    ) -> tuple[TopicPartition, ...]:
        try:
            return self.planner.partitions(Topics((self.topic,)))
        except NoSuchTopicError:
            if not next_offsets or any(
                tail.get(partition) != offset for partition, offset in next_offsets.items()
            ):
                raise
        self.said(f"{self.topic}: nothing of it is archived yet")
        return ()

    def _given(self, next_offsets: Mapping[int, int]) -> dict[int, Span]:
        """Return the requested range, or nothing if a run has fixed its offsets already."""
        if self.asked is None or next_offsets:
            return {}
        tps = self.planner.partitions(Topics((self.topic,)))
        ends = self.planner.ends(tps, self.isolation)
        resolved = self._resolved(self.asked, tps)
        return {
            tp.partition: Span(
                first=offsets.start, until=max(offsets.start, min(offsets.end, ends[tp]))
            )
            for tp, offsets in resolved.items()
        }

    def _resolved(
        self, asked: Asked, tps: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, OffsetRange]:
        request = replace(
            self._request(), starting=asked.first.limit(tps), ending=asked.until.limit(tps)
        )
        return self.planner.resolve(request)
