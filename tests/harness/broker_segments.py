"""Partitions that a real broker wrote, with the records that a consumer read from them."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset

ROOT = Path(__file__).resolve().parents[1] / "fixtures" / "segments"

# The broker's `index.interval.bytes`, which determines the entries in its indexes.
INDEX_INTERVALS = {"tx-0": 1024, "segms-0": 1024, "compacted-0": 1024}
DEFAULT_INDEX_INTERVAL = 512


@dataclass(frozen=True, slots=True)
class BrokerSegment:
    """One closed segment; `next_base` is the base offset of the segment after it."""

    directory: Path
    base: BaseOffset
    next_base: int

    def __str__(self) -> str:
        return f"{self.directory.name}/{self.base}"

    def path(self, kind: FileKind) -> Path:
        return self.directory / segment_file_name(self.base, kind)

    def read(self, kind: FileKind) -> bytes:
        return self.path(kind).read_bytes()

    @property
    def index_interval(self) -> int:
        return INDEX_INTERVALS.get(self.directory.name, DEFAULT_INDEX_INTERVAL)


def directories() -> list[Path]:
    return sorted(path for path in ROOT.iterdir() if path.is_dir())


def meta(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "meta.json").read_text())
    return loaded


def consumed(directory: Path, isolation: str = "read_uncommitted") -> list[dict[str, Any]]:
    """Return what a consumer received, without markers."""
    text = (directory / f"expected.{isolation}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def closed_segments() -> list[BrokerSegment]:
    return [segment for directory in directories() for segment in _closed_in(directory)]


def end_of_closed(directory: Path) -> int:
    """Return the offset after the closed segments of a fixture: the end of its archive."""
    return _closed_in(directory)[-1].next_base


def _closed_in(directory: Path) -> list[BrokerSegment]:
    facts = meta(directory)
    bases = [int(name) for name in [*facts["closed_segments"], facts["active_segment"]]]
    return [
        BrokerSegment(directory, BaseOffset(base), following) for base, following in pairwise(bases)
    ]
