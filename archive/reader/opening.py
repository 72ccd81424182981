"""Find the bytes of a segment where reading an offset begins, or the reason why it cannot.

These requests precede the reading of ranges. One of several threads makes them, without a lock.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.locate import Locator, SegmentPosition
from sidetier.archive.missing_offsets import first_missing
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot, PartitionArchive
from sidetier.archive.reader.results import Failed, Gap
from sidetier.archive.transactions import SegmentTransactions, transactions_of
from sidetier.archive.view import ArchiveView
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
    """The offset, or the next stored one, is at `segment_position` or after it.

    Attributes:
        snapshot: The snapshot of the archive.
        segment_position: Where reading begins.
        offset: First wanted offset.
        until: Offset up to which records are read from this segment, exclusive.
    """

    snapshot: ArchiveSnapshot
    segment_position: SegmentPosition
    offset: Offset
    until: Offset
    learnt: tuple[SegmentTransactions, ...] = ()
    """Transactions of the segments before it, which were skipped. Only while looking ahead."""
    limit: tuple[Version, int] | None = None
    """Version of the segment in which the wanted records end, and the byte position where
    they end.
    """


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The offset, or the next one that could be stored, is at the readable end or above it."""

    snapshot: ArchiveSnapshot
    offset: Offset


@dataclass(frozen=True, slots=True)
class Halted:
    """The offset cannot be read. `taken` is the result for the caller, with the reason."""

    snapshot: ArchiveSnapshot
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


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens one partition.

    Attributes:
        archive: The partition's archive.
        locator: Finds offsets in segments.
        read: Reads a range of one of the partition's objects.
        fetch: As `read`, into reusable memory. The memory is reused once nothing refers to it.
        bound: End of the wanted records, if any.
    """

    archive: PartitionArchive
    locator: Locator
    read: ReadRange
    fetch: Callable[[ObjectSummary, int, int], memoryview]
    bound: Bound | None = None

    def open(self, target: Target, max_age: float) -> Opening:
        """Find where the target is read from, in a snapshot that is at most `max_age` seconds old.

        If the target waits for a transaction, skip the segments whose transaction index and
        producer snapshot show whether the transaction is open or decided.

        Raises:
            NoArchiveError: There is no archive of the partition.
            StorageError, ArchiveError, ConfigurationError: As `PartitionArchive.snapshot`.
        """
        opening = self._open(self.archive.snapshot(max_age), target.offset)
        if target.waiting_for is None:
            return opening
        return self._skip_by_indexes(opening, target.waiting_for)

    def _skip_by_indexes(self, opening: Opening, waiting_for: Offset) -> Opening:
        learnt: list[SegmentTransactions] = []
        while isinstance(opening, Opened) and opening.segment_position.position == 0:
            view, log = self._view(opening.snapshot), opening.segment_position.log
            following = view.after(log.base_offset)
            # The files describe whole segments. Within a segment, they would include transactions
            # that were read already.
            if following is None or opening.offset > log.base_offset:
                break
            transactions = transactions_of(self.archive.store, log, following)
            if transactions is None:
                break
            learnt.append(transactions)
            opening = self._open(opening.snapshot, transactions.end)
            if not any(
                transaction.first_offset <= waiting_for for transaction in transactions.still_open
            ):
                break
        return replace(opening, learnt=tuple(learnt)) if isinstance(opening, Opened) else opening

    def open_elsewhere(self, stuck: Stuck) -> Opening:
        """Find another segment that holds the offset, or the reason why it is missing.

        Raises:
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
            return AtEnd(snapshot, stuck.offset)
        # Late writers and Pinterest's uploader leave segments that overlap, so another one may have
        # the offset.
        for log in islice(_candidates(view, stuck.offset), 1 + _MAX_CANDIDATES):
            if log.version not in stuck.tried and self._end_of(log) > stuck.offset:
                return self._opened(snapshot, view, log, stuck.offset)
        # A segment that is no longer part of the archive is no damage of the archive.
        if stuck.damage is None or not view.has(stuck.log):
            return self._gap(snapshot, view, stuck.offset)
        # A task of Spark lists nothing, so without keys it may have read an encrypted segment as it
        # is stored. The store knows by its metadata, read above, and names the key.
        self.read(stuck.log.row, 0, 1)
        return Halted(snapshot, self._failed(stuck, view, noted))

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
        view = self._view(snapshot)
        if offset >= view.end:
            return (
                # The archive continues after an extract: only a snapshot shows where.
                self._open(self.archive.snapshot(), offset)
                if view.is_part
                else AtEnd(snapshot, offset)
            )
        log = view.holder(offset)
        if offset < view.start or log is None:
            return self._gap(snapshot, view, offset)
        return self._opened(snapshot, view, log, offset)

    def _view(self, snapshot: ArchiveSnapshot) -> ArchiveView:
        if snapshot.view is None:
            raise self.archive.missing()
        return snapshot.view

    def _opened(
        self, snapshot: ArchiveSnapshot, view: ArchiveView, log: StoredLog, offset: Offset
    ) -> Opened:
        segment_position = self.locator.segment_position(self.read, log, offset)
        limit = self._limit(view, offset)
        return Opened(snapshot, segment_position, offset, view.until(offset), limit=limit)

    def _limit(self, view: ArchiveView, offset: Offset) -> tuple[Version, int] | None:
        if self.bound is None or offset >= self.bound.until:
            return None
        last = Offset(self.bound.until - 1)
        log = view.holder(last)
        # Known from the plan, or not needed: the wanted part ends with the segment.
        if log is None or log.version in self.bound.ends or view.until(last) == self.bound.until:
            return None
        extent = self.locator.extent(self.read, log, log.base_offset, last)
        return None if extent is None else (log.version, extent[1])

    def _gap(self, snapshot: ArchiveSnapshot, view: ArchiveView, offset: Offset) -> Halted:
        # Below the start, the reason is known without a request.
        gaps = self.archive.gaps() if offset >= view.start else []
        end = self._wanted(offset, view.start if offset < view.start else view.until(offset))
        missing = first_missing(OffsetRange(offset, end), gaps, view.start)
        detail = missing.detail(view.where)
        return Halted(snapshot, Gap(self.archive.tp, missing.offsets, missing.reason, detail))

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


def _candidates(view: ArchiveView, offset: Offset) -> Iterator[StoredLog]:
    """Yield the segments that may hold the offset, by descending base offset."""
    holder = view.holder(offset)
    if holder is not None:
        yield holder
        yield from view.below(holder.base_offset)
