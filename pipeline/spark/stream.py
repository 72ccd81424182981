"""Where a stream stands, and how far its next batch goes. No Spark.

Until 4.2 Spark asks a Python source for the latest offset without saying where the batch begins. So
the source keeps where it stands from what it is asked: at a restart Spark first plans a batch of
nothing at the end that the checkpoint has; then the end of each batch that is planned is where it
stands. Where it is asked for the latest offset before anything else, the query is new.
"""

from collections.abc import Mapping

from sidetier.pipeline.errors import StreamBehindError
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.split import OffsetRange, Plan
from sidetier.pipeline.planning.trigger import limited_ends
from sidetier.pipeline.spark.places import opened
from sidetier.pipeline.spark.planned import log, warn_of
from sidetier.pipeline.spark.settings import ReadSettings
from sidetier.segments.offsets import Offset, TopicPartition

Offsets = dict[str, dict[str, int]]
"""Topic, partition (in digits) and offset, as Spark's Kafka source writes them."""


class StreamPosition:
    """The driver's side of a stream."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._planner: Planner | None = None
        self._begins: dict[TopicPartition, Offset] | None = None
        self._stands: dict[TopicPartition, Offset] | None = None

    def initial(self) -> Offsets:
        """Where a new query begins; the same whenever it is asked.

        Raises:
            NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as `Planner.resolve`.
        """
        if self._begins is None:
            ranges = self._planning().resolve(self._settings.request)
            self._begins = {tp: span.first for tp, span in ranges.items()}
        if self._stands is None:
            self._stands = self._begins
        return as_json(self._begins)

    def latest(self, start: Offsets | None = None) -> Offsets:
        """Where the next batch ends: at what is there, or after `maxOffsetsPerTrigger`.

        Raises:
            StreamBehindError: the archive ends before the place where the stream stands.
            NoSuchTopicError, ArchiveError, StorageError: as `Planner.ends`.
        """
        request = self._settings.request
        planner = self._planning()
        if start is None and self._stands is None:
            self.initial()
        stands = from_json(start) if start is not None else self._stands or {}
        tps = planner.partitions(request.selection)
        ends = planner.ends(tps, request.isolation)
        self._check(stands, ends)
        missing = [tp for tp in ends if tp not in stands]
        begins = {**stands, **planner.starts(missing)}
        return as_json({**stands, **limited_ends(begins, ends, request.max_offsets_per_trigger)})

    def plan(self, start: Offsets, end: Offsets) -> Plan:
        """What one batch reads. A partition that is new begins at its earliest offset.

        Raises:
            MissingRecordsError, ArchiveError, StorageError: as `Planner.plan_ranges`.
        """
        planner = self._planning()
        begins, ends = from_json(start), from_json(end)
        new = planner.starts([tp for tp in ends if tp not in begins])
        ranges = {
            tp: OffsetRange(first, until)
            for tp, until in ends.items()
            if (first := begins.get(tp, new.get(tp, Offset(0)))) < until
        }
        self._stands = ends
        plan = planner.plan_ranges(ranges, self._settings.request)
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
            self._planner = Planner(opened(self._settings.place))
        return self._planner

    def _check(
        self, stands: Mapping[TopicPartition, Offset], ends: Mapping[TopicPartition, Offset]
    ) -> None:
        for tp, at in stands.items():
            end = ends.get(tp, Offset(0))
            if at <= end:
                continue
            error = StreamBehindError(tp, at, end)
            if self._settings.request.fail_on_data_loss:
                raise error
            log.warning("%s", error)


def as_json(offsets: Mapping[TopicPartition, int]) -> Offsets:
    """What Spark writes into a checkpoint; equal offsets give equal text."""
    found: Offsets = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = int(offset)
    return found


def from_json(offsets: Offsets) -> dict[TopicPartition, Offset]:
    """What `as_json` has made."""
    return {
        TopicPartition(topic, int(partition)): Offset(offset)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
