"""Read archives: ranges are fetched ahead within a memory bound, decoded, and returned in order."""

from sidetier.archive.errors import (
    ArchiveReplacedError,
    DamagedArchiveError,
    NoArchiveError,
    WrongPlaceError,
)
from sidetier.archive.missing_offsets import GapReason
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.reader.results import (
    Failed,
    Gap,
    NullReadingObserver,
    ReachedEnd,
    ReadingObserver,
    Records,
    Taken,
)
from sidetier.archive.reader.settings import IsolationLevel, ReaderSettings

__all__ = [
    "ArchiveBounds",
    "ArchiveReader",
    "ArchiveReplacedError",
    "DamagedArchiveError",
    "Failed",
    "Gap",
    "GapReason",
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
