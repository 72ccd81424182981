"""From what is asked for to a plan: which stored segments hold it, in splits of bounded size."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Self

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.watermark import is_noted
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.planning.archives import Archives
from sidetier.pipeline.planning.discovery import find_partitions
from sidetier.pipeline.planning.helpers import Helpers
from sidetier.pipeline.planning.log_offsets import Edges, Ends, LogOffsets, UndecidedTail
from sidetier.pipeline.planning.range_planner import RangePlanner
from sidetier.pipeline.planning.request import ReadRequest
from sidetier.pipeline.planning.resolving import Resolver, check_covered
from sidetier.pipeline.planning.selection import Selection
from sidetier.pipeline.planning.snapshots import ArchiveSnapshots
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ArchiveError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.attempt import monotonic

_THREADS: Final = 16


class Planner:
    """Plans reads of one cluster's archive.

    It keeps what it has seen: planning again costs a request or two for each partition, and what is
    new. An archive that was replaced since it was seen first is an error, ArchiveReplacedError,
    from every method, until `renew`. One caller at a time; close it, or use it with `with`.
    `max_batch_bytes` is as in `ReaderSettings`, for looking for a timestamp.

    What a plan costs: for each partition its watermark and a listing (a request for every 1,000
    objects, and up to three more of a long one on a store that lets wait, which is listed in
    parts), for each topic a listing of recorded gaps; an index for each segment that is larger than
    a split, or in which the range begins or ends; with a filter by time, a few bytes of each
    segment's time index.
    """

    def __init__(
        self,
        access: ArchiveAccess,
        *,
        threads: int = _THREADS,
        clock: Callable[[], float] = monotonic,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        helpers: Helpers | None = None,
    ) -> None:
        self._archives = Archives(access, clock, max_batch_bytes)
        self._owns_threads = helpers is None
        self._helpers = Helpers(threads) if helpers is None else helpers
        self._ends = Ends(self._archives)
        self._looks = ArchiveSnapshots(self._archives, self._helpers)
        self._ranges = RangePlanner(self._looks, self._ends)
        self._noted_epoch_histories: dict[TopicPartition, tuple[str, EpochHistory]] = {}

    def another(self) -> "Planner":
        """A planner for another caller, who may use it at the same time. It has seen no archive
        yet, and shares the threads and the cache of indexes: close this one last.
        """
        known = self._archives
        made = Planner(
            known.access,
            clock=known.clock,
            max_batch_bytes=known.max_batch_bytes,
            helpers=self._helpers,
        )
        made._archives.locator = known.locator
        return made

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End its threads; may be called twice. The stores are closed by who opened them."""
        if self._owns_threads:
            self._helpers.shutdown()

    def renew(self) -> dict[TopicPartition, Offset]:
        """Forget the archives that were replaced since they were seen first, to plan with what is
        there now; from which offset on each is another. A request for each that was seen; raises as
        `ends`, and then nothing is forgotten.
        """
        return self._looks.renew()

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
        views = self._looks.all(tps)
        return self._helpers.of_each(lambda tp: self._ends.of(tp, views[tp], isolation), views)

    def undecided(self, topic: str) -> dict[TopicPartition, UndecidedTail]:
        """What of a topic is stored and waits for a transaction: what `ends` leaves out for a
        reader of committed records. Goes by the last look at each partition; raises as `ends`.
        """
        tps = [tp for tp in self._archives.known if tp.topic == topic]
        views = {tp: self._looks.one(tp, float("inf")) for tp in tps}
        found = self._helpers.of_each(lambda tp: self._ends.undecided(tp, views[tp]), views)
        return {tp: one for tp, one in found.items() if one is not None}

    def starts(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Where what is stored begins now, 0 where nothing is; raises as `ends`."""
        views = self._looks.all(tps)
        return {tp: Offset(0) if view is None else view.start for tp, view in views.items()}

    def reaches(
        self, tps: Iterable[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, LogOffsets]:
        """From where to where each partition is stored now, of those that are; raises as `ends`."""
        views = self._looks.all(tps)

        def reach(tp: TopicPartition) -> LogOffsets | None:
            view = views[tp]
            if view is None:
                return None
            stable = self._ends.of(tp, view, isolation)
            return LogOffsets(view.start, stable, view.end, view.watermark.topic_id)

        found = self._helpers.of_each(reach, views)
        return {tp: one for tp, one in found.items() if one is not None}

    def epoch_histories(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, EpochHistory]:
        """Which leader epochs have written what is stored of each partition now; none where nobody
        has left it, or it is not the one that the watermark was written with: who lost the race for
        that may have written its own last. A request for each, besides those of `ends`, once for
        each version of a watermark that notes the checksum of its leader epochs.

        Raises:
            MalformedObjectError: what was left does not parse.
            ArchiveError, StorageError: as `ends`.
        """
        views = {tp: view for tp, view in self._looks.all(tps).items() if view is not None}

        def epoch_history(tp: TopicPartition) -> EpochHistory:
            view = views[tp]
            etag, known = self._noted_epoch_histories.get(tp, (None, NO_EPOCHS))
            if etag == view.etag:
                return known
            found = self._archives.epoch_history(tp)
            if view.is_pinterest or not is_noted(view.watermark, found):
                return NO_EPOCHS
            below = found.up_to(view.end)
            if view.watermark.epoch_history is not None:
                self._noted_epoch_histories[tp] = view.etag, below
            return below

        return self._helpers.of_each(epoch_history, views)

    def gaps(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """What is recorded as lost before it was stored; a listing for each topic.

        Raises:
            StorageError: as the port says.
        """
        return self._looks.gaps(tps)

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic whose partitions were looked at; None where the archive has none.

        Raises:
            ArchiveError: some are of another topic of the same name.
        """
        found = self._archives.topic_ids(topic)
        if len(found) > 1:
            raise ArchiveError(
                f"topic {topic}: its partitions are archived of topics with the ids "
                f"{', '.join(sorted(found))}: it was deleted and created again, and not all of the "
                "old archive was set aside (`sidetier retire`)"
            )
        return next(iter(found), None)

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Kafka's own id of the cluster whose archive this is, in one request; None where a sidecar
        has not left it.

        Raises:
            MalformedObjectError: what it has left does not parse.
        """
        note = self._archives.note(topic)
        return None if note is None else note.kafka_cluster_id

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
        views = self._looks.all(tps)
        resolver = Resolver(self._archives.first_at)
        limits = (request.starting, request.ending)

        def resolved(tp: TopicPartition) -> OffsetRange:
            edges = Edges(tp, views[tp], request.isolation, self._ends)
            return resolver.range(tp, limits, edges, request.no_match)

        return self._helpers.of_each(resolved, tps)

    def plan(self, request: ReadRequest) -> Plan:
        """What is read for a request.

        Offsets that are known to be missing without asking each segment are in `Plan.missing`:
        below and above what is stored, recorded gaps. Others are met by who reads, or found with
        `request.find_gaps`.

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
        return self._ranges.plan(ranges, request)

    def ends_within(
        self, ranges: Mapping[TopicPartition, OffsetRange], most_bytes: int
    ) -> dict[TopicPartition, Offset]:
        """Where the ranges end that have about so many bytes of stored segments in all, shared out
        among the partitions in proportion to what each has. Each goes on: by what lies between two
        index entries at least, or by a segment without an index. What is not stored has no bytes,
        and ends no range. One index is read for each partition, at most two.

        Raises:
            ArchiveError, StorageError: as `plan`.
        """
        return self._ranges.ends_within(ranges, most_bytes)


def without_loss(request: ReadRequest) -> ReadRequest:
    """The same request, told all that is missing and not refused for it: for who shows a plan."""
    return replace(request, fail_on_data_loss=False, find_gaps=True)
