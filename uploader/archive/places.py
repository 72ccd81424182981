"""Where a topic's archive lives, as the daemon sees it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.running.sharing import StoreGate


@dataclass(frozen=True, slots=True)
class Place:
    """A store, how keys are made on it, the keeper of the archives there, and its gate."""

    store: RemoteStorage
    layout: ArchiveLayout
    archive_writer: ArchiveWriter
    gate: StoreGate = field(default_factory=StoreGate)


PlaceOf = Callable[[str], Place]
"""The place of a topic."""
