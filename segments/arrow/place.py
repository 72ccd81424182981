"""Where a buffer of batches comes from, for errors."""

from dataclasses import dataclass
from typing import Final

UNNAMED: Final = "record batches"


@dataclass(frozen=True, slots=True)
class Place:
    """A file or key, and the position there of the buffer's first byte."""

    name: str = UNNAMED
    position: int = 0

    def text(self, at: int, base_offset: int, reason: str) -> str:
        """What is wrong with the batch that begins at byte `at` of the buffer."""
        return f"{self.byte(at)}: batch with base offset {base_offset}: {reason}"

    def byte(self, at: int) -> str:
        """How a byte of the buffer is called in errors."""
        return f"{self.name}: byte {self.position + at}"
