"""The origin of a buffer of batches, for errors."""

from dataclasses import dataclass
from typing import Final

UNNAMED: Final = "record batches"


@dataclass(frozen=True, slots=True)
class Place:
    """A file or key, and the position in it of the buffer's first byte."""

    name: str = UNNAMED
    position: int = 0

    def text(self, at: int, base_offset: int, reason: str) -> str:
        """Describe the problem of the batch that begins at byte `at` of the buffer."""
        return f"{self.byte(at)}: batch with base offset {base_offset}: {reason}"

    def byte(self, at: int) -> str:
        """Describe the position of byte `at` of the buffer."""
        return f"{self.name}: byte {self.position + at}"
