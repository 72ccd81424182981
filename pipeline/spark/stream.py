"""Where a stream stands, and how far its next batch goes. No Spark.

Until 4.2 Spark asks a Python source for the latest offset without saying where the batch begins. So
the source keeps where it stands from what it is asked: at a restart Spark first plans a batch of
nothing at the end that the checkpoint has; then the end of each batch that is planned is where it
stands. Where it is asked for the latest offset before anything else, the query is new.

An unclean election replaces records that a stream has read already. Each offset therefore says
which leader epochs have written what lies below it, and each batch compares that with the archive
(docs/adr/0030). The end of a batch that goes back says from where: Spark may plan the batch again
after a restart, and it has to be the same batch then.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import (
    StreamBehindError,
    StreamTopicReplacedError,
    StreamTruncatedError,
)
from sidetier.pipeline.export.epoch_history import Truncated, followed, shortened
from sidetier.pipeline.export.histories import archived_positions, find_truncated
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.planning.trigger import limited_ends
from sidetier.pipeline.spark.places import opened
from sidetier.pipeline.spark.planned import log, warn_of
from sidetier.pipeline.spark.settings import ReadSettings
from sidetier.pipeline.spark.stream_offset import (
    OffsetJson,
    StreamOffset,
    as_json,
    from_json,
    is_same_topic,
)
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_T = TypeVar("_T")


class StreamPosition:
    """The driver's side of a stream."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._planner: Planner | None = None
        self._begins: StreamOffset | None = None
        self._stands: StreamOffset | None = None

    def initial(self) -> OffsetJson:
        """Where a new query begins; the same whenever it is asked.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        if self._begins is None:
            planner, request = self._planning(), self._settings.request
            ranges = planner.resolve(request)
            offsets = {tp: span.start for tp, span in ranges.items()}
            ends = planner.ends(offsets, request.isolation)
            archived = {tp: offset for tp, offset in offsets.items() if offset <= ends[tp]}
            epochs = {
                tp: position.epoch_history
                for tp, position in archived_positions(planner, archived).items()
            }
            self._begins = StreamOffset(offsets, _known(epochs), self._topic_ids(offsets))
        if self._stands is None:
            self._stands = self._begins
        return as_json(self._begins)

    def latest(self, start: OffsetJson | None = None) -> OffsetJson:
        """Where the next batch ends: at what is there, or after `maxOffsetsPerTrigger`.

        Raises:
            StreamBehindError: the archive ends before the place where the stream stands.
            StreamTruncatedError: brokers have thrown away records below that place.
            StreamTopicReplacedError: the topic was deleted and created again.
            MalformedObjectError: `start` is not an offset of this source.
            NoSuchTopicError, ArchiveError, StorageError: as `Planner.ends`.
        """
        if start is None and self._stands is None:
            self.initial()
        stands = self._stands if start is None else from_json(start)
        if stands is None:
            raise RuntimeError("the stream stands nowhere")
        return as_json(self._renewing(stands, lambda: self._next(stands)))

    def plan(self, start: OffsetJson, end: OffsetJson) -> Plan:
        """What one batch reads. A partition that is new begins at its earliest offset.

        Raises:
            StreamTruncatedError, StreamTopicReplacedError: the batch was planned before, and reads
                what is not there any more.
            MissingRecordsError, ArchiveError, StorageError: as `Planner.plan_ranges`.
        """
        begins, ends = from_json(start), from_json(end)
        self._stands = ends
        plan = self._renewing(ends, lambda: self._planned(begins, ends))
        warn_of(plan.missing)
        return plan

    def close(self) -> None:
        """End planning; may be called twice."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _planning(self) -> Planner:
        """Opened when it is first used: what is sent to executors has none."""
        if self._planner is None:
            self._planner = Planner(
                opened(self._settings.place), max_batch_bytes=self._settings.max_batch_bytes
            )
        return self._planner

    def _next(self, stands: StreamOffset) -> StreamOffset:
        request, planner = self._settings.request, self._planning()
        tps = planner.partitions(request.selection)
        ends = planner.ends(tps, request.isolation)
        ids = self._topic_ids(tps)
        replaced = self._replaced_topics(stands, ids, tps)
        goes_back = {
            **{one.tp: one.range.start for one in self._truncated(stands, tps, replaced)},
            **planner.starts(tp for tp in tps if tp.topic in replaced and tp in stands.offsets),
        }
        self._check_behind(stands, ends, goes_back, ids)
        new = planner.starts(tp for tp in tps if tp not in stands.offsets)
        begins = {**stands.offsets, **new, **goes_back}
        until = {**begins, **limited_ends(begins, ends, request.max_offsets_per_trigger)}
        moved = {
            tp: offset
            for tp, offset in until.items()
            if tp in goes_back or stands.offsets.get(tp) != offset
        }
        epochs = self._followed(_held(stands, goes_back, replaced), moved)
        moved_topics = {tp.topic for tp in moved}
        return StreamOffset(
            until,
            {**_without(stands.leader_epochs, moved), **epochs},
            {**stands.topic_ids, **{name: ids[name] for name in moved_topics & ids.keys()}},
            {**_without(stands.reread_from, moved), **goes_back},
        )

    def _followed(
        self, held: StreamOffset, moved: Mapping[TopicPartition, Offset]
    ) -> dict[TopicPartition, EpochHistory]:
        """The leader epochs below the new ends."""
        found = archived_positions(self._planning(), moved)
        return _known(
            {
                tp: followed(held.position(tp), after)
                if tp in held.offsets
                else after.epoch_history
                for tp, after in found.items()
            }
        )

    def _planned(self, begins: StreamOffset, ends: StreamOffset) -> Plan:
        planner = self._planning()
        moved = [tp for tp in ends.offsets if not begins.is_at(tp, ends)]
        new = planner.starts(tp for tp in moved if tp not in begins.offsets)
        firsts = {**new, **begins.offsets, **ends.reread_from}
        planner.starts(moved)  # topic ids are those of partitions that were looked at
        replaced = self._replaced_topics(ends, self._topic_ids(moved), moved)
        limits = {
            one.tp: one.range.start for one in self._truncated(ends, moved, replaced, "the batch")
        }
        ranges = {
            tp: OffsetRange(firsts[tp], until)
            for tp in moved
            if tp.topic not in replaced
            and firsts[tp] < (until := min(ends.offsets[tp], limits.get(tp, ends.offsets[tp])))
        }
        return planner.plan_ranges(ranges, self._settings.request)

    def _renewing(self, known: StreamOffset, work: Callable[[], _T]) -> _T:
        """Do it once more, with another look, where the archive was replaced since the first look:
        the leader epochs then say which records are concerned. Raises where they are not known.
        """
        try:
            return work()
        except ArchiveReplacedError:
            for tp, first in self._planning().renew().items():
                if first < known.offsets.get(tp, 0) and tp not in known.leader_epochs:
                    raise
        return work()

    def _topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """Of partitions that were looked at; raises ArchiveError."""
        planner = self._planning()
        ids = {topic: planner.topic_id(topic) for topic in sorted({tp.topic for tp in tps})}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def _replaced_topics(
        self, known: StreamOffset, ids: Mapping[str, str], tps: Iterable[TopicPartition]
    ) -> set[str]:
        """The topics that were deleted and created again; raises StreamTopicReplacedError."""
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
        """What brokers have thrown away below these offsets; raises StreamTruncatedError."""
        positions = {
            tp: known.position(tp) for tp in tps if tp in known.offsets and tp.topic not in replaced
        }
        gone = find_truncated(self._planning(), positions)
        if gone and not self._settings.request.reread_truncated:
            raise StreamTruncatedError(gone)
        for one in gone:
            log.warning("%s goes back to the divergence: thrown away: %s", reader, one)
        return gone

    def _check_behind(
        self,
        stands: StreamOffset,
        ends: Mapping[TopicPartition, Offset],
        goes_back: Container[TopicPartition],
        ids: Mapping[str, str],
    ) -> None:
        request = self._settings.request
        for tp, at in stands.offsets.items():
            end = ends.get(tp, Offset(0))
            if at <= end or tp in goes_back:
                continue
            error = StreamBehindError(tp, at, end)
            known = stands.topic_ids.get(tp.topic)
            # The divergence shows once the new leader's records are archived beyond it.
            waits = request.reread_truncated and known is not None and known == ids.get(tp.topic)
            if request.fail_on_data_loss and not waits:
                raise error
            log.warning("%s", error)


def _held(
    stands: StreamOffset, goes_back: Mapping[TopicPartition, Offset], replaced: Container[str]
) -> StreamOffset:
    """What of the earlier batches the log still has; nothing of topics that were replaced."""
    ours = {tp: offset for tp, offset in stands.offsets.items() if tp.topic not in replaced}
    offsets = {tp: goes_back.get(tp, offset) for tp, offset in ours.items()}
    epochs = {
        tp: shortened(stands.position(tp), offset) if tp in goes_back else stands.leader_epochs[tp]
        for tp, offset in offsets.items()
        if tp in stands.leader_epochs
    }
    return replace(stands, offsets=offsets, leader_epochs=epochs)


def _known(epochs: Mapping[TopicPartition, EpochHistory]) -> dict[TopicPartition, EpochHistory]:
    return {tp: epoch_history for tp, epoch_history in epochs.items() if epoch_history.entries}


def _without(
    by_tp: Mapping[TopicPartition, _T], tps: Container[TopicPartition]
) -> dict[TopicPartition, _T]:
    return {tp: value for tp, value in by_tp.items() if tp not in tps}
