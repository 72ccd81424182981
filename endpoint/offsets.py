"""ListOffsets and OffsetForLeaderEpoch.

Source: Kafka's `Partition.fetchOffsetForTimestamp`, `UnifiedLog.fetchOffsetByTimestamp`, and
`LeaderEpochFileCache.endOffsetFor`.
"""

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from sidetier.archive.access import range_reader
from sidetier.archive.locate import Locator
from sidetier.archive.view import ArchiveView
from sidetier.endpoint.blocks import SegmentBytes
from sidetier.endpoint.catalog import ArchiveState, Catalog, Partition, state_of
from sidetier.endpoint.fair_slots import FairSlots
from sidetier.endpoint.live.joined import JoinedPartition
from sidetier.endpoint.live.side import Age
from sidetier.endpoint.log_limits import FewPerSubject
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import (
    BatchTooLargeError,
    BrokerError,
    KafkaApiError,
    SidetierError,
    UnsupportedVersionError,
)
from sidetier.segments.headers import walk_headers
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.logs import logger

if TYPE_CHECKING:
    from sidetier.archive.reader.time_search import SegmentTimes

log = logger()

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_FIRST_VERSIONS: Final[Mapping[int, int]] = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
}
"""Lowest version of ListOffsets that has each special timestamp."""
_NEWEST_VERSION: Final = 10
# Kafka's number of the isolation level.
_READ_COMMITTED: Final = 1
_UNKNOWN: Final = -1
_INDEX_BYTES: Final = 16 << 20
_MAX_ANSWERS: Final = 16_384
"""More than the partitions of most requests: a client that has waited too long asks again."""
_SEARCHES: Final = 4
"""Searches for a timestamp at the same time. Each one reads, decodes and holds up to some MiB of
batches, and a request can ask for thousands.
"""
SEARCH_BYTES: Final = 64 << 20
_TimeKey = tuple[TopicPartition, str, int, int]
"""Partition, etag of `offset.wm`, archive end offset, timestamp."""
_NO_TIME_INDEX: Final = 2**63 - 1
"""The largest timestamp of a segment without a usable time index, as `SegmentTimes` returns it."""


class ListedOffset(NamedTuple):
    """An answer of ListOffsets. Both numbers are -1 if there is no such record."""

    error: ErrorCode
    offset: int = _UNKNOWN
    timestamp: int = _UNKNOWN


class LeaderOffset(NamedTuple):
    """What a leader has answered to ListOffsets."""

    timestamp: int
    offset: Offset


_NOTHING: Final[Mapping[TopicPartition, LeaderOffset]] = MappingProxyType({})


class EpochEnd(NamedTuple):
    """An answer of OffsetForLeaderEpoch: the epoch, and the offset after its last record."""

    error: ErrorCode
    leader_epoch: int = UNKNOWN_EPOCH
    end_offset: int = _UNKNOWN


class OffsetAnswers:
    """Answers questions for offsets. Thread-safe.

    Args:
        catalog: The topics.
        segment_bytes: Reads segments.
        search_bytes: Most bytes of a batch that a search for a timestamp decompresses. Searches
            hold at most twice as much together.
    """

    def __init__(
        self, catalog: Catalog, segment_bytes: SegmentBytes, search_bytes: int = SEARCH_BYTES
    ) -> None:
        self._catalog = catalog
        self._search_bytes = search_bytes
        self._large_search = threading.Lock()
        """Held by the only search that may decompress more than its share."""
        self._bytes = segment_bytes
        self._locator = Locator(_INDEX_BYTES, lambda _key, _reason: None)
        self._guard = threading.Lock()
        self._events = FewPerSubject()
        self._searches = FairSlots(_SEARCHES)
        self._times = Lru[_TimeKey, ListedOffset](_MAX_ANSWERS)
        self._largest: dict[TopicPartition, dict[tuple[str, str, int], int]] = {}
        self._epochs: dict[TopicPartition, tuple[ArchiveState, EpochHistory]] = {}

    def list_offset(
        self,
        name: str,
        number: int,
        timestamp: int,
        isolation: int,
        version: int = _NEWEST_VERSION,
        told: Mapping[TopicPartition, LeaderOffset] = _NOTHING,
    ) -> ListedOffset:
        """Return the offset that a timestamp asks for, and the timestamp of its record.

        Args:
            name: The topic.
            number: The partition.
            timestamp: In ms since 1970; or -1 for the end (with read_committed: the last stable
                offset), -2 and -4 for the start, -3 for the first record with the largest
                timestamp, -5 for the end of tiered storage, which the endpoint does not have.
            isolation: Kafka's number of the isolation level.
            version: Version of the request: older ones have fewer special timestamps.
            told: What `ask_leaders` has returned.
        """
        if timestamp < 0 and version < _FIRST_VERSIONS.get(timestamp, _NEWEST_VERSION + 1):
            return ListedOffset(ErrorCode.unsupported_version)
        partition = self._catalog.partition(name, number)
        if partition is None:
            return ListedOffset(ErrorCode.unknown_topic_or_partition)
        try:
            joined = JoinedPartition.of(self._catalog, partition)
            if joined is not None:
                return self._listed_of_both(joined, timestamp, isolation, told.get(partition.tp))
            return self._listed_of_archive(partition, timestamp, isolation)
        except SidetierError as error:
            self._report("endpoint.list_offsets_failed", name, number, error)
            return ListedOffset(_code_of(error))

    def ask_leaders(
        self, timestamps: Iterable[tuple[TopicPartition, int]], isolation: int
    ) -> Mapping[TopicPartition, LeaderOffset]:
        """Ask each leader once for what its partitions need, and not for one after the other."""
        if self._catalog.live is None:
            return _NOTHING
        asked = {tp: LATEST if timestamp == LATEST else EARLIEST for tp, timestamp in timestamps}
        isolated = isolation == _READ_COMMITTED
        listed = self._catalog.live.reads.list_offsets(asked, isolated=isolated)
        return {tp: LeaderOffset(asked[tp], answer.offset) for tp, answer in listed.items()}

    def epoch_end(self, name: str, number: int, epoch: int) -> EpochEnd:
        """Return the largest archived leader epoch up to `epoch`, and where it ends.

        For an epoch above all archived ones that is the archive's last epoch and the archive end
        offset. A broker would answer -1 there, which means that it cannot know the epoch: a client
        that has read newer records from the live cluster would take its position for truncated.
        """
        partition = self._catalog.partition(name, number)
        if partition is None:
            return EpochEnd(ErrorCode.unknown_topic_or_partition)
        try:
            joined = JoinedPartition.of(self._catalog, partition)
            if joined is not None:
                return self._epoch_end_of_both(joined, epoch)
            view = partition.view()
            if view is None:
                partition.require_known_end()
                return end_of_epoch(NO_EPOCHS, epoch, Offset(0))
            history = self._epochs_of(partition, view)
            if not _ends_below(history, epoch):
                partition.require_known_end()
            return end_of_epoch(history, epoch, view.end)
        except SidetierError as error:
            self._report("endpoint.epoch_end_failed", name, number, error)
            return EpochEnd(_code_of(error))

    # Archive and live log together

    def _listed_of_both(
        self, joined: JoinedPartition, timestamp: int, isolation: int, told: LeaderOffset | None
    ) -> ListedOffset:
        """Answer from archive and leader; from archive and tail while the leader is away.

        Raises: As `_listed_beside_leader`.
        """
        try:
            return self._listed_beside_leader(joined, timestamp, isolation, told)
        except BrokerError:
            tailed = joined.tailed()
            if tailed is None:
                raise
        return self._listed(*tailed, timestamp, isolation)

    def _listed_beside_leader(
        self, joined: JoinedPartition, timestamp: int, isolation: int, told: LeaderOffset | None
    ) -> ListedOffset:
        """Answer from archive and leader.

        Raises:
            UnsupportedVersionError: The leader does not know this kind of question.
            SidetierError: One side cannot be asked, and the other one does not decide alone.
        """
        tp, isolated = joined.partition.tp, isolation == _READ_COMMITTED
        reads = joined.live.reads
        wanted = LATEST if timestamp == LATEST else EARLIEST
        if told is not None and told.timestamp == wanted:
            first = told.offset
        else:
            first = reads.list_offset(tp, wanted, isolated=isolated).offset
        if timestamp in {LATEST, EARLIEST_LOCAL}:
            return ListedOffset(ErrorCode.none, first)
        # The live start first: records below it are archived, so they must be searched there.
        if timestamp != EARLIEST or first > 0:
            joined.archived(Age.RECENT)
            if first > (0 if joined.view is None else joined.view.end):
                joined.archived(Age.NOW)
            if joined.failure is not None:
                raise joined.failure
        view = joined.view
        if timestamp == EARLIEST:
            return ListedOffset(ErrorCode.none, first if view is None else min(view.start, first))
        if timestamp == LATEST_TIERED:
            return ListedOffset(ErrorCode.none, (0 if view is None else view.end) - 1)
        return self._time_of_both(joined, timestamp, isolation, first)

    def _time_of_both(
        self, joined: JoinedPartition, timestamp: int, isolation: int, first: Offset
    ) -> ListedOffset:
        """Search a time in the archive, and then at the leader, whose log begins at `first`.

        Returns the lowest offset of both, or the one with the largest time.
        """
        tp, reads, isolated = joined.partition.tp, joined.live.reads, isolation == _READ_COMMITTED
        while True:
            stored, searched = ListedOffset(ErrorCode.none), first
            # A live log that begins below the archive has all of it.
            if joined.view is not None and joined.view.start <= first:
                stored = self._listed(joined.partition, joined.view, timestamp, isolation)
                searched = joined.view.end
            # From `first` on, the leader may have records that the archive lacks, such as those of
            # format v1.
            is_lowest = stored.error or _UNKNOWN < stored.offset < first
            if timestamp != MAX_TIMESTAMP and is_lowest:
                return stored
            answer = reads.list_offset(tp, timestamp, isolated=isolated)
            first = reads.list_offset(tp, EARLIEST, isolated=isolated).offset
            if first <= searched:
                break
            # The leader has deleted records since the archive was searched; they are archived.
            joined.archived(Age.NOW)
            if joined.failure is not None:
                raise joined.failure
            if joined.view is None or joined.view.end <= searched:
                break  # lost
        live = ListedOffset(ErrorCode.none, answer.offset, answer.timestamp)
        if timestamp == MAX_TIMESTAMP:
            return live if live.timestamp > stored.timestamp else stored
        found = [each for each in (stored, live) if each.offset != _UNKNOWN]
        return min(found, key=lambda each: each.offset, default=live)

    def _epoch_end_of_both(self, joined: JoinedPartition, epoch: int) -> EpochEnd:
        """Return the end of an epoch; from the archive if it ends there."""
        if joined.archived(Age.KNOWN) is None:
            joined.archived(Age.RECENT)  # if it cannot be read, the leader still knows its epochs
        if joined.view is not None:
            history = self._epochs_of(joined.partition, joined.view)
            if _ends_below(history, epoch):
                return end_of_epoch(history, epoch, joined.view.end)
        try:
            end = joined.live.reads.epoch_end(joined.partition.tp, LeaderEpoch(epoch))
        except BrokerError:
            tailed = joined.tailed()
            if tailed is None:
                raise
            partition, view = tailed
            history = self._epochs_of(partition, view)
            if not _ends_below(history, epoch):
                raise  # the leader may have more of it than the tail
            return end_of_epoch(history, epoch, view.end)
        return EpochEnd(ErrorCode.none, end.leader_epoch, end.end_offset)

    def _report(self, event: str, name: str, number: int, error: SidetierError) -> None:
        if requests := self._events.count((event, name)):
            log.warning(event, topic=name, partition=number, error=str(error), requests=requests)

    def _epochs_of(self, partition: Partition, view: ArchiveView) -> EpochHistory:
        """Return the leader epochs below the archive end offset.

        One request for each state of the archive: a client can ask for the same partition some
        hundred thousand times in a request.
        """
        # The epochs are stored before the `offset.wm` that refers to them.
        state = state_of(view)
        known = self._epochs.get(partition.tp)
        if known is None or known[0] != state:
            known = state, partition.archive.epochs().up_to(view.end)
            self._epochs[partition.tp] = known
        return known[1]

    def _listed_of_archive(
        self, partition: Partition, timestamp: int, isolation: int
    ) -> ListedOffset:
        view = partition.view()
        if view is None:
            partition.require_known_end()
            is_end = timestamp in {LATEST, EARLIEST, EARLIEST_LOCAL}
            return ListedOffset(ErrorCode.none, 0 if is_end else _UNKNOWN)
        return self._listed(partition, view, timestamp, isolation)

    def _listed(
        self, partition: Partition, view: ArchiveView, timestamp: int, isolation: int
    ) -> ListedOffset:
        if timestamp in {EARLIEST, EARLIEST_LOCAL}:
            return ListedOffset(ErrorCode.none, view.start)
        if timestamp == LATEST_TIERED:
            return ListedOffset(ErrorCode.none)
        limit = view.end
        if isolation == _READ_COMMITTED:
            limit = partition.transactions.last_stable_offset(view)
        if timestamp == LATEST:
            partition.require_known_end()
            return ListedOffset(ErrorCode.none, limit)
        key = (partition.tp, view.etag, view.end, timestamp)
        with self._guard:
            known = self._times.get(key)
        if known is None:
            known = self._searched(key, partition, view, timestamp)
        # Not part of the cached answer: each isolation level has its own limit.
        if timestamp == MAX_TIMESTAMP or not 0 <= known.offset < limit:
            partition.require_known_end()
        return known if known.offset < limit else ListedOffset(ErrorCode.none)

    def _searched(
        self, key: _TimeKey, partition: Partition, view: ArchiveView, timestamp: int
    ) -> ListedOffset:
        """Search, for a few clients at the same time, and remember the answer."""
        with self._searches.slot():
            known = self._times.get(key)
            if known is None:  # else another client has asked the same meanwhile
                known = self._first_within(partition, view, timestamp)
        self._times.put(key, known)
        return known

    def _first_within(
        self, partition: Partition, view: ArchiveView, timestamp: int
    ) -> ListedOffset:
        """Search in an equal share of the memory, and alone in all of it if that is too little.

        The error for a larger batch is remembered like any answer: clients ask again and again.
        """
        try:
            return self._first_at(partition, view, timestamp, self._search_bytes // _SEARCHES)
        except BatchTooLargeError:
            pass
        try:
            with self._large_search:
                return self._first_at(partition, view, timestamp, self._search_bytes)
        except BatchTooLargeError as error:
            tp = partition.tp
            log.warning(
                "endpoint.list_offsets_failed",
                topic=tp.topic,
                partition=tp.partition,
                # The rest of the text names options of other commands.
                error=str(error).partition(": the limit")[0],
                help="a search for a timestamp decompresses batches up to an eighth of --memory",
            )
            return ListedOffset(ErrorCode.message_too_large)

    def _first_at(
        self, partition: Partition, view: ArchiveView, timestamp: int, most_bytes: int
    ) -> ListedOffset:
        # These import Arrow, which takes 35 MB or more. Most endpoints are never asked for a time.
        from sidetier.archive.reader.source import ArchiveSource  # noqa: PLC0415
        from sidetier.archive.reader.time_search import SegmentTimes, TimeSearch  # noqa: PLC0415

        read = range_reader(self._catalog.archive, partition.tp.topic)
        source = ArchiveSource(partition.archive, self._locator, read)
        with self._guard:
            largest = self._largest.setdefault(partition.tp, {})
        times = SegmentTimes(self._locator, read, partition.archive.noted_largest, largest)
        if timestamp == MAX_TIMESTAMP:
            newest = max(
                (self._largest_of(partition, times, stored) for stored in view.logs), default=-1
            )
            if newest < 0:
                return ListedOffset(ErrorCode.none)
            timestamp = newest
        record = TimeSearch(source, times, most_bytes).first_at(timestamp, float("inf"))
        if record is None:
            return ListedOffset(ErrorCode.none)
        return ListedOffset(ErrorCode.none, record.offset, record.timestamp)

    def _largest_of(self, partition: Partition, times: "SegmentTimes", stored: Any) -> int:  # noqa: ANN401
        largest = times.largest(stored)
        if largest != _NO_TIME_INDEX:
            return largest
        topic = partition.tp.topic
        headers = walk_headers(
            lambda at, size: self._bytes.read(topic, stored, at, size), stored.size
        )
        return max((header.max_timestamp for _, header in headers), default=-1)


def _ends_below(history: EpochHistory, epoch: int) -> bool:
    """Whether a later epoch shows where this one ends."""
    return bool(history.entries) and 0 <= epoch < history.entries[-1][0]


def end_of_epoch(history: EpochHistory, epoch: int, end: Offset) -> EpochEnd:
    """Return the largest known epoch up to `epoch`, and its end; pure.

    Args:
        history: The leader epochs of the archive.
        epoch: The epoch that a client asks for; -1 for none.
        end: The archive end offset.
    """
    if epoch < 0:
        return EpochEnd(ErrorCode.none)
    if not history.entries:
        # Nothing is known, so nothing shows that the client's records were discarded.
        return EpochEnd(ErrorCode.none, epoch, end)
    first_epoch, first_start = history.entries[0]
    if epoch < first_epoch:
        return EpochEnd(ErrorCode.none, epoch, first_start)
    largest = max(known for known, _ in history.entries if known <= epoch)
    following = history.end_of(largest)
    return EpochEnd(ErrorCode.none, largest, end if following is None else following)


def _code_of(error: SidetierError) -> ErrorCode:
    if isinstance(error, UnsupportedVersionError):
        return ErrorCode.unsupported_version
    code = error.code if isinstance(error, KafkaApiError) else None
    if code == ErrorCode.unsupported_for_message_format:  # records of format v0 have no timestamps
        return ErrorCode.unsupported_for_message_format
    if isinstance(error, BrokerError):
        return ErrorCode.not_leader_or_follower
    return ErrorCode.kafka_storage_error
