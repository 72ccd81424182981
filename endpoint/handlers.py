"""The answers to all requests but Fetch, logins and consumer groups.

`protocol` has the versions of these requests.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.archive.view import ArchiveView
from sidetier.endpoint.catalog import Catalog, Topic
from sidetier.endpoint.offsets import EARLIEST, EpochEnd, ListedOffset, OffsetAnswers
from sidetier.endpoint.session import Answer, Request, Session, first_error
from sidetier.endpoint.users import Access
from sidetier.segments.errors import MalformedRequestError, SidetierError
from sidetier.segments.lru import Lru
from sidetier.segments.names import is_legal_topic
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.protocol import ApiKey, build_response, encode

NODE_ID: Final = 0
"""Node id of the endpoint: the only broker of the cluster that it shows."""
_NO_LEADER_EPOCH: Final = -1
_BROKERS: Final = 1
"""Endpoint type of brokers, in DescribeCluster; controllers have 2."""
_NO_CONTROLLER: Final = (
    "The request was sent to an endpoint of type BROKER, "
    "but we wanted an endpoint of type CONTROLLER"
)
"""The text of a broker."""
_TOPIC_RESOURCE: Final = 2
_READ_ONLY: Final = "this endpoint is read-only"
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_METADATA_BYTES: Final = 16 << 20
"""Most bytes of answers to Metadata that are remembered."""
_NAME_BYTES: Final = 400
"""Memory for a name that was asked for, at most."""
_PARTITION_BYTES: Final = 1 << 10
"""Memory for a partition of an answer to Metadata while it is built."""
_MAX_LISTED: Final = 256
_MAX_REPEATED: Final = 1024
"""Bytes of a ListOffsets request whose answer is remembered."""
_FIRST_NULL_FOR_ALL: Final = 1
_FIRST_WITHOUT_NAME: Final = 12
"""Version of Metadata that asks for a topic by its id alone. The answers of versions 10 and 11 must
have a name.
"""
_MetadataKey = tuple[int, tuple[object, ...] | None, Access, str]
"""Version, names and ids that were asked for (None: all topics), what the client may read, and the
cluster's id.
"""
_Views = list[tuple[TopicPartition, ArchiveView]]


class _Metadata(NamedTuple):
    """An answer to Metadata, valid for these topics. `weight` is its memory, in bytes."""

    topics: object
    body: bytes
    weight: int


class RequestHandlers:
    """Answers requests from the catalog. Thread-safe.

    Args:
        catalog: The topics.
        offsets: Answers questions for offsets.
        advertised: Host and port at which clients reach the endpoint.
    """

    def __init__(
        self, catalog: Catalog, offsets: OffsetAnswers, advertised: tuple[str, int]
    ) -> None:
        self._catalog = catalog
        self._offsets = offsets
        self._host, self._port = advertised
        self._metadata = Lru[_MetadataKey, _Metadata](_METADATA_BYTES, attrgetter("weight"))
        self._listed = Lru[tuple[int, bytes, Access], tuple[_Views, Answer]](_MAX_LISTED)
        self._handlers: Mapping[ApiKey, Callable[[Any, int, Access], Answer]] = {
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._answer_epoch_ends,
            ApiKey.DESCRIBE_CLUSTER: self._answer_cluster,
            ApiKey.DESCRIBE_CONFIGS: self._answer_configs,
            ApiKey.PRODUCE: self._refuse_produce,
            ApiKey.INIT_PRODUCER_ID: self._refuse_producer_id,
        }

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one request."""
        is_small = len(request.frame) <= _MAX_REPEATED
        if request.api is ApiKey.LIST_OFFSETS:
            after_lost = session.progress.after_lost
            if is_small and self._catalog.live is None and not after_lost:
                return self._answer_repeated(request, session.access)
            asked, version = request.decode(), request.version
            return self._answer_list_offsets(asked, version, session.access, after_lost)
        if request.api is ApiKey.METADATA:
            return self._answer_metadata(request, session.access)
        return self._handlers[request.api](request.decode(), request.version, session.access)

    # Metadata

    def _answer_metadata(self, request: Request, access: Access) -> Answer:
        version, asked = request.version, request.decode().topics
        if asked is not None and not asked and version < _FIRST_NULL_FOR_ALL:
            asked = None  # version 0 has no null: an empty list means all topics
        names = None
        if asked is not None:
            # Each topic once, as brokers do: 2 MiB of one name would ask for gigabytes. The id
            # beside a name does not count: a client could write another one each time.
            ids = ((topic.name, getattr(topic, "topic_id", None)) for topic in asked)
            names = tuple({name or topic_id: (name, topic_id) for name, topic_id in ids}.values())
            if version < _FIRST_WITHOUT_NAME and any(name is None for name, _ in names):
                raise MalformedRequestError(f"Metadata v{version} asks for a topic without a name")
            self._look_for(names, access)
        # After the look-ups, which may have replaced it.
        topics = self._catalog.topics
        cluster_id = self._catalog.cluster_id
        # Users with other permissions get other answers.
        key = (version, names, access, cluster_id)
        known = self._metadata.get(key)
        if known is not None and known.topics is topics:
            return Answer(known.body)
        if names is None:
            found: list[Topic | dict[str, Any]] = [
                topic for name, topic in topics.items() if access.can_read(name)
            ]
        else:
            found = [self._asked(name, topic_id, access) for name, topic_id in names]
        partitions = sum(each.partitions for each in found if isinstance(each, Topic))
        request.budget.take_answer(partitions * _PARTITION_BYTES)
        rows = [_metadata_row(each) if isinstance(each, Topic) else each for each in found]
        response = build_response(
            ApiKey.METADATA,
            version,
            throttle_time=0,
            brokers=[{"node_id": NODE_ID, "host": self._host, "port": self._port}],
            cluster_id=cluster_id,
            controller_id=NODE_ID,
            topics=rows,
            error_code=ErrorCode.none,
        )
        body = encode(response)
        error = first_error(row["error_code"] for row in rows)
        if error is ErrorCode.none:
            weight = len(body) + _NAME_BYTES * len(names or ())
            self._metadata.put(key, _Metadata(topics, body, weight))
        return Answer(body, error)

    def _look_for(self, names: Iterable[tuple[str | None, UUID | None]], access: Access) -> None:
        """List the topics again if one of these is not known."""
        for name, topic_id in names:
            if name is None or access.can_read(name):
                self._topic(name, topic_id)

    def _topic(self, name: str | None, topic_id: UUID | None) -> Topic | None:
        if name is None:
            return None if topic_id is None else self._catalog.topic_of_id(topic_id)
        return self._catalog.topic(name)

    def _asked(
        self, name: str | None, topic_id: UUID | None, access: Access
    ) -> Topic | dict[str, Any]:
        """Return a topic, or the row of an error."""
        if name is not None and not access.can_read(name):
            # The same for topics that do not exist, and without the id, as brokers do.
            return _error_row(ErrorCode.topic_authorization_failed, name, None)
        topic = self._topic(name, topic_id)
        if topic is None:
            return _error_row(_unknown(name), name, topic_id)
        if not access.can_read(topic.name):
            # As brokers do: the id is not a secret, but the name is.
            return _error_row(ErrorCode.topic_authorization_failed, None, topic_id)
        return topic

    # Offsets

    def _answer_repeated(self, request: Request, access: Access) -> Answer:
        """Answer ListOffsets; from memory if the same request was answered and the archives are the
        same.

        Spark's Kafka source asks for the start and the end of a partition with each poll.
        """
        key = (request.version, bytes(request.body()), access)
        known = self._listed.get(key)
        if known is not None and all(self._view(tp) is view for tp, view in known[0]):
            return known[1]
        # Before the answer: an archive that changes meanwhile is another one the next time.
        decoded = request.decode()
        views = self._views(decoded, access)
        answer = self._answer_list_offsets(decoded, request.version, access, {})
        if answer.error is ErrorCode.none and views is not None:
            self._listed.put(key, (views, answer))
        return answer

    def _views(self, request: Any, access: Access) -> _Views | None:  # noqa: ANN401 - kio's
        """Return the archives that a ListOffsets request asks for; None if its answer must not be
        remembered: one of them cannot be read, or is asked for a time, which differs each time.
        """
        rows = [(topic.name, row) for topic in request.topics for row in topic.partitions]
        if any(row.timestamp >= 0 or not access.can_read(name) for name, row in rows):
            return None
        views: _Views = []
        for name, row in rows:
            tp = TopicPartition(name, row.partition_index)
            view = self._view(tp)
            if view is None:
                return None
            views.append((tp, view))
        return views

    def _view(self, tp: TopicPartition) -> ArchiveView | None:
        partition = self._catalog.partition(*tp)
        try:
            return None if partition is None else partition.view()
        except SidetierError:
            return None  # the answer reports it

    def _answer_list_offsets(
        self,
        request: Any,  # noqa: ANN401 - kio's
        version: int,
        access: Access,
        after_lost: dict[TopicPartition, Offset],
    ) -> Answer:
        isolation = getattr(request, "isolation_level", 0)
        asked_all = (
            (TopicPartition(topic.name, row.partition_index), row.timestamp)
            for topic in request.topics
            if access.can_read(topic.name)
            for row in topic.partitions
        )
        told = self._offsets.ask_leaders(asked_all, isolation)
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                listed = ListedOffset(ErrorCode.topic_authorization_failed)
                if access.can_read(topic.name):
                    listed = self._offsets.list_offset(
                        topic.name, asked.partition_index, asked.timestamp, isolation, version, told
                    )
                if listed.error is ErrorCode.none and asked.timestamp == EARLIEST:
                    tp = TopicPartition(topic.name, asked.partition_index)
                    after = after_lost.pop(tp, Offset(0))
                    listed = listed._replace(offset=max(listed.offset, after))
                rows.append(
                    {
                        "partition_index": asked.partition_index,
                        "error_code": listed.error,
                        "timestamp": listed.timestamp,
                        "offset": listed.offset,
                        "leader_epoch": _NO_LEADER_EPOCH,
                    }
                )
            topics.append({"name": topic.name, "partitions": rows})
        response = build_response(ApiKey.LIST_OFFSETS, version, throttle_time=0, topics=topics)
        return Answer(encode(response), _error_of_partitions(topics))

    def _answer_epoch_ends(self, request: Any, version: int, access: Access) -> Answer:  # noqa: ANN401 - kio's
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                end = EpochEnd(ErrorCode.topic_authorization_failed)
                if access.can_read(topic.topic):
                    end = self._offsets.epoch_end(topic.topic, asked.partition, asked.leader_epoch)
                rows.append(
                    {
                        "error_code": end.error,
                        "partition": asked.partition,
                        "leader_epoch": end.leader_epoch,
                        "end_offset": end.end_offset,
                    }
                )
            topics.append({"topic": topic.topic, "partitions": rows})
        response = build_response(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, version, throttle_time=0, topics=topics
        )
        return Answer(encode(response), _error_of_partitions(topics))

    # The cluster

    def _answer_cluster(self, request: Any, version: int, _access: Access) -> Answer:  # noqa: ANN401 - kio's
        asks_brokers = getattr(request, "endpoint_type", _BROKERS) == _BROKERS
        error = ErrorCode.none if asks_brokers else ErrorCode.mismatched_endpoint_type
        node = {"broker_id": NODE_ID, "host": self._host, "port": self._port, "is_fenced": False}
        response = build_response(
            ApiKey.DESCRIBE_CLUSTER,
            version,
            throttle_time=0,
            error_code=error,
            error_message=None if asks_brokers else _NO_CONTROLLER,
            endpoint_type=_BROKERS,
            cluster_id=self._catalog.cluster_id,
            controller_id=NODE_ID,
            brokers=[node] if asks_brokers else [],
        )
        return Answer(encode(response), error)

    def _answer_configs(self, request: Any, version: int, access: Access) -> Answer:  # noqa: ANN401 - kio's
        """Return no setting: the archive does not have those of topics."""
        results = []
        for asked in request.resources:
            error = ErrorCode.none
            if asked.resource_type == _TOPIC_RESOURCE:
                error = self._topic_error(asked.resource_name, access)
            results.append(
                {
                    "error_code": error,
                    "error_message": "",
                    "resource_type": asked.resource_type,
                    "resource_name": asked.resource_name,
                    "configs": (),
                }
            )
        response = build_response(
            ApiKey.DESCRIBE_CONFIGS, version, throttle_time=0, results=results
        )
        return Answer(encode(response), first_error(row["error_code"] for row in results))

    def _topic_error(self, name: str, access: Access) -> ErrorCode:
        if not access.can_read(name):
            return ErrorCode.topic_authorization_failed
        is_unknown = self._catalog.topic(name) is None
        return ErrorCode.unknown_topic_or_partition if is_unknown else ErrorCode.none

    # What the endpoint refuses

    def _refuse_produce(self, request: Any, version: int, _access: Access) -> Answer:  # noqa: ANN401 - kio's
        error = ErrorCode.topic_authorization_failed
        if request.acks == 0:
            return Answer(None, error)
        responses = [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partition_responses": [
                    {
                        "index": asked.index,
                        "error_code": error,
                        "base_offset": -1,
                        "record_errors": (),
                        "error_message": _READ_ONLY,
                    }
                    for asked in topic.partition_data
                ],
            }
            for topic in request.topic_data
        ]
        response = build_response(ApiKey.PRODUCE, version, responses=responses, throttle_time=0)
        return Answer(encode(response), error)

    def _refuse_producer_id(self, _request: Any, version: int, _access: Access) -> Answer:  # noqa: ANN401 - kio's
        error = ErrorCode.cluster_authorization_failed
        response = build_response(
            ApiKey.INIT_PRODUCER_ID,
            version,
            throttle_time=0,
            error_code=error,
            producer_id=-1,
            producer_epoch=-1,
        )
        return Answer(encode(response), error)


def _error_of_partitions(topics: Iterable[Mapping[str, Any]]) -> ErrorCode:
    """Return the first error in rows of topics with rows of partitions."""
    return first_error(row["error_code"] for topic in topics for row in topic["partitions"])


def _unknown(name: str | None) -> ErrorCode:
    if name is None:
        return ErrorCode.unknown_topic_id
    is_legal = is_legal_topic(name)
    return ErrorCode.unknown_topic_or_partition if is_legal else ErrorCode.invalid_topic_exception


def _error_row(error: ErrorCode, name: str | None, topic_id: UUID | None) -> dict[str, Any]:
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": ()}


def _metadata_row(topic: Topic) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in _INTERNAL,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": number,
                "leader_id": NODE_ID,
                # With a real epoch that is lower than the one of a committed offset, Java's
                # consumer would wait for a newer one for ever.
                "leader_epoch": _NO_LEADER_EPOCH,
                "replica_nodes": (NODE_ID,),
                "isr_nodes": (NODE_ID,),
            }
            for number in range(topic.partitions)
        ],
    }
