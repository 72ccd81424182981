"""The files of `__cluster_metadata-0`, by name.

Source: Kafka's `UnifiedLog` (segments) and KIP-630 (snapshots, `<end offset>-<epoch>.checkpoint`).
A snapshot gets this name only when it is whole (`.checkpoint.part` before).
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
    """A snapshot of everything below `end_offset`; sorts by age."""

    end_offset: Offset
    epoch: int

    @property
    def file_name(self) -> str:
        """The name that Kafka gives it."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """What one listing showed; both ascending."""

    logs: tuple[BaseOffset, ...]
    snapshots: tuple[SnapshotId, ...]

    def segment_holding(self, offset: Offset) -> BaseOffset | None:
        """The segment to begin with in order to read from `offset` on; None where all lie above."""
        return max((base for base in self.logs if base <= offset), default=None)

    def segment_after(self, base: BaseOffset) -> BaseOffset | None:
        """The next segment, None for the active one."""
        return min((other for other in self.logs if other > base), default=None)


def parse_files(names: Iterable[str]) -> MetadataFiles:
    """Sorts a listing; other names (indexes, `.deleted`, `.part`, checkpoints) are left out."""
    logs, snapshots = [], []
    for name in names:
        if log := _LOG.fullmatch(name):
            logs.append(BaseOffset(int(log[1])))
        elif snapshot := _SNAPSHOT.fullmatch(name):
            snapshots.append(SnapshotId(Offset(int(snapshot[1])), int(snapshot[2])))
    return MetadataFiles(tuple(sorted(logs)), tuple(sorted(snapshots)))


def log_file_name(base: BaseOffset) -> str:
    """The name of a segment's log."""
    return f"{base:020d}.log"
