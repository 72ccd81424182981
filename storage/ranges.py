"""Bytes of a stored object, as many as are there: for those who read a range at a time."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from sidetier.segments.errors import StoreTimeoutError, TransientStorageError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.port import IfMatch, RemoteStorage
from sidetier.storage.settings import AttemptDeadline

_PIECE = 2 << 20


def read_range(  # noqa: PLR0913  all but four have a default
    store: RemoteStorage,
    key: str,
    start: int,
    end: int,
    *,
    condition: IfMatch | None = None,
    deadline: AttemptDeadline | None = None,
    clock: Clock = monotonic,
) -> bytes:
    """The object's bytes from `start` up to, not including, `end`; fewer where it ends before.

    Raises:
        As `read_into`.
    """
    room = bytearray(end - start)
    count = read_into(
        store, key, start, memoryview(room), condition=condition, deadline=deadline, clock=clock
    )
    return bytes(memoryview(room)[:count])


def read_into(  # noqa: PLR0913  all but four have a default
    store: RemoteStorage,
    key: str,
    start: int,
    room: memoryview,
    *,
    condition: IfMatch | None = None,
    deadline: AttemptDeadline | None = None,
    clock: Clock = monotonic,
) -> int:
    """Fill the room with the object's bytes from `start` on; returns how many there are: fewer
    where the object ends before.

    An answer that breaks off is asked for again from there, as the port says, as long as each time
    something has come. Only the store's own layer pauses and tries again where nothing comes.

    Raises:
        ObjectNotFoundError: there is no object.
        PreconditionFailedError: another version than that of the condition is there.
        StoreTimeoutError: the bytes did not come within the deadline of one attempt.
        StorageError: as the port says.
    """
    allowed = deadline or AttemptDeadline()
    at = 0
    while at < len(room):
        begin, end = start + at, start + len(room)
        came, broken = _read_on(
            partial(store.get_object_input_stream, key, begin, end, condition=condition),
            _Span(key, begin, room[at:], allowed.seconds(end - begin)),
            clock,
        )
        at += came
        if broken is None:
            break
        if not came:
            raise broken
    return at


@dataclass(frozen=True, slots=True)
class _Span:
    """Where an object is read from, what is to be filled, and in how many seconds."""

    key: str
    start: int
    room: memoryview
    seconds: float


def _read_on(
    begin: Callable[[], BinaryIO], span: _Span, clock: Clock
) -> tuple[int, TransientStorageError | None]:
    """How much one answer brings, and what it broke off with; raises where none even begins."""
    at, size = 0, len(span.room)
    with begin() as stream:
        latest = clock() + span.seconds
        try:
            while at < size and (came := _read_some(stream, span.room[at : at + _PIECE])):
                at += came
                if clock() > latest:
                    break
        except TransientStorageError as error:
            return at, error
    if at < size and clock() > latest:
        raise StoreTimeoutError(
            f"{span.key}: bytes {span.start} to {span.start + size} did not come within "
            f"{span.seconds:.0f} s"
        )
    return at, None


def _read_some(stream: BinaryIO, room: memoryview) -> int:
    """Where the stream can, right into the room."""
    if isinstance(stream, io.BufferedReader):
        return stream.readinto1(room)
    data = stream.read(len(room))
    room[: len(data)] = data
    return len(data)
