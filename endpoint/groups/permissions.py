"""Permissions on groups and topics, in front of the coordinator that answers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.none import Groups
from sidetier.endpoint.groups.requests import (
    FIELDS_OF_SEVERAL,
    Decoded,
    commit_without,
    error_answer,
    groups_of,
    offsets_of_topics,
    response_of,
)
from sidetier.endpoint.session import Answer, Request, Session
from sidetier.endpoint.users import Access
from sidetier.wire.protocol import ApiKey, encode


class PermittedGroups:
    """Passes on what the user of the session may do, and refuses the rest, as brokers do.

    GROUP_AUTHORIZATION_FAILED for groups, TOPIC_AUTHORIZATION_FAILED for topics of commits and
    committed offsets, and for subscriptions with the consumer protocol, which the coordinator
    answers with the partitions of the topics. ListGroups, and OffsetFetch of all topics, leave out
    what is not permitted.

    Args:
        groups: Answers what is permitted.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    @property
    def offered(self) -> Mapping[ApiKey, tuple[int, int]]:
        """The versions of the inner groups, also for users that may not use them."""
        return self._groups.offered

    def close(self) -> None:
        """Close the inner groups."""
        self._groups.close()

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one of the offered requests."""
        decoded, access = request.decode(), session.access
        refused = {
            name for name in groups_of(request.api, decoded) if not access.can_use_group(name)
        }
        if refused:
            return self._without_groups(request, session, decoded, refused)
        match request.api:
            case ApiKey.OFFSET_COMMIT:
                return self._commit(request, session, decoded)
            case ApiKey.CONSUMER_GROUP_HEARTBEAT if not _can_subscribe(decoded, access):
                return error_answer(request, decoded, ErrorCode.topic_authorization_failed)
            case ApiKey.OFFSET_FETCH | ApiKey.CONSUMER_GROUP_DESCRIBE | ApiKey.LIST_GROUPS:
                return self._filtered(request, session, decoded)
        return self._groups.answer(request, session)

    def _without_groups(
        self, request: Request, session: Session, decoded: Decoded, refused: set[str]
    ) -> Answer:
        error = ErrorCode.group_authorization_failed
        asked_field, answered_field = FIELDS_OF_SEVERAL.get(request.api, ("", ""))
        entries: Iterable[Any] = getattr(decoded, asked_field, ()) if asked_field else ()
        names = {entry: getattr(entry, "group_id", entry) for entry in entries}
        permitted = tuple(entry for entry, name in names.items() if name not in refused)
        if not permitted:
            return error_answer(request, decoded, error)
        others = tuple(entry for entry, name in names.items() if name in refused)
        part = request.with_decoded(replace(decoded, **{asked_field: permitted}))
        answer = self.answer(part, session)
        denied = error_answer(request, replace(decoded, **{asked_field: others}), error)
        rows = getattr(response_of(request, denied), answered_field)
        response = response_of(request, answer)
        joined = (*getattr(response, answered_field), *rows)
        return Answer(encode(replace(response, **{answered_field: joined})), error)

    def _commit(self, request: Request, session: Session, decoded: Decoded) -> Answer:
        access = session.access
        others = tuple(topic for topic in decoded.topics if not access.can_read(topic.name))
        if not others:
            return self._groups.answer(request, session)
        return commit_without(
            others,
            request,
            ErrorCode.topic_authorization_failed,
            lambda part: self._groups.answer(part, session),
        )

    def _filtered(self, request: Request, session: Session, decoded: Decoded) -> Answer:
        answer, access = self._groups.answer(request, session), session.access
        response = response_of(request, answer)
        match request.api:
            case ApiKey.OFFSET_FETCH:
                response = offsets_of_topics(
                    response, decoded, access.can_read, ErrorCode.topic_authorization_failed
                )
            case ApiKey.CONSUMER_GROUP_DESCRIBE:
                response = _described(response, access)
            case ApiKey.LIST_GROUPS:
                response = _listed(response, access)
        return Answer(encode(response), answer.error)


def _can_subscribe(request: Decoded, access: Access) -> bool:
    """Return whether the user may read all topics of a ConsumerGroupHeartbeat.

    The coordinator finds the topics of a regular expression, so only a user that may read all
    topics can subscribe with one.
    """
    if getattr(request, "subscribed_topic_regex", None) and "" not in access.topics.prefixes:
        return False
    return all(access.can_read(topic) for topic in request.subscribed_topic_names or ())


def _described(response: Decoded, access: Access) -> Decoded:
    """Return the response without the groups whose members have topics that are not permitted."""
    groups = tuple(
        group
        if all(access.can_read(topic) for topic in _topics_of(group))
        else replace(group, members=(), error_code=ErrorCode.topic_authorization_failed)
        for group in response.groups
    )
    return replace(response, groups=groups)


def _topics_of(group: Decoded) -> Iterator[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for assignment in (member.assignment, member.target_assignment):
            yield from (assigned.topic_name for assigned in assignment.topic_partitions)


def _listed(response: Decoded, access: Access) -> Decoded:
    rows = tuple(row for row in response.groups if access.can_use_group(row.group_id))
    return replace(response, groups=rows)
