"""One log of archive and tail: the records of tail packs follow those of the archive.

`TailedSource` joins an `ArchiveSource` and the merged tail of its partition. Each range of a pack
is shown as a segment, so that positions and transactions are as in the archive, and reading goes on
when the same records arrive as segments.

The packs of a store are read for all partitions of a reader together, no more often than the
partitions look for new segments. The state of the archive is always newer than the packs: cleaning
drops rows as soon as the archive has them.

A tail that cannot be told is an error for the reader, at the end of the archive: packs contradict
each other, or one cannot be read that may show that records are stale.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.errors import (
    DamagedArchiveError,
    NoArchiveError,
    TailMovedError,
    UnreadTailError,
)
from sidetier.archive.missing_offsets import first_missing
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.results import Failed, Gap
from sidetier.archive.reader.source import (
    ArchiveSource,
    AtEnd,
    Halted,
    Opened,
    Opening,
    Stuck,
    Target,
)
from sidetier.archive.reader.time_search import TimeSearch
from sidetier.archive.segment_bytes import Part
from sidetier.archive.tail.inventory import TailContents, TailInventory
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, Reason, TailSlice
from sidetier.archive.view import ArchiveView, Change
from sidetier.segments.errors import ArchiveConflictError, SidetierError
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import IfMatch, ObjectSummary
from sidetier.storage.ranges import read_range

log: Final = structlog.get_logger()

if TYPE_CHECKING:
    from sidetier.storage.settings import StorageEndpoint


class ReadTails(NamedTuple):
    """The live packs of a store, and the time before they were listed."""

    contents: TailContents
    as_of: float


class SharedTails:
    """The tail packs of all stores, for all partitions of a reader. Thread-safe.

    Args:
        access: The archive of the cluster.
        clock: The reader's clock, in seconds.
    """

    def __init__(self, access: ArchiveAccess, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._guard = threading.Lock()
        self._stores: dict[StorageEndpoint, _StoreTails] = {}

    def age_of(self, tails: ReadTails) -> float:
        """Return how long ago packs were listed, in seconds."""
        return max(0.0, self._clock() - tails.as_of)

    def read(self, topic: str, max_age: float) -> ReadTails:
        """Return the packs of the topic's store, not older than `max_age` seconds.

        Raises:
            StorageError: A request failed.
        """
        endpoint = self._access.provider.endpoint(topic)
        with self._guard:
            if endpoint not in self._stores:
                store, layout = self._access.store(topic), self._access.layout
                inventory = TailInventory(store, layout, refuses_plain=endpoint.refuses_plain)
                self._stores[endpoint] = _StoreTails(inventory, self._clock)
            tails = self._stores[endpoint]
        return tails.read(max_age)


@dataclass(slots=True)
class _StoreTails:
    inventory: TailInventory
    clock: Callable[[], float]
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _latest: ReadTails | None = None

    def read(self, max_age: float) -> ReadTails:
        # One thread reads the store. The others wait here for what it finds.
        with self._guard:
            now = self.clock()
            if self._latest is None or now - self._latest.as_of >= max_age:
                contents = self.inventory.read()
                if self._latest is None or self._latest.contents.problems != contents.problems:
                    for key, problem in contents.problems.items():
                        log.warning("tail.unread", key=key, problem=problem)
                self._latest = ReadTails(contents, now)
            return self._latest


@dataclass(frozen=True, slots=True)
class TailLog(StoredLog):
    """A range of a pack, as a segment."""

    part: TailSlice = field(kw_only=True)


class _Tail(NamedTuple):
    """The tail behind one state of the archive. `logs` has what to read; `problem` is why it is
    nothing, if that is not known to be right.
    """

    merged: MergedTail
    logs: tuple[TailLog, ...]
    as_of: float
    problem: SidetierError | None = None


@dataclass(slots=True)
class TailedSource:
    """The archive of one partition, and its tail. See `Source`.

    Attributes:
        archive: The archive.
        tails: The packs.
    """

    archive: ArchiveSource
    tails: SharedTails
    _known: tuple[str | None, TailContents, _Tail] | None = None
    """The last tail, with the etag of `offset.wm` and the packs that it was made from."""
    _archived: tuple[str, ArchivedPart] | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the archive."""
        return self.archive.changes

    @property
    def as_of(self) -> float | None:
        """Time of the newest snapshot of the archive."""
        return self.archive.as_of

    def refresh(self, max_age: float) -> None:
        """Take a snapshot of the archive."""
        self.archive.refresh(max_age)

    def fetch(self, log: StoredLog, start: int, end: int) -> memoryview:
        """Read a range of a segment, or of a range in a pack."""
        if not isinstance(log, TailLog) or log.part.source.pack is None:
            return self.archive.fetch(log, start, end)
        pack, at = log.part.source.pack, log.part.source.row.position
        store = self.archive.archive.store
        condition = IfMatch(pack.etag)
        return memoryview(read_range(store, pack.key, at + start, at + end, condition=condition))

    def open(self, target: Target, max_age: float) -> Opening:
        """Find where the target is read from: in the archive, or behind its end in the tail.

        Raises:
            NoArchiveError: There is neither an archive nor a tail of the partition.
            StorageError, ArchiveError, ConfigurationError: As `ArchiveSource.open`.
        """
        packs, max_age = self._packs(max_age)
        try:
            opening = self.archive.open(target, max_age)
        except NoArchiveError:
            tail = self._tail(None, packs)
            if not tail.logs and tail.problem is None:
                raise
            return self._open_tail(tail, target.offset)
        return self._joined(opening, packs)

    def open_elsewhere(self, stuck: Stuck) -> Opening:
        """Find other bytes that hold the offset, or the reason why it is missing.

        A pack may have been deleted: then its records are archived, or in another pack.
        """
        if not isinstance(stuck.log, TailLog):
            packs, _ = self._packs(0.0)
            return self._joined(self.archive.open_elsewhere(stuck), packs)
        opening = self.open(Target(stuck.offset), 0.0)
        if isinstance(opening, AtEnd) and not self._is_stale(stuck.offset):
            tp = self.archive.archive.tp
            moved = TailMovedError(
                f"{tp}: the offsets from {stuck.offset} on were in {stuck.log.key}, and are in no "
                "pack and no segment now"
            )
            return Halted(Failed(tp, stuck.offset, moved))
        if not isinstance(opening, Opened):
            return opening
        first = next(opening.parts)
        if first.log.version not in stuck.tried:
            return replace(opening, parts=chain((first,), opening.parts))
        if stuck.damage is None:
            # Compaction has removed the last records of the range.
            return self.open(Target(stuck.log.part.end), float("inf"))
        end = max(stuck.log.part.end, Offset(stuck.offset + 1))
        missing = OffsetRange(stuck.offset, stuck.damaged_up_to or end)
        damaged = DamagedArchiveError(
            f"{stuck.damage}; offsets {missing} are missing in this tail pack",
            stuck.log.key,
            stuck.position,
            missing,
        )
        return Halted(Failed(self.archive.archive.tp, stuck.offset, damaged))

    def bounds(self, max_age: float) -> ArchiveBounds | None:
        """Return the range that archive and tail have; None if there is neither. The archive end
        offset is not in it.
        """
        packs, max_age = self._packs(max_age)
        bounds = self.archive.archive.bounds(max_age)
        snapshot = self.archive.archive.latest
        tail = self._tail(None if snapshot is None else snapshot.view, packs)
        if bounds is not None:
            return replace(bounds, next_offset=max(bounds.next_offset, tail.merged.end))
        if not tail.logs:
            return None
        merged = tail.merged
        return ArchiveBounds(
            merged.start,
            merged.end,
            is_pinterest=False,
            taken_at=tail.as_of,
            topic_id=merged.topic_id,
        )

    def first_at(self, timestamp: int, search: TimeSearch, max_age: float) -> Offset | None:
        """Find the first record of the tail with at least this timestamp, in ms; None if there is
        none.
        """
        packs, max_age = self._packs(max_age)
        self.archive.refresh(max_age)
        snapshot = self.archive.archive.latest
        tail = self._tail(None if snapshot is None else snapshot.view, packs)
        for log in tail.logs:
            part = log.part
            if part.source.row.max_timestamp < timestamp:
                continue
            data = bytes(self.fetch(log, 0, log.size))
            offset = search.first_in(log, data, timestamp, OffsetRange(part.start, part.end))
            if offset is not None:
                return offset
        return None

    def _packs(self, max_age: float) -> tuple[ReadTails, float]:
        """Read the packs. Return them, and how old the state of the archive may be behind them."""
        packs = self.tails.read(self.archive.archive.tp.topic, max_age)
        return packs, min(max_age, self.tails.age_of(packs))

    def _is_stale(self, offset: Offset) -> bool:
        """Whether the last tail shows that a later leader does not have an offset."""
        left_out = () if self._known is None else self._known[2].merged.left_out
        return any(out.reason is Reason.STALE and offset in out.offsets for out in left_out)

    def _joined(self, opening: Opening, packs: ReadTails) -> Opening:
        """Continue what the archive has opened with the tail behind its end."""
        snapshot = self.archive.archive.latest
        view = None if snapshot is None else snapshot.view
        if isinstance(opening, Halted) or opening.as_of is None or view is None:
            return opening
        tail = self._tail(view, packs)
        if isinstance(opening, AtEnd):
            return self._open_tail(tail, opening.offset, opening.as_of)
        if tail.problem is not None:
            # Asked again at the end of the archive, where the problem is the answer.
            return replace(opening, as_of=None)
        parts = self._parts(tail, view.end)
        as_of = min(opening.as_of, tail.as_of)
        return replace(opening, parts=chain(opening.parts, parts), as_of=as_of)

    def _open_tail(self, tail: _Tail, offset: Offset, as_of: float | None = None) -> Opening:
        as_of = tail.as_of if as_of is None else min(as_of, tail.as_of)
        if tail.problem is not None:
            return Halted(Failed(self.archive.archive.tp, offset, tail.problem))
        if offset < tail.merged.start:
            start = tail.merged.start
            tp, where = self.archive.archive.tp, self.archive.archive.where
            missing = first_missing(OffsetRange(offset, start), (), start)
            return Halted(Gap(tp, missing.offsets, missing.reason, missing.detail(where)))
        parts = self._parts(tail, offset)
        first = next(parts, None)
        if first is None:
            return AtEnd(offset, as_of)
        return Opened(offset, chain((first,), parts), as_of)

    def _parts(self, tail: _Tail, offset: Offset) -> Iterator[Part]:
        bound = self.archive.bound
        for log in tail.logs:
            if log.part.end > offset:
                is_above = bound is not None and max(log.part.start, offset) >= bound.until
                yield Part(log, 0, log.part.end, 0 if is_above else log.size)

    def _tail(self, view: ArchiveView | None, packs: ReadTails) -> _Tail:
        """Merge the tail behind a state of the archive. Nothing is merged behind an archive of
        Pinterest's uploader.
        """
        contents, as_of = packs
        etag = None if view is None else view.etag
        known = self._known
        if known is not None and known[0] == etag and known[1] is contents:
            return known[2]
        tp = self.archive.archive.tp
        archived = self._archived_part(view, contents, tp)
        rows = {tp: contents.rows.get(tp, ())}
        if view is not None and view.is_pinterest:
            rows = {tp: ()}
        problem: SidetierError | None = None
        try:
            merged = replace(contents, rows=rows).merged(tp, archived)
        except ArchiveConflictError as error:
            merged, problem = replace(contents, rows={}).merged(tp, archived), error
        if merged.unread is not None:
            problem = UnreadTailError(f"{tp}: {merged.unread}")
        tail = _Tail(merged, tuple(map(_as_segment, merged.slices)), as_of, problem)
        self._known = etag, contents, tail
        return tail

    def _archived_part(
        self, view: ArchiveView | None, contents: TailContents, tp: TopicPartition
    ) -> ArchivedPart:
        if view is None:
            return ArchivedPart()
        if all(source.row.end <= view.end for source in contents.rows.get(tp, ())):
            return ArchivedPart(view.end, topic_id=view.watermark.topic_id)
        if self._archived is None or self._archived[0] != view.etag:
            archive = self.archive.archive
            epochs = archive.epochs()
            part = ArchivedPart(view.end, epochs, view.watermark.topic_id, archive.gaps())
            self._archived = view.etag, part
        return self._archived[1]


def _as_segment(part: TailSlice) -> TailLog:
    pack, row = part.source.pack, part.source.row
    if pack is None:
        raise ValueError(f"{row.tp}: a row that is not stored yet")
    key = f"{pack.key}, bytes {row.position} to {row.position + row.size}"
    summary = ObjectSummary(key, row.size, pack.etag, pack.modified_ms)
    return TailLog(BaseOffset(part.start), summary, part=part)
