"""The groups that a request names, and answers that give all of it the same error."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.handlers import NODE_ID
from sidetier.endpoint.session import Answer, Request, first_error
from sidetier.wire.protocol import ApiKey, build_response, decode_response, encode

_GROUP_KEY: Final = 0
_FIRST_WITH_SEVERAL_KEYS: Final = 4
FIRST_WITH_NULL_PROTOCOL: Final = 7
"""Version of JoinGroup."""
_FIRST_WITH_GROUP_ERROR: Final = 2
FIRST_WITH_SEVERAL_GROUPS: Final = 8
"""Version of OffsetFetch."""
_READ_ONLY: Final = "this endpoint is read-only"

OFFERED_OF_GROUPS: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        ApiKey.OFFSET_COMMIT: (2, 9),
        ApiKey.OFFSET_FETCH: (1, 9),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    }
)
"""Versions of the requests that local groups and relayed groups answer. Version 10 of OffsetCommit
and OffsetFetch names topics by id, and the ids of a live cluster can differ from those of the
archive; all clients know version 9 too."""

FIELDS_OF_SEVERAL: Final[Mapping[ApiKey, tuple[str, str]]] = MappingProxyType(
    {
        ApiKey.FIND_COORDINATOR: ("coordinator_keys", "coordinators"),
        ApiKey.OFFSET_FETCH: ("groups", "groups"),
        ApiKey.DESCRIBE_GROUPS: ("groups", "groups"),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ("group_ids", "groups"),
    }
)
"""Fields of the request and of the response that have one entry for each group."""

MAX_ANSWER: Final = 16 << 20
"""Bytes of an answer beyond which it has no further group. Those that are left out get
COORDINATOR_LOAD_IN_PROGRESS: Java's Admin asks again for these only."""

Decoded = Any
"""A request body as kio decodes it; kio's classes share no base with fields."""


def groups_of(api: ApiKey, request: Decoded) -> tuple[str, ...]:
    """Return the names of all groups that a request concerns; none for ListGroups.

    Permissions on groups are checked with these names.
    """
    match api:
        case ApiKey.FIND_COORDINATOR:
            return coordinator_keys(request) if is_for_groups(request) else ()
        case ApiKey.OFFSET_FETCH if hasattr(request, "groups"):
            return tuple(asked.group_id for asked in request.groups)
        case ApiKey.DESCRIBE_GROUPS:
            return tuple(request.groups)
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            return tuple(request.group_ids)
        case ApiKey.LIST_GROUPS:
            return ()
    return (request.group_id,)


def without_repeats(request: Request) -> Request:
    """Return the request with each group, topic and partition once, of which it asks the state.

    Brokers answer each repetition: 16 KB with the name of one group ask for gigabytes.
    """
    decoded = request.decode()
    match request.api:
        case ApiKey.FIND_COORDINATOR if hasattr(decoded, "coordinator_keys"):
            unique: dict[str, Any] = {"coordinator_keys": _once(decoded.coordinator_keys)}
        case ApiKey.DESCRIBE_GROUPS:
            unique = {"groups": _once(decoded.groups)}
        case ApiKey.CONSUMER_GROUP_DESCRIBE:
            unique = {"group_ids": _once(decoded.group_ids)}
        case ApiKey.OFFSET_FETCH if hasattr(decoded, "groups"):
            groups: dict[str, Any] = {}
            for asked in decoded.groups:
                groups.setdefault(asked.group_id, asked)
            unique = {
                "groups": tuple(
                    replace(asked, topics=_topics_once(asked.topics)) for asked in groups.values()
                )
            }
        case ApiKey.OFFSET_FETCH:
            unique = {"topics": _topics_once(decoded.topics)}
        case _:
            return request
    once = replace(decoded, **unique)
    return request if once == decoded else request.with_decoded(once)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _topics_once(topics: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """Return each topic once, with all partitions that it is named with."""
    if topics is None:
        return None
    numbers: dict[str, dict[int, None]] = {}
    by_name: dict[str, Any] = {}
    for topic in topics:
        by_name[topic.name] = topic
        numbers.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return tuple(
        replace(topic, partition_indexes=tuple(numbers[name])) for name, topic in by_name.items()
    )


def is_for_groups(request: Decoded) -> bool:
    """Return whether a FindCoordinator request asks for groups, not for transactional ids."""
    return bool(getattr(request, "key_type", _GROUP_KEY) == _GROUP_KEY)


def coordinator_keys(request: Decoded) -> tuple[str, ...]:
    """Return the keys of a FindCoordinator request of any version."""
    several = getattr(request, "coordinator_keys", None)
    return (request.key,) if several is None else tuple(several)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The answer for one key of FindCoordinator: an address, or an error."""

    key: str
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    address: tuple[str, int] = ("", -1)


def coordinator_answer(version: int, coordinators: Sequence[Coordinator]) -> Answer:
    """Return the answer to FindCoordinator; versions below 4 have one key."""
    rows = [
        {
            "key": found.key,
            "error_code": found.error,
            "error_message": found.message,
            "node_id": NODE_ID if found.error is ErrorCode.none else -1,
            "host": found.address[0],
            "port": found.address[1],
        }
        for found in coordinators
    ]
    values: dict[str, Any] = (
        {"coordinators": rows} if version >= _FIRST_WITH_SEVERAL_KEYS else rows[0]
    )
    response = build_response(ApiKey.FIND_COORDINATOR, version, throttle_time=0, **values)
    return Answer(encode(response), first_error(found.error for found in coordinators))


def refused_transactions(version: int, request: Decoded) -> Answer:
    """Return the answer to FindCoordinator for transactional ids: there are no transactions."""
    error = ErrorCode.transactional_id_authorization_failed
    keys = coordinator_keys(request)
    return coordinator_answer(version, [Coordinator(key, error, _READ_ONLY) for key in keys])


def error_answer(
    request: Request, decoded: Decoded, error: ErrorCode, message: str | None = None
) -> Answer:
    """Return the answer that gives all groups, members and partitions of a request one error."""
    if request.api is ApiKey.FIND_COORDINATOR:
        keys = coordinator_keys(decoded)
        return coordinator_answer(
            request.version, [Coordinator(key, error, message) for key in keys]
        )
    response = error_response(request.api, request.version, decoded, error, message)
    return Answer(encode(response), error)


def response_of(request: Request, answer: Answer) -> Decoded:
    """Decode the answer to a request."""
    assert answer.body is not None  # noqa: S101 - for mypy: each request of groups is answered
    return decode_response(request.api, request.version, memoryview(answer.body), "endpoint")


def commit_without(
    topics: Collection[Any],
    request: Request,
    error: ErrorCode,
    commit: Callable[[Request], Answer],
) -> Answer:
    """Commit without some topics of the request, for which the answer has an error."""
    decoded = request.decode()
    # Also without topics: the coordinator checks the member, and renews its session.
    others = tuple(topic for topic in decoded.topics if topic not in topics)
    part = request.with_decoded(replace(decoded, topics=others))
    response = response_of(request, commit(part))
    refused = replace(decoded, topics=tuple(topics))
    denied = response_of(request, error_answer(request, refused, error))
    joined = (*response.topics, *denied.topics)
    return Answer(encode(replace(response, topics=joined)), error)


def offsets_of_topics(
    response: Decoded, asked: Decoded, shows: Callable[[str], bool], error: ErrorCode
) -> Decoded:
    """Return the response to OffsetFetch with the committed offsets of some topics only.

    Others have no offset, and this error; they are left out if the client has not named them.
    """
    if not hasattr(response, "groups"):
        rows = _shown_topics(response.topics, shows, error, are_named=asked.topics is not None)
        return replace(response, topics=rows)
    of_all_topics = {group.group_id for group in asked.groups if group.topics is None}
    groups = tuple(
        replace(
            group,
            topics=_shown_topics(
                group.topics, shows, error, are_named=group.group_id not in of_all_topics
            ),
        )
        for group in response.groups
    )
    return replace(response, groups=groups)


def _shown_topics(
    topics: Iterable[Any], shows: Callable[[str], bool], error: ErrorCode, *, are_named: bool
) -> tuple[Any, ...]:
    rows = []
    for topic in topics:
        if shows(topic.name):
            rows.append(topic)
        elif are_named:
            hidden: dict[str, Any] = {"committed_offset": -1, "metadata": "", "error_code": error}
            if topic.partitions and hasattr(topic.partitions[0], "committed_leader_epoch"):
                hidden["committed_leader_epoch"] = -1
            partitions = tuple(replace(row, **hidden) for row in topic.partitions)
            rows.append(replace(topic, partitions=partitions))
    return tuple(rows)


def error_response(
    api: ApiKey, version: int, request: Decoded, error: ErrorCode, message: str | None = None
) -> Any:  # noqa: ANN401 - kio's
    """Return the response of `error_answer` as an entity; not for FindCoordinator."""
    values: dict[str, Any] = {"error_code": error, "members": (), "groups": ()}
    match api:
        case ApiKey.JOIN_GROUP:
            values |= {
                "leader": "",
                "member_id": request.member_id,
                "protocol_type": None,
                "protocol_name": None if version >= FIRST_WITH_NULL_PROTOCOL else "",
            }
        case ApiKey.SYNC_GROUP:
            values |= {"assignment": b""}
        case ApiKey.OFFSET_COMMIT:
            values |= {"topics": _topics_with(error, request)}
        case ApiKey.OFFSET_FETCH if version >= FIRST_WITH_SEVERAL_GROUPS:
            values["groups"] = [
                {"group_id": asked.group_id, "topics": (), "error_code": error}
                for asked in request.groups
            ]
        case ApiKey.OFFSET_FETCH:
            is_below = version < _FIRST_WITH_GROUP_ERROR
            values["topics"] = _unread_topics(error, request) if is_below else ()
        case ApiKey.DESCRIBE_GROUPS | ApiKey.CONSUMER_GROUP_DESCRIBE:
            values["groups"] = [_undescribed(name, error) for name in groups_of(api, request)]
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            values |= {
                "error_message": message,
                "member_id": request.member_id,
                "member_epoch": request.member_epoch,
                "heartbeat_interval": 0,
            }
    return build_response(api, version, throttle_time=0, **values)


def _topics_with(error: ErrorCode, request: Decoded) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": asked.partition_index, "error_code": error}
                for asked in topic.partitions
            ],
        }
        for topic in request.topics
    ]


def _unread_topics(error: ErrorCode, request: Decoded) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": -1,
                    "metadata": "",
                    "error_code": error,
                }
                for number in topic.partition_indexes
            ],
        }
        for topic in request.topics
    ]


def _undescribed(name: str, error: ErrorCode) -> dict[str, Any]:
    """Return the rows of DescribeGroups and of ConsumerGroupDescribe."""
    return {
        "error_code": error,
        "error_message": None,
        "group_id": name,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }
