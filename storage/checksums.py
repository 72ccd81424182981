"""Whole-object checksums, over streams and over parts."""

import base64
from collections.abc import Callable
from typing import BinaryIO, Final

from awscrt import checksums as crt  # type: ignore[import-untyped]  # it ships no types

from sidetier.segments.errors import ChecksumMismatchError
from sidetier.storage.port import Body, Checksum, ChecksumAlgorithm

PIECE: Final = 256 * 1024
"""Bytes that are read at a time; all the memory that a body of any size takes."""

_Update = Callable[[bytes, int], int]
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
    """A checksum that grows with the bytes it is shown."""

    def __init__(self, algorithm: ChecksumAlgorithm) -> None:
        self._algorithm = algorithm
        self._step = _UPDATE[algorithm]
        self._value = 0

    def update(self, data: bytes) -> None:
        """Append bytes."""
        self._value = self._step(data, self._value)

    def append(self, part: Checksum, size: int) -> None:
        """Append a part of `size` bytes of which only the checksum is at hand."""
        value = int.from_bytes(part.value, "big")
        self._value = _COMBINE[self._algorithm](self._value, value, size)

    def result(self) -> Checksum:
        """The checksum of everything so far."""
        return Checksum(self._algorithm, self._value.to_bytes(_WIDTH[self._algorithm], "big"))


def checksum_of_bytes(data: bytes, algorithm: ChecksumAlgorithm) -> Checksum:
    """The checksum of bytes in memory."""
    running = RunningChecksum(algorithm)
    running.update(data)
    return running.result()


def checksum_of_stream(
    stream: BinaryIO, algorithm: ChecksumAlgorithm, limit: int | None = None
) -> Checksum:
    """The checksum of what the stream still holds, or of the next `limit` bytes; moves it."""
    running = RunningChecksum(algorithm)
    left = limit
    while left is None or left > 0:
        piece = stream.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            break
        running.update(piece)
        left = None if left is None else left - len(piece)
    return running.result()


def checksum_of_body(body: Body, algorithm: ChecksumAlgorithm) -> Checksum:
    """The checksum of a whole body; reads its `size` bytes once."""
    with body.open() as stream:
        return checksum_of_stream(stream, algorithm, body.size)


def to_base64(checksum: Checksum) -> str:
    """As S3 writes it in headers."""
    return base64.b64encode(checksum.value).decode()


def from_base64(algorithm: ChecksumAlgorithm, text: str | None) -> Checksum | None:
    """The reverse; None for nothing, and for a checksum of checksums (`…-3`)."""
    if not text or "-" in text:
        return None
    return Checksum(algorithm, base64.b64decode(text))


def expect_checksum(key: str, expected: Checksum | None, actual: Checksum) -> None:
    """Raises ChecksumMismatchError when one is expected and it is another."""
    if expected is not None and expected != actual:
        raise ChecksumMismatchError(
            f"{key}: the body's {actual.algorithm} is {actual.value.hex()}, "
            f"announced was {expected.value.hex()}"
        )
