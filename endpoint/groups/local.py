"""Consumer groups that the endpoint keeps itself (`--groups local`): the requests of groups."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.classic_group import ClassicGroup, GroupState, Join, MemberId
from sidetier.endpoint.groups.coordinator import GroupCoordinator, RefusedError
from sidetier.endpoint.groups.expiry import GroupExpiry
from sidetier.endpoint.groups.requests import (
    FIRST_WITH_NULL_PROTOCOL,
    FIRST_WITH_SEVERAL_GROUPS,
    MAX_ANSWER,
    OFFERED_OF_GROUPS,
    Coordinator,
    Decoded,
    coordinator_answer,
    coordinator_keys,
    error_answer,
    is_for_groups,
    refused_transactions,
)
from sidetier.endpoint.groups.stored_offsets import MAX_BYTES, Offsets, StoredOffset
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
_ROW_BYTES: Final = 500
"""Memory for a row of an answer, besides its long texts."""
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
        expiry: GroupExpiry | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._expiry = expiry
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
        """End all waits, and delete no further group."""
        if self._expiry is not None:
            self._expiry.close()
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
            owner=_owner(session),
        )
        request.budget.release()  # the coordinator counts what it keeps while the member waits
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
        assignments = {each.member_id: bytes(each.assignment) for each in decoded.assignments}
        request.budget.release()  # as for JoinGroup
        answer = self._coordinator.sync(
            decoded.group_id,
            _member(decoded, decoded.generation_id),
            assignments,
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

    def _commit(self, request: Request, decoded: Decoded, session: Session) -> Answer:
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
        error = self._coordinator.commit(decoded.group_id, member, offsets, _owner(session))
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
        several = request.version >= FIRST_WITH_SEVERAL_GROUPS
        asked = decoded.groups if several else (decoded,)
        request.budget.take_answer(min(sum(map(_most_bytes, asked)), 2 * MAX_ANSWER))
        if not several:
            topics = self._committed_topics(decoded.group_id, decoded.topics)
            return _answer(request, ErrorCode.none, topics=topics, error_code=ErrorCode.none)
        rows: list[dict[str, Any]] = []
        size = 0
        for each in asked:
            row = self._fetched_row(each) if size < MAX_ANSWER else _left_out(each.group_id)
            size += sum(
                _row_bytes(partition)
                for topic in row["topics"]
                for partition in topic["partitions"]
            )
            rows.append(row)
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
        wanted = None
        if asked is not None:
            wanted = [
                TopicPartition(topic.name, number)
                for topic in asked
                for number in topic.partition_indexes
            ]
        offsets = self._coordinator.offsets(group, wanted) or {}
        ids = {topic: self._topic_id(topic) for topic in sorted({tp.topic for tp in offsets})}
        valid = {
            tp: committed
            for tp, committed in offsets.items()
            if not self._is_of_other_topic(group, tp, committed, ids[tp.topic])
        }
        return _committed_rows(valid, sorted(valid) if wanted is None else wanted)

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
        described: list[str] = []
        size = 0
        for name in decoded.groups:
            if size < MAX_ANSWER:
                described.append(name)
                with self._coordinator.group(name) as machine:
                    size += 0 if machine is None else machine.memory
        request.budget.take_answer(2 * size)  # the rows, and their bytes
        rows = [self._description(name, request.version) for name in described]
        # In the order of the request, of which the first ones are described.
        rows += [
            _no_description(name, ErrorCode.coordinator_load_in_progress)
            for name in decoded.groups[len(described) :]
        ]
        return _answer(request, first_error(row["error_code"] for row in rows), groups=rows)

    def _description(self, name: str, version: int) -> dict[str, Any]:
        row = _no_description(name, ErrorCode.none) | {"group_state": GroupState.EMPTY.value}
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
        all_states = self._coordinator.states()
        request.budget.take_answer(len(all_states) * _ROW_BYTES)
        groups = [
            {
                "group_id": name,
                "protocol_type": protocol_type,
                "group_state": state.value,
                "group_type": "classic",
            }
            for name, (state, protocol_type) in sorted(all_states.items())
            if (not states or state.casefold() in states) and (not kinds or "classic" in kinds)
        ]
        return _answer(request, ErrorCode.none, error_code=ErrorCode.none, groups=groups)


def _answer(request: Request, error: ErrorCode, **values: object) -> Answer:
    response = build_response(request.api, request.version, throttle_time=0, **values)
    return Answer(encode(response), error)


def _member(decoded: Decoded, generation: int) -> MemberId:
    return MemberId(decoded.member_id, getattr(decoded, "group_instance_id", None), generation)


def _owner(session: Session) -> str:
    """Return whose bounds a member or a new group counts for."""
    return _host(session) if session.principal == ANONYMOUS else session.principal


def _host(session: Session) -> str:
    """Return the client's address as Kafka shows it: with a slash, without the port."""
    return "/" + session.client.rpartition(":")[0]


def _most_bytes(asked: Decoded) -> int:
    """Return the most bytes that the committed offsets of a group can take in an answer."""
    if asked.topics is None:
        return MAX_BYTES
    return min(
        sum(len(topic.partition_indexes) for topic in asked.topics) * MAX_METADATA, MAX_BYTES
    )


def _row_bytes(row: Mapping[str, Any]) -> int:
    return _ROW_BYTES + len(row["metadata"])


def _left_out(group: str) -> dict[str, Any]:
    error = ErrorCode.coordinator_load_in_progress
    return {"group_id": group, "topics": (), "error_code": error}


def _committed_rows(offsets: Offsets, tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Return a row for each partition; offset -1 for those without an offset."""
    topics: dict[str, list[dict[str, Any]]] = {}
    nothing = StoredOffset(Offset(-1))
    for tp in tps:
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


def _no_description(group: str, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": None,
        "group_id": group,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
    }


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
