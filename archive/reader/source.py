"""Where the records of one partition are stored: the port `Source`, and the archive behind it.

Fetch threads ask a source, without a lock. It returns values only: where reading begins, and the
segments that follow without a gap; or the end; or the reason why an offset cannot be read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Protocol

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.locate import Locator
from sidetier.archive.missing_offsets import first_missing
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot, PartitionArchive
from sidetier.archive.reader.results import Failed, Gap
from sidetier.archive.segment_bytes import Part
from sidetier.archive.transactions import SegmentTransactions, transactions_of
from sidetier.archive.view import ArchiveView, Change
from sidetier.segments.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
    UnsupportedFormatError,
)
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.port import ObjectSummary
from sidetier.storage.ranges import ReadRange

_MAX_CANDIDATES: Final = 8
"""Maximum number of segments with lower bases that are checked: one of them may reach beyond the
end of a later segment.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """Records from `until` on are not wanted.

    Attributes:
        until: End of the wanted offsets, exclusive.
        ends: Byte positions where the wanted part of segments ends, if known.
    """

    until: Offset
    ends: Mapping[Version, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """The offset to open at. With `waiting_for`, the first offset of an open transaction, only
    headers are read until that transaction is decided.
    """

    offset: Offset
    waiting_for: Offset | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The offset, or the next stored one, is in the first of `parts`.

    Attributes:
        offset: First wanted offset.
        parts: Where to read, in order of offsets; each part up to its `until`.
        as_of: Time of the source's knowledge, in seconds of its clock; None if that does not age.
        learnt: Transactions of the segments before, which were skipped. Only while looking ahead.
    """

    offset: Offset
    parts: Iterator[Part]
    as_of: float | None
    learnt: tuple[SegmentTransactions, ...] = ()


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The offset, or the next one that could be stored, is at the readable end or above it.

    Attributes:
        offset: The offset at which reading continues.
        as_of: Time of the source's knowledge. `open` returns one that is at most `max_age` seconds
            old, never None: the source is asked again `look_interval` after it.
    """

    offset: Offset
    as_of: float | None


@dataclass(frozen=True, slots=True)
class Halted:
    """The offset cannot be read. `taken` is the result for the caller, with the reason."""

    taken: Gap | Failed


Opening = Opened | AtEnd | Halted


@dataclass(frozen=True, slots=True)
class Stuck:
    """Reading stopped too early.

    Attributes:
        log: A segment in which nothing can be read at `offset`.
        offset: The offset where reading stopped.
        damage: What is wrong there; None if the segment just ends.
        damaged_up_to: End of the one damaged batch; None if nothing behind it can be read either.
        position: Byte position of the damage.
        tried: All segments in which nothing can be read at `offset`.
    """

    log: StoredLog
    offset: Offset
    damage: SidetierError | None = None
    damaged_up_to: Offset | None = None
    position: int = 0
    tried: frozenset[Version] = frozenset()


class Source(Protocol):
    """Where the records of one partition are read from.

    Offsets are those of the partition. A source that stores no objects (a live log, say) describes
    the bytes that it has as a `StoredLog`, and returns them from `fetch`. Errors are
    `SidetierError`s: with `retry`, the same call is made again after a pause; an
    ObjectNotFoundError or PreconditionFailedError of `fetch` means that the segment ends there.
    """

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of the stored records that `open` and `refresh` have found, in the order in
        which they were found: a partition counts those that it has seen.
        """
        ...

    @property
    def as_of(self) -> float | None:
        """Time of the newest knowledge, in seconds of the reader's clock.

        None if `refresh` would find nothing: then no change is looked for while records are read.
        """
        ...

    def open(self, target: Target, max_age: float) -> Opening:
        """Find where the target is read from, knowing the source as of `max_age` seconds ago."""
        ...

    def open_elsewhere(self, stuck: Stuck) -> Opening:
        """Find other bytes that hold the offset, but none of `Stuck.tried`; or the reason why it is
        missing.
        """
        ...

    def fetch(self, log: StoredLog, start: int, end: int) -> memoryview:
        """Return a range of a segment. Fewer bytes mean that it was cut, which is damage."""
        ...

    def refresh(self, max_age: float) -> None:
        """Look for changes, unless that was done less than `max_age` seconds ago."""
        ...


def opening_at(source: Source, start: Target | Stuck, max_age: float) -> Opening | SidetierError:
    """Return where the source is read from, or its error."""
    try:
        if isinstance(start, Stuck):
            return source.open_elsewhere(start)
        return source.open(start, max_age)
    except SidetierError as error:
        return error


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """The archive of one partition.

    Attributes:
        archive: The partition's archive.
        locator: Finds offsets in segments.
        read: Reads a range of one of the partition's objects.
        bound: End of the wanted records, if any.
        lend: As `read`, into reusable memory, which is reused once nothing refers to it.
    """

    archive: PartitionArchive
    locator: Locator
    read: ReadRange
    bound: Bound | None = None
    lend: Callable[[ObjectSummary, int, int], memoryview] | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes between two snapshots of the archive."""
        latest = self.archive.latest
        return () if latest is None else latest.changes

    @property
    def as_of(self) -> float | None:
        """Time of the newest snapshot; None for an extract."""
        latest = self.archive.latest
        return None if latest is None else _as_of(latest)

    def fetch(self, log: StoredLog, start: int, end: int) -> memoryview:
        """Read a range of a segment, in the version that was listed."""
        if self.lend is None:
            return memoryview(self.read(log.row, start, end))
        return self.lend(log.row, start, end)

    def refresh(self, max_age: float) -> None:
        """Take a snapshot of the archive."""
        self.archive.snapshot(max_age)

    def open(self, target: Target, max_age: float) -> Opening:
        """Find where the target is read from, in a snapshot that is at most `max_age` seconds old.

        If the target waits for a transaction, skip the segments whose transaction index and
        producer snapshot show whether the transaction is open or decided.

        Raises:
            NoArchiveError: There is no archive of the partition.
            StorageError, ArchiveError, ConfigurationError: As `PartitionArchive.snapshot`.
            UnreadTailError: It is not known what follows the end.
        """
        snapshot = self.archive.snapshot(max_age)
        if target.waiting_for is None:
            return self._open(snapshot, target.offset)
        return self._skip_by_indexes(snapshot, target.offset, target.waiting_for)

    def _skip_by_indexes(
        self, snapshot: ArchiveSnapshot, offset: Offset, waiting_for: Offset
    ) -> Opening:
        learnt: list[SegmentTransactions] = []
        is_open = True
        while is_open:
            # The archive continues after an extract: only a snapshot shows where.
            snapshot = self.archive.continued(snapshot, offset)
            view = self._view(snapshot)
            log = view.holder(offset) if view.start <= offset < view.end else None
            following = None if log is None else view.after(log.base_offset)
            # The files describe whole segments. Within a segment, they would include transactions
            # that were read already.
            if log is None or following is None or offset > log.base_offset:
                break
            transactions = transactions_of(self.archive.store, log, following)
            if transactions is None:
                break
            learnt.append(transactions)
            offset = transactions.end
            is_open = any(
                transaction.first_offset <= waiting_for for transaction in transactions.still_open
            )
        opening = self._open(snapshot, offset)
        return replace(opening, learnt=tuple(learnt)) if isinstance(opening, Opened) else opening

    def open_elsewhere(self, stuck: Stuck) -> Opening:
        """Find another segment that holds the offset, or the reason why it is missing.

        Raises:
            TailMovedError: The offset was in a pack, and is in no pack and no segment now.
            As `open`.
        """
        stuck, noted = self._with_end(stuck)
        if stuck.damage is None and noted is not None:
            # Compaction has removed the last records of the segment: nothing is missing.
            snapshot = self.archive.snapshot(float("inf"))
            return self._open(snapshot, min(noted, self._view(snapshot).until(stuck.offset)))
        # The segment may have been deleted, quarantined or replaced since it was listed.
        snapshot = self.archive.snapshot(thorough=True)
        view = self._view(snapshot)
        if stuck.offset >= view.end:
            moved = self.archive.moved(stuck.log, stuck.offset)
            if moved is not None:
                raise moved
            return AtEnd(stuck.offset, _as_of(snapshot))
        # Late writers and Pinterest's uploader leave segments that overlap, so another one may have
        # the offset.
        for log in islice(_candidates(view, stuck.offset), 1 + _MAX_CANDIDATES):
            if log.version not in stuck.tried and self._end_of(log) > stuck.offset:
                return self._opened(snapshot, view, log, stuck.offset)
        # A segment that is no longer part of the archive is no damage of the archive.
        if stuck.damage is None or not view.has(stuck.log):
            return self._gap(view, stuck.offset)
        # A task of Spark lists nothing, so without keys it may have read an encrypted segment as it
        # is stored. The store knows by its metadata, read above, and names the key.
        self.read(stuck.log.row, 0, 1)
        return Halted(self._failed(stuck, view, noted))

    def _with_end(self, stuck: Stuck) -> tuple[Stuck, Offset | None]:
        """Return the noted end of the segment, and the damage if it has lost its last batches."""
        if stuck.damage is not None:
            return stuck, self.archive.noted_end(stuck.log)
        # The segment has simply ended, perhaps before its noted end.
        try:
            return stuck, self.archive.proven_end(stuck.log, stuck.offset)
        except DamagedArchiveError as error:
            return replace(stuck, damage=error), error.offsets.end
        except (ObjectNotFoundError, PreconditionFailedError):
            return stuck, None  # deleted or replaced since it was listed

    def _open(self, snapshot: ArchiveSnapshot, offset: Offset) -> Opening:
        snapshot = self.archive.continued(snapshot, offset)
        view = self._view(snapshot)
        if offset >= view.end:
            problem = self.archive.problem
            if problem is not None:
                raise problem
            return AtEnd(offset, _as_of(snapshot))
        log = view.holder(offset)
        if offset < view.start or log is None:
            return self._gap(view, offset)
        return self._opened(snapshot, view, log, offset)

    def _view(self, snapshot: ArchiveSnapshot) -> ArchiveView:
        if snapshot.view is None:
            raise self.archive.problem or self.archive.missing()
        return snapshot.view

    def _opened(
        self, snapshot: ArchiveSnapshot, view: ArchiveView, log: StoredLog, offset: Offset
    ) -> Opened:
        start = self.locator.segment_position(self.read, log, offset).position
        bound = self.bound
        wanted = {} if bound is None else {**bound.ends, **self._last(bound, view, offset)}
        # Without a known end, it is asked again there: a problem is then the answer.
        as_of = _as_of(snapshot) if self.archive.has_known_end else None
        return Opened(offset, self._parts(view, log, start, offset, wanted), as_of)

    def _parts(
        self,
        view: ArchiveView,
        log: StoredLog,
        start: int,
        offset: Offset,
        wanted: Mapping[Version, int],
    ) -> Iterator[Part]:
        bound = self.bound
        while True:
            end = min(wanted.get(log.version, log.size), log.size)
            until = view.until(offset)
            is_above = bound is not None and offset >= bound.until
            yield Part(log, start, until, 0 if is_above else end)
            following = view.holder(until)
            if until >= view.end or following is None:
                return
            log, start, offset = following, 0, until

    def _last(self, bound: Bound, view: ArchiveView, offset: Offset) -> Mapping[Version, int]:
        """Return the byte position where the bound is reached, by version of its segment."""
        if offset >= bound.until:
            return {}
        last = Offset(bound.until - 1)
        log = view.holder(last)
        # Known from the plan, or not needed: the wanted part ends with the segment.
        if log is None or log.version in bound.ends or view.until(last) == bound.until:
            return {}
        extent = self.locator.extent(self.read, log, log.base_offset, last)
        return {} if extent is None else {log.version: extent[1]}

    def _gap(self, view: ArchiveView, offset: Offset) -> Halted:
        # Below the start, the reason is known without a request.
        gaps = self.archive.gaps() if offset >= view.start else []
        end = self._wanted(offset, view.start if offset < view.start else view.until(offset))
        missing = first_missing(OffsetRange(offset, end), gaps, view.start)
        detail = missing.detail(view.where)
        return Halted(Gap(self.archive.tp, missing.offsets, missing.reason, detail))

    def _failed(self, stuck: Stuck, view: ArchiveView, noted: Offset | None) -> Failed:
        if isinstance(stuck.damage, UnsupportedFormatError):
            error = UnsupportedFormatError(
                f"{stuck.damage}; the records are stored, but this version of Sidetier cannot "
                "read them"
            )
            return Failed(self.archive.tp, stuck.offset, error)
        until = view.until(stuck.offset)
        end = stuck.damaged_up_to or (until if noted is None else min(noted, until))
        # At least one offset, so that a caller that skips the damage makes progress.
        end = max(self._wanted(stuck.offset, end), Offset(stuck.offset + 1))
        missing = OffsetRange(stuck.offset, end)
        damaged = DamagedArchiveError(
            f"{stuck.damage}; offsets {missing} are missing: no other "
            f"segment at {view.where} has them",
            stuck.log.key,
            stuck.position,
            missing,
        )
        return Failed(self.archive.tp, stuck.offset, damaged)

    def _wanted(self, offset: Offset, end: Offset) -> Offset:
        """Limit the end of missing offsets to the wanted ones."""
        if self.bound is None or offset >= self.bound.until:
            return end
        return min(end, self.bound.until)

    def _end_of(self, log: StoredLog) -> Offset:
        noted = self.archive.noted_end(log)
        return self.archive.end_of(log) if noted is None else noted


def _as_of(snapshot: ArchiveSnapshot) -> float | None:
    is_part = snapshot.view is not None and snapshot.view.is_part
    return None if is_part else snapshot.taken_at


def _candidates(view: ArchiveView, offset: Offset) -> Iterator[StoredLog]:
    """Yield the segments that may hold the offset, by descending base offset."""
    holder = view.holder(offset)
    if holder is not None:
        yield holder
        yield from view.below(holder.base_offset)
