"""Request bodies that fail or change while they are read."""

import io
from dataclasses import dataclass
from typing import BinaryIO


class _Breaking(io.BytesIO):
    def __init__(self, data: bytes, after: int, error: BaseException) -> None:
        super().__init__(data)
        self._after = after
        self._error = error

    def read(self, size: int | None = -1, /) -> bytes:
        remaining = self._after - self.tell()
        if remaining <= 0:
            raise self._error
        return super().read(remaining if size is None or size < 0 else min(size, remaining))


@dataclass(frozen=True, slots=True)
class BreakingBody:
    """Raises after `after` bytes have been read, each time it is opened."""

    data: bytes
    after: int
    error: BaseException

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return _Breaking(self.data, self.after, self.error)


@dataclass(slots=True)
class ChangingBody:
    """Has different bytes of the same length each time it is opened."""

    versions: list[bytes]
    opened: int = 0

    @property
    def size(self) -> int:
        return len(self.versions[0])

    def open(self) -> BinaryIO:
        data = self.versions[min(self.opened, len(self.versions) - 1)]
        self.opened += 1
        return io.BytesIO(data)


@dataclass(frozen=True, slots=True)
class ShortBody:
    """Ends before its size."""

    data: bytes
    size: int

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)
