"""Types of the arrays of this package, and of the buffers that they come from."""

from typing import Final

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview
"""The bytes of a log: contiguous, and unchanged while they are scanned or decoded."""

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
"""Offsets, positions, lengths: one dimension, contiguous."""

FAR: Final = 1 << 40
"""A position or length beyond any buffer. A sum of several does not overflow."""


def bytes_of(data: Buffer) -> Bytes:
    """Return the bytes of a buffer, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)
