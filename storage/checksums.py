"""Whole-object checksums of streams and of concatenated parts."""

import base64
from collections.abc import Callable
from typing import BinaryIO, Final

from awscrt import checksums as crt  # type: ignore[import-untyped]  # it ships no types

from sidetier.segments.errors import ChecksumMismatchError
from sidetier.storage.bodies import FillingStream, open_for_checksum
from sidetier.storage.port import Body, Checksum, ChecksumAlgorithm, ObjectHead

PIECE: Final = 256 * 1024
"""Bytes per read, and so the memory needed for a body of any size."""

_Update = Callable[[bytes | memoryview, int], int]
_UPDATE: Final[dict[ChecksumAlgorithm, _Update]] = {
    ChecksumAlgorithm.CRC64NVME: crt.crc64nvme,
    ChecksumAlgorithm.CRC32C: crt.crc32c,
}
_COMBINE: Final[dict[ChecksumAlgorithm, Callable[[int, int, int], int]]] = {
    ChecksumAlgorithm.CRC64NVME: crt.combine_crc64nvme,
    ChecksumAlgorithm.CRC32C: crt.combine_crc32c,
}
_WIDTH: Final = {ChecksumAlgorithm.CRC64NVME: 8, ChecksumAlgorithm.CRC32C: 4}


class RunningChecksum:
    """Checksum that is computed incrementally."""

    def __init__(self, algorithm: ChecksumAlgorithm) -> None:
        self._algorithm = algorithm
        self._step = _UPDATE[algorithm]
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes."""
        self._value = self._step(data, self._value)

    def append(self, part: Checksum, size: int) -> None:
        """Add a part of `size` bytes of which only the checksum is known."""
        value = int.from_bytes(part.value, "big")
        self._value = _COMBINE[self._algorithm](self._value, value, size)

    def result(self) -> Checksum:
        """Return the checksum of all bytes so far."""
        return Checksum(self._algorithm, self._value.to_bytes(_WIDTH[self._algorithm], "big"))


def checksum_of_bytes(data: bytes, algorithm: ChecksumAlgorithm) -> Checksum:
    """Return the checksum of bytes in memory."""
    running = RunningChecksum(algorithm)
    running.update(data)
    return running.result()


def checksum_of_stream(
    stream: BinaryIO, algorithm: ChecksumAlgorithm, limit: int | None = None
) -> Checksum:
    """Read the rest of the stream, or the next `limit` bytes, and return their checksum."""
    running = RunningChecksum(algorithm)
    left = limit
    if isinstance(stream, FillingStream) and left is not None:
        buffer = memoryview(bytearray(min(PIECE, left)))
        while left and (count := stream.fill(buffer[: min(PIECE, left)])):
            running.update(buffer[:count])
            left -= count
        return running.result()
    while left is None or left > 0:
        piece = stream.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            break
        running.update(piece)
        left = None if left is None else left - len(piece)
    return running.result()


def checksum_of_body(body: Body, algorithm: ChecksumAlgorithm) -> Checksum:
    """Return the checksum of a whole body. Reads its `size` bytes once, uncounted."""
    with open_for_checksum(body) as stream:
        return checksum_of_stream(stream, algorithm, body.size)


def to_base64(checksum: Checksum) -> str:
    """Return the checksum in the form of S3's headers."""
    return base64.b64encode(checksum.value).decode()


def from_base64(algorithm: ChecksumAlgorithm, text: str | None) -> Checksum | None:
    """Parse a checksum of S3's headers; None if absent or a checksum of checksums (`…-3`)."""
    # The number of parts follows the hyphen. Such a value cannot be compared with a whole object.
    if not text or "-" in text:
        return None
    return Checksum(algorithm, base64.b64decode(text))


def is_replaced(head: ObjectHead) -> bool:
    """Return whether the store's own checksum shows that the bytes are not those that the adapter
    wrote.
    """
    noted, own = head.checksum, head.own_checksum
    return (
        noted is not None and own is not None and noted.algorithm is own.algorithm and noted != own
    )


def expect_checksum(key: str, expected: Checksum | None, actual: Checksum) -> None:
    """Raise ChecksumMismatchError if `expected` is given and differs from `actual`."""
    if expected is not None and expected != actual:
        raise ChecksumMismatchError(
            f"{key}: the body's {actual.algorithm} is {actual.value.hex()}, "
            f"announced was {expected.value.hex()}"
        )
