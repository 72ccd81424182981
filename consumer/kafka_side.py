"""Kafka's side: the inner `confluent_kafka.Consumer`, and the control of its positions.

Every assigned partition is also assigned to the inner consumer. So its offsets can be stored,
librdkafka commits them, and the group sees an ordinary member. Partitions that are read from the
store are paused there at offset 0, which librdkafka need not look up at the broker. With a logical
offset such as `OFFSET_END`, a `seek` during the lookup would be undone by its late answer, and the
records in between would be skipped.

A partition whose fetch was refused, or that is just being started, has no fetch state, and `seek`
raises `_STATE`. It must be assigned again, which librdkafka allows for single partitions except in
an eager group.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka.admin import AdminClient

from sidetier.consumer.errors import is_transient
from sidetier.consumer.sources import UNKNOWN, Identity, Logical
from sidetier.leadership.cluster import cluster_id_of, topic_id_of
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

# The application's callbacks. Their exceptions are raised after Kafka's client has returned.
#
# Measured with confluent-kafka 2.16: if a callback raises inside `consume`, the client drops the
# messages that it was about to return, and a later `close` never returns.

Callback = Callable[..., None]

_GUARDED: Final = ("error_cb", "on_commit", "stats_cb", "throttle_cb")
"""Without `oauth_cb`, whose exception is its answer to librdkafka."""


class Callbacks:
    """Keeps exceptions of callbacks. Used by one thread at a time, the polling one."""

    def __init__(self) -> None:
        self._raised: list[Exception] = []

    def guarded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration for Kafka's client, with callbacks that never raise."""
        own = {name: config[name] for name in _GUARDED if callable(config.get(name))}
        return {**config, **{name: self.guard(callback) for name, callback in own.items()}}

    def guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        """Wrap a callback so that its exception is kept for `check`."""

        def call(*arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:  # noqa: BLE001 -- raised by `check`
                self._raised.append(error)

        return call

    def check(self) -> None:
        """Raise the first exception since the last check, and drop the others."""
        if self._raised:
            first = self._raised[0]
            self._raised.clear()
            raise first


class Rebalancing:
    """Rebalance callbacks for librdkafka, which call the application's callbacks.

    As in confluent-kafka, the application may change the assignment in its callback with `assign`,
    `incremental_assign` and their counterparts. If it does not, or its callback fails, this class
    changes the assignment.

    Args:
        consumer: passed to the application's callbacks.
        assign: default action for new partitions.
        revoke: default action for revoked partitions.
        callbacks: the application's on_assign, on_revoke and on_lost.
    """

    def __init__(
        self,
        consumer: object,
        assign: Callable[[list[confluent_kafka.TopicPartition]], None],
        revoke: Callable[[list[confluent_kafka.TopicPartition]], None],
        callbacks: tuple[Callback | None, Callback | None, Callback | None],
    ) -> None:
        self._consumer = consumer
        self._assign, self._revoke = assign, revoke
        self._on_assign, self._on_revoke, self._on_lost = callbacks
        self._answered = False

    def answered(self) -> None:
        """Note that the application has changed the assignment."""
        self._answered = True

    def on_assign(self, _: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        """Handle partitions that the group assigns."""
        self._ask(self._on_assign, self._assign, partitions)

    def on_revoke(self, _: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        """Handle partitions that the group revokes."""
        self._ask(self._on_revoke, self._revoke, partitions)

    def on_lost(self, _: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        """Handle partitions that another member may own already; commits for them are refused."""
        self._ask(self._on_lost or self._on_revoke, self._revoke, partitions)

    def _ask(
        self,
        callback: Callback | None,
        otherwise: Callable[[list[confluent_kafka.TopicPartition]], None],
        partitions: list[confluent_kafka.TopicPartition],
    ) -> None:
        self._answered = False
        try:
            if callback is not None:
                callback(self._consumer, partitions)
        finally:
            if not self._answered:
                otherwise(partitions)


PARKED: Final = 0
"""Offset of partitions that are not read from Kafka; never `OFFSET_END`, see the module's
docstring.
"""
LOOKUP_SECONDS: Final = 1.0
"""Timeout of one lookup at Kafka, which is then repeated."""


TopicIdAnswer = str | KafkaError | None
"""A topic's id; None without one (no such topic, or brokers before 2.8); or a transient error."""
_NOT_OF_ADMIN: Final = frozenset({*_GUARDED, "logger", "statistics.interval.ms"})


class KafkaClients:
    """Opens Kafka's clients with the application's settings: consumers, and one admin client, which
    asks brokers for topic ids. Kafka's consumer does not return them, and may not be asked in its
    own callbacks: measured with confluent-kafka 2.16, a `cluster_id()` in `on_assign` ends the
    process at the next `stats_cb` of the same call (`CallState_get: Assertion failed`).

    Args:
        config: librdkafka's settings.
        callbacks: guards the callbacks in `config`.
    """

    def __init__(self, config: Mapping[str, Any], callbacks: Callbacks) -> None:
        self._config = callbacks.guarded(config)
        self._admin: AdminClient | None = None
        self._cluster_id: str | None = None

    def open_consumer(self) -> confluent_kafka.Consumer:
        """Return a new consumer. It knows nothing of any topic yet."""
        return confluent_kafka.Consumer(self._config)

    def topic_ids(self, topics: Collection[str]) -> dict[str, TopicIdAnswer]:
        """Return the id of each topic; waits up to `LOOKUP_SECONDS`."""
        asked = TopicCollection(list(topics))
        futures = self._opened().describe_topics(asked, request_timeout=LOOKUP_SECONDS)
        return {topic: _topic_id(future) for topic, future in futures.items()}

    def cluster_id(self) -> str | None:
        """Return the cluster's id, which is asked for once; None without an answer."""
        if self._cluster_id is None:
            with contextlib.suppress(KafkaException):
                self._cluster_id = cluster_id_of(self._opened(), LOOKUP_SECONDS)
        return self._cluster_id

    def _opened(self) -> AdminClient:
        if self._admin is None:
            own = {key: value for key, value in self._config.items() if key not in _NOT_OF_ADMIN}
            # The consumer itself logs that no broker answers, and calls `error_cb`.
            self._admin = AdminClient({**own, "log_level": 0})
        return self._admin

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials in the clients that are opened from now on."""
        self._config |= {"sasl.username": username, "sasl.password": password}
        self._admin = None

    def close(self) -> None:
        """Close the admin client. May be called twice."""
        self._admin = None


def _topic_id(future: Any) -> TopicIdAnswer:  # noqa: ANN401 -- confluent-kafka has no type for it
    try:
        return topic_id_of(future.result(2 * LOOKUP_SECONDS).topic_id)
    except KafkaException as error:
        # Not transient: the topic is deleted, or these brokers do not show it.
        return error.args[0] if is_transient(error.args[0]) else None
    except TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Start:
    """Position of a partition in Kafka's consumer.

    Attributes:
        offset: an offset or a logical offset.
        flowing: whether Kafka's consumer fetches the partition.
    """

    tp: TopicPartition
    offset: int
    flowing: bool


@dataclass(frozen=True, slots=True)
class AtKafka:
    """Answer of Kafka about a partition.

    Attributes:
        committed: the group's committed offset.
        span: offsets from the log's start to its end (exclusive).
        error: set if Kafka did not answer.
    """

    committed: int | None = None
    span: OffsetRange | None = None
    error: KafkaError | None = None


class KafkaSide:
    """The inner consumer. With `KAFKA_ONLY` all partitions are always read from it.

    Args:
        clients: opens Kafka's clients, and asks for topic ids.
        cooperative: groups assign partitions incrementally.
        callbacks: the guarded callbacks in the clients' configuration.
        clock: monotonic clock, in seconds.

    Attributes:
        consumer: Kafka's client.
        callbacks: keeps exceptions of the application's callbacks until a call of `consumer`
            returns.
        seen: the last answer about each topic: one with an id, if there was any.
        first: the first answer with an id about each topic, since Kafka's client was opened.
    """

    def __init__(
        self,
        clients: KafkaClients,
        *,
        cooperative: bool,
        callbacks: Callbacks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients, self._clock = clients, clock
        self.consumer = clients.open_consumer()
        self.seen: dict[str, Identity] = {}
        self.first: dict[str, Identity] = {}
        self._unreachable: tuple[float, KafkaError] | None = None
        self.callbacks = callbacks or Callbacks()
        self._cooperative = cooperative
        self._subscription: tuple[list[str], dict[str, Callback]] | None = None
        self._next: confluent_kafka.Consumer | None = None
        self._closed = False

    @property
    def subscribed(self) -> bool:
        """Whether the group assigns the partitions."""
        return self._subscription is not None

    def subscribe(self, topics: list[str], **callbacks: Callback) -> None:
        """Join the group, with librdkafka's callbacks `on_assign`, `on_revoke` and `on_lost`."""
        self.consumer.subscribe(topics, **callbacks)
        self._subscription = topics, callbacks

    def unsubscribe(self) -> None:
        """Leave the group."""
        self.consumer.unsubscribe()
        self._subscription = None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials for connections that are opened from now on."""
        self.consumer.set_sasl_credentials(username, password)
        self._clients.set_sasl_credentials(username, password)

    def prepare(self) -> None:
        """Open the client with which `replace` replaces Kafka's client.

        Raises:
            KafkaException: it cannot be opened; the present one is kept.
        """
        if self._next is None:
            self._next = self._clients.open_consumer()

    def replace(self) -> None:
        """Close Kafka's client, and continue with a new one.

        A group's partitions are revoked, and the new member gets its own from the group. Partitions
        that the application assigned must be assigned again.
        """
        self.prepare()
        try:
            # It is closed already if an earlier call was interrupted.
            with contextlib.suppress(RuntimeError):
                self.consumer.close()
        finally:
            if self._next is not None:
                self.consumer, self._next = self._next, None
            self.first.clear()
            # A callback may have closed both clients.
            if self._subscription is not None and not self._closed:
                topics, callbacks = self._subscription
                self.consumer.subscribe(topics, **callbacks)

    def close(self) -> None:
        """Leave the group, and close Kafka's client."""
        self._closed = True
        self.consumer.close()
        if self._next is not None:
            self._next.close()

    def assign(self, starts: Sequence[Start]) -> None:
        """Replace the assignment.

        A pause survives `assign` in librdkafka. So partitions that must not flow are paused first
        and never fetch anything.
        """
        self.hold(start.tp for start in starts if not start.flowing)
        self.consumer.assign([_start(start) for start in starts])
        self._flow(starts)

    def add(self, starts: Sequence[Start]) -> None:
        """Add to the assignment."""
        self.consumer.incremental_assign([_start(start) for start in starts])
        self._flow(starts)

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        """Remove from the assignment."""
        self.consumer.incremental_unassign([named(tp) for tp in tps])

    def clear(self) -> None:
        """End the assignment."""
        self.consumer.unassign()

    def aim(self, starts: Sequence[Start], everything: Iterable[Start]) -> bool:
        """Move these partitions to new positions.

        Args:
            starts: the partitions to move.
            everything: the whole assignment after the move.

        Returns:
            Whether partitions were assigned again. librdkafka has lost their stored offsets then.
        """
        refused = [start for start in starts if not self._seek(start)]
        if not refused:
            self._flow(starts)
            return False
        if self.subscribed and not self._cooperative:
            self.assign(list(everything))
            return True
        self.remove(start.tp for start in refused)
        self.add(refused)
        self._flow(starts)
        return True

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Pause fetching these partitions."""
        partitions = [named(tp) for tp in tps]
        if partitions:
            self.consumer.pause(partitions)

    def release(self, tps: Iterable[TopicPartition]) -> None:
        """Continue fetching these partitions from their positions."""
        partitions = [named(tp) for tp in tps]
        if partitions:
            self.consumer.resume(partitions)

    def take(self, most: int, timeout: float) -> list[Message]:
        """Return messages and errors.

        The call also runs callbacks, and counts as a poll for `max.poll.interval.ms`.
        """
        return self.consumer.consume(most, timeout)

    def store(self, offsets: list[confluent_kafka.TopicPartition]) -> None:
        """Store offsets for the next commit without offsets, and for the automatic commit."""
        self.consumer.store_offsets(offsets=offsets)

    def clear_stored(self, tps: Iterable[TopicPartition]) -> None:
        """Clear the stored offsets of these partitions, so that no later commit sends them.

        librdkafka sends a stored offset only if it is above the last one that it has sent, so that
        an invalid one is never sent.
        """
        # Not assigned any more, or closed: nothing is stored.
        with contextlib.suppress(KafkaException, RuntimeError):
            self.consumer.store_offsets(offsets=[named(tp) for tp in tps])

    def committed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, AtKafka]:
        """Return the group's committed offsets."""
        requested = [named(tp) for tp in tps]
        try:
            offsets = self.consumer.committed(requested, timeout=LOOKUP_SECONDS)
        except KafkaException as error:
            return {tp: AtKafka(error=error.args[0]) for tp in tps}
        return {
            tp: AtKafka(error=offset.error)
            if offset.error is not None
            else AtKafka(committed=offset.offset if offset.offset >= 0 else None)
            for tp, offset in _by_name(offsets)
        }

    def identities(self, topics: Collection[str]) -> dict[str, Identity | KafkaError]:
        """Return for each topic which one the cluster has now, or a transient error.

        If no topic has an answer, no broker is asked for a second: polling must not wait for each
        partition.
        """
        now = self._clock()
        if self._unreachable is not None and now - self._unreachable[0] < LOOKUP_SECONDS:
            return dict.fromkeys(topics, self._unreachable[1])
        ids = self._clients.topic_ids(topics)
        # Not without an answer: it would wait as long again.
        answered = any(not isinstance(topic_id, KafkaError) for topic_id in ids.values())
        cluster_id = self._clients.cluster_id() if answered else None
        found: dict[str, Identity | KafkaError] = {}
        for topic in topics:
            topic_id = ids.get(topic)
            if isinstance(topic_id, KafkaError):
                if not answered:
                    self._unreachable = self._clock(), topic_id
                found[topic] = topic_id
            else:
                found[topic] = identity = Identity(topic_id, cluster_id)
                if topic_id is not None:
                    self.first.setdefault(topic, identity)
                # Without an id: the topic is away, or not known to this broker yet.
                if topic_id is not None or self.seen.get(topic, UNKNOWN).topic_id is None:
                    self.seen[topic] = identity
        return found

    def recreated(self, topics: Collection[str]) -> dict[str, Identity]:
        """Return those of the topics that have another id than Kafka's client has seen first.

        Without an answer, and for a topic without an id, nothing is known.
        """
        first = {topic: self.first[topic] for topic in topics if topic in self.first}
        now = self.identities(topics)
        return {
            topic: identity
            for topic, identity in now.items()
            if topic in first
            and isinstance(identity, Identity)
            and identity.topic_id not in {None, first[topic].topic_id}
        }

    def spans(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, AtKafka]:
        """Return where the logs of these partitions start and end now."""
        lows = self._list_offsets(tps, Logical.BEGINNING)
        highs = self._list_offsets(tps, Logical.END)
        return {tp: _span(lows[tp], highs[tp]) for tp in tps}

    def _list_offsets(
        self, tps: Sequence[TopicPartition], which: Logical
    ) -> dict[TopicPartition, int | KafkaError]:
        """Ask for the earliest or latest offsets: timestamps -2 and -1 of ListOffsets."""
        requested = [named(tp, int(which)) for tp in tps]
        try:
            offsets = self.consumer.offsets_for_times(requested, timeout=LOOKUP_SECONDS)
        except KafkaException as error:
            return dict.fromkeys(tps, error.args[0])
        return {tp: offset.error or offset.offset for tp, offset in _by_name(offsets)}

    def _seek(self, start: Start) -> bool:
        try:
            self.consumer.seek(named(start.tp, start.offset))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                return False
            raise
        return True

    def _flow(self, starts: Sequence[Start]) -> None:
        self.hold(start.tp for start in starts if not start.flowing)
        self.release(start.tp for start in starts if start.flowing)


def named(tp: TopicPartition, offset: int = Logical.INVALID) -> confluent_kafka.TopicPartition:
    """Return the partition as confluent-kafka's `TopicPartition`."""
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)


def _start(start: Start) -> confluent_kafka.TopicPartition:
    return named(start.tp, start.offset)


def _by_name(
    found: Iterable[confluent_kafka.TopicPartition],
) -> Iterator[tuple[TopicPartition, confluent_kafka.TopicPartition]]:
    return (
        (TopicPartition(partition.topic, partition.partition), partition) for partition in found
    )


def _span(low: int | KafkaError, high: int | KafkaError) -> AtKafka:
    if isinstance(low, KafkaError):
        return AtKafka(error=low)
    if isinstance(high, KafkaError):
        return AtKafka(error=high)
    if min(low, high) < 0:
        return AtKafka(error=KafkaError(KafkaError._NO_OFFSET, "the broker knows no such offset"))
    # The two answers are of different times: after a truncation, the end can be below the start.
    return AtKafka(span=OffsetRange(Offset(low), Offset(max(low, high))))
