"""Where a topic's archive lives, as the daemon sees it."""

from collections.abc import Callable
from dataclasses import dataclass

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.keeper import ArchiveKeeper


@dataclass(frozen=True, slots=True)
class Place:
    """A store, how keys are made on it, and the keeper of the archives there."""

    store: RemoteStorage
    layout: ArchiveLayout
    keeper: ArchiveKeeper


PlaceOf = Callable[[str], Place]
"""The place of a topic."""
