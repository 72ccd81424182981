"""What a reader of an archive can meet.

::

    ArchiveError
    ├── NoArchiveError          nothing is stored of the partition where it was looked for
    └── ArchiveReplacedError    what was read is not this partition's history any more
    ConfigurationError
    └── WrongPlaceError         nothing is stored here, but something is under other settings
    SegmentError
    └── DamagedSegmentError
        └── DamagedArchiveError     a stored segment is cut short, or holds what no broker serves
"""

from sidetier.segments.errors import ArchiveError, ConfigurationError, DamagedSegmentError
from sidetier.segments.offsets import Offset


class NoArchiveError(ArchiveError):
    """Nothing is stored of the partition; the text says where it was looked for."""


class WrongPlaceError(ConfigurationError):
    """Nothing is stored here, but under other entropy bits; the text says where."""


class ArchiveReplacedError(ArchiveError):
    """The topic was deleted and created again, its archive was retired, or what was read lies
    behind a fork and was set aside.

    `first` is the first offset that may have been handed out and is of another history: 0 where all
    is.
    """

    def __init__(self, message: str, first: Offset) -> None:
        super().__init__(message)
        self.first = first

    def __reduce__(self) -> tuple[type["ArchiveReplacedError"], tuple[str, Offset]]:
        """So that it can be sent from executors."""
        return ArchiveReplacedError, (str(self), self.first)


class DamagedArchiveError(DamagedSegmentError):
    """A stored segment cannot be read on: the text names key, byte position and offset.

    The offsets from `first` up to, not including, `end` are missing; nothing else that is stored
    holds them.
    """

    def __init__(self, message: str, key: str, position: int, first: Offset, end: Offset) -> None:
        super().__init__(message)
        self.key = key
        self.position = position
        self.first = first
        self.end = end
