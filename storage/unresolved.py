"""Gaps and quarantines that no operator has acknowledged yet, as the store records them.

A gap is resolved once its record `gaps/<topic>-<partition>/<start>-<end>.json` has a companion of
the same name below `acknowledged/`. A quarantine is resolved once
`quarantine/<topic>-<partition>/<name>/` is deleted, or has a companion
`acknowledged/quarantine/<topic>-<partition>/<name>.json`. Gap records themselves stay: readers need
them to pass over the gap.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.keys import ArchiveLayout, parse_gap_key
from sidetier.segments.names import parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

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
