"""What the archive says of one offset: who holds it, or why nobody does."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.segment import derive_next_offset
from sidetier.cli.archive_listing import ArchiveEnd, read_archive_end
from sidetier.segments.errors import ArchiveError, ObjectNotFoundError, SegmentError
from sidetier.segments.keys import ArchiveLayout, parse_gap_key, parse_object_key
from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage

_STEPS: Final = tuple(1 << bits for bits in range(10, 63, 4))
"""How far below an offset its segment's base is looked for, wider each time."""
_MOST_SET_ASIDE: Final = 5


@dataclass(frozen=True, slots=True)
class StoredHolder:
    """The stored segment that holds an offset."""

    key: str
    base_offset: BaseOffset
    next_offset: Offset
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedGap:
    """Records that were gone before they were stored; who noted it, and when (ms since 1970).

    `archive_below` is "unverified" where the archive below the gap may be of another history than
    the log above it (an unclean election that nobody saw), None in records of earlier versions.
    """

    key: str
    start_offset: Offset
    end_offset: Offset
    recorded_ms: int
    broker_id: int | None = None
    leader_epoch: int | None = None
    archive_below: str | None = None


@dataclass(frozen=True, slots=True)
class ArchivedOffset:
    """All that is found on the store about one offset of a partition.

    `first_base` is the lowest stored base offset; `start_offset` where the archive was begun by
    `uploader.offset_reset: latest`. `set_aside` are keys of segments below `_sidetier/` that hold
    the offset, or seem to.
    """

    uri: str
    watermark: ArchiveEnd
    first_base: BaseOffset | None = None
    start_offset: Offset | None = None
    holder: StoredHolder | None = None
    gap: RecordedGap | None = None
    set_aside: tuple[str, ...] = ()

    @property
    def begins_at(self) -> Offset | None:
        """Where the archive begins: what is stored below is no part of it."""
        mark = self.watermark.watermark
        if mark is not None and mark.start_offset is not None:
            return mark.start_offset
        if mark is None and self.start_offset is not None:
            return self.start_offset
        return None if self.first_base is None else Offset(self.first_base)


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """Where a partition's archive lies; its methods make requests."""

    store: RemoteStorage
    layout: ArchiveLayout
    tp: TopicPartition
    url: str

    def about(self, offset: int) -> ArchivedOffset:
        """Everything about one offset, in some twenty requests at most.

        Raises:
            ConfigurationError: the archive has other entropy bits than are configured.
            StorageError: the store refuses, or does not answer.
        """
        note = read_note(self.store, self.layout)
        if note is not None:
            check_note(note, self.layout, None)
        mark = read_archive_end(self.store, self.layout, self.tp)  # first: it may move meanwhile
        return ArchivedOffset(
            uri=f"{self.url}/{self.layout.partition_prefix(self.tp)}",
            watermark=mark,
            first_base=self._first_base(),
            start_offset=self._start(),
            holder=self.holder(offset),
            gap=self._gap(offset),
            set_aside=tuple(self._set_aside(offset)),
        )

    def holder(self, offset: int) -> StoredHolder | None:
        """The stored segment that holds the offset: the nearest base at or below it."""
        log = self._nearest_log(offset)
        if log is None:
            return None
        base, row = log
        try:
            end = derive_next_offset(self.store, self.layout, self.tp, base)
        except (ArchiveError, SegmentError):
            return None  # deleted meanwhile, or damaged: nobody could read the offset there
        return StoredHolder(row.key, base, end, row.size) if offset < end else None

    def _nearest_log(self, offset: int) -> tuple[BaseOffset, ObjectSummary] | None:
        """Listings go upwards only: begin nearby, and farther down where nothing is found."""
        for step in _STEPS:
            below = max(0, offset - step)
            found = _last(self._logs(below, offset))
            if found is not None or below == 0:
                return found
        return None

    def _logs(self, start: int, last: int) -> Iterator[tuple[BaseOffset, ObjectSummary]]:
        prefix = self.layout.partition_prefix(self.tp)
        after = f"{prefix}{start:020d}"  # sorts before every file of that segment
        for row in self.store.list_objects(prefix, start_after=after):
            parsed = parse_object_key(row.key, prefix)
            if parsed is None or parsed[0] > last:
                return
            if parsed[1] is FileKind.LOG:
                yield parsed[0], row

    def _first_base(self) -> BaseOffset | None:
        return next((base for base, _ in self._logs(0, 2**63 - 1)), None)

    def _start(self) -> Offset | None:
        found = self._json(self.layout.start_key(self.tp)).get("start_offset")
        return Offset(found) if isinstance(found, int) else None

    def _gap(self, offset: int) -> RecordedGap | None:
        prefix = self.layout.gap_prefix(self.tp)
        for row in self.store.list_objects(prefix):
            parsed = parse_gap_key(row.key, prefix)
            if parsed is None or not parsed[0] <= offset < parsed[1]:
                continue
            record = self._json(row.key)
            return RecordedGap(
                row.key,
                *parsed,
                row.modified_ms,
                _number(record.get("broker_id")),
                _number(record.get("leader_epoch")),
                _text(record.get("archive_below")),
            )
        return None

    def _set_aside(self, offset: int) -> Iterator[str]:
        for prefix in (self.layout.quarantine_prefix(self.tp), self.layout.retired_prefix(self.tp)):
            found = nearest_in_each_directory(self.store.list_objects(prefix), offset)
            yield from sorted(found)[:_MOST_SET_ASIDE]

    def _json(self, key: str) -> dict[str, Any]:
        """An object of ours; empty where there is none, or none that parses."""
        try:
            parsed = json.loads(self.store.get_object(key).data)
        except (ObjectNotFoundError, ValueError):
            return {}
        return parsed if isinstance(parsed, dict) else {}


def nearest_in_each_directory(rows: Iterable[ObjectSummary], offset: int) -> list[str]:
    """Of each directory's `.log`s the one with the highest base at or below the offset."""
    nearest: dict[str, tuple[int, str]] = {}
    for row in rows:
        directory, _, name = row.key.rpartition("/")
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed.kind is FileKind.LOG and parsed.base_offset <= offset:
            here = (parsed.base_offset, row.key)
            nearest[directory] = max(nearest.get(directory, here), here)
    return [key for _, key in nearest.values()]


def _last(
    rows: Iterable[tuple[BaseOffset, ObjectSummary]],
) -> tuple[BaseOffset, ObjectSummary] | None:
    last = None
    for row in rows:
        last = row
    return last


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
