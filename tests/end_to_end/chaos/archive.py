"""A partition's stored archive at the end of a run, decoded record by record."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sidetier.segments.headers import HEADER_BYTES, BatchHeader, walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.records import decode_records, read_records
from tests.end_to_end.chaos.ledger import Fate, Partition, Sums, checksum
from tests.end_to_end.chaos.observer import files_of, gaps_of
from tests.end_to_end.chaos.store import Eye
from tests.harness.archive_check import Mark, Range, parse_mark, parse_metadata

SetAside = Mapping[int, frozenset[int]]
"""Checksums by offset of what is in quarantine or retired: one offset can have several records."""

_MARKER_TYPES = {b"\0\0": Fate.ABORTED, b"\0\1": Fate.COMMITTED}


@dataclass(frozen=True, slots=True)
class Archived:
    """Content of a partition's archive.

    Records and transaction fates come from the `.log` files up to the watermark. `extents` has the
    first and next offset of each of these files by base offset; `controls` the offsets of
    transaction markers; `listed` the base offsets in `_metadata`.
    """

    mark: Mark
    files: Mapping[int, frozenset[str]]
    extents: Mapping[int, Range]
    gaps: tuple[Range, ...] = ()
    listed: tuple[tuple[int, int], ...] = ()
    records: Sums = field(default_factory=Sums)
    fates: Sums = field(default_factory=Sums)
    controls: frozenset[int] = frozenset()
    disorder: tuple[str, ...] = ()


def read_archive(eye: Eye, layout: ArchiveLayout, tp: Partition) -> Archived | None:
    """Read a whole archive without orphans; None if the partition has no watermark.

    An orphan is a `.log` that `_metadata` leaves out and whose offsets others have: a late request
    of a former leader's sidecar has stored it, and no reader takes it.

    Raises:
        DamagedSegmentError: a `.log` is not a sequence of complete, valid record batches.
    """
    place = TopicPartition(*tp)
    data = eye.read(layout.watermark_key(place))
    if data is None:
        return None
    mark, prefix = parse_mark(data), layout.partition_prefix(place)
    listed = parse_metadata(eye.read(layout.metadata_key(place)))
    files = dict(files_of(eye.listing(prefix), prefix))
    bases = sorted(base for base in files if "log" in files[base] and base <= mark.base)
    logs = {base: eye.read(f"{prefix}{base:020d}.log") or b"" for base in bases}
    for orphan in _orphans(logs, {base for base, _ in listed}):
        del files[orphan], logs[orphan]
    reading = _Reading()
    for base, log in logs.items():
        reading.add(base, log, f"{prefix}{base:020d}.log")
    return Archived(
        mark=mark,
        files=files,
        extents=reading.extents,
        gaps=gaps_of(eye.listing(layout.gap_prefix(place))),
        listed=listed,
        records=reading.records,
        fates=reading.fates,
        controls=frozenset(reading.controls),
        disorder=tuple(reading.disorder),
    )


def _orphans(logs: Mapping[int, bytes], named: Collection[int]) -> list[int]:
    """The base offsets of the logs that `_metadata` does not name, and that others cover."""
    extents = {base: _extent(log) for base, log in logs.items() if log}
    covered = [extent for base, extent in extents.items() if base in named]

    def is_covered(start: int, end: int) -> bool:
        for first, after in sorted(covered):
            if first <= start < after:
                start = after
        return start >= end

    return [base for base, extent in extents.items() if base not in named and is_covered(*extent)]


def _extent(log: bytes) -> Range:
    headers = [header for header, _ in _batches(log)]
    return headers[0].base_offset, headers[-1].last_offset + 1


def read_set_aside(eye: Eye, prefix: str) -> SetAside:
    """Read all records in the `.log` files below a prefix, in any folder."""
    found: dict[int, set[int]] = {}
    for key in eye.listing(prefix):
        if key.endswith(".log"):
            for record in read_records(eye.read(key) or b"", key):
                number = checksum(record.key, record.value)
                found.setdefault(record.offset, set()).add(number)
    return {offset: frozenset(numbers) for offset, numbers in found.items()}


class _Reading:
    """A walk over `.log` files by ascending base offset."""

    def __init__(self) -> None:
        self.extents: dict[int, Range] = {}
        self.records = Sums()
        self.fates = Sums()
        self.controls: set[int] = set()
        self.disorder: list[str] = []
        self._last = -1
        self._open: dict[int, list[int]] = {}

    def add(self, base: int, log: bytes, key: str) -> None:
        """Add another file."""
        for record in read_records(log, key):
            if record.offset <= self._last:
                self.disorder.append(f"{key}: offset {record.offset} follows on {self._last}")
            self._last = record.offset
            if record.control:
                self.controls.add(record.offset)
            elif not self.records.put(record.offset, checksum(record.key, record.value)):
                self.disorder.append(f"{key}: offset {record.offset} is stored with other bytes")
        headers = list(_batches(log))
        for header, payload in headers:
            self._follow(header, payload)
        if headers:
            first, last = headers[0][0], headers[-1][0]
            self.extents[base] = (first.base_offset, last.last_offset + 1)

    def _follow(self, header: BatchHeader, payload: bytes) -> None:
        """Assign a marker's decision to the producer's records since its last marker."""
        if not header.is_transactional:
            return
        records = decode_records(header, payload)
        offsets = self._open.setdefault(header.producer_id, [])
        if not header.is_control:
            offsets.extend(record.offset for record in records)
            return
        fate = _MARKER_TYPES.get((records[0].key or b"")[2:4])
        for offset in offsets if fate is not None else ():
            self.fates.put(offset, fate or 0)
        offsets.clear()


def _batches(log: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    for position, header in walk_headers(lambda at, size: log[at : at + size], len(log)):
        yield header, log[position + HEADER_BYTES : position + header.length]
