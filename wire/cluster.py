"""A cluster: its brokers, leaders and coordinators, and requests that are routed to them."""

import random
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
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
"""Retriable errors that do not mean that another broker is responsible."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Metadata of one partition; `leader` is -1 while there is none."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """Metadata of one topic; `topic_id` is None from brokers before 2.8."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Response to a Metadata request.

    `refused` contains the topics that are missing in `topics`, with the broker's error:
    UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED and so on.
    """

    cluster_id: str | None
    controller: BrokerId
    brokers: Mapping[BrokerId, Address]
    topics: Mapping[str, TopicMetadata]
    refused: Mapping[str, KafkaApiError]


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Route of requests that every broker can handle."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Route of requests to one broker."""

    id: BrokerId


@dataclass(frozen=True, slots=True)
class Controller:
    """Route of requests that change the cluster (with KRaft every broker forwards them)."""


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

    It keeps one connection per broker. It caches leaders and coordinators until an error shows that
    they are outdated. `request` and `retrying` retry Kafka's retriable errors and broken
    connections under one deadline. So a request may be carried out twice, which is harmless for all
    requests of `requests`.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Clock = time.monotonic,
        stop: Event | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Create the client; it connects with the first request.

        Args:
            settings: Settings of the client.
            clock: Returns monotonic seconds.
            stop: Once set, no further attempt begins, and pauses end.
            context: Result of `settings.tls.context()`, to load certificates once for many
                clients.

        Raises:
            ConfigurationError: A certificate cannot be loaded.
        """
        self.settings = settings
        self._clock = clock
        self._stop = stop or Event()
        self._context = context
        if context is None and settings.tls is not None:
            self._context = settings.tls.context()
        self._connections: dict[Address, Connection] = {}
        self._unreachable: set[Address] = set()
        """Addresses whose last connection could not be opened."""
        self._brokers: dict[BrokerId, Address] = {}
        self._leaders: dict[TopicPartition, PartitionMetadata] = {}
        self._controller = NO_LEADER
        self._coordinators: dict[Route, BrokerId] = {}
        self._deadline = float("inf")
        """Deadline of the innermost `retrying`, in seconds of the clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this object's connections, but not the ones from `connect`. May be called twice."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def interrupt(self) -> None:
        """Make a request in flight fail soon. From any thread."""
        for connection in list(self._connections.values()):
            connection.interrupt()

    def connect(self, broker: BrokerId) -> Connection:
        """Open a connection that belongs to the caller, for pipelines of raw batches.

        Raises:
            BrokerError: As `Connection`.
        """
        return self._open(self._address(broker))

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        """Request the cluster's metadata from a broker. Never creates topics.

        Args:
            topics: Names; None for all topics, an empty collection for brokers only.
            timeout: Seconds for all attempts.

        Raises:
            BrokerError: No broker responded.
        """
        return self.retrying(lambda: self._ask_metadata(topics), timeout=timeout)

    def leaders(
        self, partitions: Collection[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        """Return the partitions grouped by leader; request metadata for unknown leaders.

        Raises:
            KafkaApiError: A partition does not exist, or has no leader at the moment (`retry`).
            BrokerError: No broker responded.
        """
        unknown = {tp.topic for tp in partitions if tp not in self._leaders}
        if unknown:
            metadata = self._ask_metadata(sorted(unknown))
            # One refused topic fails the call: the caller has asked for all of its partitions.
            if metadata.refused:
                raise next(iter(metadata.refused.values()))
        led: dict[BrokerId, list[TopicPartition]] = {}
        for tp in partitions:
            led.setdefault(self._leader(tp), []).append(tp)
        return led

    def leaders_or_errors(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[BrokerId, list[TopicPartition]], dict[TopicPartition, KafkaApiError]]:
        """Return the partitions that have a leader, as `leaders`, and the errors of the others.

        Raises:
            BrokerError: No broker responded.
        """
        with suppress(KafkaApiError):  # of at least one; the leaders of the others are kept
            self.leaders(partitions)
        led: dict[BrokerId, list[TopicPartition]] = {}
        errors: dict[TopicPartition, KafkaApiError] = {}
        for tp in partitions:
            try:
                (broker,) = self.leaders([tp])
            except KafkaApiError as error:
                errors[tp] = error
            else:
                led.setdefault(broker, []).append(tp)
        return led, errors

    def partition_metadata(self, partition: TopicPartition) -> PartitionMetadata:
        """Return leader and replicas of a partition, from the cache if known; see `leaders`."""
        self.leaders([partition])
        return self._leaders[partition]

    def forget_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Drop leaders from the cache after a broker reported that it is not the leader."""
        for tp in partitions:
            self._leaders.pop(tp, None)

    def forget_coordinator(self, group: str) -> None:
        """Drop a group's coordinator from the cache after a broker reported that it is not."""
        self._coordinators.pop(GroupCoordinator(group), None)

    def request(
        self,
        route: Route,
        api: ApiKey,
        /,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tolerate: Collection[ErrorCode] = (),
        **values: object,
    ) -> Any:  # noqa: ANN401 - a response of kio in the negotiated version
        """Send a request to the broker that is responsible for it, and return the response.

        Args:
            route: Which broker handles the request.
            api: Kind of request.
            timeout: Seconds for all attempts.
            tolerate: Error codes inside the response that do not raise.
            values: Fields of the request, as for `protocol.build_request`.

        Raises:
            KafkaApiError: The response has an error code that is not tolerated, and is not
                retriable or persisted until the deadline. The text names broker, request and
                subject.
            BrokerError: The request could not be sent, or got no response.
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
    ) -> Any:  # noqa: ANN401 - as in `request`
        """Make a single attempt of `request`, for use inside `retrying`."""
        connection = self.connection(route)
        request = connection.build(api, **values)
        response = connection.request(request, timeout=self._request_timeout())
        errors = [error for error in errors_in(response) if error.code not in tolerate]
        if errors:
            # OPERATION_NOT_ATTEMPTED only means that another part of the request failed: prefer
            # the other part's error.
            error = min(
                errors, key=lambda candidate: candidate.code == ErrorCode.operation_not_attempted
            )
            subject = f" for {error.subject}" if error.subject else ""
            refusal = f"{connection} refuses {api.title} v{request.__version__}{subject}"
            detail = missing_permission(api, error.code) or error.message
            raise api_error(refusal, error.code, detail)
        return response

    def retrying(self, attempt: Callable[[], _T], *, timeout: float = DEFAULT_TIMEOUT) -> _T:
        """Call `attempt` until it succeeds, fails permanently, or the next pause ends too late.

        Before each further attempt, cached leaders and coordinators are dropped, unless the error
        came from the broker that is responsible.

        Raises:
            SidetierError: The last error, as `attempt` raised it.
        """
        # Nested calls share the earliest deadline, so an inner retry cannot outlive the outer one.
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
        """Return the cached connection to the route's broker; open it if there is none.

        Raises:
            BrokerError: The connection cannot be opened, or no broker for the route is known.
        """
        if isinstance(route, AnyBroker):
            return self._any_connection()
        return self._kept(self._address(self._resolve(route)))

    def _is_worth_another_attempt(self, error: BaseException) -> bool:
        if not isinstance(error, SidetierError) or not error.retry:
            return False
        if not (isinstance(error, KafkaApiError) and error.code in _ROUTE_STILL_RIGHT):
            # Drop all of them: the error rarely shows which one moved, and another request is
            # cheap.
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
            # Otherwise the next attempt would read the same answer from the cache.
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
        coordinator = self.request_once(
            AnyBroker(), ApiKey.FIND_COORDINATOR, key=key, key_type=key_type
        )
        broker = BrokerId(coordinator.node_id)
        # The answer has the coordinator's address, which may be missing in older metadata.
        self._brokers[broker] = Address(coordinator.host, coordinator.port)
        return broker

    def _ask_metadata(self, topics: Collection[str] | None) -> ClusterMetadata:
        connection = self._any_connection()
        request = connection.build(
            ApiKey.METADATA,
            topics=None
            if topics is None
            else [{"name": name, "topic_id": None} for name in topics],
            allow_auto_topic_creation=False,  # a broker's default would create a mistyped topic
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
                # Kafka does not mark this code as retriable, but a broker that restarts comes back.
                retry=True,
            ) from None

    def _any_connection(self) -> Connection:
        # An open connection first: a request for metadata must not open a new one each time.
        for connection in self._connections.values():
            if not connection.is_closed:
                return connection
        # The bootstrap servers stay candidates: all brokers of the last metadata may be gone.
        addresses = list(dict.fromkeys([*self.settings.bootstrap_servers, *self._brokers.values()]))
        random.shuffle(addresses)  # distribute the load of many clients
        # A broker that hangs takes the whole timeout of each attempt.
        addresses.sort(key=self._unreachable.__contains__)
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
        try:
            connection = Connection(
                address, self.settings, context=self._context, clock=self._clock
            )
        except BrokerUnavailableError:
            self._unreachable.add(address)
            raise
        self._unreachable.discard(address)
        return connection

    def _request_timeout(self) -> float:
        return min(self.settings.request_timeout, self._deadline - self._clock())


def _refusal(code: ErrorCode, text: str, *, retry: bool | None = None) -> KafkaApiError:
    """Return an error that this client detected itself, with the code that a broker would use."""
    return KafkaApiError(
        text,
        code=int(code),
        name=code.name.upper(),
        retry=code.retriable if retry is None else retry,
    )


def _read_metadata(response: Any, sender: str) -> ClusterMetadata:  # noqa: ANN401 - kio's
    """Convert a response of any version."""
    # Only newer versions of the response have these fields.
    if code := getattr(response, "error_code", 0):
        raise api_error(f"{sender} refuses Metadata v{response.__version__}", code)
    described, refused = {}, {}
    for topic in response.topics:
        # LEADER_NOT_AVAILABLE describes the topic all the
        # same; a part of its partitions has no leader.
        if topic.error_code in {ErrorCode.none, ErrorCode.leader_not_available}:
            described[topic.name] = _read_topic(topic)
        else:
            refusal = f"{sender} refuses Metadata v{response.__version__} for {topic.name}"
            refused[topic.name] = api_error(refusal, topic.error_code)
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
