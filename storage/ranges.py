"""Bytes of a stored object, as many as are there: for those who read a range at a time."""

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

    An answer that breaks off is asked for again from there, as the port says, as long as each time
    something has come. Only the store's own layer pauses and tries again where nothing comes.

    Raises:
        ObjectNotFoundError: there is no object.
        PreconditionFailedError: another version than that of the condition is there.
        StoreTimeoutError: the bytes did not come within the deadline of one attempt.
        StorageError: as the port says.
    """
    allowed = deadline or AttemptDeadline()
    pieces: list[bytes] = []
    at = start
    while at < end:
        came, broken = _read_on(
            partial(store.get_object_input_stream, key, at, end, condition=condition),
            _Span(key, at, end, allowed.seconds(end - at)),
            clock,
        )
        pieces += came
        at += sum(map(len, came))
        if broken is None:
            break
        if not came:
            raise broken
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _Span:
    """What is read of an object, and in how many seconds it must have come."""

    key: str
    start: int
    end: int
    seconds: float


def _read_on(
    begin: Callable[[], BinaryIO], span: _Span, clock: Clock
) -> tuple[list[bytes], TransientStorageError | None]:
    """What one answer brings, and what it broke off with; raises where it does not even begin."""
    pieces: list[bytes] = []
    with begin() as stream:
        latest, left = clock() + span.seconds, span.end - span.start
        try:
            while left and (piece := stream.read(min(left, _PIECE))):
                pieces.append(piece)
                left -= len(piece)
                if clock() > latest:
                    break
        except TransientStorageError as error:
            return pieces, error
    if left and clock() > latest:
        raise StoreTimeoutError(
            f"{span.key}: bytes {span.start} to {span.end} did not come within {span.seconds:.0f} s"
        )
    return pieces, None
