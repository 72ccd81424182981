"""Bytes of a stored object, as many as are there: for those who read a range at a time."""

from sidetier.segments.errors import StoreTimeoutError, TransientStorageError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import AttemptDeadline

_PIECE = 2 << 20


def read_range(
    store: RemoteStorage,
    key: str,
    start: int,
    end: int,
    *,
    deadline: AttemptDeadline | None = None,
    clock: Clock = monotonic,
) -> bytes:
    """The object's bytes from `start` up to, not including, `end`; fewer where it ends before.

    An answer that breaks off is asked for again from there, as the port says, as long as each time
    something has come. Only the store's own layer pauses and tries again where nothing comes.

    Raises:
        ObjectNotFoundError: there is no object.
        StoreTimeoutError: the bytes did not come within the deadline of one attempt.
        StorageError: as the port says.
    """
    allowed = deadline or AttemptDeadline()
    pieces: list[bytes] = []
    at = start
    while at < end:
        came, broken = _read_on(store, key, (at, end), allowed.seconds(end - at), clock)
        pieces += came
        at += sum(map(len, came))
        if broken is None:
            break
        if not came:
            raise broken
    return b"".join(pieces)


def _read_on(
    store: RemoteStorage, key: str, span: tuple[int, int], seconds: float, clock: Clock
) -> tuple[list[bytes], TransientStorageError | None]:
    """What one answer brings, and what it broke off with; raises where it does not even begin."""
    start, end = span
    pieces: list[bytes] = []
    with store.get_object_input_stream(key, start, end) as stream:
        latest, left = clock() + seconds, end - start
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
            f"{key}: bytes {start} to {end} did not come within {seconds:.0f} s"
        )
    return pieces, None
