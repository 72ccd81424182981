"""A file that has been checked, and the checksum of the checked bytes."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sidetier.segments.crc import crc64nvme
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Body
from sidetier.uploader.sending.reading import FileBody


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A body and the CRC64NVME of all its bytes."""

    body: Body
    crc64nvme: int


class SummedPieces:
    """Iterates over a file's bytes from `start` on, and sums them up: their size and CRC64NVME.

    All pieces have `piece_bytes` bytes, except the last one. After the iteration, `file` returns
    exactly the bytes that were read: if the broker rewrites the file meanwhile, the store refuses
    bytes that do not match the checksum.
    """

    def __init__(self, descriptor: int, piece_bytes: int, start: int = 0) -> None:
        self._descriptor = descriptor
        self._piece_bytes = piece_bytes
        self._start = start
        self._size = self._checksum = 0

    def __iter__(self) -> Iterator[bytes]:
        while piece := os.pread(self._descriptor, self._piece_bytes, self._start + self._size):
            self._size += len(piece)
            self._checksum = crc64nvme(piece, self._checksum)
            yield piece

    def file(self, before_read: Callable[[int], None]) -> VerifiedFile:
        """Return the bytes that were read so far, for the upload."""
        body = FileBody(self._descriptor, self._size, before_read, self._start)
        return VerifiedFile(body, self._checksum)


def in_memory(data: bytes) -> VerifiedFile:
    """Return bytes in memory with their checksum, such as a rebuilt index."""
    return VerifiedFile(BytesBody(data), crc64nvme(data))
