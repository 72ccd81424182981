"""Types of the arrays of this package, and of the buffers that they come from."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview
"""The bytes of a log: contiguous, and unchanged while they are scanned or decoded."""

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
"""Offsets, positions, lengths: one dimension, contiguous."""
Shorts = npt.NDArray[np.int16]

FAR: Final = 1 << 40
"""A position or length beyond any buffer. A sum of several does not overflow."""


def bytes_of(data: Buffer) -> Bytes:
    """Return the bytes of a buffer, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)


UNNAMED: Final = "record batches"


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a buffer, for errors: a file or key, and the position in it of the buffer's
    first byte.
    """

    name: str = UNNAMED
    position: int = 0

    def text(self, at: int, base_offset: int, reason: str) -> str:
        """Describe the problem of the batch that begins at byte `at` of the buffer."""
        return f"{self.byte(at)}: batch with base offset {base_offset}: {reason}"

    def byte(self, at: int) -> str:
        """Describe the position of byte `at` of the buffer."""
        return f"{self.name}: byte {self.position + at}"
