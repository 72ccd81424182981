"""Source of the records to export: the archive, and behind it records that only the brokers have,
or tail packs.

Every export reads through one of these sources, whether it writes files or tables. A source finds
the offsets that can be exported now, and plans the reading of fixed ranges of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from sidetier.pipeline.errors import (
    MissingRecordsError,
    NoSuchTopicError,
    UndecidedRecordsError,
)
from sidetier.pipeline.export.epoch_history import (
    Positions,
    Truncated,
)
from sidetier.pipeline.export.errors import BehindError, BrokerBehindError, StillOnBrokerError
from sidetier.pipeline.export.state import Offsets, Ranges, Tail
from sidetier.pipeline.export.tail.logs import Divided, Log, missing_of
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.export.truncation import archived_positions, find_truncated
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTimes,
    Edge,
    Limit,
    ReadRequest,
    Topics,
    is_selected,
)
from sidetier.pipeline.planning.resolving import check_covered
from sidetier.pipeline.planning.split import BrokerRange, Missing, Plan, in_words
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_NONE: Final[Offsets] = {}
_ELSEWHERE: Final = (
    "the topic was deleted and created again, or its archive was moved away; export it to another "
    "directory or table"
)


class Source(Protocol):
    """The records that can be exported."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """Return the ranges below these positions that the brokers have discarded since, where
        known.

        Only exported topics are included.
        """
        ...

    def available(
        self,
        next_offsets: Offsets,
        tail: Offsets = _NONE,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """Return the range of each exported partition from its next offset to the end that can be
        read now; an empty range if there is nothing new.

        Args:
            next_offsets: next offsets of the export. A partition that is not among them starts
                where the export starts.
            tail: offsets up to which records were last read from the brokers or from tail packs.
                If a next offset equals its entry here, the archive may end below it.
            behind: receives the errors of partitions whose log ends below their next offset. They
                are left out of the result.

        Raises:
            BehindError: there is such a partition, and `behind` is None.
        """
        ...

    def undecided(self, next_offsets: Offsets) -> Mapping[TopicPartition, UndecidedTail]:
        """Return the open transactions that partitions have reached.

        The result has the partitions whose next offset is the last stable offset and that have
        records of an undecided transaction there. It uses the snapshot of the last `available`
        call.
        """
        ...

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """Return first parts of these ranges with about `most_bytes` archived bytes in total.

        Equal snapshots of the archive give equal parts. Records that only the brokers have count as
        0 bytes.
        """
        ...

    def plan(
        self,
        ranges: Ranges,
        tail: Offsets = _NONE,
        *,
        isolation: IsolationLevel | None = None,
        fail_on_data_loss: bool | None = None,
    ) -> Plan:
        """Plan the reading of fixed ranges.

        Args:
            ranges: the ranges.
            tail: ends of the ranges that went beyond the archive when the ranges were fixed.
            isolation: isolation level of the run that fixed them; None for this source's.
            fail_on_data_loss: whether missing records are an error; None for the source's setting.

        Raises:
            MissingRecordsError: some records are not stored, and that is an error.
            StillOnBrokerError: the archive still ends below a range, and this source does not read
                from brokers.
        """
        ...

    def topic_ids(self, tps: Iterable[TopicPartition]) -> Mapping[str, str]:
        """Return the ids of these partitions' topics, as far as the last snapshot has them."""
        ...

    def tail(self, ranges: Ranges) -> Tail:
        """Return the tail of these ranges, which are `available` ranges or shorter.

        It has the ends that only the brokers have, the topic ids, and the epoch history below the
        ends. An empty range has no epoch history.
        """
        ...


@dataclass(frozen=True, slots=True)
class RangeBound:
    """One end of a requested range: an edge of the log, an offset for all partitions, or a time in
    ms.
    """

    edge: Edge | None = None
    offset: int | None = None
    time_ms: int | None = None

    def limit(self, tps: Iterable[TopicPartition]) -> Limit:
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
class RequestedRange:
    """A range that is exported once, the same for every partition. `until` is exclusive."""

    first: RangeBound
    until: RangeBound

    def __str__(self) -> str:
        """The text that a manifest stores."""
        return f"{self.first} to {self.until}"


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """A `Source` of archived records, and of those in tail packs if the planner reads them.

    With read committed, it ends at the last stable offset.

    Attributes:
        request: the topics and how to read them. Its starting offsets apply to an export without
            next offsets; later, a new partition starts at its earliest offset.
        requested: a range to export once, in place of the limits of `request`.
        say: receives messages for the user.
    """

    cluster: str
    planner: Planner
    request: ReadRequest
    requested: RequestedRange | None = None
    say: Callable[[str], None] = field(default=lambda _text: None)

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """Raises the errors of `find_truncated`."""
        ours = {
            tp: position
            for tp, position in positions.items()
            if is_selected(self.request.selection, tp)
        }
        return find_truncated(self.planner, ours)

    def available(
        self,
        next_offsets: Offsets,
        tail: Offsets = _NONE,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """A topic that was read only from brokers need not be archived.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        if self.requested is not None and next_offsets:
            return {}  # a requested range is one run, and that run has fixed its offsets
        tps = self._partitions(next_offsets, tail)
        wanted, ends = self._wanted(tps, next_offsets)
        if self.requested is None:
            for tp in wanted.keys() - next_offsets.keys():
                _require_below(wanted[tp], ends[tp], tp, "the archived and decided records end")
        where = "the archive with its tail" if self.planner.reads_tails else "the archive"
        return ranges_left(wanted, ends, next_offsets, tail, behind, where)

    def undecided(self, next_offsets: Offsets) -> Mapping[TopicPartition, UndecidedTail]:
        """With a requested range, only transactions within it are returned.

        Raises:
            ArchiveError, StorageError: as `Planner.ends`.
        """
        if self.request.isolation is IsolationLevel.READ_UNCOMMITTED:
            return {}
        tails: dict[TopicPartition, UndecidedTail] = {}
        for topic in self._topics(next_offsets):
            tails |= self.planner.undecided(topic)
        if self.requested is not None and tails:
            # Offsets must name every partition of a topic, also those without a transaction.
            topics = Topics(tuple(sorted({tp.topic for tp in tails})))
            wanted = self._resolved(self.requested, self.planner.partitions(topics))
            tails = {tp: tail for tp, tail in tails.items() if tail.first < wanted[tp].end}
        return {
            tp: tail for tp, tail in tails.items() if next_offsets.get(tp, tail.start) >= tail.first
        }

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """Raises the errors of `Planner.ends_within`."""
        ends = self.planner.ends_within(ranges, most_bytes)
        return {tp: OffsetRange(span.start, ends[tp]) for tp, span in ranges.items()}

    def plan(
        self,
        ranges: Ranges,
        tail: Offsets = _NONE,
        *,
        isolation: IsolationLevel | None = None,
        fail_on_data_loss: bool | None = None,
    ) -> Plan:
        """Raises the errors of `Planner.plan_ranges`."""
        request = self.request_with(isolation=isolation, fail_on_data_loss=fail_on_data_loss)
        self._require_archived(tail, request.isolation)
        return self.planner.plan_ranges(ranges, request)

    def tail(self, ranges: Ranges) -> Tail:
        """Without tail packs, only topic ids and epoch histories are set."""
        positions = archived_positions(
            self.planner, {tp: span.end for tp, span in ranges.items() if span.start < span.end}
        )
        ends = {tp: span.end for tp, span in ranges.items()}
        in_packs = self.planner.beyond_archive(ends, self.request.isolation)
        return Tail(in_packs, self.topic_ids(ranges), _epoch_histories(positions))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """Return the ids in the archive; topics without one are left out."""
        ids = {topic: self.planner.topic_id(topic) for topic in sorted({tp.topic for tp in tps})}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def request_with(
        self, *, isolation: IsolationLevel | None, fail_on_data_loss: bool | None
    ) -> ReadRequest:
        """Return the planner's request with these settings in place of its own, if given."""
        request = self.request
        return replace(
            request,
            isolation=request.isolation if isolation is None else isolation,
            fail_on_data_loss=(
                request.fail_on_data_loss if fail_on_data_loss is None else fail_on_data_loss
            ),
        )

    def archive_ends(self, topic: str) -> dict[int, Offset]:
        """Return the end of the records that can be exported now, by Kafka partition; nothing if
        the topic is not archived.
        """
        try:
            tps = self.planner.partitions(Topics((topic,)))
        except NoSuchTopicError:
            return {}
        ends = self.planner.ends(tps, self.request.isolation)
        return {tp.partition: offset for tp, offset in ends.items()}

    def _topics(self, next_offsets: Offsets) -> list[str]:
        selection = self.request.selection
        names = selection.names if isinstance(selection, Topics) else ()
        return sorted({*names, *(tp.topic for tp in next_offsets)})

    def _partitions(self, next_offsets: Offsets, tail: Offsets) -> tuple[TopicPartition, ...]:
        selection = self.request.selection
        try:
            return self.planner.partitions(selection)
        except NoSuchTopicError:
            if not isinstance(selection, Topics):
                raise
        archived = self._archived(selection, next_offsets, tail)
        return self.planner.partitions(archived) if archived.names else ()

    def _archived(self, selection: Topics, next_offsets: Offsets, tail: Offsets) -> Topics:
        """Drop topics whose records all came from the brokers and of which the archive has none."""
        others = {tp.topic for tp, offset in next_offsets.items() if tail.get(tp) != offset}
        from_brokers = {tp.topic for tp in tail} - others
        kept = tuple(
            name for name in selection.names if name not in from_brokers or self._is_archived(name)
        )
        for topic in sorted(set(selection.names) - set(kept)):
            self.say(f"{topic}: nothing of it is archived yet")
        return Topics(kept)

    def _is_archived(self, topic: str) -> bool:
        try:
            return bool(self.planner.partitions(Topics((topic,))))
        except NoSuchTopicError:
            return False

    def _wanted(
        self, tps: tuple[TopicPartition, ...], next_offsets: Offsets
    ) -> tuple[Ranges, Offsets]:
        """Return the range of each partition that the request names, from its start; and the ends
        of what can be read.
        """
        isolation = self.request.isolation
        starting = Edge.EARLIEST if next_offsets else self.request.starting
        is_usual = starting is Edge.EARLIEST and self.request.ending is Edge.LATEST
        if self.requested is None and is_usual:
            # The usual case asks nothing about partitions whose next offset is known.
            ends = self.planner.ends(tps, isolation)
            new = self.planner.starts(tp for tp in tps if tp not in next_offsets)
            firsts = {**next_offsets, **new}
            return {tp: OffsetRange(min(firsts[tp], ends[tp]), ends[tp]) for tp in tps}, ends
        if self.requested is not None:
            wanted = self._resolved(self.requested, tps)
        else:
            wanted = self._resolve(tps, starting, self.request.ending)
        # The ends come second: if a segment is archived in between, a start at the latest offset is
        # not above them. Topic ids and open transactions also come from this snapshot.
        return wanted, self.planner.ends(tps, isolation)

    def _resolved(
        self, requested: RequestedRange, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetRange]:
        tps = tuple(tps)
        return self._resolve(tps, requested.first.limit(tps), requested.until.limit(tps))

    def _resolve(
        self, tps: tuple[TopicPartition, ...], starting: Limit, ending: Limit
    ) -> dict[TopicPartition, OffsetRange]:
        if not tps:
            return {}
        topics = Topics(tuple(dict.fromkeys(tp.topic for tp in tps)))
        request = replace(self.request, selection=topics, starting=starting, ending=ending)
        return self.planner.resolve(request)

    def _require_archived(self, tail: Offsets, isolation: IsolationLevel) -> None:
        ends = self.planner.ends(tail, isolation) if tail else {}
        for tp, until in sorted(tail.items()):
            if ends[tp] < until:
                raise StillOnBrokerError(
                    f"{tp}: a run was begun with --tail kafka or packs, up to offset {until}, and "
                    f"has not ended; the records that can be read end at {ends[tp]}. Run the "
                    "export with the --tail that it was begun with, or once the records are in "
                    "packs or segments"
                )


@dataclass(frozen=True, slots=True)
class TailedSource:
    """A `Source` of archive and brokers.

    One call of `TopicLogs.read` determines the ranges and where their records are read.
    """

    archived: ArchiveSource
    logs: TopicLogs

    @property
    def cluster(self) -> str:
        """The name of the archived cluster."""
        return self.archived.cluster

    def truncated(self, positions: Positions) -> tuple[Truncated, ...]:
        """Compare with the archive alone."""
        return self.archived.truncated(positions)

    def available(
        self,
        next_offsets: Offsets,
        tail: Offsets = _NONE,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        """Return ranges up to the end of the brokers' logs.

        Raises:
            ConfigurationError: the requested offsets do not name exactly the partitions that are
                read.
            BrokerBehindError: archive and broker both end below a next offset.
            SidetierError: as `TopicLogs.read`.
        """
        del tail  # the brokers' own offsets show how far their logs go
        request = self.archived.request
        logs = self.logs.read(request.isolation, behind)
        if next_offsets:
            request = replace(request, starting=Edge.EARLIEST)
        wanted = limited(logs, request)
        ranges = {}
        for tp, log in logs.items():
            first = next_offsets.get(tp)
            if first is None:
                _require_below(wanted[tp], log.latest, tp, "the broker's log ends")
                first = wanted[tp].start
            elif first > log.latest:
                error = BrokerBehindError(
                    tp,
                    f"{in_words(tp)} is exported up to offset {first}, but the broker's log ends "
                    f"at {log.latest}",
                    _ELSEWHERE,
                )
                if behind is None:
                    raise error
                behind.append(error)
                continue
            # An export that ends within the archive need not wait for later records.
            end = self.logs.reach(tp, first) if wanted[tp].end > log.cut else log.latest
            ranges[tp] = OffsetRange(first, max(first, min(wanted[tp].end, end)))
        return ranges

    def undecided(self, next_offsets: Offsets) -> Mapping[TopicPartition, UndecidedTail]:
        """Combine the archive's open transactions with the brokers' (`TopicLogs.undecided`)."""

        def reached(tp: TopicPartition) -> int:
            return next_offsets.get(tp, self.logs.logs[tp].earliest)

        return self.logs.undecided(self.archived.undecided(next_offsets), reached)

    def within(self, ranges: Ranges, most_bytes: int) -> Ranges:
        """A range whose archived part fits entirely keeps its part on the brokers."""
        logs = self.logs.logs
        stored = {
            tp: OffsetRange(span.start, min(span.end, max(span.start, logs[tp].cut)))
            for tp, span in ranges.items()
        }
        shortened = self.archived.within(stored, most_bytes)
        return {
            tp: span if shortened[tp] == stored[tp] else shortened[tp]
            for tp, span in ranges.items()
        }

    def plan(
        self,
        ranges: Ranges,
        tail: Offsets = _NONE,
        *,
        isolation: IsolationLevel | None = None,
        fail_on_data_loss: bool | None = None,
    ) -> Plan:
        """Divide ranges of an earlier run between archive and brokers again.

        Raises:
            MissingRecordsError: some records are neither archived nor on the broker, and that is an
                error; or they are above the broker's end.
            UndecidedRecordsError: a range covers `Log.undecided`.
            ArchiveError, StorageError: as `Planner.plan_ranges`.
        """
        del tail
        request = self.archived.request_with(
            isolation=isolation, fail_on_data_loss=fail_on_data_loss
        )
        # A resumed run plans before anything was read: its plan is from an earlier process.
        logs = self.logs.known(request.isolation)
        _require_readable(logs, ranges)
        divided = {tp: logs[tp].divided(span) for tp, span in sorted(ranges.items())}
        _require_decided(logs, divided)
        gone = [item for tp, parts in divided.items() for item in missing_of(tp, parts.gone)]
        if gone and request.fail_on_data_loss:
            raise MissingRecordsError(gone)
        stored = {
            tp: parts.archived
            for tp, parts in divided.items()
            if parts.archived.start < parts.archived.end
        }
        plan = self.archived.planner.plan_ranges(stored, request)
        missing = sorted((*plan.missing, *gone), key=lambda item: (item.tp, item.range.start))
        on_broker = tuple(
            BrokerRange(tp, parts.on_broker)
            for tp, parts in divided.items()
            if parts.on_broker.start < parts.on_broker.end
        )
        return replace(plan, ranges=dict(ranges), missing=tuple(missing), on_broker=on_broker)

    def tail(self, ranges: Ranges) -> Tail:
        """Partitions without archived records count as read from the brokers, even if they are
        empty.
        """
        logs: Mapping[TopicPartition, Log] = self.logs.logs
        # A partition of which nothing is archived counts as read from the brokers, even if it is
        # empty: a later run without --tail kafka then does not expect it in the archive.
        offsets = {
            tp: span.end
            for tp, span in ranges.items()
            if span.end > logs[tp].cut or not logs[tp].stored
        }
        news = {tp: span for tp, span in ranges.items() if span.start < span.end}
        return Tail(offsets, self.topic_ids(ranges), _epoch_histories(self.logs.positions(news)))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """Ids from the brokers take precedence over the archive's."""
        return {**self.archived.topic_ids(tps), **self.logs.topic_ids}


def ranges_left(
    wanted: Ranges,
    ends: Offsets,
    next_offsets: Offsets,
    tail: Offsets = _NONE,
    behind: list[BehindError] | None = None,
    where: str = "the archive",
) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges that are left to export, from the next offsets to the readable ends.

    Args:
        wanted: the requested range of each partition. Its start applies to partitions without a
            next offset.
        ends: ends of the records that can be read now, exclusive.
        next_offsets: next offsets of the export.
        tail: see `Source.available`.
        behind: see `Source.available`.
        where: what `ends` are the ends of, in words.

    Raises:
        BehindError: the archive ends below a next offset, and `behind` is None.
    """
    left = {}
    for tp, span in sorted(wanted.items()):
        first = next_offsets.get(tp, span.start)
        # Records that came from brokers or packs may not be archived yet: that is not a loss.
        if tp in next_offsets and first > ends[tp] and tail.get(tp) != first:
            error = BehindError(
                tp,
                f"{in_words(tp)} is exported up to offset {first}, but {where} ends at {ends[tp]}",
                _ELSEWHERE,
            )
            if behind is None:
                raise error
            behind.append(error)
            continue
        left[tp] = OffsetRange(first, max(first, min(span.end, ends[tp])))
    return left


def _epoch_histories(positions: Positions) -> dict[TopicPartition, EpochHistory]:
    return {
        tp: position.epoch_history
        for tp, position in positions.items()
        if position.epoch_history.entries
    }


def _require_below(wanted: OffsetRange, end: Offset, tp: TopicPartition, ends: str) -> None:
    """Raise ConfigurationError if an export without offsets would start above the end of the log.

    The next run could not distinguish that from another log.
    """
    if wanted.start > end:
        raise ConfigurationError(
            f"--starting-offsets: {in_words(tp)}: offset {wanted.start} is above {end}, where "
            f"{ends}"
        )


def limited(
    logs: Mapping[TopicPartition, Log], request: ReadRequest
) -> dict[TopicPartition, OffsetRange]:
    """Return the requested range of each partition; an empty one if it would end before its start.

    Raises:
        ConfigurationError: offsets do not name exactly these partitions, or a limit is a time.
    """
    check_covered(request.starting, logs, request.starting_option)
    check_covered(request.ending, logs, request.ending_option)
    ranges = {}
    for tp, log in logs.items():
        first = _at(request.starting, tp, log)
        ranges[tp] = OffsetRange(first, max(first, _at(request.ending, tp, log)))
    return ranges


def _at(limit: Limit, tp: TopicPartition, log: Log) -> Offset:
    if isinstance(limit, AtTimes):
        raise ConfigurationError("a range by time covers only archived records: omit --tail kafka")
    given = limit.offsets[tp] if isinstance(limit, AtOffsets) else None
    if limit is Edge.EARLIEST or given == EARLIEST_OFFSET:
        return log.earliest
    if given is None or given == LATEST_OFFSET:
        return log.latest
    return Offset(given)


def _require_readable(logs: Mapping[TopicPartition, Log], ranges: Ranges) -> None:
    """Refuse ranges of an earlier run above the present end of the log. They are never skipped."""
    lost = []
    for tp, span in sorted(ranges.items()):
        end = logs[tp].latest if tp in logs else span.start
        if span.end > end:
            above = OffsetRange(max(span.start, end), span.end)
            detail = f"the broker's log ends at {end}, and did not when the run was planned"
            lost.append(Missing(tp, above, detail))
    if lost:
        raise MissingRecordsError(lost)


def _require_decided(
    logs: Mapping[TopicPartition, Log], divided: Mapping[TopicPartition, Divided]
) -> None:
    for tp, parts in divided.items():
        until = min(parts.gone.end, logs[tp].undecided.end)
        if parts.gone.start < until:
            raise UndecidedRecordsError(tp, OffsetRange(parts.gone.start, until))
