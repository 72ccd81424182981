"""Reading from S3: a stream whose failures are ours."""

import io
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from sidetier.segments.errors import StoreTimeoutError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.s3_errors import translated

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from botocore.response import StreamingBody

_BUFFER: Final = 256 * 1024
_PIECE: Final = 1024**2
"""Larger pieces are copied through more memory; each piece costs turns of the interpreter."""


class _Answer(io.RawIOBase):
    """A GET's body as a raw stream; forward only."""

    def __init__(self, body: "StreamingBody", bucket: str, key: str) -> None:
        super().__init__()
        self._body = body
        self._bucket = bucket
        self._key = key

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        with translated("GetObject", self._bucket, self._key):
            data = self._body.read(min(len(view), _PIECE))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            cast("Any", self._body).close()
        super().close()


def answer_stream(body: "StreamingBody", bucket: str, key: str) -> BinaryIO:
    """A buffered stream; its `read` raises StorageError, also when the answer is cut short."""
    return io.BufferedReader(_Answer(body, bucket, key), _BUFFER)


def read_all(
    body: "StreamingBody", bucket: str, key: str, seconds: float, clock: Clock = monotonic
) -> bytes:
    """All of an answer.

    Raises:
        StoreTimeoutError: it did not come within so many seconds.
    """
    end = clock() + seconds
    pieces: list[bytes] = []
    with translated("GetObject", bucket, key):
        while piece := body.read(_PIECE):
            pieces.append(piece)
            if clock() > end:
                cast("Any", body).close()
                raise StoreTimeoutError(f"GetObject s3://{bucket}/{key}: past its deadline")
    return b"".join(pieces)
