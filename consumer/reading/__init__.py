"""Reading archives: ranges fetched ahead within a bound of memory, decoded, in order."""

from sidetier.consumer.archive.bounds import ArchiveBounds
from sidetier.consumer.archive.errors import (
    ArchiveReplacedError,
    DamagedArchiveError,
    NoArchiveError,
    WrongPlaceError,
)
from sidetier.consumer.archive.holes import HoleReason
from sidetier.consumer.reading.observer import NullReadingObserver, ReadingObserver
from sidetier.consumer.reading.reader import ArchiveReader
from sidetier.consumer.reading.settings import IsolationLevel, ReaderSettings
from sidetier.consumer.reading.taken import (
    Failed,
    Hole,
    ReachedEnd,
    Records,
    Taken,
)

__all__ = [
    "ArchiveBounds",
    "ArchiveReader",
    "ArchiveReplacedError",
    "DamagedArchiveError",
    "Failed",
    "Hole",
    "HoleReason",
    "IsolationLevel",
    "NoArchiveError",
    "NullReadingObserver",
    "ReachedEnd",
    "ReaderSettings",
    "ReadingObserver",
    "Records",
    "Taken",
    "WrongPlaceError",
]
