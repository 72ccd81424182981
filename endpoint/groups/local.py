"""Consumer groups that the endpoint keeps itself (`--groups local`): the requests of groups."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.classic_group import ClassicGroup, GroupState, Join, MemberId
from sidetier.endpoint.groups.coordinator import GroupCoordinator, RefusedError
from sidetier.endpoint.groups.requests import (
    FIRST_WITH_NULL_PROTOCOL,
    FIRST_WITH_SEVERAL_GROUPS,
    OFFERED_OF_GROUPS,
    Coordinator,
    Decoded,
    coordinator_answer,
    coordinator_keys,
    error_answer,
    is_for_groups,
    refused_transactions,
)
from sidetier.endpoint.groups.stored_offsets import Offsets, StoredOffset
from sidetier.endpoint.log_limits import Once
from sidetier.endpoint.session import ANONYMOUS, Answer, Request, Session, first_error
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.logs import logger
from sidetier.wire.protocol import ApiKey, build_response, encode

log = logger()

OFFERED_LOCAL: Final = OFFERED_OF_GROUPS
"""ConsumerGroupHeartbeat is listed to be refused: from a server without it, librdkafka with
`group.protocol=consumer` reads nothing and reports nothing."""

MAX_METADATA: Final = 4096
"""Most bytes of the metadata of a committed offset (`offset.metadata.max.bytes`)."""
_CLASSIC_ONLY: Final = "this endpoint keeps groups with group.protocol=classic only"
_MEMBER_ID_REQUIRED_FROM: Final = 4
_SKIP_ASSIGNMENT_FROM: Final = 9
_SEVERAL_MEMBERS_FROM: Final = 3
_UNKNOWN_GROUP_ERROR_FROM: Final = 6


class LocalGroups:
    """Answers the requests of groups from a coordinator of this process. Thread-safe.

    Args:
        coordinator: The groups.
        has_partition: Returns whether a partition is in the archive.
        topic_id: Returns the id of a topic in the archive, as Kafka writes ids; None if the archive
            has none.
        advertised: Host and port at which clients reach the endpoint.
    """

    offered: Mapping[ApiKey, tuple[int, int]] = OFFERED_LOCAL

    def __init__(
        self,
        coordinator: GroupCoordinator,
        has_partition: Callable[[TopicPartition], bool],
        topic_id: Callable[[str], str | None],
        advertised: tuple[str, int],
    ) -> None:
        self._coordinator = coordinator
        self._has_partition = has_partition
        self._topic_id = topic_id
        self._ignored = Once()
        self._advertised = advertised
        self._handlers: Mapping[ApiKey, Callable[[Request, Decoded, Session], Answer]] = {
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch_offsets,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.LIST_GROUPS: self._list,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._refuse_consumer_protocol,
        }

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one of the offered requests. JoinGroup and SyncGroup wait for other members."""
        decoded = request.decode()
        try:
            return self._handlers[request.api](request, decoded, session)
        except RefusedError as refused:
            return error_answer(request, decoded, refused.error)

    def close(self) -> None:
        """End all waits."""
        self._coordinator.close()

    def _find_coordinator(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        if not is_for_groups(decoded):
            return refused_transactions(request.version, decoded)
        keys = coordinator_keys(decoded)
        return coordinator_answer(
            request.version, [Coordinator(key, address=self._advertised) for key in keys]
        )

    # Members

    def _join(self, request: Request, decoded: Decoded, session: Session) -> Answer:
        version, host = request.version, _host(session)
        session_timeout = decoded.session_timeout.total_seconds()
        rebalance = getattr(decoded, "rebalance_timeout", decoded.session_timeout).total_seconds()
        join = Join(
            decoded.member_id,
            getattr(decoded, "group_instance_id", None),
            request.client_id or "",
            host,
            session_timeout,
            rebalance if rebalance >= 0 else session_timeout,
            decoded.protocol_type,
            tuple((each.name, bytes(each.metadata)) for each in decoded.protocols),
            needs_member_id=version >= _MEMBER_ID_REQUIRED_FROM,
            can_skip_assignment=version >= _SKIP_ASSIGNMENT_FROM,
            owner=host if session.principal == ANONYMOUS else session.principal,
        )
        answer = self._coordinator.join(decoded.group_id, join)
        no_protocol = None if version >= FIRST_WITH_NULL_PROTOCOL else ""
        return _answer(
            request,
            answer.error,
            error_code=answer.error,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=no_protocol if answer.protocol is None else answer.protocol,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.metadata,
                }
                for member in answer.members
            ],
        )

    def _sync(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        answer = self._coordinator.sync(
            decoded.group_id,
            _member(decoded, decoded.generation_id),
            {each.member_id: bytes(each.assignment) for each in decoded.assignments},
            getattr(decoded, "protocol_type", None),
            getattr(decoded, "protocol_name", None),
        )
        return _answer(
            request,
            answer.error,
            error_code=answer.error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    def _heartbeat(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        member = _member(decoded, decoded.generation_id)
        error = self._coordinator.heartbeat(decoded.group_id, member)
        return _answer(request, error, error_code=error)

    def _leave(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        several = request.version >= _SEVERAL_MEMBERS_FROM
        leaving = [
            (member.member_id, getattr(member, "group_instance_id", None))
            for member in (decoded.members if several else (decoded,))
        ]
        errors = self._coordinator.leave(decoded.group_id, leaving)
        first = first_error(errors)
        return _answer(
            request,
            first,
            error_code=ErrorCode.none if several else first,
            members=[
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
                for (member_id, instance_id), error in zip(leaving, errors, strict=True)
            ],
        )

    def _refuse_consumer_protocol(
        self, request: Request, decoded: Decoded, _session: Session
    ) -> Answer:
        # The error of a broker whose consumer protocol is switched off.
        return error_answer(request, decoded, ErrorCode.unsupported_version, _CLASSIC_ONLY)

    # Offsets

    def _commit(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        errors: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, StoredOffset] = {}
        for topic in decoded.topics:
            topic_id = self._topic_id(topic.name)
            for asked in topic.partitions:
                tp = TopicPartition(topic.name, asked.partition_index)
                committed = StoredOffset(
                    Offset(asked.committed_offset),
                    LeaderEpoch(getattr(asked, "committed_leader_epoch", -1)),
                    asked.committed_metadata or "",
                    topic_id,
                )
                if not self._has_partition(tp):
                    errors[tp] = ErrorCode.unknown_topic_or_partition
                elif len(committed.metadata.encode()) > MAX_METADATA:
                    errors[tp] = ErrorCode.offset_metadata_too_large
                else:
                    offsets[tp] = committed
        member = _member(decoded, decoded.generation_id_or_member_epoch)
        error = self._coordinator.commit(decoded.group_id, member, offsets)
        errors.update(dict.fromkeys(offsets, error))
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": asked.partition_index,
                        "error_code": errors[TopicPartition(topic.name, asked.partition_index)],
                    }
                    for asked in topic.partitions
                ],
            }
            for topic in decoded.topics
        ]
        return _answer(request, first_error(errors.values()), topics=topics)

    def _fetch_offsets(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        if request.version < FIRST_WITH_SEVERAL_GROUPS:
            topics = self._committed_topics(decoded.group_id, decoded.topics)
            return _answer(request, ErrorCode.none, topics=topics, error_code=ErrorCode.none)
        rows = [self._fetched_row(asked) for asked in decoded.groups]
        return _answer(request, first_error(row["error_code"] for row in rows), groups=rows)

    def _fetched_row(self, asked: Decoded) -> dict[str, Any]:
        row: dict[str, Any] = {"group_id": asked.group_id, "topics": ()}
        try:
            topics = self._committed_topics(asked.group_id, asked.topics)
        except RefusedError as refused:
            return row | {"error_code": refused.error}
        return row | {"error_code": ErrorCode.none, "topics": topics}

    def _committed_topics(self, group: str, asked: Decoded) -> list[dict[str, Any]]:
        """Return the rows of OffsetFetch; `asked` is None for all partitions."""
        offsets = self._coordinator.offsets(group) or {}
        names = None if asked is None else {topic.name for topic in asked}
        ids = {
            topic: self._topic_id(topic)
            for topic in sorted({tp.topic for tp in offsets})
            if names is None or topic in names
        }
        valid = {
            tp: committed
            for tp, committed in offsets.items()
            if tp.topic in ids and not self._is_of_other_topic(group, tp, committed, ids[tp.topic])
        }
        return _committed_rows(valid, asked)

    def _is_of_other_topic(
        self, group: str, tp: TopicPartition, committed: StoredOffset, topic_id: str | None
    ) -> bool:
        """Return whether the offset is of a topic with this name that was deleted."""
        if topic_id is None or committed.topic_id in {None, topic_id}:
            return False
        if self._ignored.is_new((group, tp.topic, committed.topic_id)):
            log.warning(
                "endpoint.committed_offsets_ignored",
                group=group,
                topic=tp.topic,
                committed_topic_id=committed.topic_id,
                topic_id=topic_id,
                help="the topic was deleted and created again after the group had committed: its "
                "members start as auto.offset.reset says",
            )
        return True

    # Administration

    def _describe(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        rows = [self._description(name, request.version) for name in decoded.groups]
        return _answer(request, first_error(row["error_code"] for row in rows), groups=rows)

    def _description(self, name: str, version: int) -> dict[str, Any]:
        row: dict[str, Any] = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "group_id": name,
            "group_state": GroupState.EMPTY.value,
            "protocol_type": "",
            "protocol_data": "",
            "members": (),
        }
        with self._coordinator.group(name) as machine:
            if machine is not None:
                return row | _described(machine)
        try:
            is_known = self._coordinator.offsets(name) is not None
        except RefusedError as refused:
            return row | {"group_state": "", "error_code": refused.error}
        if is_known:
            return row
        is_error = version >= _UNKNOWN_GROUP_ERROR_FROM
        error = ErrorCode.group_id_not_found if is_error else ErrorCode.none
        return row | {"group_state": GroupState.DEAD.value, "error_code": error}

    def _list(self, request: Request, decoded: Decoded, _session: Session) -> Answer:
        states = {state.casefold() for state in getattr(decoded, "states_filter", ())}
        kinds = {kind.casefold() for kind in getattr(decoded, "types_filter", ())}
        groups = [
            {
                "group_id": name,
                "protocol_type": protocol_type,
                "group_state": state.value,
                "group_type": "classic",
            }
            for name, (state, protocol_type) in sorted(self._coordinator.states().items())
            if (not states or state.casefold() in states) and (not kinds or "classic" in kinds)
        ]
        return _answer(request, ErrorCode.none, error_code=ErrorCode.none, groups=groups)


def _answer(request: Request, error: ErrorCode, **values: object) -> Answer:
    response = build_response(request.api, request.version, throttle_time=0, **values)
    return Answer(encode(response), error)


def _member(decoded: Decoded, generation: int) -> MemberId:
    return MemberId(decoded.member_id, getattr(decoded, "group_instance_id", None), generation)


def _host(session: Session) -> str:
    """Return the client's address as Kafka shows it: with a slash, without the port."""
    return "/" + session.client.rpartition(":")[0]


def _committed_rows(offsets: Offsets, asked: Decoded) -> list[dict[str, Any]]:
    """Return offset -1 for partitions of `asked` without an offset; None asks for all."""
    if asked is None:
        partitions = sorted(offsets)
    else:
        partitions = [
            TopicPartition(topic.name, number)
            for topic in asked
            for number in topic.partition_indexes
        ]
    topics: dict[str, list[dict[str, Any]]] = {}
    nothing = StoredOffset(Offset(-1))
    for tp in partitions:
        committed = offsets.get(tp, nothing)
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": committed.offset,
                "committed_leader_epoch": committed.leader_epoch,
                "metadata": committed.metadata,
                "error_code": ErrorCode.none,
            }
        )
    return [{"name": name, "partitions": rows} for name, rows in topics.items()]


def _described(machine: ClassicGroup) -> dict[str, Any]:
    is_stable = machine.state is GroupState.STABLE
    return {
        "group_state": machine.state.value,
        "protocol_type": machine.protocol_type or "",
        "protocol_data": (machine.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(machine.protocol) if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in machine.members.values()
        ],
    }
