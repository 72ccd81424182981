"""Read byte ranges of stored objects, and resume responses that break off."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

from sidetier.segments.errors import StoreTimeoutError, TransientStorageError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.port import IfMatch, RemoteStorage
from sidetier.storage.settings import AttemptDeadline

_PIECE: Final = 2 << 20
_ATTEMPTS: Final = 2
"""A read with all its resumed responses may take as long as this number of attempts."""


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

    Each response must bring its bytes within `deadline` of their number. Without another bound, a
    store that breaks off each response after some bytes would keep its reader for ever. So the
    whole read has twice the deadline of all its bytes, from the first request on: no response
    continues and no request begins after that. A request that has begun ends by the deadlines of
    the store's retry layer.

    Returns:
        Number of bytes read: fewer than `buffer` has if the object ends before.

    Raises:
        ObjectNotFoundError: There is no object.
        PreconditionFailedError: The object has another etag than the condition.
        StoreTimeoutError: The bytes did not arrive within the deadline of one attempt, or those of
            all responses not within twice that time.
        StorageError: See `RemoteStorage`.
    """
    allowed = deadline or AttemptDeadline()
    seconds = _ATTEMPTS * allowed.seconds(len(buffer))
    latest = clock() + seconds
    at = 0
    while at < len(buffer):
        begin, end = start + at, start + len(buffer)
        count, broken = _read_response(
            # With the same condition: the rest must be of the same version as the beginning.
            partial(store.get_object_input_stream, key, begin, end, condition=condition),
            _Response(key, begin, buffer[at:], allowed.seconds(end - begin), latest),
            clock,
        )
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
        seconds: Time limit of its bytes.
        latest: When the whole read must end, by the clock.
    """

    key: str
    start: int
    buffer: memoryview
    seconds: float
    latest: float


def _read_response(
    begin: Callable[[], BinaryIO], response: _Response, clock: Clock
) -> tuple[int, TransientStorageError | None]:
    """Read one response; return the number of bytes, and the error with which it broke off.

    Raises the error if the request itself fails.
    """
    at, size = 0, len(response.buffer)
    with begin() as stream:
        # After the answer has begun: the request itself has its own deadline.
        began = clock()
        latest = min(began + response.seconds, response.latest)
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
            f"within {max(latest - began, 0.0):.0f} s"
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
