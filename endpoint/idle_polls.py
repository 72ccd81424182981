"""Repeats the empty answers of clients that wait at the end of their partitions, in one thread.

A client at the end of a partition sends the same Fetch again and again, and each answer is empty.
If each connection's own thread answered it, 500 waiting clients would wake a thread two thousand
times a second, and all these threads compete for Python's lock. So a connection's thread answers
the first such Fetch, and hands its socket over until something else happens.
"""

import heapq
import math
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from sidetier.endpoint.catalog import Catalog, State
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.users import Access
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.protocol import ApiKey

log = logger()

MAX_FRAME: Final = 4 << 10
"""Largest request, with its size, that is repeated."""
_MAX_BYTES: Final = 32 << 10
"""Most bytes of remembered requests and answers for each connection. librdkafka begins each Fetch
with another partition, so a client of 8 partitions has 8 requests in turn.
"""
_MAX_SECONDS: Final = 10.0
"""Time after which the connection's thread answers again: it checks the login and the topic."""
_SIZES = struct.Struct(">i4s")
_BEFORE_ID: Final = 8
"""Bytes of a request before its correlation id: its size, api key and version."""
_AFTER_ID: Final = 12


class IdleAnswer(NamedTuple):
    """The empty answer to one request, from the byte behind the correlation id on."""

    data: bytes
    max_wait: float


@dataclass(slots=True)
class IdleAnswers:
    """The empty answers to the requests of one connection, while nothing changes.

    Attributes:
        seen: The states of the archives that they show.
        access: What the client may read.
        until: Monotonic second from which on they are not repeated.
    """

    seen: Mapping[TopicPartition, State]
    access: Access
    until: float
    _known: dict[bytes, IdleAnswer] = field(default_factory=dict)
    _size: int = 0

    def are_valid(self, seen: Mapping[TopicPartition, State], access: Access, now: float) -> bool:
        """Return whether they are still right, and were not repeated for too long."""
        return now < self.until and seen == self.seen and access == self.access

    def add(self, frame: bytes, answer: bytes, max_wait: float) -> IdleAnswer:
        """Remember the answer to a request; both with their sizes and correlation ids."""
        added = len(frame) + len(answer)
        if self._size + added > _MAX_BYTES:
            self._known.clear()
            self._size = 0
        self._size += added
        known = self._known[_without_id(frame)] = IdleAnswer(answer[_BEFORE_ID:], max_wait)
        return known

    def answer_to(self, frame: bytes) -> IdleAnswer | None:
        """Return the answer to a request; None if it was not remembered."""
        return self._known.get(_without_id(frame))


def _without_id(frame: bytes) -> bytes:
    return frame[:_BEFORE_ID] + frame[_AFTER_ID:]


@dataclass(slots=True, eq=False)
class IdlePoll:
    """A connection that was handed over.

    Attributes:
        connection: The client's socket, without TLS and in blocking mode.
        answers: The answers that are repeated.
        answer: The answer to `frame`.
        frame: The request that is not answered yet; after `IdlePolls.wait`, all bytes that were
            received and not answered.
        began: When this request was received.
        deadline: When it must be answered; after `IdlePolls.wait`, infinite if `frame` is not
            known to be a whole request.
        unsent: After `IdlePolls.wait`: the rest of an answer that the client takes slowly.
    """

    connection: socket.socket
    answers: IdleAnswers
    answer: IdleAnswer
    frame: bytes
    began: float
    deadline: float
    unsent: bytes = b""
    done: threading.Lock = field(default_factory=threading.Lock)
    is_listened_to: bool = False
    is_end_scheduled: bool = False


class IdlePolls:
    """Waits for many connections. Thread-safe. `start` starts its thread.

    Args:
        catalog: Tells when an archive changes.
        metrics: Counts the answers.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, catalog: Catalog, metrics: EndpointMetrics, clock: Clock = monotonic
    ) -> None:
        self._catalog = catalog
        self._metrics = metrics
        self._clock = clock
        self._guard = threading.Lock()
        self._is_closed = True
        self._arrived: deque[IdlePoll] = deque()
        self._changed: deque[IdlePoll] = deque()
        self._polls: dict[int, IdlePoll] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Deadlines and descriptors. Not the polls: the deadline of a client that has left can be a
        minute away, and its poll has up to 32 KiB.
        """
        self._epoll = select.epoll()
        self._waker, self._wakes = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="endpoint-idle", daemon=True)

    def start(self) -> None:
        """Accept connections from now on."""
        self._wakes.settimeout(0)
        self._epoll.register(self._wakes, select.EPOLLIN)
        self._is_closed = False
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Return all connections to their threads, and stop. May be called twice."""
        with self._guard:
            self._is_closed = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    def new_answers(self, seen: Mapping[TopicPartition, State], access: Access) -> IdleAnswers:
        """Return an empty collection of answers."""
        return IdleAnswers(seen, access, self._clock() + _MAX_SECONDS)

    def wait(self, poll: IdlePoll) -> bool:
        """Answer the requests of a connection as long as nothing changes.

        The caller must not use the socket meanwhile, and must continue with `poll.frame` and
        `poll.unsent` afterwards.

        Returns:
            False if connections are not accepted any more; the poll is as it was.
        """
        seen = poll.answers.seen

        def report_change() -> None:
            self._changed.append(poll)
            self._wake()

        poll.done.acquire()
        self._catalog.watch(seen, report_change)
        try:
            with self._guard:
                if self._is_closed:
                    return False
                self._arrived.append(poll)
            if self._catalog.is_changed(seen):
                self._changed.append(poll)
            self._wake()
            poll.done.acquire()
        finally:
            self._catalog.unwatch(seen, report_change)
        return True

    def _wake(self) -> None:
        # A full buffer or a closed socket: the thread wakes, or has ended, anyway.
        with suppress(OSError):
            self._waker.send(b"\0", socket.MSG_DONTWAIT)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                left = self._deadlines[0][0] - self._clock() if self._deadlines else 60.0
                for descriptor, event in self._epoll.poll(max(left, 0.0)):
                    self._handle(descriptor, event)
                while self._arrived:
                    self._take(self._arrived.popleft())
                while self._changed:
                    poll = self._changed.popleft()
                    # It may be of a partition that is only waited for since the last round.
                    if self._catalog.is_changed(poll.answers.seen):
                        self._give_back(poll)
                self._answer_due()
        except Exception:
            log.exception("endpoint.idle_polls_failed")
            raise
        finally:
            self._end()

    def _end(self) -> None:
        with self._guard:
            self._is_closed = True
        for poll in [*self._polls.values(), *self._arrived]:
            self._give_back(poll)
        self._epoll.close()
        self._waker.close()
        self._wakes.close()

    def _handle(self, descriptor: int, event: int) -> None:
        poll = self._polls.get(descriptor)
        if poll is None:
            with suppress(BlockingIOError):
                while self._wakes.recv(1 << 10):
                    pass
        elif event & ~select.EPOLLIN:
            # The connection is lost. Without a request, its thread reads, and gets the error; with
            # one, it would only hand the connection over again, until the deadline.
            poll.frame = b""
            self._give_back(poll)
        elif poll.frame:
            # Another request before the answer: it is read after that.
            self._epoll.modify(descriptor, 0)
            poll.is_listened_to = False
        else:
            self._receive(poll)

    def _take(self, poll: IdlePoll) -> None:
        descriptor = poll.connection.fileno()
        self._polls[descriptor] = poll
        self._epoll.register(descriptor, select.EPOLLIN)
        poll.is_listened_to = True
        self._schedule(poll)

    def _schedule(self, poll: IdlePoll) -> None:
        heapq.heappush(self._deadlines, (poll.deadline, poll.connection.fileno()))

    def _receive(self, poll: IdlePoll) -> None:
        try:
            data = poll.connection.recv(MAX_FRAME, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        now = self._clock()
        answer = poll.answers.answer_to(data)
        poll.frame, poll.began = data, now
        if answer is None or now >= poll.answers.until:
            poll.deadline = math.inf
            self._give_back(poll)
            return
        poll.answer, poll.deadline = answer, now + answer.max_wait
        self._schedule(poll)

    def _answer_due(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, descriptor = heapq.heappop(self._deadlines)
            poll = self._polls.get(descriptor)
            # An entry of a request that was answered meanwhile is ignored.
            if poll is None or deadline != poll.deadline:
                continue
            if poll.frame:
                self._answer(poll, now)
            else:
                self._give_back(poll)

    def _answer(self, poll: IdlePoll, now: float) -> None:
        correlation_id = poll.frame[_BEFORE_ID:_AFTER_ID]
        size = len(poll.answer.data) + len(correlation_id)
        data = _SIZES.pack(size, correlation_id) + poll.answer.data
        try:
            sent = poll.connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._give_back(poll)
            return
        self._metrics.answered(ApiKey.FETCH, ErrorCode.none, now - poll.began, size, 0)
        poll.frame = b""
        if sent < len(data):
            poll.unsent = data[sent:]
            self._give_back(poll)
            return
        if now >= poll.answers.until:
            self._give_back(poll)
            return
        # The thread of a client that sends nothing more has its own deadline.
        poll.deadline = poll.answers.until
        if not poll.is_end_scheduled:  # once, and not for each of a thousand requests per second
            poll.is_end_scheduled = True
            self._schedule(poll)
        if not poll.is_listened_to:
            self._epoll.modify(poll.connection.fileno(), select.EPOLLIN)
            poll.is_listened_to = True

    def _give_back(self, poll: IdlePoll) -> None:
        descriptor = poll.connection.fileno()
        if self._polls.get(descriptor) is poll:
            del self._polls[descriptor]
            with suppress(OSError):  # it was not registered: that has ended the thread
                self._epoll.unregister(descriptor)
        elif poll in self._arrived:
            self._arrived.remove(poll)
        else:
            return  # it was given back before
        if not poll.frame:
            poll.deadline = math.inf
        poll.done.release()
