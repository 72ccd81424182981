"""Reads every 5 minutes what others have recorded on the store: unresolved gaps and quarantines of
the led topics, and the last restore drill.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.archive.drill_record import DrillRecord, read_drill
from sidetier.segments.errors import MalformedObjectError, StorageError
from sidetier.storage.unresolved import Unresolved, read_unresolved
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.places import Place, PlaceOf
from sidetier.uploader.running.workers import Job, WorkerPool

log: Final = structlog.get_logger()

FIRST_SECONDS: Final = 30.0
"""After the start: watermarks are read first."""
_AGAIN_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """What was read; `drill` is None where there was no drill, or its record does not parse."""

    unresolved: Unresolved
    drill: DrillRecord | None


class UnresolvedReader:
    """One reading at a time, over the stores of all led topics.

    Args:
        place_of: Where a topic is archived.
        default_place: Where records of the whole cluster are; None where they are not read.
        pool: Has a worker of its own: a store that hangs holds up nothing else.
        learned: Called on the daemon's thread with what was read.
        now: Monotonic seconds.
        metrics: Counts failures.
    """

    def __init__(
        self,
        place_of: PlaceOf,
        default_place: Place | None,
        pool: WorkerPool,
        learned: Callable[[StoreRecords], None],
        now: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._place_of = place_of
        self._default_place = default_place
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
            default = self._default_place
            self._pool.submit(
                Job(
                    lambda: StoreRecords(_read(places.values()), _last_drill(default)),
                    self._learned,
                    self._failed,
                )
            )

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


def _last_drill(place: Place | None) -> DrillRecord | None:
    try:
        return None if place is None else read_drill(place.store, place.layout)
    except MalformedObjectError as error:
        log.warning("drill.record_unreadable", error=str(error))
        return None
