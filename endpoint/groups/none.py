"""No consumer groups: FindCoordinator gets a clear error (`--groups none`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from sidetier.endpoint.session import Answer, Request, Session
from sidetier.wire.protocol import ApiKey, build_response, encode

# Kafka's `CoordinatorType`; 1 is a transactional id, 2 a share group.
_GROUP_KEY: Final = 0
# KIP-699 put several keys in a request.
_FIRST_WITH_SEVERAL: Final = 4
_NO_GROUPS: Final = (
    "this endpoint keeps no consumer groups: use assign() with manual offsets, or start it with "
    "--groups"
)
_READ_ONLY: Final = "this endpoint is read-only"


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
        """Refuse FindCoordinator."""
        asked = request.decode()
        is_group = getattr(asked, "key_type", _GROUP_KEY) == _GROUP_KEY
        keys = getattr(asked, "coordinator_keys", ())
        return refused_coordinator(request.version, keys, is_group=is_group)

    def close(self) -> None:
        """Do nothing: no member waits."""


def refused_coordinator(version: int, keys: tuple[str, ...], *, is_group: bool) -> Answer:
    """Return the answer to FindCoordinator that refuses all its keys.

    With COORDINATOR_NOT_AVAILABLE, which a broker sends while it cannot know the coordinator,
    librdkafka's `subscribe` would wait for ever without an error.

    Args:
        version: Version of the request.
        keys: Its keys; versions below 4 have one, which the answer does not repeat.
        is_group: Whether the keys are groups; else they are transactional ids.
    """
    error, message = (
        (ErrorCode.group_authorization_failed, _NO_GROUPS)
        if is_group
        else (ErrorCode.transactional_id_authorization_failed, _READ_ONLY)
    )
    row = {"error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}
    values = (
        {"coordinators": [{"key": key, **row} for key in keys]}
        if version >= _FIRST_WITH_SEVERAL
        else row
    )
    response = build_response(ApiKey.FIND_COORDINATOR, version, throttle_time=0, **values)
    return Answer(encode(response), error)
