"""Position of a stream, and the end of its next batch. Independent of Spark.

Before 4.2 Spark asks a Python source for the latest offset without the offset at which the batch
begins. So the source derives its position from the calls. At a restart, Spark first plans an empty
batch at the checkpoint's end. Later, the end of each planned batch is the position. If the first
call asks for the latest offset, the query is new.

An unclean election replaces records that a stream has read. Each offset therefore contains the
leader epochs of the records below it, and each batch compares them with the archive
(docs/adr/0030). If a batch goes back, its end contains the offset at which it begins: Spark may
plan the batch again after a restart, and must get the same batch.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sidetier.archive.errors import ArchiveReplacedError, UnreadTailError
from sidetier.pipeline.errors import (
    StreamBehindError,
    StreamTopicReplacedError,
    StreamTruncatedError,
)
from sidetier.pipeline.export.epoch_history import (
    Truncated,
    followed,
    shortened,
)
from sidetier.pipeline.export.truncation import archived_positions, find_truncated
from sidetier.pipeline.planning.planner import PACK_SECONDS, Planner
from sidetier.pipeline.planning.resolving import limited_ends
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.spark.settings import ReadSettings, opened
from sidetier.pipeline.spark.stream_offset import (
    OffsetJson,
    StreamOffset,
    as_json,
    from_json,
    is_same_topic,
)
from sidetier.pipeline.spark.tasks import log, warn_of_missing
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_T = TypeVar("_T")


class StreamPosition:
    """Position of a stream, on the driver."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._planner: Planner | None = None
        self._initial: StreamOffset | None = None
        self._current: StreamOffset | None = None
        self._waits_for = ""

    def initial(self) -> OffsetJson:
        """Return the offset at which a new query begins; the same one at each call.

        Raises:
            UnreadTailError: it is not known which records the tail has.
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        if self._initial is None:
            planner, request = self._planning(), self._settings.request
            ranges = planner.resolve(request)
            offsets = {tp: span.start for tp, span in ranges.items()}
            ends = planner.ends(offsets, request.isolation)
            # A requested offset may be above the archive's end: no leader epochs are known there.
            archived = {tp: offset for tp, offset in offsets.items() if offset <= ends[tp]}
            epochs = {
                tp: position.epoch_history
                for tp, position in archived_positions(planner, archived).items()
            }
            self._initial = StreamOffset(offsets, _known(epochs), self._topic_ids(offsets))
        if self._current is None:
            self._current = self._initial
        return as_json(self._initial)

    def latest(self, start: OffsetJson | None = None) -> OffsetJson:
        """Return the end of the next batch: the archive's end, or less with `maxOffsetsPerTrigger`.

        If it is not known which records the tail has, the next batch is empty: that passes.

        Args:
            start: start of the batch; None before Spark 4.2.

        Raises:
            StreamBehindError: the archive ends below the stream's next offset.
            StreamTruncatedError: brokers have discarded records that the stream has read.
            StreamTopicReplacedError: the topic was deleted and created again.
            MalformedObjectError: `start` is not an offset of this source.
            NoSuchTopicError, ArchiveError, StorageError: as `Planner.ends`.
        """
        if start is None and self._current is None:
            self.initial()
        current = self._current if start is None else from_json(start)
        if current is None:
            raise RuntimeError("the stream has no position")
        try:
            end = self._renewing(current, lambda: self._next_offset(current))
        except UnreadTailError as error:
            if str(error) != self._waits_for:
                self._waits_for = str(error)
                log.warning("the stream waits: %s", error)
            return as_json(current)
        self._waits_for = ""
        return as_json(end)

    def plan(self, start: OffsetJson, end: OffsetJson) -> Plan:
        """Plan a batch. A new partition begins at its earliest offset.

        Raises:
            StreamTruncatedError, StreamTopicReplacedError: the batch was planned before, and its
            records no longer exist. MissingRecordsError, ArchiveError, StorageError: as
            `Planner.plan_ranges`.
        """
        batch_start, batch_end = from_json(start), from_json(end)
        self._current = batch_end
        plan = self._renewing(batch_end, lambda: self._plan_batch(batch_start, batch_end))
        warn_of_missing(plan.missing)
        return plan

    def close(self) -> None:
        """Close the planner. May be called twice."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> Planner:
        """Return the planner, created at the first call: executors get a copy of this object
        without one.
        """
        if self._planner is None:
            self._planner = Planner(
                opened(self._settings.place),
                max_batch_bytes=self._settings.max_batch_bytes,
                with_tail=self._settings.with_tail,
                pack_age=PACK_SECONDS,
            )
        return self._planner

    def _next_offset(self, current: StreamOffset) -> StreamOffset:
        request, planner = self._settings.request, self._planning()
        tps = planner.partitions(request.selection)
        ends = planner.ends(tps, request.isolation)
        ids = self._topic_ids(tps)
        replaced = self._replaced_topics(current, ids, tps)
        back_to = {
            **{
                truncation.tp: truncation.range.start
                for truncation in self._truncated(current, tps, replaced)
            },
            **planner.starts(tp for tp in tps if tp.topic in replaced and tp in current.offsets),
        }
        self._check_behind(current, ends, back_to, ids)
        new = planner.starts(tp for tp in tps if tp not in current.offsets)
        begins = {**current.offsets, **new, **back_to}
        until = {**begins, **limited_ends(begins, ends, request.max_offsets_per_trigger)}
        moved = {
            tp: offset
            for tp, offset in until.items()
            if tp in back_to or current.offsets.get(tp) != offset
        }
        epochs = self._followed(_still_valid(current, back_to, replaced), moved)
        moved_topics = {tp.topic for tp in moved}
        # The offset has the leader epochs below each end, so that the next call, perhaps in another
        # process, can check whether the log still has the records.
        return StreamOffset(
            until,
            {**_without(current.leader_epochs, moved), **epochs},
            {**current.topic_ids, **{name: ids[name] for name in moved_topics & ids.keys()}},
            {**_without(current.reread_from, moved), **back_to},
        )

    def _followed(
        self, valid: StreamOffset, moved: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, EpochHistory]:
        """Return the leader epochs below the new ends."""
        archived = archived_positions(self._planning(), moved)
        return _known(
            {
                tp: followed(valid.position(tp), after)
                if tp in valid.offsets
                else after.epoch_history
                for tp, after in archived.items()
            }
        )

    def _plan_batch(self, start: StreamOffset, end: StreamOffset) -> Plan:
        planner = self._planning()
        moved = [tp for tp in end.offsets if not start.is_at(tp, end)]
        new = planner.starts(tp for tp in moved if tp not in start.offsets)
        firsts = {**new, **start.offsets, **end.reread_from}
        planner.starts(moved)  # `_topic_ids` needs snapshots of these partitions
        replaced = self._replaced_topics(end, self._topic_ids(moved), moved)
        limits = {
            truncation.tp: truncation.range.start
            for truncation in self._truncated(end, moved, replaced, "the batch")
        }
        ranges = {
            tp: OffsetRange(firsts[tp], until)
            for tp in moved
            if tp.topic not in replaced
            and firsts[tp] < (until := min(end.offsets[tp], limits.get(tp, end.offsets[tp])))
        }
        return planner.plan_ranges(ranges, self._settings.request)

    def _renewing(self, known: StreamOffset, work: Callable[[], _T]) -> _T:
        """Do the work; if an archive was replaced since its first snapshot, do it again with a new
        one.

        The leader epochs then show which records are concerned. If they are unknown, raise the
        error.
        """
        try:
            return work()
        except ArchiveReplacedError:
            for tp, first in self._planning().renew().items():
                if first < known.offsets.get(tp, 0) and tp not in known.leader_epochs:
                    raise
        return work()

    def _topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """Return the topic ids from the cached snapshots; raises ArchiveError."""
        planner = self._planning()
        ids = {topic: planner.topic_id(topic) for topic in sorted({tp.topic for tp in tps})}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def _replaced_topics(
        self, known: StreamOffset, ids: Mapping[str, str], tps: Iterable[TopicPartition]
    ) -> set[str]:
        """Return the topics that were deleted and created again.

        Raises StreamTopicReplacedError if `failOnDataLoss` is set.
        """
        replaced: set[str] = set()
        for topic in sorted({tp.topic for tp in tps}):
            before, now = known.topic_ids.get(topic), ids.get(topic)
            if before is None or now is None or is_same_topic(before, now):
                continue
            error = StreamTopicReplacedError(topic, before, now)
            if self._settings.request.fail_on_data_loss:
                raise error
            log.warning("%s", error)
            replaced.add(topic)
        return replaced

    def _truncated(
        self,
        known: StreamOffset,
        tps: Iterable[TopicPartition],
        replaced: Container[str],
        reader: str = "the stream",
    ) -> tuple[Truncated, ...]:
        """Return the offsets that brokers have discarded; raises StreamTruncatedError."""
        positions = {
            tp: known.position(tp) for tp in tps if tp in known.offsets and tp.topic not in replaced
        }
        gone = find_truncated(self._planning(), positions)
        if gone and not self._settings.request.reread_truncated:
            raise StreamTruncatedError(gone)
        for truncation in gone:
            log.warning("%s goes back to the divergence; discarded records: %s", reader, truncation)
        return gone

    def _check_behind(
        self,
        current: StreamOffset,
        ends: Mapping[TopicPartition, Offset],
        back_to: Container[TopicPartition],
        ids: Mapping[str, str],
    ) -> None:
        request = self._settings.request
        for tp, offset in current.offsets.items():
            end = ends.get(tp, Offset(0))
            if offset <= end or tp in back_to:
                continue
            where = "the archive with its tail" if self._settings.with_tail else "the archive"
            error = StreamBehindError(tp, offset, end, where)
            known = current.topic_ids.get(tp.topic)
            # The archive may lag behind a new leader after an unclean election. Once it is past
            # the divergence, the leader epochs show which records to read again.
            waits = request.reread_truncated and known is not None and known == ids.get(tp.topic)
            if request.fail_on_data_loss and not waits:
                raise error
            log.warning("%s", error)


def _still_valid(
    current: StreamOffset, back_to: Mapping[TopicPartition, Offset], replaced: Container[str]
) -> StreamOffset:
    """Return the part of the stream's offset that the log still has, without replaced topics."""
    ours = {tp: offset for tp, offset in current.offsets.items() if tp.topic not in replaced}
    offsets = {tp: back_to.get(tp, offset) for tp, offset in ours.items()}
    epochs = {
        tp: shortened(current.position(tp), offset) if tp in back_to else current.leader_epochs[tp]
        for tp, offset in offsets.items()
        if tp in current.leader_epochs
    }
    return replace(current, offsets=offsets, leader_epochs=epochs)


def _known(epochs: Mapping[TopicPartition, EpochHistory]) -> dict[TopicPartition, EpochHistory]:
    return {tp: epoch_history for tp, epoch_history in epochs.items() if epoch_history.entries}


def _without(
    by_tp: Mapping[TopicPartition, _T], tps: Container[TopicPartition]
) -> dict[TopicPartition, _T]:
    return {tp: value for tp, value in by_tp.items() if tp not in tps}
