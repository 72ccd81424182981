"""Read from the store every 5 minutes: gaps and quarantines of the led topics, and the last restore
drill.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.acknowledgements import covering
from sidetier.archive.objects.drill_record import DrillRecord, read_drill
from sidetier.archive.objects.gaps import listed_gaps
from sidetier.segments.errors import MalformedObjectError, StorageError
from sidetier.segments.keys import ArchiveLayout, parse_gap_key
from sidetier.segments.names import parse_partition_directory
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.stores import Place, PlaceOf
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import WorkerPool

_OF_TAKEOVERS: Final = "peer"
"""Folder of segments that a takeover has moved. They were never part of the archive."""
_MAX_GAPS: Final = 32
"""Number of a partition's gaps that the status lists."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Gaps and quarantines that no operator has acknowledged.

    Attributes:
        gap_records: Number of offsets in gaps, by partition. Those that `sidetier gc` would have
            deleted do not count.
        quarantines: Number of quarantines, by partition.
        gaps: The newest gaps of each partition (start inclusive, end exclusive), acknowledged or
            not.
    """

    gap_records: Mapping[TopicPartition, int] = field(default_factory=dict)
    quarantines: Mapping[TopicPartition, int] = field(default_factory=dict)
    gaps: Mapping[TopicPartition, tuple[tuple[Offset, Offset], ...]] = field(default_factory=dict)


def read_unresolved(
    store: RemoteStorage, layout: ArchiveLayout, led: Collection[TopicPartition]
) -> Unresolved:
    """Read the gaps and quarantines of the whole cluster.

    Makes three listings, one more for each partition with a quarantine, and reads `offset.wm` of
    each partition in `led` with a gap that is not acknowledged: the known one may be from before a
    run of `sidetier gc`.

    Args:
        store: The store.
        layout: The keys on it.
        led: The led partitions. Gaps of other partitions count as a whole.
    """
    acknowledged = {row.key for row in store.list_objects(layout.acknowledged_prefix())}
    accepted = _accepted(acknowledged)
    unacknowledged: dict[TopicPartition, list[OffsetRange]] = {}
    gaps: dict[TopicPartition, tuple[tuple[Offset, Offset], ...]] = {}
    for folder, _, gap in listed_gaps(store, layout.gaps_prefix()):
        tp = _partition_of(folder)
        if tp is None:
            continue
        known = gaps.get(tp, ())
        gaps[tp] = (*known[1 - _MAX_GAPS :], (Offset(gap[0]), Offset(gap[1])))
        if covering(gap, accepted.get(tp, ())) is None:
            unacknowledged.setdefault(tp, []).append(gap)
    gap_records: dict[TopicPartition, int] = {}
    for tp, ranges in unacknowledged.items():
        start = _archive_start(store, layout, tp) if tp in led else Offset(0)
        if records := sum(max(0, gap.end - max(gap.start, start)) for gap in ranges):
            gap_records[tp] = records
    return Unresolved(gap_records, _quarantines(store, layout, acknowledged), gaps)


def _accepted(keys: Iterable[str]) -> Mapping[TopicPartition, Collection[OffsetRange]]:
    """Return the acknowledged ranges of each partition."""
    accepted: dict[TopicPartition, list[OffsetRange]] = {}
    for key in keys:
        prefix = key[: key.rindex("/") + 1]
        tp, gap = _partition_of(prefix), parse_gap_key(key, prefix)
        if tp is not None and gap is not None:
            accepted.setdefault(tp, []).append(gap)
    return accepted


def _quarantines(
    store: RemoteStorage, layout: ArchiveLayout, acknowledged: Collection[str]
) -> Mapping[TopicPartition, int]:
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
    return quarantines


def _archive_start(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> Offset:
    """Return the first archived offset now; 0 where it is not known."""
    with suppress(MalformedObjectError):  # its partition is held, and the status has the error
        mark = StoredPartition(store, layout, tp).watermark()
        if mark is not None and mark.watermark.start_offset is not None:
            return mark.watermark.start_offset
    return Offset(0)


def _partition_of(prefix: str) -> TopicPartition | None:
    parsed = parse_partition_directory(prefix.rstrip("/").rpartition("/")[2])
    return None if parsed is None else parsed.topic_partition


log: Final = structlog.get_logger()

FIRST_SECONDS: Final = 30.0
"""Seconds from the start to the first reading: the `offset.wm` objects are read first."""
_AGAIN_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """The result of a reading. `drill` is None if there was no drill, or its record is damaged."""

    unresolved: Unresolved
    drill: DrillRecord | None


@dataclass(frozen=True, slots=True)
class StoreRecordsUnavailable:
    """A reading has failed."""

    error: Exception


class UnresolvedReader:
    """Reads the stores of all led topics, one reading at a time.

    Args:
        place_of: Returns where a topic is archived.
        default_place: Where the cluster's drill record is; None where it is not read.
        pool: A pool of its own, so that a store that hangs holds up no other work.
        now: Monotonic seconds.
        metrics: Counts failures.
        errors: Delays the next reading after an unexpected error.
    """

    def __init__(
        self,
        place_of: PlaceOf,
        default_place: Place | None,
        pool: WorkerPool[StoreRecords | StoreRecordsUnavailable],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._place_of = place_of
        self._default_place = default_place
        self._task = PeriodicTask(
            "reading gaps and quarantines",
            pool,
            now,
            metrics,
            errors,
            expected=(StorageError,),
            first=FIRST_SECONDS,
            interval=_AGAIN_SECONDS,
        )

    def read_if_due(self, led: Iterable[TopicPartition]) -> None:
        """Start a reading if it is due. A failed one is repeated after the usual interval.

        Args:
            led: The led partitions.
        """
        if not self._task.is_due:
            return
        by_topic: dict[str, set[TopicPartition]] = {}
        for tp in led:
            by_topic.setdefault(tp.topic, set()).add(tp)
        readings: dict[int, tuple[Place, set[TopicPartition]]] = {}
        for topic, tps in by_topic.items():
            place = self._place_of(topic)
            readings.setdefault(id(place.store), (place, set()))[1].update(tps)
        if readings:
            default = self._default_place
            self._task.begin(
                lambda: StoreRecords(_read(readings.values()), _last_drill(default)),
                StoreRecordsUnavailable,
            )

    def handle(self, event: StoreRecords | StoreRecordsUnavailable) -> StoreRecords | None:
        """Take the result of a reading, and return what it has found; None if it has failed."""
        if isinstance(event, StoreRecords):
            self._task.succeeded()
            return event
        if self._task.failed(event.error):
            log.warning("unresolved.unavailable", error=str(event.error))
        return None


def _read(readings: Iterable[tuple[Place, Collection[TopicPartition]]]) -> Unresolved:
    results = [read_unresolved(place.store, place.layout, led) for place, led in readings]
    return Unresolved(
        {tp: records for result in results for tp, records in result.gap_records.items()},
        {tp: number for result in results for tp, number in result.quarantines.items()},
        {tp: gaps for result in results for tp, gaps in result.gaps.items()},
    )


def _last_drill(place: Place | None) -> DrillRecord | None:
    try:
        return None if place is None else read_drill(place.store, place.layout)
    except MalformedObjectError as error:
        log.warning("drill.record_unreadable", error=str(error))
        return None
