"""The arrays that this package works on, and the buffers that they come from."""

from typing import Final

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview
"""What holds the bytes of a log: contiguous, and unchanged while it is scanned or decoded."""

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
"""Offsets, positions, lengths: one dimension, contiguous."""

FAR: Final = 1 << 40
"""A position or a length beyond any buffer; so many of them still add up without overflow."""


def bytes_of(data: Buffer) -> Bytes:
    """The bytes of a buffer, not copied."""
    return np.frombuffer(data, dtype=np.uint8)
