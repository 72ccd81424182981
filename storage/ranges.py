"""Read byte ranges of stored objects, and resume responses that break off."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Final

from sidetier.segments.errors import StoreTimeoutError, TransientStorageError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.port import IfMatch, ObjectPart, ObjectSummary, RemoteStorage
from sidetier.storage.settings import AttemptDeadline

ReadRange = Callable[[ObjectSummary, int, int], bytes]
"""Reads a range of a listed object: arguments are the object's row, the first byte, and the end
byte, exclusive. Returns the bytes that exist. Raises PreconditionFailedError if the store has
another version now.
"""
FillRange = Callable[[ObjectSummary, int, memoryview], int]
"""Fills memory with the bytes of a listed object from a byte on; returns the number of bytes, which
is smaller than the memory if the object ends before. Raises as `ReadRange`.
"""

_PIECE: Final = 2 << 20
_ATTEMPTS: Final = 2
"""Broken responses are resumed for as long as this number of attempts may take."""


def located(row: ObjectSummary, start: int, end: int) -> tuple[str, int, int]:
    """Return the key of the object that has these bytes of a row, and where they begin and end in
    it. The bytes behind an `ObjectPart` are not part of it.
    """
    if isinstance(row, ObjectPart):
        at = row.position
        return row.object_key, at + start, at + max(min(end, row.size), start)
    return row.key, start, end


def read_range(  # noqa: PLR0913 - three parameters have a default
    store: RemoteStorage,
    key: str,
    start: int,
    end: int,
    *,
    condition: IfMatch | None = None,
    deadline: AttemptDeadline | None = None,
    clock: Clock = monotonic,
) -> bytes:
    """Return the object's bytes from `start` (inclusive) to `end` (exclusive).

    The result is shorter if the object ends before `end`. Raises as `read_into`.
    """
    buffer = bytearray(end - start)
    count = read_into(
        store, key, start, memoryview(buffer), condition=condition, deadline=deadline, clock=clock
    )
    return bytes(memoryview(buffer)[:count])


def read_into(  # noqa: PLR0913 - three parameters have a default
    store: RemoteStorage,
    key: str,
    start: int,
    buffer: memoryview,
    *,
    condition: IfMatch | None = None,
    deadline: AttemptDeadline | None = None,
    clock: Clock = monotonic,
) -> int:
    """Fill `buffer` with the object's bytes from `start` on.

    If a response breaks off, the rest is requested again, as long as each response brings some
    bytes. A response without bytes raises its error; pauses and retries are the task of the
    store's own retry layer.

    Each response must bring its bytes within `deadline` of their number, from its own beginning on.
    Without another bound, a store that breaks off each response after some bytes would keep its
    reader for ever. So no request begins later than twice the deadline of all bytes after the
    beginning of the first response. A request that has begun ends by the deadlines of the store's
    retry layer, and its response is not given up for the time that these retries took.

    Returns:
        Number of bytes read: fewer than `buffer` has if the object ends before.

    Raises:
        ObjectNotFoundError: There is no object.
        PreconditionFailedError: The object has another etag than the condition.
        StoreTimeoutError: The bytes of a response did not arrive within their deadline, or
            responses still broke off after twice the deadline of all bytes.
        StorageError: As `RemoteStorage`.
    """
    allowed = deadline or AttemptDeadline()
    seconds = _ATTEMPTS * allowed.seconds(len(buffer))
    latest: float | None = None
    at = 0
    while at < len(buffer):
        begin, end = start + at, start + len(buffer)
        # With the same condition: the rest must be of the same version as the beginning.
        with store.get_object_input_stream(key, begin, end, condition=condition) as stream:
            # After the answer has begun: the request itself has its own deadline.
            began = clock()
            latest = began + seconds if latest is None else latest
            response = _Response(key, begin, buffer[at:], began, allowed.seconds(end - begin))
            count, broken = _read_response(stream, response, clock)
        at += count
        if broken is None:
            break
        # No progress: the store's retry layer has given up for this position.
        if not count:
            raise broken
        if clock() > latest:
            raise StoreTimeoutError(
                f"{key}: bytes {start} to {end} did not arrive within {seconds:.0f} s, in several "
                f"responses that broke off; the last one: {broken}"
            ) from broken
    return at


@dataclass(frozen=True, slots=True)
class _Response:
    """One response.

    Attributes:
        key: The object.
        start: First byte.
        buffer: Where its bytes go.
        began: When it began, by the clock.
        seconds: Time limit of its bytes.
    """

    key: str
    start: int
    buffer: memoryview
    began: float
    seconds: float


def _read_response(
    stream: BinaryIO, response: _Response, clock: Clock
) -> tuple[int, TransientStorageError | None]:
    """Read one response; return the number of bytes, and the error with which it broke off."""
    at, size = 0, len(response.buffer)
    latest = response.began + response.seconds
    try:
        while at < size and (count := read_once(stream, response.buffer[at : at + _PIECE])):
            at += count
            if clock() > latest:
                break
    except TransientStorageError as error:
        return at, error
    if at < size and clock() > latest:
        raise StoreTimeoutError(
            f"{response.key}: bytes {response.start} to {response.start + size} did not arrive "
            f"within {response.seconds:.0f} s"
        )
    return at, None


def read_once(stream: BinaryIO, buffer: memoryview) -> int:
    """Read once into `buffer`, without a copy if the stream allows it; 0 at the stream's end."""
    if isinstance(stream, io.BufferedReader):
        # One read of the socket at most, so that the deadline is checked between reads.
        return stream.readinto1(buffer)
    data = stream.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)
