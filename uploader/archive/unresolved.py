"""Reads now and then which gaps and quarantines of the led topics are unresolved."""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from sidetier.segments.errors import StorageError
from sidetier.storage.unresolved import Unresolved, read_unresolved
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.places import Place, PlaceOf
from sidetier.uploader.running.workers import Job, WorkerPool

log: Final = structlog.get_logger()

FIRST_SECONDS: Final = 30.0
"""After the start: watermarks are read first."""
_AGAIN_SECONDS: Final = 300.0


class UnresolvedReader:
    """One reading at a time, over the stores of all led topics.

    Args:
        place_of: Where a topic is archived.
        pool: Has a worker of its own: a store that hangs holds up nothing else.
        learned: Called on the daemon's thread with what was read.
        now: Monotonic seconds.
        metrics: Counts failures.
    """

    def __init__(
        self,
        place_of: PlaceOf,
        pool: WorkerPool,
        learned: Callable[[Unresolved], None],
        now: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._place_of = place_of
        self._pool = pool
        self._learned = learned
        self._now = now
        self._metrics = metrics
        self._next = now() + FIRST_SECONDS

    def read_if_due(self, topics: Iterable[str]) -> None:
        """Start a reading where it is time for one; after a failure the next one comes in time."""
        if self._now() < self._next or not self._pool.free:
            return
        places = {id(place.store): place for place in map(self._place_of, set(topics))}
        if places:
            self._next = self._now() + _AGAIN_SECONDS
            self._pool.submit(Job(lambda: _read(places.values()), self._learned, self._failed))

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StorageError):
            raise error
        self._metrics.error(type(error).__name__)
        log.warning("unresolved.unavailable", error=str(error))


def _read(places: Iterable[Place]) -> Unresolved:
    found = [read_unresolved(place.store, place.layout) for place in places]
    return Unresolved(
        {tp: records for one in found for tp, records in one.gap_records.items()},
        {tp: number for one in found for tp, number in one.quarantines.items()},
    )
