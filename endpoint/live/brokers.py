"""Connections to the brokers of the live cluster, each lent for one request at a time.

A broker that hangs must not hold more than its own connections: each broker has its own few. While
it is away, requests fail at once, and a thread finds out whether it is back.
"""

import select
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sidetier.endpoint.live.client import MAX_ANSWER, LiveClient
from sidetier.endpoint.live.topics import LiveTopics
from sidetier.segments.errors import BrokerError, BrokerUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId
from sidetier.storage.attempt import Clock, monotonic
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_session import FetchPosition, FetchSession
from sidetier.wire.protocol import api_error
from sidetier.wire.record_requests import FetchedPartition, decode_fetch, send_fetch
from sidetier.wire.settings import Address

_SLOWEST: Final = 1 << 20
"""Bytes per second of a broker that is not taken for one that hangs."""
_AT_ONCE: Final = 4
"""Requests to each broker at the same time, besides those of the followers."""
PATIENCE: Final = 5.0
"""Longest wait for one of these connections, in seconds."""
_AWAY_SECONDS: Final = 1.0
"""Time after a failure until the next attempt to reach a broker, if a request needs it."""
_RECENT_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 60.0


class _Idle(NamedTuple):
    """A connection that waits for the next request, who has opened it, and since when."""

    client: LiveClient
    connection: Connection
    since: float


@dataclass(slots=True)
class _Broker:
    """What is known of one broker.

    Attributes:
        idle: Connections that wait for the next request.
        lent: Connections that are lent or being opened.
        open: Connections that are lent and opened.
        failure: Why the last attempt to reach it failed; None if it did not.
        failed_at: Monotonic second of that attempt.
        is_tried: Whether a thread tries to reach it.
    """

    idle: list[_Idle] = field(default_factory=list)
    lent: int = 0
    open: set[Connection] = field(default_factory=set)
    failure: str | None = None
    failed_at: float = 0.0
    is_tried: bool = False


class BrokerBusyError(Exception):
    """All connections to a broker are in use by other requests, for as long as clients wait."""


class BrokerPool:
    """Connections to all brokers. Thread-safe.

    Args:
        client: Returns the client of the live cluster: another object after its settings change.
        address_of: Returns the address of a broker; None if the cluster does not show it.
        timeout: Seconds to connect, and until the answer to a request begins: clients ask again.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        client: Callable[[], LiveClient],
        address_of: Callable[[BrokerId], Address | None],
        timeout: float,
        clock: Clock = monotonic,
    ) -> None:
        self._client, self._address_of, self._clock = client, address_of, clock
        self.timeout = timeout
        self._changed = threading.Condition()
        self._brokers: dict[BrokerId, _Broker] = {}
        self._is_closed = False

    def close(self) -> None:
        """Close all connections; requests in flight fail soon."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            brokers = list(self._brokers.values())
        for broker in brokers:
            self._close_idle(broker)
            with self._changed:
                lent = list(broker.open)
            for connection in lent:
                connection.interrupt()

    def away(self, broker: BrokerId) -> str | None:
        """Return why requests to a broker fail at once now; None if they do not."""
        with self._changed:
            state = self._brokers.get(broker)
            return None if state is None else self._refusal(broker, state)

    def unreachable(self) -> dict[BrokerId, str]:
        """Return the brokers that could not be reached within the last minute, and why.

        Without an attempt in that time, nobody needs the broker.
        """
        now = self._clock()
        with self._changed:
            return {
                broker: state.failure
                for broker, state in self._brokers.items()
                if state.failure is not None and now - state.failed_at < _RECENT_SECONDS
            }

    @contextmanager
    def lend(self, broker: BrokerId, patience: float = PATIENCE) -> Iterator[Connection]:
        """Lend a connection for one request and its answer. Wait `patience` seconds for it, if all
        are in use.

        Raises:
            BrokerError: There is none: the broker is away, or refuses the login.
            BrokerBusyError: All of them are in use.
        """
        client = self._client()
        state = self._reserve(broker, patience)
        connection, is_new = None, False
        try:
            connection = self._idle(state, client, self._known_address(broker))
            if connection is None:
                is_new = True
                connection = self.open(broker, client)
            with self._changed:
                state.open.add(connection)
                if self._is_closed:
                    connection.interrupt()
            yield connection
        except BrokerError as error:
            if connection is None or connection.is_closed:
                # A connection that was idle may have been closed by the broker meanwhile.
                is_away = is_new or _is_timeout(error)
                self._note_failure(state, str(error) if is_away else None)
            raise
        finally:
            self._give_back(state, client, connection)

    def open(self, broker: BrokerId, client: LiveClient | None = None) -> Connection:
        """Open a connection that belongs to the caller.

        Raises:
            BrokerError: The broker cannot be reached, or refuses the login.
        """
        client = client or self._client()
        settings = replace(
            client.settings, request_timeout=self.timeout, connect_timeout=self.timeout
        )
        return Connection(
            self._known_address(broker), settings, context=client.context, clock=self._clock
        )

    def _known_address(self, broker: BrokerId) -> Address:
        address = self._address_of(broker)
        if address is None:
            raise BrokerUnavailableError(f"the cluster does not show broker {broker} now")
        return address

    def _reserve(self, broker: BrokerId, patience: float) -> _Broker:
        """Wait for one of the connections of a broker, and reserve it."""
        deadline = self._clock() + patience
        with self._changed:
            state = self._brokers.setdefault(broker, _Broker())
            while True:
                refusal = "the endpoint stops" if self._is_closed else self._refusal(broker, state)
                if refusal is not None:
                    raise BrokerUnavailableError(refusal)
                if state.lent < _AT_ONCE:
                    state.lent += 1
                    return state
                left = deadline - self._clock()
                if left <= 0:
                    raise BrokerBusyError(f"all connections to broker {broker} are in use")
                self._changed.wait(left)

    def _refusal(self, broker: BrokerId, state: _Broker) -> str | None:
        """Return why requests fail; begin to try again if the last attempt is some time ago."""
        if state.failure is None:
            return None
        if not state.is_tried and self._clock() - state.failed_at >= _AWAY_SECONDS:
            state.is_tried = True
            trial = threading.Thread(
                target=self._try, args=(broker, state), name="endpoint-live-trial", daemon=True
            )
            try:
                trial.start()
            except RuntimeError:  # the system allows no more threads now
                state.is_tried = False
        return state.failure

    def _try(self, broker: BrokerId, state: _Broker) -> None:
        failure, client = None, self._client()
        try:
            connection = self.open(broker, client)
        except Exception as error:  # noqa: BLE001 - told to all who need the broker
            failure = str(error)
        with self._changed:
            state.is_tried, state.failure, state.failed_at = False, failure, self._clock()
            if failure is None and not self._is_closed:
                state.idle.append(_Idle(client, connection, self._clock()))
            elif failure is None:
                connection.close()

    def prune(self, shown: Collection[BrokerId]) -> None:
        """Forget the brokers that the cluster does not show any more."""
        with self._changed:
            gone = [broker for broker in self._brokers if broker not in shown]
            idle = [
                each
                for broker in gone
                if not self._brokers[broker].lent
                for each in self._brokers.pop(broker).idle
            ]
        for each in idle:
            each.connection.close()

    def _idle(self, state: _Broker, client: LiveClient, address: Address) -> Connection | None:
        """Return an open connection; close those of former settings or addresses.

        Old ones, too: a firewall between may have forgotten them without a word.
        """
        while True:
            with self._changed:
                if not state.idle:
                    return None
                idle = state.idle.pop()
            is_usual = idle.client is client and idle.connection.address == address
            if is_usual and self._clock() - idle.since < _IDLE_SECONDS:
                return idle.connection
            idle.connection.close()

    def _note_failure(self, state: _Broker, failure: str | None) -> None:
        self._close_idle(state)
        if failure is not None:
            with self._changed:
                state.failure, state.failed_at = failure, self._clock()
                self._changed.notify_all()  # all that wait for one of its connections

    def _give_back(self, state: _Broker, client: LiveClient, connection: Connection | None) -> None:
        with self._changed:
            state.lent -= 1
            if connection is not None:
                state.open.discard(connection)
                if connection.in_flight:
                    connection.close()  # its next answer would be that of another request
                elif not connection.is_closed:
                    state.failure = None
                    state.idle.append(_Idle(client, connection, self._clock()))
            self._changed.notify_all()
            is_closed = self._is_closed
        if is_closed:
            self._close_idle(state)

    def _close_idle(self, state: _Broker) -> None:
        with self._changed:
            idle, state.idle = state.idle, []
        for each in idle:
            each.connection.close()


def fetch_from(  # noqa: PLR0913 - the fields of Kafka's request
    leader: Connection,
    positions: Sequence[FetchPosition],
    topics: LiveTopics,
    *,
    isolated: bool,
    timeout: float,
    max_wait: float = 0.0,
    max_bytes: int = MAX_ANSWER // 2,
    session: FetchSession | None = None,
) -> tuple[list[FetchedPartition], float]:
    """Fetch from a leader, once.

    The answer must begin within `timeout` seconds after `max_wait`, and then arrive at 1 MiB/s.

    Returns:
        The answers, and the seconds for which the leader does not read from this connection
        (KIP-219). In a session, partitions without anything new have no answer.

    Raises:
        BrokerError: It refuses the request, or cannot be reached. A session must be restarted.
    """
    ids = topics.ids({position.partition.topic for position in positions})
    while True:
        send_fetch(
            leader,
            positions,
            topic_ids=ids,
            isolation=level_of(isolated=isolated),
            max_wait=max_wait,
            max_bytes=max_bytes,
            timeout=timeout + max_wait + max_bytes / _SLOWEST,
            session=session,
        )
        _wait_for_answer(leader, timeout + max_wait)
        version, body = leader.receive_body()
        response = decode_fetch(version, body, ids, str(leader))
        code = response.error_code
        if session is None or not session.is_refused(code, response.session_id):
            break
    if code:
        raise api_error(f"{leader}, Fetch v{version}", code)
    return response.partitions, max(response.throttle_ms, 0) / 1000


def _wait_for_answer(leader: Connection, seconds: float) -> None:
    """Wait until the answer begins.

    Raises:
        BrokerUnavailableError: It does not. The connection is closed.
    """
    waiting = select.poll()
    waiting.register(leader.fileno(), select.POLLIN)
    if not waiting.poll(seconds * 1000):
        leader.close()
        raise BrokerUnavailableError(f"{leader} does not answer Fetch") from TimeoutError()


def level_of(*, isolated: bool) -> IsolationLevel:
    """Return the isolation level of a reader."""
    return IsolationLevel.READ_COMMITTED if isolated else IsolationLevel.READ_UNCOMMITTED


def _is_timeout(error: BrokerError) -> bool:
    return isinstance(error.__cause__, TimeoutError)
