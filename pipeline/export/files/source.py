"""What there is to be exported, as the archive shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidetier.pipeline.export.files.options import FilesOptions
from sidetier.pipeline.export.state.manifest import Span
from sidetier.pipeline.planning.limits import AtOffsets, AtTimes, Edge, Limit, NoMatch
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.selection import Topics
from sidetier.pipeline.planning.split import OffsetRange, Plan
from sidetier.segments.errors import ArchiveError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

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

    def spans(self, next_offsets: Mapping[int, int]) -> dict[int, Span]:
        """See `Source`.

        Raises:
            NoSuchTopicError: nothing is stored of the topic.
            ArchiveError: the archive ends below what was exported already.
            StorageError: as the port says.
        """
        found = self._incremental(next_offsets) if self.asked is None else self._given(next_offsets)
        return {one: span for one, span in found.items() if span.first < span.until}

    def plan(self, ranges: Mapping[TopicPartition, OffsetRange], options: FilesOptions) -> Plan:
        """See `Source`."""
        isolation = IsolationLevel(options.isolation)
        request = replace(
            self._request(), isolation=isolation, fail_on_data_loss=options.fail_on_data_loss
        )
        return self.planner.plan_ranges(ranges, request)

    def ends(self) -> dict[int, Offset]:
        """Where what can be exported ends now, by partition."""
        ends = self.planner.ends(self.planner.partitions(Topics((self.topic,))), self.isolation)
        return {tp.partition: offset for tp, offset in ends.items()}

    def _request(self) -> ReadRequest:
        return ReadRequest(
            Topics((self.topic,)),
            isolation=self.isolation,
            no_match=NoMatch.LATEST,
            max_split_bytes=_WHOLE,
        )

    def _incremental(self, next_offsets: Mapping[int, int]) -> dict[int, Span]:
        tps = self.planner.partitions(Topics((self.topic,)))
        ends = self.planner.ends(tps, self.isolation)
        new = self.planner.starts([tp for tp in tps if tp.partition not in next_offsets])
        spans = {}
        for tp in tps:
            first = next_offsets.get(tp.partition, new.get(tp, Offset(0)))
            if first > ends[tp]:
                raise ArchiveError(
                    f"{tp}: is exported up to offset {first}, and its archive ends at {ends[tp]}: "
                    "the topic was created anew, or its archive set aside; export it into another "
                    "directory"
                )
            spans[tp.partition] = Span(first=first, until=ends[tp])
        return spans

    def _given(self, next_offsets: Mapping[int, int]) -> dict[int, Span]:
        """The range, unless it was exported: what it is in offsets was decided then."""
        if self.asked is None or next_offsets:
            return {}
        tps = self.planner.partitions(Topics((self.topic,)))
        ends = self.planner.ends(tps, self.isolation)
        request = replace(
            self._request(),
            starting=self.asked.first.limit(tps),
            ending=self.asked.until.limit(tps),
        )
        resolved = self.planner.resolve(request)
        return {
            tp.partition: Span(first=one.first, until=max(one.first, min(one.until, ends[tp])))
            for tp, one in resolved.items()
        }
