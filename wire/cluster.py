"""A cluster: its brokers, who leads and who coordinates, and requests that find their way there."""

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any, Final, Self, TypeVar
from uuid import UUID

import tenacity
from kio.schema.errors import ErrorCode

from sidetier.segments.errors import (
    BrokerUnavailableError,
    KafkaApiError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from sidetier.wire.connection import Clock, Connection
from sidetier.wire.protocol import ApiKey, api_error, errors_in, missing_permission
from sidetier.wire.settings import Address, ClientSettings

_T = TypeVar("_T")

NO_LEADER: Final = BrokerId(-1)
DEFAULT_TIMEOUT: Final = 60.0

_ROUTE_STILL_RIGHT: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.unstable_offset_commit,
    }
)
"""Retriable errors of the broker that was the right one to ask."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as a broker describes it; `leader` is -1 while there is none."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic as a broker describes it; `topic_id` is None from brokers before 2.8."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The answer to a Metadata request.

    `refused` holds, for topics that are missing in `topics`, why the broker does not describe
    them: UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED and so on.
    """

    cluster_id: str | None
    controller: BrokerId
    brokers: Mapping[BrokerId, Address]
    topics: Mapping[str, TopicMetadata]
    refused: Mapping[str, KafkaApiError]


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Route of requests that each broker answers."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Route of requests to one broker."""

    id: BrokerId


@dataclass(frozen=True, slots=True)
class Controller:
    """Route of requests that change the cluster (with KRaft any broker forwards them)."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Route of requests to the leader of a partition."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """Route of requests about a consumer group."""

    group: str


@dataclass(frozen=True, slots=True)
class TransactionCoordinator:
    """Route of requests about a transactional id."""

    transactional_id: str


Route = AnyBroker | Broker | Controller | Leader | GroupCoordinator | TransactionCoordinator


class Cluster:
    """Requests to a Kafka cluster, for one thread.

    It keeps one connection per broker, and what it learned of leaders and coordinators until an
    error shows that it is outdated. `request` and `retrying` try again under one deadline what
    Kafka calls retriable, and what a broken connection has interrupted: such a request may be
    carried out twice, which all requests of `requests` bear.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Clock = time.monotonic,
        stop: Event | None = None,
    ) -> None:
        """Connects with the first request.

        Args:
            settings: Of the client.
            clock: Seconds of a monotonic clock.
            stop: Once set, no further attempt begins and pauses end.

        Raises:
            ConfigurationError: a certificate cannot be loaded.
        """
        self.settings = settings
        self._clock = clock
        self._stop = stop or Event()
        self._context = settings.tls.context() if settings.tls is not None else None
        self._connections: dict[Address, Connection] = {}
        self._brokers: dict[BrokerId, Address] = {}
        self._leaders: dict[TopicPartition, PartitionMetadata] = {}
        self._controller = NO_LEADER
        self._coordinators: dict[Route, BrokerId] = {}
        self._deadline = float("inf")
        """Of the innermost `retrying`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections that this object keeps. May be called twice."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connect(self, broker: BrokerId) -> Connection:
        """Open a connection of the caller's own, for pipelines of raw batches.

        Raises:
            BrokerError: what `Connection` raises.
        """
        return self._open(self._address(broker))

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        """Ask a broker for the cluster's metadata; never creates topics.

        Args:
            topics: Names; None for all topics, an empty collection for brokers only.
            timeout: Seconds for all attempts.

        Raises:
            BrokerError: no broker answered.
        """
        return self.retrying(lambda: self._ask_metadata(topics), timeout=timeout)

    def leaders(
        self, partitions: Collection[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        """The partitions by the broker that leads them, asked of a broker where unknown.

        Raises:
            KafkaApiError: a partition does not exist, or has no leader now (`retry`).
            BrokerError: no broker answered.
        """
        unknown = {tp.topic for tp in partitions if tp not in self._leaders}
        if unknown:
            metadata = self._ask_metadata(sorted(unknown))
            if metadata.refused:
                raise next(iter(metadata.refused.values()))
        led: dict[BrokerId, list[TopicPartition]] = {}
        for tp in partitions:
            led.setdefault(self._leader(tp), []).append(tp)
        return led

    def partition_metadata(self, partition: TopicPartition) -> PartitionMetadata:
        """Leader and replicas of a partition, from memory where known; see `leaders`."""
        self.leaders([partition])
        return self._leaders[partition]

    def forget_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Ask for these leaders again the next time, after a broker refused to be one."""
        for tp in partitions:
            self._leaders.pop(tp, None)

    def request(
        self,
        route: Route,
        api: ApiKey,
        /,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tolerate: Collection[ErrorCode] = (),
        **values: object,
    ) -> Any:  # noqa: ANN401 - a response of kio's, of the version that was agreed on
        """Send a request where it belongs, and return its response.

        Args:
            route: Who answers it.
            api: The request.
            timeout: Seconds for all attempts.
            tolerate: Error codes inside the response that raise nothing.
            values: The request's fields, as `protocol.build_request` takes them.

        Raises:
            KafkaApiError: the response has an error code that is not tolerated and not retriable,
                or a retriable one until the deadline. The text names broker, request and subject.
            BrokerError: the broker could not be asked.
        """
        return self.retrying(
            lambda: self.request_once(route, api, tolerate=tolerate, **values), timeout=timeout
        )

    def request_once(
        self,
        route: Route,
        api: ApiKey,
        /,
        *,
        tolerate: Collection[ErrorCode] = (),
        **values: object,
    ) -> Any:  # noqa: ANN401 - as above
        """`request` with a single attempt, for use inside `retrying`."""
        connection = self.connection(route)
        request = connection.build(api, **values)
        response = connection.request(request, timeout=self._request_timeout())
        errors = [error for error in errors_in(response) if error.code not in tolerate]
        if errors:
            # With this code a broker marks what it left undone because of another error.
            error = min(errors, key=lambda found: found.code == ErrorCode.operation_not_attempted)
            subject = f" for {error.subject}" if error.subject else ""
            what = f"{connection} refuses {api.title} v{request.__version__}{subject}"
            detail = missing_permission(api, error.code) or error.message
            raise api_error(what, error.code, detail)
        return response

    def retrying(self, attempt: Callable[[], _T], *, timeout: float = DEFAULT_TIMEOUT) -> _T:
        """Call `attempt` until it succeeds, fails for good, or the next pause ends too late.

        Before each further attempt leaders, coordinators and broken connections are forgotten.

        Raises:
            SidetierError: the last error, as `attempt` raised it.
        """
        outer, self._deadline = self._deadline, min(self._clock() + timeout, self._deadline)

        def is_over(state: tenacity.RetryCallState) -> bool:
            late = self._clock() + state.upcoming_sleep >= self._deadline
            return late or self._stop.is_set()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._is_worth_another_attempt),
            wait=tenacity.wait_random_exponential(
                self.settings.first_backoff, self.settings.max_backoff
            ),
            stop=is_over,
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )
        try:
            return retrying(attempt)
        finally:
            self._deadline = outer

    def connection(self, route: Route) -> Connection:
        """The kept connection to the broker that `route` leads to; opened where there is none.

        Raises:
            BrokerError: it cannot be opened, or nobody knows where the route leads.
        """
        if isinstance(route, AnyBroker):
            return self._any_connection()
        return self._kept(self._address(self._resolve(route)))

    def _is_worth_another_attempt(self, error: BaseException) -> bool:
        if not isinstance(error, SidetierError) or not error.retry:
            return False
        if not (isinstance(error, KafkaApiError) and error.code in _ROUTE_STILL_RIGHT):
            self._leaders.clear()
            self._coordinators.clear()
            self._controller = NO_LEADER
        return True

    def _resolve(
        self, route: Broker | Controller | Leader | GroupCoordinator | TransactionCoordinator
    ) -> BrokerId:
        match route:
            case Broker(broker):
                return broker
            case Leader(partition):
                self.leaders([partition])
                return self._leader(partition)
            case Controller():
                if self._controller == NO_LEADER:
                    self._ask_metadata(())
                if self._controller == NO_LEADER:
                    raise _refusal(ErrorCode.not_controller, "the cluster has no controller now")
                return self._controller
        if route not in self._coordinators:
            self._coordinators[route] = self._ask_coordinator(route)
        return self._coordinators[route]

    def _leader(self, partition: TopicPartition) -> BrokerId:
        known = self._leaders.get(partition)
        if known is None:
            raise _refusal(
                ErrorCode.unknown_topic_or_partition,
                f"the brokers do not know partition {partition}",
            )
        if known.leader == NO_LEADER:
            del self._leaders[partition]
            raise _refusal(
                ErrorCode.leader_not_available, f"partition {partition} has no leader now"
            )
        return known.leader

    def _ask_coordinator(self, route: GroupCoordinator | TransactionCoordinator) -> BrokerId:
        if isinstance(route, GroupCoordinator):
            key, key_type = route.group, 0
        else:
            key, key_type = route.transactional_id, 1
        found = self.request_once(AnyBroker(), ApiKey.FIND_COORDINATOR, key=key, key_type=key_type)
        broker = BrokerId(found.node_id)
        self._brokers[broker] = Address(found.host, found.port)
        return broker

    def _ask_metadata(self, topics: Collection[str] | None) -> ClusterMetadata:
        connection = self._any_connection()
        request = connection.build(
            ApiKey.METADATA,
            topics=None
            if topics is None
            else [{"name": name, "topic_id": None} for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        response: Any = connection.request(request, timeout=self._request_timeout())
        metadata = _read_metadata(response, str(connection))
        self._brokers.update(metadata.brokers)
        self._controller = metadata.controller
        for topic in metadata.topics.values():
            for number, partition in topic.partitions.items():
                self._leaders[TopicPartition(topic.name, number)] = partition
        return metadata

    def _address(self, broker: BrokerId) -> Address:
        if broker not in self._brokers:
            self._ask_metadata(())
        try:
            return self._brokers[broker]
        except KeyError:
            raise _refusal(
                ErrorCode.broker_not_available,
                f"the cluster has no broker {broker} now",
                retry=True,
            ) from None

    def _any_connection(self) -> Connection:
        for connection in self._connections.values():
            if not connection.is_closed:
                return connection
        addresses = list(dict.fromkeys([*self.settings.bootstrap_servers, *self._brokers.values()]))
        random.shuffle(addresses)  # the load of many clients is spread
        reasons = []
        for address in addresses:
            try:
                return self._kept(address)
            except BrokerUnavailableError as error:
                reasons.append(str(error))
        raise BrokerUnavailableError(f"no broker can be reached: {'; '.join(reasons)}")

    def _kept(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            connection = self._connections[address] = self._open(address)
        return connection

    def _open(self, address: Address) -> Connection:
        return Connection(address, self.settings, context=self._context, clock=self._clock)

    def _request_timeout(self) -> float:
        return min(self.settings.request_timeout, self._deadline - self._clock())


def _refusal(code: ErrorCode, text: str, *, retry: bool | None = None) -> KafkaApiError:
    """What this client found out by itself, with the code that a broker would answer."""
    return KafkaApiError(
        text,
        code=int(code),
        name=code.name.upper(),
        retry=code.retriable if retry is None else retry,
    )


def _read_metadata(response: Any, sender: str) -> ClusterMetadata:  # noqa: ANN401 - kio's
    """The neutral form of a response of any version."""
    if code := getattr(response, "error_code", 0):
        raise api_error(f"{sender} refuses Metadata v{response.__version__}", code)
    described, refused = {}, {}
    for topic in response.topics:
        if topic.error_code in {ErrorCode.none, ErrorCode.leader_not_available}:
            described[topic.name] = _read_topic(topic)
        else:
            what = f"{sender} refuses Metadata v{response.__version__} for {topic.name}"
            refused[topic.name] = api_error(what, topic.error_code)
    return ClusterMetadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller=BrokerId(response.controller_id),
        brokers={
            BrokerId(broker.node_id): Address(broker.host, broker.port)
            for broker in response.brokers
        },
        topics=described,
        refused=refused,
    )


def _read_topic(topic: Any) -> TopicMetadata:  # noqa: ANN401 - kio's
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        is_internal=topic.is_internal,
        partitions={
            partition.partition_index: PartitionMetadata(
                leader=BrokerId(partition.leader_id),
                leader_epoch=LeaderEpoch(getattr(partition, "leader_epoch", -1)),
                replicas=tuple(map(BrokerId, partition.replica_nodes)),
                in_sync=tuple(map(BrokerId, partition.isr_nodes)),
            )
            for partition in topic.partitions
        },
    )
