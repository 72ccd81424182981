"""One attempt to send a body: its deadline, its byte range, and the cause of a failure."""

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

from sidetier.storage.bodies import Extent, FileStream, FillingStream

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Clock = Callable[[], float]
"""Returns monotonic seconds from an arbitrary zero."""

monotonic: Clock = time.monotonic


class DeadlinePassedError(Exception):
    """The attempt's time is over. The HTTP client raises it, and the adapter translates it."""


class BodyFailedError(Exception):
    """The body itself failed. `AttemptStream.failure` has the body's error."""


class AttemptStream(io.RawIOBase):
    """Stream that an HTTP client receives instead of the body's stream.

    It exposes a window of `size` bytes from `start`, raises once `seconds` have passed, and keeps
    the error that the body raised: an OSError of a local disk must not be mistaken for a broken
    connection. Time spent inside the body (a bandwidth limit, a slow disk) does not count, except
    for reading the extents that `take` returned. It does not close the body's stream.

    Attributes:
        failure: Error of the body, or DeadlinePassedError; None while nothing has failed.
    """

    def __init__(
        self,
        stream: BinaryIO,
        size: int,
        seconds: float,
        *,
        start: int = 0,
        clock: Clock = monotonic,
    ) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._stream = stream
        self._start = start
        self._size = size
        self._position = 0
        self._clock = clock
        self._end = clock() + seconds

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        """Always True."""
        return True

    def seekable(self) -> bool:
        """Always True: a body's stream can be rewound."""
        return True

    @property
    def in_file(self) -> bool:
        """Whether the body's bytes are in an open file, so that `take` can be used."""
        return isinstance(self._stream, FileStream)

    @property
    def fills(self) -> bool:
        """Whether `readinto` is cheaper than `read`."""
        return self.in_file or isinstance(self._stream, FillingStream)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes.

        Raises:
            DeadlinePassedError: The attempt's time is over.
            BodyFailedError: The body raised an error; see `failure`.
        """
        wanted = self._wanted(size)
        if not wanted:
            return b""
        with self._body_at_work():
            data = self._stream.read(wanted)
            self._advance(len(data))
        return data

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read into the buffer; raises as `read`. A body that `fills` is read without a copy."""
        view = memoryview(buffer)
        if not self.fills:
            data = self.read(len(view))
            view[: len(data)] = data
            return len(data)
        wanted = self._wanted(len(view))
        if not wanted:
            return 0
        with self._body_at_work():
            if isinstance(self._stream, FillingStream):
                count = self._stream.fill(view[:wanted])
                self._advance(count)
                return count
            extent = cast("FileStream", self._stream).take(wanted)
            count = os.preadv(extent.descriptor, [view[: extent.size]], extent.position)
            self._advance(count)
        return count

    def take(self, size: int) -> Extent:
        """Return the position of the next bytes in their file; raises as `read`.

        Only for a body `in_file`. The bytes count as read.
        """
        stream = cast("FileStream", self._stream)
        wanted = self._wanted(size)
        if not wanted:
            return Extent(-1, 0, 0)
        with self._body_at_work():
            extent = stream.take(wanted)
            self._advance(extent.size)
        return extent

    def fail(self, error: BaseException) -> NoReturn:
        """Record that the caller could not read an extent that `take` returned, and raise."""
        self.failure = error
        raise BodyFailedError from error

    def readall(self) -> bytes:
        """Return all remaining bytes; raises as `read`."""
        return b"".join(iter(self.read, b""))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move within the window."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        self._stream.seek(self._start + self._position)
        return self._position

    def tell(self) -> int:
        """Return the position within the window."""
        return self._position

    def _wanted(self, size: int | None) -> int:
        # Checked when the client asks for bytes: a socket
        # that blocks is ended by the client's own timeout.
        if self._clock() > self._end:
            self.failure = self.failure or DeadlinePassedError()
            raise DeadlinePassedError
        left = max(0, self._size - self._position)
        return left if size is None or size < 0 else min(size, left)

    @contextmanager
    def _body_at_work(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise BodyFailedError from error
        # The time that the body took is given back: a bandwidth limit must not end the attempt.
        self._end += self._clock() - began

    def _advance(self, count: int) -> None:
        if not count:
            # With fewer bytes than announced, the server would wait for the rest until a timeout.
            raise OSError(f"the body ended after {self._position} of {self._size} bytes")
        self._position += count
