"""A request as a client sent it, the client's session, and the answer."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.endpoint.live.side import Side
from sidetier.endpoint.users import EVERYTHING, Access
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.token_bucket import TokenBucket
from sidetier.wire.protocol import (
    ApiKey,
    decode_request,
    encode,
    encode_header,
    parse_request_header,
    request_body,
)

MAX_ENTRIES: Final = 100_000
"""Most entries of all arrays of a request together. A Fetch of 2 MiB has 72,000 partitions."""
ANONYMOUS = "ANONYMOUS"
"""Name of a client without a login, as in Kafka's logs and ACLs."""


@dataclass(slots=True, eq=False)
class Progress:
    """What the Fetch requests of a connection got last.

    Attributes:
        sides: The side that the last records of partitions came from, with `--live`.
        after_lost: The first offset after the lost records at which a client stands, by partition.
            Its next question for the earliest offset is answered with it: with
            `auto.offset.reset=earliest`, the client would otherwise read the archive from its start
            up to the same place again and again.
    """

    sides: dict[TopicPartition, Side] = field(default_factory=dict)
    after_lost: dict[TopicPartition, Offset] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Session:
    """What the endpoint knows about the client of one connection. Used by its thread only.

    Attributes:
        client: Address of the client, as `host:port`.
        principal: Name with which it has logged in, or its certificate's name.
        access: The topics and groups that it may use.
        bucket: The cap of its user, in bytes per second.
        closing: What to close with the connection.
        progress: What its Fetch requests got last.
    """

    client: str
    principal: str = ANONYMOUS
    access: Access = EVERYTHING
    bucket: TokenBucket | None = None
    closing: ExitStack = field(default_factory=ExitStack)
    progress: Progress = field(default_factory=Progress)


class Budget:
    """The memory that a request may use. This one has no bounds.

    Take memory in the order of the methods, and each kind once: a request that holds some of a kind
    and waits for more of it could wait for another one that does the same.
    """

    __slots__ = ()

    def take_entries(self, count: int) -> None:
        """Take memory for the entries of the request's arrays, and for a row of each in the answer.

        May wait, or end the connection; so may the next one.
        """

    def take_answer(self, size: int) -> None:
        """Take memory for an answer that does not follow from the size of the request, in bytes."""

    def release(self) -> None:
        """Return all: the request waits for something else, and its bytes are not needed again."""


UNBOUNDED: Final = Budget()


@dataclass(slots=True)
class Request:
    """A request whose body is not decoded yet.

    Attributes:
        api: The kind of request.
        version: Its version, one that the endpoint offers.
        correlation_id: The response repeats it.
        client_id: `client.id` of the client; None if it sends none.
        frame: The whole request, without its size.
        position: Position in `frame` after the client id.
        budget: The memory that it may use.
    """

    api: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    frame: memoryview
    position: int
    budget: Budget = UNBOUNDED
    _decoded: Any = None

    def decode(self) -> Any:  # noqa: ANN401 - kio's classes share no base with fields
        """Return the body as an entity of kio.

        Raises:
            MalformedRequestError: The bytes are not a request of this kind and version, or it has
                too many entries.
        """
        if self._decoded is None:
            self._decoded = decode_request(
                self.api,
                self.version,
                self.frame,
                self.position,
                most_entries=MAX_ENTRIES,
                reserve=self.budget.take_entries,
            )
        return self._decoded

    def body(self) -> memoryview:
        """Return the bytes of the body; raises MalformedRequestError for a damaged header."""
        return request_body(self.api, self.version, self.frame, self.position)

    def with_decoded(self, decoded: Any) -> "Request":  # noqa: ANN401 - as `decode`
        """Return the same request with another body, which is a part of this one."""
        header = encode_header(self.api, self.version, self.correlation_id, self.client_id or "")
        frame = memoryview(header + encode(decoded))
        position = parse_request_header(frame)[1]
        return replace(self, frame=frame, position=position, _decoded=decoded)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response body, and the first error in it, for metrics. None: the client expects none."""

    body: bytes | None
    error: ErrorCode = ErrorCode.none


def first_error(errors: Iterable[ErrorCode]) -> ErrorCode:
    """Return the first error code that is not 0; 0 (`none`) if there is none."""
    return next((error for error in errors if error is not ErrorCode.none), ErrorCode.none)
