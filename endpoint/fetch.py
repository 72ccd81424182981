"""Fetch: ranges of stored segments as responses.

The batches are not decoded: a response consists of a few bytes of framing, and ranges of stored
objects. kio would copy all of them. So the framing is written here, by the fields of Kafka's
`FetchResponse.json`, versions 4 to 17.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.missing_offsets import first_missing
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.tailed_archive import TailedArchive
from sidetier.archive.view import ArchiveView
from sidetier.endpoint.blocks import (
    NO_BYTES,
    FilePiece,
    Lease,
    NotFetchedError,
    Piece,
    SegmentBytes,
)
from sidetier.endpoint.catalog import (
    NO_STATE,
    Catalog,
    Partition,
    State,
    state_of,
)
from sidetier.endpoint.live.chunks import Chunk, aborted_in
from sidetier.endpoint.live.joined import LEADER_AGE, JoinedPartition, last_stable_offset
from sidetier.endpoint.live.reads import is_out_of_range
from sidetier.endpoint.live.side import Age, LiveBounds, Side, find
from sidetier.endpoint.log_limits import FewPerSubject
from sidetier.endpoint.positions import Positions
from sidetier.endpoint.session import Progress, first_error
from sidetier.endpoint.transactions import OpenTransactionError
from sidetier.endpoint.users import EVERYTHING, Access
from sidetier.segments.errors import (
    BatchTooLargeError,
    BrokerError,
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import BatchHeader, batch_bytes
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.token_bucket import TokenBucket, take_from_all
from sidetier.telemetry.logs import logger
from sidetier.wire.fetch_layout import (
    ABORTED,
    COUNT,
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    FIRST_WITH_LOG_START,
    FIRST_WITH_REPLICA,
    FIRST_WITH_SESSION,
    LOG_START,
    PARTITION,
    REPLICA,
    SESSION,
    THROTTLE_TIME,
    UUID_BYTES,
    compact_count,
    compact_string,
    encode_string,
)
from sidetier.wire.record_requests import AbortedTransaction

log = logger()

_READ_COMMITTED: Final = 1
_NONE: Final = Offset(-1)
_MAX_LOWER_SEGMENTS: Final = 8
"""Segments with lower base offsets that may reach beyond the end of a later one."""
MAX_BYTES: Final = 64 << 20
"""Largest response, whatever a client asks for; one batch is sent even if it is larger."""
MAX_WAIT: Final = 60.0
_HELD_SECONDS: Final = 0.5
"""Seconds after which a leader that could not be asked is asked again."""
_CUT_OFF: Final = 10.0
"""Seconds for which a leader may not know that it was replaced, as it is cut off from the other
brokers. They know the next one after at most 9 s (`broker.session.timeout.ms`).
"""
_MISSING_AGE: Final = 60.0
"""Seconds without a request for a missing offset, after which it counts as found meanwhile."""
_REPORTED_OFFSETS: Final = 1024
_MAX_PREPARED: Final = 1024
_MAX_NOTED: Final = 10_000
"""Partitions of a connection whose last answer is remembered."""


@dataclass(slots=True)
class FetchedData:
    """The answer for one partition. Offsets are -1 beside an error.

    Attributes:
        index: Number of the partition.
        error: Kafka's error code.
        high_watermark: The archive end offset.
        last_stable_offset: The last stable offset.
        log_start_offset: The first archived offset.
        aborted: Aborted transactions; None for read_uncommitted, but empty beside an unknown topic
            or partition, as a broker sends it.
        lease: The batches.
        state: The archive and the live log that were read, for `Catalog.wait_for_change`.
    """

    index: int
    error: ErrorCode = ErrorCode.none
    high_watermark: Offset = _NONE
    last_stable_offset: Offset = _NONE
    log_start_offset: Offset = _NONE
    aborted: Sequence[AbortedTransaction] | None = None
    lease: Lease = NO_BYTES
    state: State = NO_STATE
    is_held: bool = False
    """Whether the error is answered only at the end of the wait: it may be over until then."""
    side: Side = Side.ARCHIVE
    """The side that the batches are from."""
    after_lost: Offset | None = None
    """If the offset asked for is that of a lost record: the first offset after the lost records."""


@dataclass(slots=True)
class FetchedTopic:
    """The answers for the partitions of a topic; the name is empty if only the id is known."""

    name: str
    topic_id: UUID | None
    partitions: list[FetchedData]


def encode_fetch(  # noqa: C901 - one branch for each field that a version adds
    version: int,
    topics: Sequence[FetchedTopic],
    error: ErrorCode = ErrorCode.none,
    throttle_ms: int = 0,
) -> list[Piece]:
    """Return the body of a Fetch response, without its header.

    The pieces of the leases are part of the result as they are.
    """
    flexible = version >= FIRST_FLEXIBLE
    count = compact_count if flexible else COUNT.pack
    end = b"\0" if flexible else b""  # no tagged fields
    pieces: list[Piece] = []
    head = bytearray(THROTTLE_TIME.pack(throttle_ms))
    if version >= FIRST_WITH_SESSION:
        head += SESSION.pack(int(error), 0)  # no session: every Fetch names all its partitions
    head += count(len(topics))
    for topic in topics:
        head += _topic_key(version, topic) + count(len(topic.partitions))
        for data in topic.partitions:
            head += PARTITION.pack(
                data.index, int(data.error), data.high_watermark, data.last_stable_offset
            )
            if version >= FIRST_WITH_LOG_START:
                head += LOG_START.pack(data.log_start_offset)
            # A null array is 0 in flexible versions.
            if data.aborted is None:
                head += b"\0" if flexible else COUNT.pack(-1)
            else:
                head += count(len(data.aborted))
                for transaction in data.aborted:
                    head += ABORTED.pack(transaction.producer_id, transaction.first_offset) + end
            if version >= FIRST_WITH_REPLICA:
                head += REPLICA.pack(-1)
            head += count(data.lease.size)
            if data.lease.pieces:
                pieces += [bytes(head), *data.lease.pieces]
                head = bytearray()
            head += end
        head += end
    pieces.append(bytes(head + end))
    return pieces


def _topic_key(version: int, topic: FetchedTopic) -> bytes:
    if version >= FIRST_BY_ID:
        return bytes(UUID_BYTES) if topic.topic_id is None else topic.topic_id.bytes
    return compact_string(topic.name) if version >= FIRST_FLEXIBLE else encode_string(topic.name)


@dataclass(slots=True)
class FetchAnswer:
    """A response. Call `release` once, after the pieces are sent or given up.

    Attributes:
        pieces: The body of the response.
        topics: The answers in it.
        error: The error of the response itself.
        awaited: The states of its archives, if the client wants to wait until one of them has
            records for it; else None.
        throttle: Seconds for which the caps allow no records; 0 if they allowed these. Nothing was
            read then, and there are no pieces.
    """

    pieces: list[Piece]
    topics: list[FetchedTopic]
    error: ErrorCode = ErrorCode.none
    awaited: Mapping[TopicPartition, State] | None = None
    throttle: float = 0.0

    @property
    def record_bytes(self) -> int:
        """Number of bytes of batches."""
        return sum(data.lease.size for data in self._data())

    @property
    def first_error(self) -> ErrorCode:
        """The error of the response or of its first partition that has one."""
        return self.error or first_error(data.error for data in self._data())

    @property
    def is_held(self) -> bool:
        """Whether a partition has an error that may be over soon."""
        return any(data.is_held for data in self._data())

    @property
    def is_refused(self) -> bool:
        """Whether there is an error that no wait ends."""
        return bool(self.error) or any(
            data.error is not ErrorCode.none and not data.is_held for data in self._data()
        )

    def release(self) -> None:
        """Return the memory of the batches."""
        for data in self._data():
            data.lease.release()
            data.lease = NO_BYTES

    def _data(self) -> Iterable[FetchedData]:
        return (data for topic in self.topics for data in topic.partitions)


class _ThrottledError(Exception):
    """The caps allow no records now."""

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay


@dataclass(slots=True)
class _Room:
    """The bytes that a response may still take; its first batch is sent whole in any case.

    Attributes:
        left: Bytes.
        caps: The caps on bytes per second.
        client_id: `client.id` of the client, which leaders of the live cluster are told.
        is_empty: Whether the response has no records yet.
        taken: Bytes that were taken from the caps; 0 before the first batches are read.
    """

    left: int
    caps: Sequence[TokenBucket]
    client_id: str | None = None
    is_empty: bool = True
    taken: int = 0

    def ask(self) -> None:
        """Raise _ThrottledError if the caps allow no bytes now. Takes nothing: few may be there to
        send.
        """
        self.take(0)

    def take(self, size: int) -> None:
        """Take bytes from the caps, before they are read.

        Raises:
            _ThrottledError: The caps allow no bytes now. Only the first bytes of a response are
                refused: together they are at most a burst.
        """
        if self.taken:
            for cap in self.caps:
                cap.give_back(-size)
        elif delay := take_from_all(self.caps, size):
            raise _ThrottledError(delay)
        self.taken += size

    def give_back(self, used: int) -> None:
        """Return to the caps what was taken and not used."""
        for cap in self.caps:
            cap.give_back(self.taken - used)


class Fetcher:
    """Answers Fetch requests. Thread-safe.

    Args:
        catalog: The topics.
        segment_bytes: Reads segments.
        positions: Finds batches in segments.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        catalog: Catalog,
        segment_bytes: SegmentBytes,
        positions: Positions,
        clock: Clock = monotonic,
    ) -> None:
        self._catalog = catalog
        self._bytes = segment_bytes
        self._positions = positions
        self._clock = clock
        self._events = FewPerSubject(clock)
        self._reported: dict[tuple[TopicPartition, int], None] = {}
        self._prepared: set[Version] = set()
        self._missing = Lru[tuple[TopicPartition, int], tuple[float, float]](_REPORTED_OFFSETS)
        """When an offset was on neither side first and last, in monotonic seconds."""

    def fetch(  # noqa: PLR0913 - the request, who asks, and how long to wait
        self,
        request: Any,  # noqa: ANN401 - kio's
        version: int,
        access: Access = EVERYTHING,
        caps: Sequence[TokenBucket] = (),
        *,
        client_id: str | None = None,
        progress: Progress | None = None,
        deadline: float | None = None,
        may_wait: bool = True,
    ) -> FetchAnswer:
        """Return the batches that a request asks for; at most 64 MiB, but one batch whole.

        If there are none, wait for up to `max_wait` until one of the archives has grown. A response
        with fewer bytes than `min_bytes` is not held back: a broker does not cross the end of a
        segment either, and its clients ask again at once.

        The caps are asked before the first batch is found: a client that must wait for them would
        otherwise cost requests to the store for records that it does not get. The bytes are taken
        from the caps once their number is known, before they are read: clients that ask for much
        and get little do not delay each other, and clients that ask at once get no more than the
        caps allow. With a cap, a response has at most the bytes of its burst, so that clients that
        share it are served in turn.

        Args:
            request: The decoded request.
            version: Its version.
            access: What the client may read.
            caps: Caps on the bytes of batches per second; each of them must allow the response.
            client_id: `client.id` of the client, which leaders of the live cluster are told.
            progress: What the client got last; is changed.
            deadline: Monotonic second at which the wait ends; None for `max_wait` from now on.
            may_wait: Whether to wait; if not, `awaited` has what the client waits for.
        """
        if getattr(request, "session_id", 0):
            # The endpoint gives out no sessions: the client knows one of another server.
            error = ErrorCode.fetch_session_id_not_found
            return FetchAnswer(encode_fetch(version, (), error), [], error)
        if deadline is None:
            deadline = self._clock() + wait_of(request)
        while True:
            try:
                topics, seen = self._read(request, version, access, caps, client_id)
            except _ThrottledError as throttled:
                return FetchAnswer([], [], throttle=throttled.delay)
            answer = FetchAnswer([], topics)
            # Java's last Fetch before it closes names no partition.
            is_final = not seen or answer.record_bytes or answer.is_refused
            can_wait = self._clock() < deadline and not self._catalog.is_closed
            if not is_final and answer.is_held and can_wait:
                # Asked again soon: nothing else may notice that the brokers are back.
                self._catalog.wait_for_change(seen, min(deadline, self._clock() + _HELD_SECONDS))
                answer.release()
                continue
            if not is_final and self._clock() < deadline:
                answer.awaited = seen
            if (
                answer.awaited is None
                or not may_wait
                or not self._catalog.wait_for_change(seen, deadline)
            ):
                answer.pieces = encode_fetch(version, topics)
                self._note(topics, Progress() if progress is None else progress)
                return answer
            answer.release()

    def _note(self, topics: Sequence[FetchedTopic], progress: Progress) -> None:
        live = self._catalog.live
        for known in (progress.sides, progress.after_lost):
            if len(known) > _MAX_NOTED:
                known.clear()
        for topic in topics:
            for data in topic.partitions:
                if data.after_lost is None and not data.lease.size:
                    continue
                tp = TopicPartition(topic.name, data.index)
                if data.after_lost is not None:
                    progress.after_lost[tp] = data.after_lost
                    continue
                progress.after_lost.pop(tp, None)
                if live is not None:
                    live.metrics.answered(data.side, progress.sides.get(tp))
                    progress.sides[tp] = data.side

    def _read(
        self,
        request: Any,  # noqa: ANN401 - kio's
        version: int,
        access: Access,
        caps: Sequence[TokenBucket],
        client_id: str | None,
    ) -> tuple[list[FetchedTopic], dict[TopicPartition, State]]:
        asked_bytes = sum(
            asked.partition_max_bytes for wanted in request.topics for asked in wanted.partitions
        )
        most = (request.max_bytes, asked_bytes, MAX_BYTES, *(cap.burst for cap in caps))
        room = _Room(max(min(most), 1), caps, client_id)
        isolated = request.isolation_level == _READ_COMMITTED
        topics: list[FetchedTopic] = []
        seen: dict[TopicPartition, State] = {}
        try:
            topics += [self._fetched_topic(wanted, version) for wanted in request.topics]
            self._ask_bounds(topics, request, access)
            for topic, wanted in zip(topics, request.topics, strict=True):
                for asked in wanted.partitions:
                    data = self._partition(topic, asked, room, access, isolated=isolated)
                    topic.partitions.append(data)
                    seen[TopicPartition(topic.name, asked.partition)] = data.state
        except BaseException:
            FetchAnswer([], topics).release()
            room.give_back(0)
            raise
        if caps:
            room.give_back(FetchAnswer([], topics).record_bytes)
        return topics, seen

    def _ask_bounds(
        self,
        topics: Sequence[FetchedTopic],
        request: Any,  # noqa: ANN401 - kio's
        access: Access,
    ) -> None:
        """Ask for the live bounds of all partitions together, and not one after the other."""
        if self._catalog.live is not None:
            tps = (
                TopicPartition(topic.name, asked.partition)
                for topic, wanted in zip(topics, request.topics, strict=True)
                if topic.name and access.can_read(topic.name)
                for asked in wanted.partitions
            )
            self._catalog.live.reads.refresh(tps, LEADER_AGE)

    def _fetched_topic(self, wanted: Any, version: int) -> FetchedTopic:  # noqa: ANN401 - kio's
        if version < FIRST_BY_ID:
            return FetchedTopic(wanted.topic, None, [])
        known = None if wanted.topic_id is None else self._catalog.topic_of_id(wanted.topic_id)
        return FetchedTopic("" if known is None else known.name, wanted.topic_id, [])

    def _partition(  # noqa: PLR0911 - one error code for each kind of failure
        self,
        topic: FetchedTopic,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        access: Access,
        *,
        isolated: bool,
    ) -> FetchedData:
        index = asked.partition
        if topic.topic_id is not None and not topic.name:
            return FetchedData(index, ErrorCode.unknown_topic_id, aborted=())
        if not access.can_read(topic.name):
            return FetchedData(index, ErrorCode.topic_authorization_failed, aborted=())
        partition = self._catalog.partition(topic.name, index)
        if partition is None:
            return FetchedData(index, ErrorCode.unknown_topic_or_partition, aborted=())
        try:
            return self._data(partition, topic.topic_id, asked, room, isolated=isolated)
        except (ObjectNotFoundError, PreconditionFailedError) as error:
            # Quarantine, retirement or the store's lifecycle rules have changed the archive. Java
            # and librdkafka ask for metadata again after this error, and then repeat the Fetch.
            self._report(partition, "endpoint.segment_replaced", error)
            self._renew(partition)
            return FetchedData(index, ErrorCode.not_leader_or_follower)
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            self._report(partition, "endpoint.segment_damaged", error)
            return FetchedData(index, ErrorCode.corrupt_message)
        except BatchTooLargeError as error:
            self._report(partition, "endpoint.batch_too_large", error)
            return FetchedData(index, ErrorCode.message_too_large)
        except SidetierError as error:
            self._report(partition, "endpoint.store_failed", error)
            return FetchedData(index, ErrorCode.kafka_storage_error)

    def _data(
        self,
        partition: Partition,
        topic_id: UUID | None,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData:
        joined = JoinedPartition.of(self._catalog, partition, topic_id)
        if joined is not None:
            return self._joined(joined, asked, room, isolated=isolated)
        data = self._of_archive(partition, topic_id, asked, room, isolated=isolated)
        if self._catalog.live is not None:
            data.state = data.state[0], self._catalog.live.reads.state(partition.tp)
            latest = partition.archive.latest
            end = 0 if latest is None or latest.view is None else latest.view.end
            if data.error is ErrorCode.offset_out_of_range and asked.fetch_offset > end:
                # The client was in the live log of a topic that the cluster has lost, and a reset
                # to the archive would read records again.
                data.error = ErrorCode.unknown_topic_or_partition
        return data

    def _of_archive(
        self,
        partition: Partition,
        topic_id: UUID | None,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData:
        offset = Offset(asked.fetch_offset)
        view = _view_for(partition, offset)
        if topic_id and view and not self._catalog.has_topic_id(partition, view, topic_id):
            return FetchedData(asked.partition, ErrorCode.unknown_topic_id, aborted=())
        if view is None or offset >= view.end:
            partition.require_known_end()
        end = Offset(0) if view is None else view.end
        if offset > end and self._may_be_in_tail(partition, end, offset):
            state = state_of(view), None
            held = ErrorCode.not_leader_or_follower
            return FetchedData(asked.partition, held, state=state, is_held=True)
        if view is None:
            # A partition without an archive is an empty log that begins at 0.
            is_start = offset == 0
            error = ErrorCode.none if is_start else ErrorCode.offset_out_of_range
            start = Offset(0) if is_start else _NONE
            aborted = () if isolated and is_start else None
            return FetchedData(asked.partition, error, start, start, start, aborted)
        if not view.start <= offset <= view.end:
            self._report_missing(partition, view, offset)
            return FetchedData(asked.partition, ErrorCode.offset_out_of_range)
        return self._stable_records(partition, view, asked, room, end=view.end, isolated=isolated)

    def _may_be_in_tail(self, partition: Partition, end: Offset, offset: Offset) -> bool:
        """Whether the tail may reach an offset above its known end: another endpoint may have shown
        the client a newer end.

        Raises:
            StoreUnavailableError: A pack cannot be read.
        """
        archive = partition.archive
        if not isinstance(archive, TailedArchive):
            return False
        if archive.unreadable:
            raise StoreUnavailableError(
                f"{archive.where}: offset {offset} is above the end, {end}, and a tail pack "
                "cannot be read; `sidetier tail status` shows it"
            )
        return self._is_missing_for_less(self._catalog.tail_patience, partition.tp, offset)

    def _stable_records(
        self,
        partition: Partition,
        view: ArchiveView,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        end: Offset,
        isolated: bool,
    ) -> FetchedData:
        """Read one partition's records below `end`; and below the last stable offset, if the client
        is isolated.
        """
        stable = last_stable_offset(partition, view, isolated=isolated)
        try:
            return self._records(partition, view, asked, room, stable, end=end, isolated=isolated)
        except OpenTransactionError as error:
            # Only the batches below that transaction are sent.
            stable = error.last_stable
            return self._records(partition, view, asked, room, stable, end=end, isolated=isolated)

    def _records(  # noqa: PLR0913 - as `_stable_records`
        self,
        partition: Partition,
        view: ArchiveView,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        stable: Offset,
        *,
        end: Offset,
        isolated: bool,
    ) -> FetchedData:
        """Read records as `_stable_records`.

        Raises:
            OpenTransactionError: The last stable offset is lower than `stable`. Nothing is lent.
        """
        offset = Offset(asked.fetch_offset)
        data = FetchedData(
            asked.partition,
            high_watermark=view.end,
            last_stable_offset=stable,
            log_start_offset=view.start,
            aborted=() if isolated else None,
            state=(state_of(view), None),
        )
        limit = min(end, stable) if isolated else end
        if offset >= limit:
            return data
        room.ask()
        try:
            # A response that has records does not wait for another partition's: the client
            # asks again, and they are fetched meanwhile.
            batch = self._first_batch(partition, view, offset, limit, may_wait=room.is_empty)
        except NotFetchedError:
            return data
        except _MissingOffsetError as missing:
            self._report_missing(partition, view, missing.offset)
            following = view.after(missing.offset)
            after = view.end if following is None else Offset(following.base_offset)
            out_of_range = ErrorCode.offset_out_of_range
            return FetchedData(asked.partition, out_of_range, after_lost=after)
        if batch is None:
            return data
        left, is_empty = room.left, room.is_empty
        data.lease = self._lease(partition, batch, asked.partition_max_bytes, room)
        if isolated and data.lease.pieces:
            try:
                data.aborted = self._aborted(partition, view, batch, offset, data.lease)
            except BaseException:
                room.left, room.is_empty = left, is_empty
                raise
        return data

    # Archive and live log together

    def _joined(
        self,
        joined: JoinedPartition,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData:
        """Read a partition that is in the live cluster, too.

        Raises:
            SidetierError: The archive cannot be read, and the leader does not have the offset.
        """
        unknown = FetchedData(asked.partition, ErrorCode.unknown_topic_id, aborted=())
        if joined.is_other_topic():
            return unknown
        data = self._of_side(joined, asked, room, isolated=isolated, refused=False)
        if data is None:  # the log start has passed the offset, or the log ends below it
            data = self._of_side(joined, asked, room, isolated=isolated, refused=True)
        if joined.is_other_topic():
            # Created again meanwhile: these may be its records, or its offsets.
            if data is not None:
                data.lease.release()
            return unknown
        if data is None and joined.failure is not None:
            raise joined.failure  # the archive may have what the leader refuses
        if data is None and len(joined.live.topics.brokers) > 1:
            # The leader may be a former one that is cut off, whose log ends before the offset.
            data = self._held_for(_CUT_OFF, joined, asked)
        return data or FetchedData(asked.partition, ErrorCode.offset_out_of_range)

    def _held_for(
        self,
        seconds: float,
        joined: JoinedPartition,
        asked: Any,  # noqa: ANN401 - kio's
    ) -> FetchedData | None:
        """Return an error that is held, unless the offset was first missing this long ago."""
        if not self._is_missing_for_less(seconds, joined.partition.tp, asked.fetch_offset):
            return None
        data = FetchedData(asked.partition, ErrorCode.not_leader_or_follower, is_held=True)
        data.state = joined.state, joined.live.reads.state(joined.partition.tp)
        return data

    def _is_missing_for_less(self, seconds: float, tp: TopicPartition, offset: int) -> bool:
        key, now = (tp, offset), self._clock()
        first, last = self._missing.get(key) or (now, now)
        if now - last > _MISSING_AGE:  # another client, or another cause
            first = now
        self._missing.put(key, (first, now))
        return now - first < seconds

    def _of_side(
        self,
        joined: JoinedPartition,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
        refused: bool,
    ) -> FetchedData | None:
        """Read from the side that has the offset; None if the leader refuses it."""
        tp, offset = joined.partition.tp, Offset(asked.fetch_offset)
        # Before everything that is read: what changes meanwhile ends the wait at once.
        live_state = joined.live.reads.state(tp)
        sides = find(
            offset,
            lambda age: joined.live.reads.bounds(tp, 0.0 if age is Age.NOW else LEADER_AGE),
            joined.archived,
            lambda: joined.store_below(isolated=isolated),
            refused=refused,
        )
        state = joined.state, live_state
        data: FetchedData | None = None
        try:
            if sides.side is Side.NEITHER:
                return self._in_neither(joined, sides.live, offset, asked)
            if sides.live is None:
                data = self._tail_data(joined, asked, room, isolated=isolated)
            if data is None and sides.side is Side.ARCHIVE:
                data = self._archived(joined, sides.live, asked, room, isolated=isolated)
            if data is None and sides.live is not None:
                data = self._live_data(joined, sides.live, asked, room, isolated=isolated)
        except BrokerError as error:
            if is_out_of_range(error):
                return None
        if data is None:
            held = ErrorCode.not_leader_or_follower
            data = FetchedData(asked.partition, held, is_held=True)
        # A held answer is asked again soon; its own failure is no change that ends the wait.
        data.state = (state[0], joined.live.reads.state(tp)) if data.is_held else state
        return data

    def _tail_data(
        self,
        joined: JoinedPartition,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData | None:
        """Read archive and tail as one log while the leader is away; None if they do not have the
        offset, or if tails are not read.
        """
        partition = joined.partition
        try:
            tailed = joined.tailed()
            if tailed is None:
                return None
            partition, _ = tailed
            data = self._of_archive(partition, joined.topic_id, asked, room, isolated=isolated)
        except SidetierError as error:
            self._report(partition, "endpoint.store_failed", error)
            if isinstance(error, ObjectNotFoundError | PreconditionFailedError):
                self._renew(partition)
            return None
        if data.error is not ErrorCode.none and data.error is not ErrorCode.unknown_topic_id:
            return None  # the leader may have it
        data.is_held = not data.lease.size  # nothing else may notice that the leader is back
        return data

    def _archived(
        self,
        joined: JoinedPartition,
        live: LiveBounds | None,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData | None:
        """Read archived records; None if they cannot be read, and the leader has them."""
        partition, view, offset = joined.partition, joined.view, Offset(asked.fetch_offset)
        assert view is not None  # noqa: S101 - the caller has checked it
        has_live = live is not None and live.start <= offset
        if joined.is_archive_of_other_topic():
            return FetchedData(asked.partition, ErrorCode.unknown_topic_id, aborted=())
        # Not above the high watermark, as far as it is known: these records would be of a former
        # leader, or a client would be beyond the end that it is shown.
        end = view.end if live is None else min(view.end, live.high_watermark)
        try:
            data = self._stable_records(partition, view, asked, room, end=end, isolated=isolated)
        except SidetierError as error:
            if not has_live:
                raise
            if not isinstance(error, DamagedSegmentError | UnsupportedFormatError):
                joined.live.note_store_failure(partition.tp.topic)
            self._report(partition, "endpoint.store_failed", error)
            return None
        if live is not None:
            reached = min(data.last_stable_offset, end) if isolated else end
            return self._beside_live(
                joined, live, asked, data, reached, has_live=has_live, room=room
            )
        if data.error is not ErrorCode.none:  # the leader may have what the archive lacks
            data.error, data.is_held = ErrorCode.not_leader_or_follower, True
        return data

    def _beside_live(  # noqa: PLR0913 - each is of another kind
        self,
        joined: JoinedPartition,
        live: LiveBounds,
        asked: Any,  # noqa: ANN401 - kio's
        data: FetchedData,
        reached: Offset,
        *,
        has_live: bool,
        room: _Room,
    ) -> FetchedData | None:
        """Show the leader's offsets beside archived records, which were read up to `reached`; None
        if the leader has the offset, or what follows.
        """
        view = joined.view
        assert view is not None  # noqa: S101 - they were read from it
        if data.error is not ErrorCode.none:  # the archive lacks the offset
            if not has_live:
                joined.live.metrics.gaps.inc()
            return None if has_live else data
        if room.is_empty and not data.lease.size:
            # Compaction has left nothing from the offset on.
            if reached >= live.start:
                return None
            if reached == view.end:
                now = joined.archived(Age.NOW)  # after the live start: see `side`
                if now is None or now.end <= reached:
                    return self._in_neither(joined, live, reached, asked)
        data.high_watermark = live.high_watermark
        data.last_stable_offset = live.last_stable_offset
        data.log_start_offset = min(view.start, live.start)
        return data

    def _live_data(
        self,
        joined: JoinedPartition,
        known: LiveBounds,
        asked: Any,  # noqa: ANN401 - kio's
        room: _Room,
        *,
        isolated: bool,
    ) -> FetchedData:
        """Read records of the leader, from its log start on.

        Raises:
            BrokerError: It refuses, or cannot be reached.
        """
        tp, offset = joined.partition.tp, max(Offset(asked.fetch_offset), known.start)
        room.ask()
        size = max(min(asked.partition_max_bytes, room.left), 1)
        reads = joined.live.reads
        chunks: Sequence[Chunk] | None
        if room.is_empty:
            chunks = reads.fetch(tp, offset, size, isolated=isolated, client_id=room.client_id)
        else:  # a response that has records does not wait: the client asks again
            chunks = reads.kept(tp, offset, size, isolated=isolated)
        # The leader may be away by now; a broker sends no -1 beside records.
        bounds = reads.bounds(tp, LEADER_AGE) or known
        data = FetchedData(asked.partition, is_held=chunks is None, side=Side.LIVE)
        if isolated:
            data.aborted = tuple(aborted_in(chunks or ()))
        start = bounds.start if joined.view is None else min(joined.view.start, bounds.start)
        data.high_watermark, data.log_start_offset = bounds.high_watermark, start
        data.last_stable_offset = bounds.last_stable_offset
        if chunks:
            first = batch_bytes(chunks[0].data)
            if size < first and not room.is_empty:
                return data  # the client asks again, with this partition first
            size = min(max(size, first), sum(len(chunk.data) for chunk in chunks))
            room.take(size)
            data.lease = reads.lend(chunks, size)
            room.left -= data.lease.size
            room.is_empty = room.is_empty and not data.lease.size
            data.is_held = not data.lease.size
        return data

    def _in_neither(
        self,
        joined: JoinedPartition,
        live: LiveBounds | None,
        offset: Offset,
        asked: Any,  # noqa: ANN401 - kio's
    ) -> FetchedData:
        """Answer for an offset below the live log start that is not archived.

        A sidecar may still have the segment: brokers delete records by their own retention, too.

        Raises:
            SidetierError: The archive could not be read, so it may have the offset.
        """
        if joined.failure is not None:
            raise joined.failure
        tp, view = joined.partition.tp, joined.view
        after = None
        # Below both starts, an offset is out of range as it is at a broker.
        if view is not None and offset >= view.end:
            held = self._held_for(joined.live.gap_patience, joined, asked)
            if held is not None:
                return held
            after = None if live is None else live.start
            joined.live.metrics.gaps.inc()
            if requests := self._events.count(("gap", tp.topic)):
                log.warning(
                    "endpoint.offset_on_neither_side",
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=offset,
                    archived=f"[{view.start}, {view.end})",
                    live_log_start=None if live is None else live.start,
                    requests=requests,
                )
        return FetchedData(asked.partition, ErrorCode.offset_out_of_range, after_lost=after)

    def _first_batch(
        self,
        partition: Partition,
        view: ArchiveView,
        offset: Offset,
        limit: Offset,
        *,
        may_wait: bool,
    ) -> "_FirstBatch | None":
        """Find the batch with which a response begins; None if no batch is below the limit.

        Raises:
            NotFetchedError: Without `may_wait`, its bytes are not there yet.
            _MissingOffsetError: `offset` is missing in the archive.
            DamagedArchiveError: The segment with `offset` has lost its last batches.
        """
        topic = partition.tp.topic
        while offset < limit:
            until = view.until(offset)
            for stored in _candidates(view, offset):
                located = self._positions.first_batch(topic, stored, offset, may_wait=may_wait)
                # From `until` on, the next segment has the records.
                if located is not None and located[1].base_offset < until:
                    position, header = located
                    if header.base_offset >= limit:
                        return None
                    following = view.after(stored.base_offset)
                    return _FirstBatch(stored, position, header, min(until, limit), following)
            offset = self._reached(partition, view, offset)
        return None

    def _reached(self, partition: Partition, view: ArchiveView, offset: Offset) -> Offset:
        """Return up to where no record is missing, for an offset without a batch.

        Raises: As `_first_batch`.
        """
        reached, until = offset, view.until(offset)
        lost: DamagedArchiveError | None = None
        for stored in _candidates(view, offset):
            try:
                end = partition.transactions.end_after(stored, offset)
            except DamagedArchiveError as error:
                lost = lost or error
            else:
                reached = max(reached, min(end, until))
        # Segments may overlap: another one may reach further.
        if reached > offset:
            return reached
        raise lost or _MissingOffsetError(offset)

    def _aborted(
        self,
        partition: Partition,
        view: ArchiveView,
        batch: "_FirstBatch",
        offset: Offset,
        lease: Lease,
    ) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions in the lent bytes; release them after an error."""
        try:
            return self._aborted_in(partition, view, batch, offset, batch.start + lease.size)
        except BaseException:
            lease.release()
            raise

    def _aborted_in(
        self,
        partition: Partition,
        view: ArchiveView,
        batch: "_FirstBatch",
        offset: Offset,
        end: int,
    ) -> Sequence[AbortedTransaction]:
        if partition.transactions.notes(batch.log).is_plain:
            return ()
        topic = partition.tp.topic
        # Segments of Pinterest's uploader have no transaction indexes: all segments below
        # would have to be read, which most topics do not need.
        if view.is_pinterest and not self._positions.has_transactions(
            topic, batch.log, batch.start, end
        ):
            return ()
        bound = self._positions.bound(topic, batch.log, end) or batch.until
        return partition.transactions.aborted(view, batch.log, offset, min(bound, batch.until))

    def _lease(self, partition: Partition, batch: "_FirstBatch", most: int, room: _Room) -> Lease:
        topic, stored = partition.tp.topic, batch.log
        size = min(most, room.left)
        if size < batch.header.length:
            if not room.is_empty:
                return NO_BYTES  # the client asks again, with this partition first
            size = batch.header.length
        end = min(batch.start + size, stored.size)
        # The next segment overlaps this one, and has the records from `until` on.
        if partition.transactions.notes(stored).end > batch.until:
            end = min(end, self._positions.end_below(topic, stored, batch.until))
        room.take(end - batch.start)
        # A response that holds memory already does not wait for more: two of them could wait for
        # each other. The client asks again, as after a full response.
        lease = self._bytes.lend(
            topic,
            stored,
            batch.start,
            end,
            batch.header.length,
            following=batch.following,
            may_wait=room.is_empty,
        )
        room.left -= lease.size
        if lease.size:
            room.is_empty = False
            if batch.following is not None and end > stored.size * 3 // 4:
                self._prepare(partition, batch.following, lease)
        return lease

    def _prepare(self, partition: Partition, log: StoredLog, lease: Lease) -> None:
        """Read index and notes of the next segment in another thread, before a Fetch needs them.

        Not for segments in files: their indexes and notes cost little.
        """
        if log.version in self._prepared or isinstance(lease.pieces[0], FilePiece):
            return
        if len(self._prepared) >= _MAX_PREPARED:
            self._prepared.clear()
        self._prepared.add(log.version)

        def read() -> None:
            with suppress(SidetierError):  # the Fetch reads it again, and reports the error
                self._positions.read_index(partition.tp.topic, log)
                partition.transactions.notes(log)

        self._bytes.run_in_background(read)

    def _renew(self, partition: Partition) -> None:
        try:
            partition.renew()
        except SidetierError as error:
            self._report(partition, "endpoint.refresh_failed", error)

    def _report(self, partition: Partition, event: str, error: SidetierError) -> None:
        tp = partition.tp
        if requests := self._events.count((event, tp.topic)):
            log.warning(
                event,
                topic=tp.topic,
                partition=tp.partition,
                error=str(error),
                requests=requests,
            )

    def _report_missing(self, partition: Partition, view: ArchiveView, offset: Offset) -> None:
        """Log once why an offset cannot be read; the client resets its position by its policy."""
        tp = partition.tp
        if (tp, offset) in self._reported:
            return
        if len(self._reported) >= _REPORTED_OFFSETS:
            self._reported.clear()
        self._reported[tp, offset] = None
        requests = self._events.count(("missing", tp.topic))
        if not requests:
            return
        detail = f"{view.where} has [{view.start}, {view.end})"
        if offset < view.end:
            following = view.after(offset)
            until = view.end if following is None else Offset(following.base_offset)
            gaps = partition.archive.gaps() if offset >= view.start else []
            missing = first_missing(OffsetRange(offset, max(until, offset)), gaps, view.start)
            detail = missing.detail(view.where)
        log.warning(
            "endpoint.offset_out_of_range",
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            detail=detail,
            requests=requests,
        )


def wait_of(request: Any) -> float:  # noqa: ANN401 - kio's
    """Return the seconds that a Fetch may wait for records."""
    asked: float = request.max_wait.total_seconds()
    return min(max(asked, 0.0), MAX_WAIT)


class _MissingOffsetError(Exception):
    """The archive lacks an offset below its end."""

    def __init__(self, offset: Offset) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class _FirstBatch:
    """The batch with which a response begins.

    Attributes:
        log: Its segment.
        start: Its byte position.
        header: Its header.
        until: Batches from this offset on are not sent from this segment.
        following: The next segment; None for the last one.
    """

    log: StoredLog
    start: int
    header: BatchHeader
    until: Offset
    following: StoredLog | None


def _view_for(partition: Partition, offset: Offset) -> ArchiveView | None:
    """Return the archive; as it is now, if the offset is above the end that is known."""
    view = partition.view()
    if offset > (0 if view is None else view.end):
        # Another endpoint behind the same address may have shown the client a newer end.
        view = partition.view(max_age=0.0)
    return view


def _candidates(view: ArchiveView, offset: Offset) -> Iterable[StoredLog]:
    """Yield the segments that may have the offset, by descending base offset. They may overlap."""
    holder = view.holder(offset)
    if holder is not None:
        yield holder
        yield from view.below(holder.base_offset)[:_MAX_LOWER_SEGMENTS]
