"""Errors that a reader of an archive raises.

::

    ArchiveError
    ├── NoArchiveError          nothing is stored of the partition at the configured place
    ├── ArchiveReplacedError    records that were read are no longer this partition's history
    ├── UnreadTailError         retry = True: it is not known which records the tail has
    └── TailMovedError          retry = True: records of the tail were archived meanwhile
    ConfigurationError
    └── WrongPlaceError         an archive exists, but under other settings
    SegmentError
    └── DamagedSegmentError
        └── DamagedArchiveError     a stored segment is cut short, or no broker would serve it
"""

from sidetier.segments.errors import ArchiveError, ConfigurationError, DamagedSegmentError
from sidetier.segments.offsets import Offset, OffsetRange


class NoArchiveError(ArchiveError):
    """Nothing is stored of the partition. The message names the place that was read."""


class WrongPlaceError(ConfigurationError):
    """Nothing is stored here, but an archive exists under another number of entropy bits.

    The message names that place.
    """


class ArchiveReplacedError(ArchiveError):
    """The records that were read are no longer this partition's history.

    The topic was deleted and recreated, its archive was retired, or the records are above a
    divergence and were moved to quarantine.

    Attributes:
        first: First offset that the reader may have returned and that belongs to another history; 0
            if all of them do.
    """

    def __init__(self, message: str, first: Offset) -> None:
        super().__init__(message)
        self.first = first

    # Without it, pickle would call the constructor with the message alone.
    def __reduce__(self) -> tuple[type["ArchiveReplacedError"], tuple[str, Offset]]:
        """Support pickling: Spark executors send this error to the driver."""
        return ArchiveReplacedError, (str(self), self.first)


class UnreadTailError(ArchiveError):
    """A tail pack cannot be read, or contradicts another one. It may show that records in other
    packs are stale, so the tail of a partition is not returned. The message names the pack.

    It passes when the leader stores a later pack, normally after one interval.
    """

    retry = True


class TailMovedError(ArchiveError):
    """The tail no longer has records that it had, or does not begin where the caller has read up
    to: they were archived, and cleaned. Read the archive again, then the tail behind it.
    """

    retry = True


class DamagedArchiveError(DamagedSegmentError):
    """A stored segment cannot be read further. The message names key, byte position and offset.

    Attributes:
        key: Key of the segment's `.log`.
        position: Byte position in the `.log` where reading stopped.
        offsets: The missing offsets. No other stored segment holds them.
    """

    def __init__(self, message: str, key: str, position: int, offsets: OffsetRange) -> None:
        super().__init__(message)
        self.key = key
        self.position = position
        self.offsets = offsets

    def __reduce__(
        self,
    ) -> tuple[type["DamagedArchiveError"], tuple[str, str, int, OffsetRange]]:
        """Support pickling: Spark executors send this error to the driver."""
        return DamagedArchiveError, (str(self), self.key, self.position, self.offsets)
