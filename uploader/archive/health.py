"""Do the stores answer? Judged by what the daemon's own requests come to."""

from typing import TYPE_CHECKING, Final

from sidetier.segments.errors import AccessDeniedError, StorageError, TransientStorageError
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.archive.places import PlaceOf

if TYPE_CHECKING:
    from sidetier.uploader.running.sharing import StoreGate


_OUTAGE_FAILURES: Final = 3
"""So many requests in a row that fail are no busy moment of the store."""


class StoreHealth:
    """`reason` is why the store cannot be used now; None while it can. Any success clears it.
    `outages` counts how often it has come back after several failures in a row.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.outages = 0
        self._failures = 0

    def succeeded(self) -> None:
        """A request was answered as it should be."""
        self.reason = None
        self.outages += self._failures >= _OUTAGE_FAILURES
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """A request failed; a refusal that concerns one object alone says nothing of the store."""
        if isinstance(error, TransientStorageError | AccessDeniedError):
            self.reason = str(error)
            self._failures += 1
        elif isinstance(error, StorageError):
            self.reason = None  # it has answered


class StoresHealth:
    """Of every store that was ever asked: one that answers does not hide another that is away."""

    def __init__(self, place_of: PlaceOf) -> None:
        self._place_of = place_of
        self._known: dict[StoreGate, StoreHealth] = {}

    def of(self, tp: TopicPartition) -> StoreHealth:
        """Of the store of a partition."""
        return self._known.setdefault(self._place_of(tp.topic).gate, StoreHealth())

    @property
    def reason(self) -> str | None:
        """Why one of them cannot be used now, the one that was asked first before others."""
        reasons = (health.reason for health in self._known.values())
        return next((reason for reason in reasons if reason is not None), None)
