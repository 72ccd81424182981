"""A real broker's partition, copied into a test's own log dirs, where it can be damaged."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.archive_check import Partition
from tests.harness.archive_objects import ArchiveStore
from tests.harness.ledger import Ledger
from tests.harness.local_segments import log_bases, small_segments
from tests.harness.sidecar import Settings, basic_settings, merged
from tests.harness.stored_log import Record
from tests.harness.topics import create_topic

SMALL_BATCHES: Mapping[str, str | int] = {"batch.num.messages": 2}
"""Small enough that the indexes of small segments have entries."""

STATIC: dict[str, Any] = {"leadership": {"source": "static"}}


@dataclass(frozen=True, slots=True)
class Original:
    """A partition that a real broker wrote, and the records that were produced to it."""

    directory: Path
    records: Mapping[int, Record]

    @property
    def bases(self) -> list[int]:
        """Base offsets of its segments, the active one last."""
        return log_bases(self.directory)


def write_original(bootstrap: str, log_dir: Path, topic: str, segments: int) -> Original:
    """Write a partition with at least this many closed segments, and no later producer."""
    configs = small_segments(index_interval_bytes=4096, file_delete_delay_ms=1000)
    create_topic(bootstrap, topic, configs=configs)
    ledger = Ledger()
    directory = log_dir / f"{topic}-0"
    while len(log_bases(directory)) <= segments:
        ledger.produce(bootstrap, topic, 50, settings=SMALL_BATCHES)
    return Original(directory, dict(ledger.records[topic, 0]))


@dataclass(slots=True)
class CopiedLogDir:
    """A log dir with copies of one partition under many names; all records are committed.

    It has the broker's own `meta.properties`.
    """

    path: Path
    original: Original
    copies: list[Partition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        shutil.copy2(self.original.directory.parent / "meta.properties", self.path)

    def add(self, topic: str, number: int = 0, *, segments: int | None = None) -> Path:
        """Add a copy as `topic`-`number`, with the first closed segments, or all of them."""
        target = self.path / f"{topic}-{number}"
        target.mkdir()
        for name in ("leader-epoch-checkpoint", "partition.metadata"):
            shutil.copy2(self.original.directory / name, target)
        self.copies.append((topic, number))
        self.grow(target, len(self.original.bases) - 1 if segments is None else segments)
        return target

    def grow(self, target: Path, segments: int) -> None:
        """Copy more closed segments, and the next segment's `.log` as the active one."""
        bases = self.original.bases
        for base in bases[:segments]:
            for path in self.original.directory.glob(f"{base:020d}.*"):
                if not (target / path.name).exists() or path.suffix != ".log":
                    shutil.copy2(path, target)
        active = f"{bases[segments]:020d}.log"
        shutil.copy2(self.original.directory / active, target)
        self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a checkpoint with everything committed; last, because it must be the newest."""
        end = self.original.bases[-1]
        rows = "".join(f"{topic} {number} {end}\n" for topic, number in self.copies)
        temporary = self.path / "replication-offset-checkpoint.tmp"
        temporary.write_text(f"0\n{len(self.copies)}\n{rows}")
        temporary.rename(self.path / "replication-offset-checkpoint")

    def sent(self) -> dict[Partition, Mapping[int, Record]]:
        """Return the records in each of the copies."""
        return dict.fromkeys(self.copies, self.original.records)


def static_settings(
    log_dirs: Sequence[CopiedLogDir], store: ArchiveStore, changes: Mapping[str, Any] | None = None
) -> Settings:
    """Return settings for a sidecar over log dirs without a broker."""
    basic = basic_settings([log_dir.path for log_dir in log_dirs], store)
    return merged(merged(basic, STATIC), changes or {})
