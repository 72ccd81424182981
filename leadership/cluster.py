"""Admin requests to a Kafka cluster through librdkafka: offsets, topics, topic configurations."""

import logging
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from math import inf
from time import monotonic
from typing import Final

import structlog
from confluent_kafka import IsolationLevel as KafkaIsolation
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from sidetier.leadership.port import HighWatermark, TopicConfig
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition

_logger: Final = logging.getLogger("sidetier.leadership.librdkafka")


def as_texts(properties: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    """Return properties in librdkafka's text form: true, not True."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


_THREAD: Final = re.compile(r"^\[thrd:[^]]*\]: ")
_STATE: Final = re.compile(r" \(after \d+ms in state .*\)$")
NO_ANSWER: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own codes begin with _
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
    }
)
"""librdkafka's errors of a request that no broker has answered. Only its log says why."""


class _ClientLog:
    """Receives librdkafka's log lines, and keeps the newest connection error.

    librdkafka logs each failed attempt to connect, many per second and client. The lines are at
    level debug; the error of a request, which its caller reports, contains the newest one.
    """

    def __init__(self) -> None:
        self.connection_error: str | None = None

    def log(self, level: int, form: str, *values: object) -> None:
        """Take a line: facility, name of the client, text. `AdminClient.poll` calls it."""
        _logger.log(logging.DEBUG, form, *values)
        if level >= logging.ERROR:
            text = _THREAD.sub("", str(values[-1]))
            self.connection_error = _STATE.sub("", text)


class _Drained:
    """Drains the logs of all clients. A client without a broker logs about one line a second, which
    librdkafka keeps until a poll; a client that asks nothing is polled here.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._clients: weakref.WeakSet[QuietAdminClient] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, client: "QuietAdminClient") -> None:
        """Drain the client's log from now on, for as long as the client is used."""
        with self._lock:
            self._clients.add(client)
            # Not alive either in a child process, where Python ends the threads of its parent.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="librdkafka-log", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._interval)
            with self._lock:
                clients = list(self._clients)
            while clients:  # `pop`, so that no reference keeps a client that is not used any more
                clients.pop().drain_log()


class QuietAdminClient(AdminClient):
    """AdminClient that logs connection errors at level debug only, and adds them to errors."""

    def __init__(self, settings: Mapping[str, str | int | float | bool]) -> None:
        """Create the client, which connects in the background."""
        self._log = _ClientLog()
        self._refreshed = -inf
        super().__init__(dict(settings), logger=self._log)
        _drained.add(self)

    def reason(self, error: KafkaException) -> str:
        """Return the text of a request's error, with the newest connection error if it does not
        itself explain the missing connection.
        """
        self.drain_log()
        why = self._log.connection_error
        inner = error.args[0]
        return f"{inner.str()}: {why}" if inner.code() in NO_ANSWER and why else inner.str()

    @property
    def metadata_age(self) -> float:
        """Seconds since the last begin of `refresh_metadata`; infinite before the first."""
        return monotonic() - self._refreshed

    def refresh_metadata(self, timeout: float) -> None:
        """Replace the cached metadata of all topics.

        Raises:
            KafkaException: No response within `timeout` seconds.
        """
        self._refreshed = monotonic()
        self.list_topics(timeout=timeout)

    def drain_log(self) -> None:
        """Take over librdkafka's log lines, which it keeps in memory until then."""
        self.poll(0)


_drained: Final = _Drained()


def admin_client(
    bootstrap_servers: str,
    properties: Mapping[str, str],
    ours: Mapping[str, str | int | float | bool] | None = None,
) -> QuietAdminClient:
    """Return a client that connects in the background.

    Args:
        bootstrap_servers: Addresses of one or more brokers.
        properties: The user's librdkafka properties; they override `ours`.
        ours: Defaults of the caller.

    Raises:
        ConfigurationError: librdkafka rejects a property.
    """
    settings: dict[str, str | int | float | bool] = {
        "client.id": "sidetier",
        **(ours or {}),
        "bootstrap.servers": bootstrap_servers,
        **properties,
    }
    try:
        return QuietAdminClient(settings)
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the Kafka client's properties are refused: {error}") from error


_LEVELS: Final = {
    IsolationLevel.READ_COMMITTED: KafkaIsolation.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: KafkaIsolation.READ_UNCOMMITTED,
}
_OLD_LEADER: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,  # the leader's log dir went offline; another replica leads
    }
)
_NO_LEADER: Final = frozenset(
    {
        KafkaError._NOENT,  # noqa: SLF001 - if no partition of the request has one
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors of a partition of which the cached metadata has no leader."""
_REFRESH_SECONDS: Final = 1.0
"""Metadata of the whole cluster is not requested more often for partitions without a leader."""


class End(Enum):
    """Position in a log: its start offset, or the offset after the last readable record."""

    START = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class LogOffset:
    """Offset of a log's start or end.

    Attributes:
        offset: The offset.
        epoch: Leader epoch that the broker returned with it: for the latest offset, the newest
            epoch of the leader's log, whatever the isolation level; None if the broker returned
            none.
    """

    offset: Offset
    epoch: LeaderEpoch | None = None


def ask_offsets(
    client: QuietAdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, LogOffset | KafkaException]:
    """Return the offset of each partition, or the error of its leader.

    The latest offset is the last stable offset with read_committed, the high watermark otherwise.

    Raises:
        KafkaException: No request could be sent.
    """
    offsets = _ask(client, tps, end, timeout, isolation)
    codes = {tp: _code(answer) for tp, answer in offsets.items()}
    old = [tp for tp, code in codes.items() if code in _OLD_LEADER]
    unknown = [tp for tp, code in codes.items() if code in _NO_LEADER]
    if old or (unknown and client.metadata_age >= _REFRESH_SECONDS):
        # librdkafka sends the request to the leader and epoch of its cached metadata, and does not
        # refresh the metadata after a refusal, or if they have no leader: the same error would be
        # returned for minutes.
        with suppress(KafkaException):
            client.refresh_metadata(timeout)
            offsets |= _ask(client, [*old, *unknown], end, timeout, isolation)
    return offsets


def _code(answer: LogOffset | KafkaException) -> int | None:
    return answer.args[0].code() if isinstance(answer, KafkaException) else None


def _ask(
    client: AdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel,
) -> dict[TopicPartition, LogOffset | KafkaException]:
    futures = client.list_offsets(
        {KafkaPartition(tp.topic, tp.partition): end.value for tp in tps},
        isolation_level=_LEVELS[isolation],
        request_timeout=timeout,
    )
    offsets: dict[TopicPartition, LogOffset | KafkaException] = {}
    for partition, future in futures.items():
        tp = TopicPartition(partition.topic, partition.partition)
        try:
            result = future.result()
        except KafkaException as error:
            offsets[tp] = error
            continue
        epoch = result.leader_epoch
        offsets[tp] = LogOffset(
            Offset(result.offset), None if epoch is None else LeaderEpoch(epoch)
        )
    return offsets


def all_offsets(
    client: QuietAdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, LogOffset]:
    """Return the same as `ask_offsets`; raise the KafkaException of a failed partition."""
    offsets = {}
    for tp, offset in ask_offsets(client, tps, end, timeout, isolation).items():
        if isinstance(offset, KafkaException):
            raise offset
        offsets[tp] = offset
    return offsets


def cluster_id_of(client: AdminClient, timeout: float) -> str:
    """Return Kafka's id of the cluster.

    Not by `describe_cluster`: librdkafka 2.16 ends the process (an assertion in
    `rd_kafka_admin_response_parse`) if a broker that has just started knows no brokers yet.

    Raises:
        KafkaException: No response within `timeout` seconds.
    """
    cluster_id: str = client.cluster_id(timeout)
    return cluster_id


_URL_SAFE: Final = str.maketrans("+/", "-_")


def described(client: AdminClient, topic: str, timeout: float) -> TopicDescription | None:
    """Return the brokers' description of a topic; None if it does not exist.

    Raises:
        KafkaException: No response within `timeout` seconds, or the request is refused.
    """
    futures = client.describe_topics(TopicCollection([topic]), request_timeout=timeout)
    try:
        description: TopicDescription = futures[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return description


def kafka_text(uuid: str) -> str:
    """Convert a topic id to Kafka's form, with `-` and `_` where librdkafka has `+` and `/`."""
    return uuid.rstrip("=").translate(_URL_SAFE)


_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def topic_id_of(uuid: object) -> str | None:
    """Return a described topic's id in Kafka's form; None from brokers before 2.8."""
    text = "" if uuid is None else kafka_text(str(uuid))
    return None if text in {"", _NO_ID} else text


# High watermarks from the brokers: ListOffsets for the latest offset, read_uncommitted (KIP-396).
#
# read_committed would return the last stable offset, which an open transaction holds back.


class KafkaHighWatermarks:
    """Requests high watermarks from the partitions' leaders, all partitions in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 5.0
    ) -> None:
        """Create the client, which connects in the background.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """Return the high watermarks; partitions whose leader does not respond are left out.

        Raises:
            LeadershipUnavailableError: No partition got a response.
        """
        try:
            answers = ask_offsets(self._client, partitions, End.LATEST, self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        failures = [answer for answer in answers.values() if isinstance(answer, KafkaException)]
        if failures and len(failures) == len(answers):
            raise self._unavailable(failures[-1]) from failures[-1]
        return {
            tp: HighWatermark(
                answer.offset, UNKNOWN_EPOCH if answer.epoch is None else answer.epoch
            )
            for tp, answer in answers.items()
            if not isinstance(answer, KafkaException)
        }

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(
            f"{self._servers}: no high watermark: {self._client.reason(error)}"
        )

    def close(self) -> None:
        """Do nothing: librdkafka closes the connections when the client is destroyed."""


_INFINITE: Final = float("inf")
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
    }
)
log: Final = structlog.get_logger()
_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART})
"""Errors of a broker whose metadata does not yet contain a topic that was just created."""


class KafkaTopicConfigs:
    """Reads topic configurations from the cluster, all topics in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 10.0
    ) -> None:
        """Create the client, which connects in the background.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """Return the configuration of each topic; None if the broker refuses it.

        Topics that the broker does not know (yet), and topics whose request failed, are left out.

        Raises:
            LeadershipUnavailableError: No topic got a response.
        """
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        try:
            futures = self._client.describe_configs(resources, request_timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        answers: dict[str, TopicConfig | None] = {}
        failure: KafkaException | None = None
        for resource, future in futures.items():
            try:
                answers[resource.name] = topic_config(_values(future.result()))
            except KafkaException as error:
                # The broker has answered, so asking again would
                # not help: None is remembered like an answer.
                if error.args[0].code() in _REFUSED:
                    answers[resource.name] = None
                elif error.args[0].code() not in _UNKNOWN:
                    failure = error
            except ValueError as error:  # requested again later; the other topics are returned
                log.warning("topic.config_malformed", topic=resource.name, error=str(error))
        if not answers and failure is not None:
            raise self._unavailable(failure) from failure
        return answers

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(
            f"{self._servers}: no topic configuration: {self._client.reason(error)}"
        )

    def close(self) -> None:
        """Do nothing: librdkafka closes the connections when the client is destroyed."""


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    return {name: entry.value for name, entry in entries.items()}


def topic_config(values: Mapping[str, str | None]) -> TopicConfig:
    """Return the configuration for archiving from Kafka's settings by name."""
    policy = (values.get("cleanup.policy") or "").split(",")
    # A topic with `compact` alone is never deleted by time or size, whatever its retention says.
    deletes = "compact" not in policy or "delete" in policy
    retention = _milliseconds(values.get("retention.ms")) if deletes else _INFINITE
    size = values.get("retention.bytes") if deletes else None
    return TopicConfig(
        compacted="compact" in policy,
        native_tiering=values.get("remote.storage.enable") == "true",
        retention=_INFINITE if retention is not None and retention < 0 else retention,
        retention_bytes=None if size is None or int(size) < 0 else int(size),
        delete_delay=_milliseconds(values.get("file.delete.delay.ms")),
        only_deleted=policy == ["delete"],
    )


def _milliseconds(text: str | None) -> float | None:
    """Convert Kafka's milliseconds to seconds."""
    return None if text is None else int(text) / 1000
