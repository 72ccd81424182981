"""Connections to the brokers of the live cluster, each lent for one request at a time.

A broker that hangs must not hold more than its own connections: each broker has its own few, and
while it is away, one request after the other finds out whether it is back, and all others fail at
once.
"""

import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from sidetier.endpoint.live.client import MAX_ANSWER, LiveClient
from sidetier.endpoint.live.topics import LiveTopics
from sidetier.segments.errors import BrokerError, BrokerUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId
from sidetier.storage.attempt import Clock, monotonic
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_layout import THROTTLE_TIME
from sidetier.wire.record_requests import (
    FetchedPartition,
    FetchPosition,
    decode_fetched,
    send_fetch,
)
from sidetier.wire.settings import Address

_SLOWEST: Final = 1 << 20
"""Bytes per second of a broker that is not taken for one that hangs."""
_AT_ONCE: Final = 4
"""Requests to each broker at the same time, besides those of the followers."""
_PATIENCE: Final = 5.0
"""Longest wait for one of these connections, in seconds."""
_AWAY_SECONDS: Final = 1.0
"""Time after a failure until the next request finds out whether a broker is back."""
_RECENT_SECONDS: Final = 60.0
_TRIAL_SECONDS: Final = 15.0
"""Time for which the others do not wait for this request; its end ends it earlier."""


@dataclass(slots=True)
class _Broker:
    """What is known of one broker.

    Attributes:
        idle: Connections that wait for the next request, with the client that has opened them.
        lent: Connections that are lent or being opened.
        open: Connections that are lent and opened.
        failure: Why the last attempt to reach it failed; None if it did not.
        retry_at: Monotonic second from which on one request may try again.
    """

    idle: list[tuple[LiveClient, Connection]] = field(default_factory=list)
    lent: int = 0
    open: set[Connection] = field(default_factory=set)
    failure: str | None = None
    retry_at: float = 0.0


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
            _close(broker)
            for connection in list(broker.open):
                connection.interrupt()

    def away(self, broker: BrokerId) -> str | None:
        """Return why requests to a broker fail at once now; None if they do not."""
        with self._changed:
            state = self._brokers.get(broker)
            return None if state is None else self._refusal(state)

    def count_away(self) -> int:
        """Return the number of brokers that could not be reached within the last minute.

        Without an attempt in that time, nobody needs the broker.
        """
        now = self._clock()
        with self._changed:
            return sum(
                state.failure is not None and now - state.retry_at < _RECENT_SECONDS
                for state in self._brokers.values()
            )

    @contextmanager
    def lend(self, broker: BrokerId) -> Iterator[Connection]:
        """Lend a connection for one request and its answer.

        Raises:
            BrokerError: There is none: the broker is away, or refuses the login.
        """
        client = self._client()
        state = self._reserve(broker)
        connection, is_new = None, False
        try:
            connection = self._idle(state, client, self._known_address(broker))
            if connection is None:
                is_new = True
                connection = self.open(broker, client)
            state.open.add(connection)
            yield connection
        except BrokerError as error:
            if connection is None or connection.is_closed:
                # A connection that was idle may have been closed by the broker meanwhile.
                is_away = connection is None or is_new or _is_timeout(error)
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

    def _reserve(self, broker: BrokerId) -> _Broker:
        """Wait for one of the connections of a broker, and reserve it."""
        deadline = self._clock() + _PATIENCE
        with self._changed:
            state = self._brokers.setdefault(broker, _Broker())
            while state.lent >= _AT_ONCE and not self._is_closed and not self._refusal(state):
                left = deadline - self._clock()
                if left <= 0:
                    raise BrokerUnavailableError(
                        f"all connections to broker {broker} are in use for {_PATIENCE:.0f} s"
                    )
                self._changed.wait(left)
            refusal = "the endpoint stops" if self._is_closed else self._refusal(state)
            if refusal is not None:
                raise BrokerUnavailableError(refusal)
            if state.failure is not None:
                state.retry_at = self._clock() + _TRIAL_SECONDS
            state.lent += 1
            return state

    def _refusal(self, state: _Broker) -> str | None:
        return state.failure if self._clock() < state.retry_at else None

    def _idle(self, state: _Broker, client: LiveClient, address: Address) -> Connection | None:
        """Return an open connection; close those of former settings or addresses."""
        while True:
            with self._changed:
                if not state.idle:
                    return None
                opened_by, connection = state.idle.pop()
            if opened_by is client and connection.address == address:
                return connection
            connection.close()

    def _note_failure(self, state: _Broker, failure: str | None) -> None:
        _close(state)
        if failure is not None:
            with self._changed:
                state.failure, state.retry_at = failure, self._clock() + _AWAY_SECONDS

    def _give_back(self, state: _Broker, client: LiveClient, connection: Connection | None) -> None:
        with self._changed:
            state.lent -= 1
            if connection is not None:
                state.open.discard(connection)
                if connection.in_flight:
                    connection.close()  # its next answer would be that of another request
                elif not connection.is_closed:
                    state.failure, state.retry_at = None, 0.0
                    state.idle.append((client, connection))
            self._changed.notify_all()
            is_closed = self._is_closed
        if is_closed:
            _close(state)


def fetch_from(  # noqa: PLR0913 - the fields of Kafka's request
    leader: Connection,
    positions: Sequence[FetchPosition],
    topics: LiveTopics,
    *,
    isolated: bool,
    timeout: float,
    max_wait: float = 0.0,
    max_bytes: int = MAX_ANSWER // 2,
) -> tuple[list[FetchedPartition], float]:
    """Fetch from a leader, once.

    The answer must begin within `timeout` seconds after `max_wait`, and then arrive at 1 MiB/s.

    Returns:
        The answers, and the seconds for which the leader does not read from this connection
        (KIP-219).

    Raises:
        BrokerError: It refuses the request, or cannot be reached.
    """
    ids = topics.ids({position.partition.topic for position in positions})
    send_fetch(
        leader,
        positions,
        topic_ids=ids,
        isolation=level_of(isolated=isolated),
        max_wait=max_wait,
        max_bytes=max_bytes,
        timeout=timeout + max_wait + max_bytes / _SLOWEST,
    )
    _wait_for_answer(leader, timeout + max_wait)
    version, body = leader.receive_body()
    answers = decode_fetched(version, body, ids, str(leader))
    (throttle_ms,) = THROTTLE_TIME.unpack_from(body)
    return answers, max(throttle_ms, 0) / 1000


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


def _close(state: _Broker) -> None:
    while state.idle:
        state.idle.pop()[1].close()
