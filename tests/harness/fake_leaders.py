"""A live cluster of fake brokers, whose leaders, answers and failures a test sets."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.endpoint.live.client import LiveClient
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.fetch_layout import FIRST_BY_ID
from sidetier.wire.fetch_session import FULL, LONE, NO_SESSION
from sidetier.wire.protocol import ApiKey, build_response, encode
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import HANG_UP, FakeBroker, Received, fake_broker
from tests.harness.record_batches import TransactionalLog

TOPIC_ID = UUID(int=7)
NONE = ErrorCode.none
_FIRST_WITH_HINT = 16
"""Version of Fetch whose errors name the leader (KIP-951). Brokers before 3.7 do not have it."""


def tp(number: int) -> TopicPartition:
    """A partition of topic t."""
    return TopicPartition("t", number)


@dataclass(slots=True)
class Session:
    """A fetch session of a broker: its id, its partitions, what it has told of them, and its next
    epoch.
    """

    id: int
    asked: dict[int, Any]
    told: dict[int, object] = field(default_factory=dict)
    epoch: int = 1

    def news(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that have something new."""
        found = []
        for row in rows:
            number, state = row["partition_index"], (row["high_watermark"], row["log_start_offset"])
            if row["records"] or row["error_code"] is not NONE or self.told.get(number) != state:
                found.append(row)
                self.told[number] = state
        return found


@dataclass(slots=True)
class Leaders:
    """Brokers 1 to n, and the logs of topic t's partitions, which they lead as a test sets it: a
    live cluster of fake brokers.

    Attributes:
        brokers: The brokers.
        led_by: The leader of each partition, by its number; the brokers know it at once.
        shown: The leaders that Metadata shows; as `led_by` without an entry.
        shown_by: The brokers that show them; None for all.
        logs: The logs, by partition number.
        written: Their batches with the last offset of each.
        throttled: Throttle time, in seconds, of the next Fetch of a client id.
        hanging: Brokers that do not answer until their event is set.
        closing: Brokers that close the connection of the next request.
        unknown: Topics that do not exist, with the errors of Metadata.
        starts: The log starts, by partition number; 0 without an entry.
        cuts_off: Whether the last batch is cut off where a partition's answer would be too large.
        refused: Errors of Fetch, by partition number.
        sessions: The fetch sessions of all brokers by id; None for brokers without room for any.
        versions: The versions of requests that the brokers know, if not the usual ones.
        topic_id: The id of topic t; None from brokers that give none.
        times: The offset that a search for a time finds; -1 for none. An error code refuses it.
    """

    brokers: Sequence[FakeBroker]
    led_by: dict[int, int]
    shown: dict[int, int] = field(default_factory=dict)
    shown_by: set[int] | None = None
    epochs: dict[int, int] = field(default_factory=dict)
    logs: dict[int, TransactionalLog] = field(default_factory=dict)
    written: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)
    hanging: dict[int, threading.Event] = field(default_factory=dict)
    closing: set[int] = field(default_factory=set)
    unknown: dict[str, ErrorCode] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    cuts_off: bool = False
    refused: dict[int, ErrorCode] = field(default_factory=dict)
    sessions: dict[int, Session] | None = None
    versions: Mapping[ApiKey, tuple[int, int]] = field(default_factory=dict)
    topic_id: UUID | None = TOPIC_ID
    times: int | ErrorCode = -1

    def __post_init__(self) -> None:
        for number in self.led_by:
            self.logs[number] = TransactionalLog()
        for at, broker in enumerate(self.brokers, 1):
            broker.versions |= {ApiKey.FETCH: (4, 16), **self.versions}
            broker.answers = {
                ApiKey.METADATA: self._answered(at, self._metadata),
                ApiKey.LIST_OFFSETS: self._answered(at, self._listed),
                ApiKey.FETCH: self._answered(at, self._fetched),
                ApiKey.OFFSET_FOR_LEADER_EPOCH: self._answered(at, self._epoch_ends),
            }

    def write(self, number: int, records: int = 1) -> None:
        """Append a batch to a log."""
        batch = self.logs[number].write(9, records, transactional=False)
        self.written.setdefault(number, []).append((batch.last, batch.encoded()))

    def client(self) -> LiveClient:
        """A client of all these brokers."""
        bootstrap = ",".join(str(broker.address) for broker in self.brokers)
        return LiveClient.of(ClientSettings.from_properties({"bootstrap.servers": bootstrap}))

    def asked(self, api: ApiKey) -> list[Received]:
        """All requests of a kind."""
        return [each for broker in self.brokers for each in broker.received if each.api is api]

    def _answered(
        self, at: int, answer: Callable[[int, Received], bytes]
    ) -> Callable[[Received], bytes]:
        def run(request: Received) -> bytes:
            if at in self.hanging:
                self.hanging[at].wait(10)
            if at in self.closing:
                self.closing.discard(at)
                return HANG_UP
            return answer(at, request)

        return run

    def _metadata(self, at: int, request: Received) -> bytes:
        shown = self.shown if self.shown_by is None or at in self.shown_by else {}
        rows = [
            {
                "error_code": NONE,
                "partition_index": number,
                "leader_id": shown.get(number, leader),
                "leader_epoch": 5 if number in shown else self.epochs.get(number, 5),
                "replica_nodes": (1,),
                "isr_nodes": (1,),
                "offline_replicas": (),
            }
            for number, leader in self.led_by.items()
        ]
        topic = {
            "error_code": NONE,
            "name": "t",
            "topic_id": self.topic_id,
            "is_internal": False,
            "partitions": rows,
            "topic_authorized_operations": 0,
        }
        nodes = [
            {"node_id": at, "host": each.address.host, "port": each.address.port, "rack": None}
            for at, each in enumerate(self.brokers, 1)
        ]
        response = build_response(
            request.api,
            request.version,
            throttle_time=0,
            cluster_id="cluster",
            controller_id=1,
            error_code=NONE,
            brokers=nodes,
            topics=[topic]
            if request.entity.topics is None
            else [
                {
                    "error_code": self.unknown[named.name],
                    "name": named.name,
                    "topic_id": None,
                    "is_internal": False,
                    "partitions": [],
                    "topic_authorized_operations": 0,
                }
                for named in request.entity.topics
            ],
        )
        return encode(response)

    def _listed(self, at: int, request: Received) -> bytes:
        rows = []
        for asked in request.entity.topics[0].partitions:
            number = asked.partition_index
            is_leader = self.led_by[number] == at
            offset: int | ErrorCode = self.logs[number].next_offset
            if asked.timestamp == -2:
                offset = self.starts.get(number, 0)
            elif asked.timestamp != -1:
                offset = self.times
            error = NONE if is_leader else ErrorCode.not_leader_or_follower
            if isinstance(offset, ErrorCode):
                error, offset = offset, -1
            rows.append(
                {
                    "partition_index": number,
                    "error_code": error,
                    "timestamp": -1 if asked.timestamp < 0 else asked.timestamp,
                    "offset": offset,
                    "leader_epoch": 5,
                }
            )
        return request.response(throttle_time=0, topics=[{"name": "t", "partitions": rows}])

    def _epoch_ends(self, at: int, request: Received) -> bytes:
        rows = [
            {
                "error_code": NONE
                if self.led_by[asked.partition] == at
                else ErrorCode.not_leader_or_follower,
                "partition": asked.partition,
                "leader_epoch": 5,
                "end_offset": self.logs[asked.partition].next_offset,
            }
            for asked in request.entity.topics[0].partitions
        ]
        return request.response(throttle_time=0, topics=[{"topic": "t", "partitions": rows}])

    def _fetched(self, at: int, request: Received) -> bytes:
        session, error = self._session(at, request.entity)
        name = {"topic_id": self.topic_id} if request.version >= FIRST_BY_ID else {"topic": "t"}
        has_hint = request.version >= _FIRST_WITH_HINT

        def answered() -> list[dict[str, Any]]:
            return [self._row(at, each, has_hint=has_hint) for each in session.asked.values()]

        rows = answered()
        if not any(row["records"] for row in rows):
            threading.Event().wait(min(request.entity.max_wait.total_seconds(), 0.05))
            rows = answered()
        rows = session.news(rows)
        throttle = self.throttled.pop(request.client_id, 0.0)
        is_empty = throttle or error is not NONE or not rows
        return request.response(
            throttle_time=round(throttle * 1000),
            error_code=error,
            session_id=session.id,
            responses=[] if is_empty else [{**name, "partitions": rows}],
        )

    def _session(self, at: int, entity: Any) -> tuple[Session, ErrorCode]:  # noqa: ANN401 - kio's
        """Return the session of a Fetch, which may be for this one alone, and its error."""
        named = {each.partition: each for topic in entity.topics for each in topic.partitions}
        epoch = getattr(entity, "session_epoch", LONE)  # before version 7
        if epoch == LONE or self.sessions is None:
            return Session(NO_SESSION, named), NONE
        if epoch == FULL:
            self.sessions.pop(entity.session_id, None)
            session = Session(100 * at + len(self.sessions) + 1, named)
            self.sessions[session.id] = session
            return session, NONE
        known = self.sessions.get(entity.session_id)
        if known is None:
            return Session(NO_SESSION, {}), ErrorCode.fetch_session_id_not_found
        if epoch != known.epoch:
            return Session(known.id, {}), ErrorCode.invalid_fetch_session_epoch
        known.epoch += 1
        known.asked |= named
        for topic in entity.forgotten_topics_data:
            for number in topic.partitions:
                del known.asked[number]
                known.told.pop(number, None)
        return known, NONE

    def _row(self, at: int, asked: Any, *, has_hint: bool) -> dict[str, Any]:  # noqa: ANN401 - kio's
        number, offset = asked.partition, asked.fetch_offset
        log, leader = self.logs[number], self.led_by[number]
        start = self.starts.get(number, 0)
        error, hint = NONE, {}
        if leader != at:
            error = ErrorCode.not_leader_or_follower
            if has_hint:
                epoch = self.epochs.get(number, 5)
                hint = {"current_leader": {"leader_id": leader, "leader_epoch": epoch}}
        elif number in self.refused:
            error = self.refused[number]
        elif not start <= offset <= log.next_offset:
            error = ErrorCode.offset_out_of_range
        written = [data for last, data in self.written.get(number, ()) if last >= offset]
        most = max(asked.partition_max_bytes, *map(len, written[:1])) if self.cuts_off else None
        data = b"".join(written)[:most]
        is_refused = error is not NONE
        return {
            "partition_index": number,
            "error_code": error,
            "high_watermark": -1 if is_refused else log.next_offset,
            "last_stable_offset": -1 if is_refused else log.next_offset,
            "log_start_offset": -1 if is_refused else start,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"" if is_refused else data,
            **hint,
        }


@contextmanager
def leaders(
    count: int, led_by: dict[int, int], versions: Mapping[ApiKey, tuple[int, int]] | None = None
) -> Iterator[Leaders]:
    """Yield this number of brokers, which lead the partitions of topic t."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(fake_broker()) for _ in range(count)]
        yield Leaders(brokers, led_by, versions=versions or {})
