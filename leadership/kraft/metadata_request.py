"""Metadata requests to the sidecar's own broker: when and how, and the thread that waits."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaException

from sidetier.leadership.cluster import admin_client
from sidetier.leadership.worker import Worker
from sidetier.segments.backoff import backoff
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

    from sidetier.leadership.cluster import QuietAdminClient


_OURS: Mapping[str, str | int | float | bool] = {
    "client.id": "sidetier-leadership",
    "reconnect.backoff.max.ms": 1000,  # notice a restarted broker within a second
    "topic.metadata.refresh.interval.ms": -1,  # the schedule here decides when to request
    "socket.keepalive.enable": True,
}


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """Content of a response: the partitions that our broker leads, and Kafka's cluster id."""

    leads: frozenset[TopicPartition]
    cluster_id: str | None


class MetadataRequest(Protocol):
    """Requests the leaders of all partitions. For one caller at a time."""

    def ask(self) -> MetadataAnswer:
        """Send the request and wait for the response.

        Raises:
            LeadershipUnavailableError: No response arrived in time.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


class BrokerMetadataRequest:
    """`MetadataRequest` on confluent-kafka.

    The client begins with the configured broker. If that broker is down, librdkafka may send the
    request to another broker that it knows: its response also contains committed metadata, so it
    is equally valid. Topics without DESCRIBE permission for the principal are missing from the
    response and count as not led.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        broker_id: BrokerId,
        timeout: float,
        properties: Mapping[str, str],
    ) -> None:
        """Create the client; it does not connect yet.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._client: QuietAdminClient | None = admin_client(bootstrap_servers, properties, _OURS)
        self._broker_id = broker_id
        self._timeout = timeout

    def ask(self) -> MetadataAnswer:
        """Send the request and wait for the response."""
        if self._client is None:
            raise LeadershipUnavailableError("the Metadata request was closed")
        try:
            metadata = self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise LeadershipUnavailableError(
                f"no answer to a Metadata request: {self._client.reason(error)}"
            ) from error
        return MetadataAnswer(_led_by(self._broker_id, metadata), metadata.cluster_id)

    def close(self) -> None:
        """Close the connections."""
        self._client = None


def _led_by(broker: BrokerId, metadata: "ClusterMetadata") -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, number)
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader == broker
    )


_DEBOUNCE = 0.02
_FIRST_RETRY = 0.05
_SHARE_OF_TIME = 50
"""A request that took one second is followed by a pause of 50 s: at most 2 % of the time."""


@dataclass(slots=True)
class RequestSchedule:
    """Decides when to send the next request. At most one request is in flight.

    A request is due shortly after a hint. While the two sources disagree or the broker does not
    respond, requests follow with pauses that double from 50 ms; otherwise every `interval` seconds.
    """

    interval: float
    due: float = 0.0
    in_flight: bool = False
    _hinted: bool = False
    _misses: int = 0

    def hinted(self, now: float) -> None:
        """Schedule a request shortly after a hint; a burst of hints costs one request."""
        self._misses = 0
        # Remembered for a request that is under way: its answer may be older than the hint.
        self._hinted = True
        self.due = min(self.due, now + _DEBOUNCE)

    def may_ask(self, now: float) -> bool:
        """Return whether a request is due and none is in flight."""
        return not self.in_flight and now >= self.due

    def asked(self) -> None:
        """Record that a request is sent; hints from now on need another one."""
        self.in_flight = True
        self._hinted = False

    def answered(self, now: float, took: float, *, settled: bool) -> None:
        """Record a response after `took` seconds; `settled` is True if both sources agree."""
        self._misses = 0 if settled else self._misses + 1
        quiet = max(self.interval, took * _SHARE_OF_TIME)
        # A broker that is slow to answer is busy: do not send it one request after the other.
        self._finish(now, quiet if settled else max(self._pause(), took))

    def failed(self, now: float) -> None:
        """Record that no response arrived."""
        self._misses += 1
        self._finish(now, self._pause())

    def _finish(self, now: float, pause: float) -> None:
        self.in_flight = False
        self.due = now + (_DEBOUNCE if self._hinted else pause)

    def _pause(self) -> float:
        return backoff(self._misses, _FIRST_RETRY, self.interval)


_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The broker responded after `took` seconds."""

    answer: MetadataAnswer
    took: float


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No response arrived, or an unreadable one."""

    error: Exception


Outcome = Answered | Unanswered


class RequestThread:
    """Sends a Metadata request after each `ask` and passes each outcome to `on_outcome`.

    An error of a request is its outcome. `on_death` is called when the thread itself dies.
    """

    def __init__(
        self,
        request: MetadataRequest,
        on_outcome: Callable[[Outcome], None],
        on_death: Callable[[], None],
    ) -> None:
        self._request = request
        self._on_outcome = on_outcome
        self._on_death = on_death
        self._wanted = Event()
        self._stopping = False
        self._worker = Worker("leadership-metadata-request", self._run)

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the thread; None while it lives."""
        return self._worker.failure

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def ask(self) -> None:
        """Request one Metadata request; return at once."""
        self._wanted.set()

    def stop(self) -> None:
        """Send no more requests; wait at most one second for a response."""
        self._stopping = True
        self._wanted.set()
        self._worker.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            while self._wanted.wait() and not self._stopping:
                # Before the request, so that an `ask` during it leads to another one.
                self._wanted.clear()
                self._on_outcome(self._ask_once())
        except BaseException:
            self._on_death()
            raise
        finally:
            # On this thread: librdkafka's destruction may block until its own threads end.
            self._request.close()

    def _ask_once(self) -> Outcome:
        begun = time.monotonic()
        try:
            answer = self._request.ask()
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this request
            return Unanswered(error)
        return Answered(answer, time.monotonic() - begun)
