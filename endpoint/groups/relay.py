"""Consumer groups of a live cluster (`--groups relay`): the cluster keeps members and offsets.

The endpoint names itself coordinator, and passes the bodies of group requests and responses on as
they are. A client never learns an address of the live cluster: with one, librdkafka would take the
metadata from there, and then read everything from the live cluster without an error.

Each client has its own connections to the live cluster, so that its requests keep their order, and
a JoinGroup that waits delays no other client.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from selectors import EVENT_READ, DefaultSelector
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.protocol import ResponsePayload

from sidetier.endpoint.groups.requests import (
    FIELDS_OF_SEVERAL,
    OFFERED_OF_GROUPS,
    Coordinator,
    Decoded,
    commit_without,
    coordinator_answer,
    coordinator_keys,
    error_answer,
    error_response,
    groups_of,
    is_for_groups,
    offsets_of_topics,
    refused_transactions,
    response_of,
)
from sidetier.endpoint.live.client import REQUEST_TIMEOUT, LiveClient
from sidetier.endpoint.log_limits import AtMostEvery, Once
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.endpoint.session import Answer, Request, Session
from sidetier.segments.errors import (
    ArchiveError,
    BrokerError,
    BrokerLoginError,
    BrokerUnavailableError,
    KafkaApiError,
    StorageError,
    UnsupportedVersionError,
)
from sidetier.storage.attempt import monotonic
from sidetier.telemetry.logs import logger
from sidetier.wire.cluster import AnyBroker, Broker, Cluster, GroupCoordinator
from sidetier.wire.connection import Connection
from sidetier.wire.protocol import ApiKey, decode_response, encode, errors_in

log = logger()

OFFERED_RELAY: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {**OFFERED_OF_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1)}
)

_LOCATE_TIMEOUT: Final = 2.0
"""Time for several attempts to reach a coordinator: the client asks again after its own pause."""
_REBALANCE_TIMEOUT: Final = 300.0
_AWAY: Final = "the endpoint cannot reach the live cluster that keeps its groups"
_REFUSED: Final = "the live cluster that keeps the groups names no coordinator: "
_LATE: Final = f"not all keys of a FindCoordinator were found within {REQUEST_TIMEOUT:.0f} s"
_DECODED: Final = 4
"""Memory of a decoded answer, in multiples of its bytes."""
_LOG_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class ArchivedTopics:
    """What the archive knows of the identity of its topics.

    Attributes:
        cluster_id: Returns Kafka's id of the archived cluster; None if it is not known.
        topic_id: Returns the id of a topic; None if the archive has none.
        has_topic_id: Returns whether the archive has a topic with this id.
    """

    cluster_id: Callable[[], str | None]
    topic_id: Callable[[str], UUID | None]
    has_topic_id: Callable[[UUID], bool]


@dataclass(slots=True)
class _Upstream:
    """The connections of one client to the live cluster.

    Attributes:
        client: With which settings they are opened.
        cluster: The connections. One client's requests come one after the other.
        rebalance_timeout: That of the client's last JoinGroup, in seconds: SyncGroup waits as long.
        has_failed: Whether a request has failed.
    """

    client: LiveClient
    cluster: Cluster
    rebalance_timeout: float = _REBALANCE_TIMEOUT
    has_failed: bool = False


class RelayGroups:
    """Passes the requests of groups on to a live cluster. Thread-safe.

    Args:
        client: Returns the client of the live cluster: the same object until its settings change.
        advertised: Host and port at which clients reach the endpoint.
        archived: The identity of the archive's topics.
        metrics: Counts.
    """

    def __init__(
        self,
        client: Callable[[], LiveClient],
        advertised: tuple[str, int],
        archived: ArchivedTopics,
        metrics: GroupMetrics,
    ) -> None:
        self._client = client
        self._advertised = advertised
        self._archived = archived
        self._metrics = metrics
        self._offered = OFFERED_RELAY
        self._guard = threading.Lock()
        self._upstreams: dict[Session, _Upstream] = {}
        self._stop = threading.Event()
        self._is_away = False
        self._warned = Once()
        self._log_login, self._log_away = AtMostEvery(_LOG_PAUSE), AtMostEvery(_LOG_PAUSE)

    @property
    def offered(self) -> Mapping[ApiKey, tuple[int, int]]:
        """Versions that endpoint and live cluster know; the endpoint's until the cluster has
        answered.
        """
        return self._offered

    def start(self) -> None:
        """Ask the live cluster for its versions. If it is away, clients get retriable errors.

        Raises:
            BrokerError: It refuses the login, or does not speak Kafka's protocol.
        """
        with self._cluster(self._client(), "sidetier") as cluster:
            try:
                self._learn(cluster.connection(AnyBroker()))
            except BrokerUnavailableError as error:
                self._note_failure(error)

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one of the offered requests.

        Raises:
            ConnectionResetError: The live cluster does not support this version any more: the
                client must ask for the versions again.
        """
        decoded = request.decode()
        upstream = self._upstream(session, request.client_id)
        if request.api is ApiKey.FIND_COORDINATOR:
            return self._find_coordinator(upstream, request, decoded)
        try:
            if request.api is ApiKey.LIST_GROUPS:
                return self._list(upstream, request, decoded)
            if request.api is ApiKey.OFFSET_COMMIT:
                return self._commit(upstream, request, decoded)
            if request.api is ApiKey.OFFSET_FETCH:
                return self._fetch_offsets(upstream, request, decoded)
            return self._relay(upstream, request, decoded)
        except UnsupportedVersionError as error:
            raise ConnectionResetError(str(error)) from error
        except BrokerError as error:
            self._note_failure(error, upstream)
            for name in groups_of(request.api, decoded):
                upstream.cluster.forget_coordinator(name)
            return error_answer(request, decoded, ErrorCode.not_coordinator)

    def close(self) -> None:
        """End the requests that wait for the live cluster."""
        with self._guard:
            self._stop.set()
            upstreams = list(self._upstreams.values())
        for upstream in upstreams:
            upstream.cluster.interrupt()

    # Connections

    def _upstream(self, session: Session, client_id: str | None) -> _Upstream:
        """Return the connections of a client; new ones with the latest settings after a failure.

        Connections that work are kept: brokers may not know a changed password yet.
        """
        client = self._client()
        with self._guard:
            known = self._upstreams.get(session)
            if known is not None and (known.client is client or not known.has_failed):
                return known
            if self._stop.is_set():
                raise ConnectionResetError("the endpoint stops")
            cluster = self._cluster(client, client_id or client.settings.client_id)
            upstream = self._upstreams[session] = _Upstream(client, cluster)
        if known is None:
            session.closing.callback(self._forget, session)
        else:
            known.cluster.close()
            upstream.rebalance_timeout = known.rebalance_timeout
        return upstream

    def _cluster(self, client: LiveClient, client_id: str) -> Cluster:
        # The live cluster sees the client's own id: it is part of member ids and of quotas.
        settings = replace(client.settings, client_id=client_id)
        return Cluster(settings, stop=self._stop, context=client.context)

    def _forget(self, session: Session) -> None:
        with self._guard:
            upstream = self._upstreams.pop(session)
        upstream.cluster.close()

    def _connection(
        self, upstream: _Upstream, group: str, timeout: float = _LOCATE_TIMEOUT
    ) -> Connection:
        """Return the connection to a group's coordinator.

        Raises:
            BrokerError: There is none now.
        """
        # A broker closes idle connections, and that shows only when it is asked again.
        connection = upstream.cluster.retrying(
            lambda: upstream.cluster.connection(GroupCoordinator(group)), timeout=timeout
        )
        self._learn(connection)
        return connection

    def _coordinators(
        self, upstream: _Upstream, groups: tuple[str, ...]
    ) -> dict[Connection | None, list[str]]:
        """Return groups by the connections to their coordinators; None for those without one.

        All groups have one deadline. A second attempt for a group begins only after the first ones
        for all others, so that one broker that is away does not take the time of the others.
        """
        deadline = monotonic() + _LOCATE_TIMEOUT
        parts: dict[Connection | None, list[str]] = {}
        later: list[str] = []
        for group in groups:
            left = deadline - monotonic()
            connection = self._connection_at_once(upstream, group, left) if left > 0 else None
            if connection is None:
                later.append(group)
            else:
                parts.setdefault(connection, []).append(group)
        for group in later:
            left = deadline - monotonic()
            connection = None
            try:
                if left > 0:
                    connection = self._connection(upstream, group, left)
            except UnsupportedVersionError:
                raise
            except BrokerError as error:
                self._note_failure(error, upstream, group)
            parts.setdefault(connection, []).append(group)
        return parts

    def _connection_at_once(
        self, upstream: _Upstream, group: str, timeout: float
    ) -> Connection | None:
        """Make one attempt to reach a group's coordinator; None after a failure."""

        def attempt() -> Connection | BrokerError:
            try:
                return upstream.cluster.connection(GroupCoordinator(group))
            except BrokerError as error:
                return error  # not raised: `retrying` would make another attempt

        found = upstream.cluster.retrying(attempt, timeout=timeout)
        if isinstance(found, BrokerError):
            self._note_failure(found, upstream, group)
            return None
        self._learn(found)
        return found

    def _learn(self, connection: Connection) -> None:
        """Offer clients the versions that this broker knows too."""
        known: dict[ApiKey, tuple[int, int]] = {}
        for api, (lowest, highest) in OFFERED_RELAY.items():
            offered = connection.offered(api)
            if api is ApiKey.FIND_COORDINATOR:  # the endpoint answers it
                known[api] = lowest, highest
            elif offered is not None and max(lowest, offered[0]) <= min(highest, offered[1]):
                known[api] = max(lowest, offered[0]), min(highest, offered[1])
        if known != self._offered:
            self._offered = MappingProxyType(known)
        if self._is_away:
            self._is_away = False
            log.info("endpoint.relay_available", broker=str(connection))

    def _note_failure(
        self, error: BrokerError, upstream: _Upstream | None = None, group: str | None = None
    ) -> None:
        """Count and log why the live cluster did not answer a request."""
        if upstream is not None:
            upstream.has_failed = True
        reason = "unavailable"
        if isinstance(error, BrokerLoginError):
            reason = "login"
            if failures := self._log_login.count():
                log.error(
                    "endpoint.relay_login_failed",
                    error=str(error),
                    failures=failures,
                    help="correct the file of --groups-properties; a changed file is read again",
                )
        elif isinstance(error, KafkaApiError):
            reason = "refused"
            if self._warned.is_new(error.code):
                log.warning("endpoint.relay_refused", group=group, error=str(error))
        elif failures := self._log_away.count():
            # While one of several brokers is away, requests fail and succeed by turns.
            self._is_away = True
            log.warning("endpoint.relay_unavailable", error=str(error), failures=failures)
        self._metrics.relay_failures.labels(reason).inc()

    # Requests

    def _find_coordinator(self, upstream: _Upstream, request: Request, decoded: Decoded) -> Answer:
        """Ask the live cluster first: it creates `__consumer_offsets`, and names the broker."""
        if not is_for_groups(decoded):
            return refused_transactions(request.version, decoded)
        found: list[Coordinator] = []
        away: BrokerError | None = None
        deadline = monotonic() + REQUEST_TIMEOUT
        for key in coordinator_keys(decoded):
            upstream.cluster.forget_coordinator(key)
            try:
                if away is not None:  # one wait for the cluster, not one for each key
                    raise away
                left = deadline - monotonic()
                if left <= 0:
                    raise BrokerUnavailableError(_LATE)
                self._connection(upstream, key, min(left, _LOCATE_TIMEOUT))
            except KafkaApiError as error:
                self._note_failure(error, upstream, key)
                # Without the text of the error, which names the broker's address.
                found.append(Coordinator(key, _error_code(error.code), _REFUSED + error.name))
            except BrokerError as error:
                away = error
                self._note_failure(error, upstream, key)
                found.append(Coordinator(key, ErrorCode.coordinator_not_available, _AWAY))
            else:
                found.append(Coordinator(key, address=self._advertised))
        return coordinator_answer(request.version, found)

    def _relay(self, upstream: _Upstream, request: Request, decoded: Decoded) -> Answer:
        names = groups_of(request.api, decoded)
        if len(names) != 1:
            return self._relay_several(upstream, request, decoded, names)
        connection = self._connection(upstream, names[0])
        return self._relay_frame(upstream, connection, request, decoded, names)

    def _commit(self, upstream: _Upstream, request: Request, decoded: Decoded) -> Answer:
        """Refuse commits for topics that the live cluster has created again: the positions belong
        to the deleted topic.
        """
        others = self._recreated(upstream, (topic.name for topic in decoded.topics))
        if not others:
            return self._relay(upstream, request, decoded)
        return commit_without(
            [topic for topic in decoded.topics if topic.name in others],
            request,
            ErrorCode.unknown_topic_or_partition,
            lambda part: self._relay(upstream, part, part.decode()),
        )

    def _fetch_offsets(self, upstream: _Upstream, request: Request, decoded: Decoded) -> Answer:
        """Leave out the committed offsets of topics that the live cluster has created again."""
        answer = self._relay(upstream, request, decoded)
        response = response_of(request, answer)
        groups = getattr(response, "groups", (response,))
        # After the offsets: a topic that is created again meanwhile is noticed.
        others = self._recreated(
            upstream, (topic.name for group in groups for topic in group.topics)
        )
        if not others:
            return answer
        shown = offsets_of_topics(
            response, decoded, lambda name: name not in others, ErrorCode.none
        )
        return Answer(encode(shown), answer.error)

    def _recreated(self, upstream: _Upstream, names: Iterable[str]) -> set[str]:
        """Return the topics that have another id in the live cluster than in its archive.

        Ids of another cluster than the archived one always differ, and are not compared.

        Raises:
            BrokerError: No broker answers, or the store does not.
        """
        archived = {name: self._archived.topic_id(name) for name in set(names)}
        known = {name: topic_id for name, topic_id in archived.items() if topic_id is not None}
        if not known:
            return set()
        try:
            cluster_id = self._archived.cluster_id()
        except (ArchiveError, StorageError) as error:
            raise BrokerUnavailableError(str(error)) from error
        if cluster_id is None:
            return set()
        live = upstream.cluster.metadata(sorted(known), timeout=_LOCATE_TIMEOUT)
        if live.cluster_id != cluster_id:
            return set()
        others = {
            name
            for name, topic in live.topics.items()
            if topic.topic_id is not None and topic.topic_id != known.get(name)
        }
        for name in others:
            if self._warned.is_new(("recreated", name, live.topics[name].topic_id)):
                log.warning(
                    "endpoint.relay_topic_recreated",
                    topic=name,
                    topic_id=str(live.topics[name].topic_id),
                    archived_topic_id=str(known[name]),
                    help="the topic was deleted and created again, and its archive is still that "
                    "of the deleted one: commits for it are refused, and committed offsets of the "
                    "new one are not shown; `sidetier retire` moves the old archive",
                )
        return others

    def _relay_several(
        self, upstream: _Upstream, request: Request, decoded: Decoded, names: tuple[str, ...]
    ) -> Answer:
        """Split a request by coordinators, and join the answers; whole if there is only one.

        For clients all groups have one coordinator, so they put all groups into one request.
        """
        parts = self._coordinators(upstream, names)
        only = next(iter(parts)) if len(parts) == 1 else None
        if only is not None:
            return self._relay_frame(upstream, only, request, decoded, names)
        asked = {part: _for_groups(request.api, decoded, own) for part, own in parts.items()}
        bodies = {part: encode(body) for part, body in asked.items() if part is not None}
        answers = self._exchange_all(upstream, request, bodies)
        request.budget.take_answer(_DECODED * sum(map(len, answers.values())))
        answered_field = FIELDS_OF_SEVERAL[request.api][1]
        rows: list[Any] = []
        for part, own in parts.items():
            body = None if part is None else answers.get(part)
            if part is None or body is None:
                for name in own:
                    upstream.cluster.forget_coordinator(name)
                error = ErrorCode.not_coordinator
                response: Any = error_response(request.api, request.version, asked[part], error)
            else:
                response = self._examined(upstream, part, request, body, tuple(own))
            rows += getattr(response, answered_field)
        response = error_response(request.api, request.version, decoded, ErrorCode.none)
        merged: Any = replace(response, **{answered_field: tuple(rows)})
        return Answer(encode(merged), _first_error(merged))

    def _relay_frame(
        self,
        upstream: _Upstream,
        connection: Connection,
        request: Request,
        decoded: Decoded,
        names: tuple[str, ...],
    ) -> Answer:
        body = self._exchange(upstream, connection, request, request.body(), decoded)
        request.budget.take_answer(_DECODED * len(body))
        response = self._examined(upstream, connection, request, body, names)
        return Answer(bytes(body), _first_error(response))

    def _list(self, upstream: _Upstream, request: Request, decoded: Decoded) -> Answer:
        """Ask all brokers: each knows only the groups that it coordinates.

        The groups of a broker that is away are left out: another broker will coordinate them.
        """
        connections, away = self._all_brokers(upstream)
        answers = self._exchange_all(upstream, request, dict.fromkeys(connections, request.body()))
        if not answers:
            raise away or BrokerUnavailableError("no broker of the live cluster lists its groups")
        request.budget.take_answer(_DECODED * sum(map(len, answers.values())))
        rows: list[Any] = []
        for connection, body in answers.items():
            response: Any = decode_response(request.api, request.version, body, str(connection))
            if response.error_code is not ErrorCode.none:
                return Answer(bytes(body), response.error_code)
            rows += response.groups
        listed = error_response(request.api, request.version, decoded, ErrorCode.none)
        return Answer(encode(replace(listed, groups=tuple(rows))))

    def _all_brokers(self, upstream: _Upstream) -> tuple[list[Connection], BrokerError | None]:
        """Return connections to the brokers that can be reached, and the error of another one."""
        deadline = monotonic() + REQUEST_TIMEOUT
        cluster = upstream.cluster
        connections: list[Connection] = []
        away: BrokerError | None = None
        for broker in cluster.metadata((), timeout=REQUEST_TIMEOUT).brokers:
            if monotonic() >= deadline:
                break
            try:
                connections.append(cluster.connection(Broker(broker)))
            except UnsupportedVersionError:
                raise
            except BrokerError as error:
                away = error
                self._note_failure(error, upstream)
        return connections, away

    def _exchange_all(
        self,
        upstream: _Upstream,
        request: Request,
        bodies: Mapping[Connection, bytes | memoryview],
    ) -> dict[Connection, memoryview]:
        """Send requests to several brokers at the same time: they share one timeout.

        Returns:
            The bodies of the responses. Brokers that did not answer are left out.

        Raises:
            UnsupportedVersionError: A broker does not know the version of the request.
        """
        timeout = upstream.client.settings.request_timeout
        sent: list[Connection] = []
        answers: dict[Connection, memoryview] = {}
        for connection, body in bodies.items():
            try:
                connection.send_buffers(request.api, request.version, [body], timeout=timeout)
            except UnsupportedVersionError:
                raise
            except BrokerError as error:
                self._note_failure(error, upstream)
            else:
                sent.append(connection)
        for connection in _as_they_answer(sent, timeout):
            try:
                answers[connection] = connection.receive_body()[1]
            except BrokerError as error:
                self._note_failure(error, upstream)
        return answers

    def _exchange(
        self,
        upstream: _Upstream,
        connection: Connection,
        request: Request,
        body: bytes | memoryview,
        decoded: Decoded,
    ) -> memoryview:
        """Send the body of a request, and return the response's body.

        Raises:
            UnsupportedVersionError: This broker does not know the version of the request.
            BrokerError: The connection is lost, or there is no answer in time.
        """
        timeout = upstream.client.settings.request_timeout
        if request.api is ApiKey.JOIN_GROUP:
            longest = getattr(decoded, "rebalance_timeout", decoded.session_timeout)
            upstream.rebalance_timeout = max(longest.total_seconds(), 0.0)
        if request.api in {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}:
            timeout += upstream.rebalance_timeout
        connection.send_buffers(request.api, request.version, [body], timeout=timeout)
        if request.api in {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}:
            request.budget.release()  # it waits for other members
        return connection.receive_body()[1]

    # Responses

    def _examined(
        self,
        upstream: _Upstream,
        connection: Connection,
        request: Request,
        body: memoryview,
        names: tuple[str, ...],
    ) -> ResponsePayload:
        """Decode a response, to notice a coordinator that has moved and topics that differ."""
        response = decode_response(request.api, request.version, body, str(connection))
        codes = {error.code for error in errors_in(response)}
        if codes & {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}:
            for name in names:
                upstream.cluster.forget_coordinator(name)
        if request.api is ApiKey.OFFSET_COMMIT:
            self._warn_of_missing_topics(response, names[0])
        elif request.api is ApiKey.CONSUMER_GROUP_HEARTBEAT:
            self._warn_of_other_topic_ids(response, names[0])
        return response

    def _warn_of_missing_topics(self, response: Any, group: str) -> None:  # noqa: ANN401 - kio's
        for topic in response.topics:
            errors = {row.error_code for row in topic.partitions}
            if ErrorCode.unknown_topic_or_partition in errors and self._warned.is_new(topic.name):
                log.warning(
                    "endpoint.relay_topic_missing",
                    topic=topic.name,
                    group=group,
                    help="the live cluster does not have this topic or partition, so it refuses "
                    "commits for it; create the topic there, or use --groups local",
                )

    def _warn_of_other_topic_ids(self, response: Any, group: str) -> None:  # noqa: ANN401 - kio's
        assignment = response.assignment
        for assigned in () if assignment is None else assignment.topic_partitions:
            topic_id = assigned.topic_id
            if not self._archived.has_topic_id(topic_id) and self._warned.is_new(topic_id):
                log.warning(
                    "endpoint.relay_topic_id_differs",
                    topic_id=str(topic_id),
                    group=group,
                    help="the live cluster assigns a topic with an id that the archive does not "
                    "have, so members read nothing from it; use group.protocol=classic",
                )


def _for_groups(api: ApiKey, request: Decoded, groups: Collection[str]) -> Decoded:
    """Return the part of a request for several groups that concerns some of them."""
    field = FIELDS_OF_SEVERAL[api][0]
    entries = getattr(request, field)
    part = tuple(entry for entry in entries if getattr(entry, "group_id", entry) in groups)
    return replace(request, **{field: part})


def _as_they_answer(connections: Collection[Connection], timeout: float) -> Iterator[Connection]:
    """Yield connections when their responses begin; after the timeout, those without a response.

    In a fixed order, the response of the second broker would be late if the first one hangs.
    """
    deadline = monotonic() + timeout
    waiting = list(connections)
    with DefaultSelector() as selector:
        for connection in waiting:
            selector.register(connection, EVENT_READ, connection)
        while waiting:
            ready = selector.select(max(deadline - monotonic(), 0.0))
            if not ready:
                yield from waiting
                return
            for key, _ in ready:
                selector.unregister(key.fileobj)
                waiting.remove(key.data)
                yield key.data


def _first_error(response: object) -> ErrorCode:
    return _error_code(next((error.code for error in errors_in(response)), 0))


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # of a later version of Kafka
        return ErrorCode.unknown_server_error
