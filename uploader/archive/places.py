"""Where a topic is archived: the store and its parts for the daemon."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.running.sharing import StoreGate


@dataclass(frozen=True, slots=True)
class Place:
    """A store, its key layout, the writer of the archives on it, and its gate."""

    store: RemoteStorage
    layout: ArchiveLayout
    archive_writer: ArchiveWriter
    gate: StoreGate = field(default_factory=StoreGate)


PlaceOf = Callable[[str], Place]
"""Returns the place of a topic, by its name."""
