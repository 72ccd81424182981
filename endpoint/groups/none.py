"""No consumer groups: FindCoordinator gets a clear error (`--groups none`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.requests import (
    error_answer,
    is_for_groups,
    refused_transactions,
)
from sidetier.endpoint.session import Answer, Request, Session
from sidetier.wire.protocol import ApiKey

_NO_GROUPS: Final = (
    "this endpoint keeps no consumer groups: use assign() with manual offsets, or start it with "
    "--groups"
)


class Groups(Protocol):
    """Answers the requests of consumer groups. Thread-safe."""

    @property
    def offered(self) -> Mapping[ApiKey, tuple[int, int]]:
        """Lowest and highest version of each request that is answered, inclusive."""

    def answer(self, request: Request, session: Session) -> Answer:
        """Answer one of the offered requests."""

    def close(self) -> None:
        """Wake the members that wait, so that their connections can end."""


class NoGroups:
    """Refuses groups and transactions."""

    offered: Mapping[ApiKey, tuple[int, int]] = MappingProxyType({ApiKey.FIND_COORDINATOR: (0, 6)})

    def answer(self, request: Request, _session: Session) -> Answer:
        """Refuse FindCoordinator.

        With COORDINATOR_NOT_AVAILABLE, which a broker sends while it cannot know the coordinator,
        librdkafka's `subscribe` would wait for ever without an error.
        """
        asked = request.decode()
        if not is_for_groups(asked):
            return refused_transactions(request.version, asked)
        error = ErrorCode.group_authorization_failed
        return error_answer(request, asked, error, _NO_GROUPS)

    def close(self) -> None:
        """Do nothing: no member waits."""
