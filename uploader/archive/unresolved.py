"""Reads every 5 minutes what others have recorded on the store: unresolved gaps and quarantines of
the led topics, and the last restore drill.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from sidetier.archive.objects.drill_record import DrillRecord, read_drill
from sidetier.segments.errors import MalformedObjectError, StorageError
from sidetier.segments.keys import ArchiveLayout, parse_gap_key
from sidetier.segments.names import parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.places import Place, PlaceOf
from sidetier.uploader.running.workers import Job, WorkerPool

_OF_TAKEOVERS: Final = "peer"
"""What a takeover has moved out of the way was never part of the archive."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Per partition: records in gaps, and how many quarantines."""

    gap_records: Mapping[TopicPartition, int] = field(default_factory=dict)
    quarantines: Mapping[TopicPartition, int] = field(default_factory=dict)


def read_unresolved(store: RemoteStorage, layout: ArchiveLayout) -> Unresolved:
    """Those of the whole cluster: three listings, and one for each quarantined partition.

    Raises:
        StorageError: as the port says.
    """
    acknowledged = {row.key for row in store.list_objects(layout.acknowledged_prefix())}
    gaps: Counter[TopicPartition] = Counter()
    for row in store.list_objects(layout.gaps_prefix()):
        prefix = row.key[: row.key.rindex("/") + 1]
        tp, gap = _partition_of(prefix), parse_gap_key(row.key, prefix)
        if tp is None or gap is None or layout.acknowledgement_key(row.key) in acknowledged:
            continue
        gaps[tp] += gap[1] - gap[0]
    quarantines: Counter[TopicPartition] = Counter()
    for directory in store.list_directories(layout.quarantines_prefix()):
        tp = _partition_of(directory)
        if tp is None:
            continue
        for quarantine in store.list_directories(directory):
            is_of_takeover = quarantine.removeprefix(directory) == f"{_OF_TAKEOVERS}/"
            key = layout.acknowledgement_key(f"{quarantine.rstrip('/')}.json")
            if not is_of_takeover and key not in acknowledged:
                quarantines[tp] += 1
    return Unresolved(gaps, quarantines)


def _partition_of(prefix: str) -> TopicPartition | None:
    parsed = parse_partition_directory(prefix.rstrip("/").rpartition("/")[2])
    return None if parsed is None else parsed.topic_partition


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
