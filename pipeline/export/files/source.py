"""What there is to be exported, as the archive shows it."""

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
from sidetier.pipeline.export.tail.errors import StillOnBrokerError
from sidetier.pipeline.planning.limits import AtOffsets, AtTimes, Edge, Limit, NoMatch
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.selection import Topics
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_WHOLE: Final = 1 << 40
"""Bytes of a split: one for each stretch, since a Kafka partition is read from its first record to
its last by one task."""


@dataclass(frozen=True, slots=True)
class Place:
    """An end of a given range: an edge, the same offset in each partition, or a time in ms."""

    edge: Edge | None = None
    offset: int | None = None
    time_ms: int | None = None

    def limit(self, tps: tuple[TopicPartition, ...]) -> Limit:
        """As planning takes it."""
        if self.edge is not None:
            return self.edge
        if self.time_ms is not None:
            return AtTimes(self.time_ms)
        return AtOffsets(dict.fromkeys(tps, self.offset or 0))

    def __str__(self) -> str:
        """As a manifest says it."""
        if self.edge is not None:
            return self.edge.value
        return f"@{self.time_ms}" if self.time_ms is not None else str(self.offset)


@dataclass(frozen=True, slots=True)
class Asked:
    """A given range, the same places in every partition; `until` is not included."""

    first: Place
    until: Place

    def __str__(self) -> str:
        """As a manifest says it."""
        return f"{self.first} to {self.until}"


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Exports what is archived of one topic, and decided where it is read committed."""

    planner: Planner
    topic: str
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    asked: Asked | None = None
    said: Callable[[str], None] = field(default=lambda _text: None)

    def truncated(self, positions: Mapping[int, Position]) -> tuple[Truncated, ...]:
        """See `Source`; raises as `find_truncated`."""
        return find_truncated(
            self.planner, {TopicPartition(self.topic, one): at for one, at in positions.items()}
        )

    def spans(
        self,
        next_offsets: Mapping[int, int],
        tail: Mapping[int, int],
        behind: list[BehindError] | None = None,
    ) -> dict[int, Span]:
        """See `Source`.

        Raises:
            NoSuchTopicError: nothing is stored of the topic.
            BehindError: the archive ends below what was exported already.
            ArchiveError, StorageError: as `Planner.ends`.
        """
        if self.asked is None:
            found = self._incremental(next_offsets, tail, behind)
        else:
            found = self._given(next_offsets)
        return {one: span for one, span in found.items() if span.first < span.until}

    def undecided(self, next_offsets: Mapping[int, int]) -> dict[int, UndecidedTail]:
        """See `Source`; of a given range, what lies within it. Raises as `Planner.ends`."""
        if self.isolation is IsolationLevel.READ_UNCOMMITTED:
            return {}
        tails = self.planner.undecided(self.topic)
        if self.asked is not None and tails:
            asked = self._resolved(self.asked, tuple(sorted(tails)))
            tails = {tp: one for tp, one in tails.items() if one.first < asked[tp].end}
        return {
            tp.partition: one
            for tp, one in tails.items()
            if next_offsets.get(tp.partition, one.start) >= one.first
        }

    def within(self, spans: Mapping[int, Span], most_bytes: int) -> dict[int, Span]:
        """See `Source`."""
        ranges = ranges_of(self.topic, spans)
        ends = self.planner.ends_within(ranges, most_bytes)
        return {tp.partition: Span(first=one.start, until=ends[tp]) for tp, one in ranges.items()}

    def plan(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        options: FilesOptions,
        tail: Mapping[int, int],
    ) -> Plan:
        """See `Source`."""
        self._require_archived(tail, IsolationLevel(options.isolation))
        return self.planner.plan_ranges(ranges, self.request(options))

    def tail(self, spans: Mapping[int, Span]) -> Tail:
        """See `Source`: nothing but what is known of the archive."""
        ends = {TopicPartition(self.topic, one): Offset(at.until) for one, at in spans.items()}
        found = archived_positions(self.planner, ends)
        return Tail(topic_id=self.topic_id(), epochs=epochs_of(found))

    def topic_id(self) -> str | None:
        """See `Source`: what the archive was stored of, as the last look shows it."""
        return self.planner.topic_id(self.topic)

    def request(self, options: FilesOptions) -> ReadRequest:
        """How a plan with these options is read."""
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
        tps = {one: TopicPartition(self.topic, one) for one in tail}
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
                continue  # it came from the brokers, and is not archived that far yet
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
            if not next_offsets or any(tail.get(one) != at for one, at in next_offsets.items()):
                raise
        self.said(f"{self.topic}: nothing of it is archived yet")
        return ()

    def _given(self, next_offsets: Mapping[int, int]) -> dict[int, Span]:
        """The range, unless it was exported: what it is in offsets was decided then."""
        if self.asked is None or next_offsets:
            return {}
        tps = self.planner.partitions(Topics((self.topic,)))
        ends = self.planner.ends(tps, self.isolation)
        resolved = self._resolved(self.asked, tps)
        return {
            tp.partition: Span(first=one.start, until=max(one.start, min(one.end, ends[tp])))
            for tp, one in resolved.items()
        }

    def _resolved(
        self, asked: Asked, tps: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, OffsetRange]:
        request = replace(
            self._request(), starting=asked.first.limit(tps), ending=asked.until.limit(tps)
        )
        return self.planner.resolve(request)
