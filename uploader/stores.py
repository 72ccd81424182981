"""The stores in use: where a topic is archived, and whether its store answers.

Whether a store answers follows from the results of the daemon's own requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.errors import (
    AccessDeniedError,
    StorageError,
    TransientStorageError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.workers import StoreGate

_OUTAGE_FAILURES: Final = 3
"""Failed requests in a row that count as an outage; fewer are a busy store."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, its key layout, the writer of the archives on it, and its gate."""

    store: RemoteStorage
    layout: ArchiveLayout
    archive_writer: ArchiveWriter
    gate: StoreGate = field(default_factory=StoreGate)


PlaceOf = Callable[[str], Place]
"""Returns the place of a topic, by its name."""


class StoreHealth:
    """Health of one store.

    Attributes:
        reason: Why the store cannot be used now; None while it can. Any success clears it.
        outages: How often the store has recovered after at least `_OUTAGE_FAILURES` failures in a
            row.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.outages = 0
        self._failures = 0

    def succeeded(self) -> None:
        """Note that a request has succeeded."""
        self.reason = None
        self.outages += self._failures >= _OUTAGE_FAILURES
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """Note that a request has failed. A refusal of one object means that the store answers."""
        if isinstance(error, TransientStorageError | AccessDeniedError):
            self.reason = str(error)
            self._failures += 1
        elif isinstance(error, StorageError):
            self.reason = None  # the store has answered


class StoresHealth:
    """Health of every store in use. A store that answers does not hide one that does not."""

    def __init__(self, place_of: PlaceOf) -> None:
        self._place_of = place_of
        self._known: dict[StoreGate, StoreHealth] = {}

    def note(self, gate: StoreGate, error: Exception | None) -> None:
        """Note the result of a task that has used a store."""
        health = self._known.setdefault(gate, StoreHealth())
        if error is None:
            health.succeeded()
        else:
            health.failed(error)

    def of(self, tp: TopicPartition) -> StoreHealth:
        """Return the health of a partition's store."""
        return self._known.setdefault(self._place_of(tp.topic).gate, StoreHealth())

    @property
    def reason(self) -> str | None:
        """Why a store cannot be used now: of several, the one that was asked first."""
        reasons = (health.reason for health in self._known.values())
        return next((reason for reason in reasons if reason is not None), None)
