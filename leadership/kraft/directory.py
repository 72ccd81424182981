"""Names of the files in `__cluster_metadata-0`.

Source: Kafka's `UnifiedLog` (segments) and KIP-630 (snapshots, `<end offset>-<epoch>.checkpoint`).
A snapshot gets this name only when it is complete (`.checkpoint.part` before).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sidetier.segments.offsets import BaseOffset, Offset

METADATA_DIRECTORY = "__cluster_metadata-0"

_LOG = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotId(NamedTuple):
    """Snapshot of all records below `end_offset` (exclusive); sorts by age."""

    end_offset: Offset
    epoch: int

    @property
    def file_name(self) -> str:
        """File name of the snapshot in Kafka."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """Files of one directory listing, in ascending order."""

    logs: tuple[BaseOffset, ...]
    snapshots: tuple[SnapshotId, ...]

    def segment_holding(self, offset: Offset) -> BaseOffset | None:
        """Return the segment that contains `offset`; None if all segments begin above it."""
        return max((base for base in self.logs if base <= offset), default=None)

    def segment_after(self, base: BaseOffset) -> BaseOffset | None:
        """Return the next segment; None if `base` is the active one."""
        return min((other for other in self.logs if other > base), default=None)


def parse_files(names: Iterable[str]) -> MetadataFiles:
    """Parse a listing; ignore other names (indexes, `.deleted`, `.part`, checkpoints)."""
    logs, snapshots = [], []
    for name in names:
        if log := _LOG.fullmatch(name):
            logs.append(BaseOffset(int(log[1])))
        elif snapshot := _SNAPSHOT.fullmatch(name):
            snapshots.append(SnapshotId(Offset(int(snapshot[1])), int(snapshot[2])))
    return MetadataFiles(tuple(sorted(logs)), tuple(sorted(snapshots)))


def log_file_name(base: BaseOffset) -> str:
    """Return the name of a segment's `.log` file."""
    return f"{base:020d}.log"
