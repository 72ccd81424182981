"""From an offset to the bytes of a segment where reading begins, or to why it cannot.

These are the requests that are made before a range is read: one of several threads makes them, with
no lock held.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.gaps import first_missing
from sidetier.archive.locate import Locator, ReadRange, SegmentPosition
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import ArchiveSnapshot, PartitionArchive
from sidetier.archive.reading.bound import Bound
from sidetier.archive.reading.results import Failed, Gap
from sidetier.archive.transaction_indexes import SegmentTransactions, transactions_of
from sidetier.archive.view import ArchiveView
from sidetier.segments.errors import SidetierError, UnsupportedFormatError
from sidetier.segments.offsets import Offset
from sidetier.storage.port import ObjectSummary

_MOST_CANDIDATES: Final = 8
"""Segments with lower bases that are asked whether they reach over the end of a later one."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The offset, or the next stored one, is at `segment_position` or behind it. Records are read
    from there up to `until`.
    """

    look: ArchiveSnapshot
    segment_position: SegmentPosition
    offset: Offset
    until: Offset
    learnt: tuple[SegmentTransactions, ...] = ()
    """Of the segments before, which were not read: looking ahead alone."""
    limit: tuple[Version, int] | None = None
    """The segment with the end of what is wanted, and the byte behind which nothing of it is."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The offset, or the next one that could be stored, lies at the readable end, or above."""

    look: ArchiveSnapshot
    offset: Offset


@dataclass(frozen=True, slots=True)
class Halted:
    """It cannot be read: what is to be handed out says why."""

    look: ArchiveSnapshot
    taken: Gap | Failed


Opening = Opened | AtEnd | Halted


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where reading came to an end before it should: `log` holds nothing that can be read at
    `offset`, nor does any in `tried`.

    `damage` is what was wrong there, None where the segment just ends. `damaged_up_to` is the end
    of the one batch that is damaged, None where nothing behind can be read either.
    """

    log: StoredLog
    offset: Offset
    damage: SidetierError | None = None
    damaged_up_to: Offset | None = None
    position: int = 0
    tried: frozenset[Version] = frozenset()


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens one partition; `read` reads a range of one of its objects; so does `fetch`, into memory
    that is used again once nobody refers to it. `bound` is where what is wanted ends, if it does.
    """

    archive: PartitionArchive
    locator: Locator
    read: ReadRange
    fetch: Callable[[ObjectSummary, int, int], memoryview]
    bound: Bound | None = None

    def open_at(self, offset: Offset, max_age: float) -> Opening:
        """Where the offset is read from; a look of at most `max_age` seconds will do.

        Raises:
            NoArchiveError: there is no archive of the partition.
            StorageError, ArchiveError, ConfigurationError: as `PartitionArchive.look`.
        """
        return self._open(self.archive.look(max_age), offset)

    def look_ahead(self, offset: Offset, waiting_for: Offset, max_age: float) -> Opening:
        """As `open_at`, for who waits for a transaction to be decided: past the segments whose
        companions say that it is still open, or that it is decided.

        Raises:
            As `open_at`.
        """
        opening = self.open_at(offset, max_age)
        learnt: list[SegmentTransactions] = []
        while isinstance(opening, Opened) and opening.segment_position.position == 0:
            view, log = self._view(opening.look), opening.segment_position.log
            following = view.after(log.base_offset)
            if following is None or opening.offset > log.base_offset:
                break
            found = transactions_of(self.archive.store, log, following)
            if found is None:
                break
            learnt.append(found)
            opening = self._open(opening.look, found.below)
            if not any(one.first_offset <= waiting_for for one in found.still_open):
                break
        return replace(opening, learnt=tuple(learnt)) if isinstance(opening, Opened) else opening

    def go_on(self, stuck: Stuck) -> Opening:
        """Who else holds the offset, or what is missing.

        Raises:
            As `open_at`.
        """
        noted = self.archive.noted_end(stuck.log)
        if stuck.damage is None and noted is not None and noted > stuck.offset:
            # Compaction has removed the last records of the segment: nothing is missing.
            look = self.archive.look(float("inf"))
            return self._open(look, min(noted, self._view(look).until(stuck.offset)))
        look = self.archive.look(thorough=True)
        view = self._view(look)
        if stuck.offset >= view.end:
            return AtEnd(look, stuck.offset)
        for log in islice(_candidates(view, stuck.offset), 1 + _MOST_CANDIDATES):
            if log.version not in stuck.tried and self._end_of(log) > stuck.offset:
                return self._opened(look, view, log, stuck.offset)
        if stuck.damage is None or not view.has(stuck.log):
            return self._gap(look, view, stuck.offset)
        return Halted(look, self._failed(stuck, view, noted))

    def _open(self, look: ArchiveSnapshot, offset: Offset) -> Opening:
        view = self._view(look)
        if offset >= view.end:
            return self._open(self.archive.look(), offset) if view.is_part else AtEnd(look, offset)
        log = view.holder(offset)
        if offset < view.start or log is None:
            return self._gap(look, view, offset)
        return self._opened(look, view, log, offset)

    def _view(self, look: ArchiveSnapshot) -> ArchiveView:
        if look.view is None:
            raise self.archive.missing()
        return look.view

    def _opened(
        self, look: ArchiveSnapshot, view: ArchiveView, log: StoredLog, offset: Offset
    ) -> Opened:
        segment_position = self.locator.segment_position(self.read, log, offset)
        limit = self._limit(view, offset)
        return Opened(look, segment_position, offset, view.until(offset), limit=limit)

    def _limit(self, view: ArchiveView, offset: Offset) -> tuple[Version, int] | None:
        if self.bound is None or offset >= self.bound.until:
            return None
        last = Offset(self.bound.until - 1)
        log = view.holder(last)
        if log is None or log.version in self.bound.ends or view.until(last) == self.bound.until:
            return None
        extent = self.locator.extent(self.read, log, log.base_offset, last)
        return None if extent is None else (log.version, extent[1])

    def _gap(self, look: ArchiveSnapshot, view: ArchiveView, offset: Offset) -> Halted:
        gaps = self.archive.gaps() if offset >= view.start else []
        end = self._wanted(offset, view.start if offset < view.start else view.until(offset))
        missing = first_missing(offset, end, gaps, view.start)
        detail = missing.detail(view.where)
        return Halted(
            look, Gap(self.archive.tp, missing.first, missing.end, missing.reason, detail)
        )

    def _failed(self, stuck: Stuck, view: ArchiveView, noted: Offset | None) -> Failed:
        if isinstance(stuck.damage, UnsupportedFormatError):
            error = UnsupportedFormatError(
                f"{stuck.damage}; what is stored there is not missing, but this version of "
                "sidetier cannot read it"
            )
            return Failed(self.archive.tp, stuck.offset, error)
        until = view.until(stuck.offset)
        end = stuck.damaged_up_to or (until if noted is None else min(noted, until))
        end = max(self._wanted(stuck.offset, end), Offset(stuck.offset + 1))
        damaged = DamagedArchiveError(
            f"{stuck.damage}; offsets [{stuck.offset}, {end}) are missing: nothing else "
            f"that is stored at {view.where} holds them",
            stuck.log.key,
            stuck.position,
            stuck.offset,
            end,
        )
        return Failed(self.archive.tp, stuck.offset, damaged)

    def _wanted(self, offset: Offset, end: Offset) -> Offset:
        """Where what is missing from an offset on ends, as far as it is wanted."""
        if self.bound is None or offset >= self.bound.until:
            return end
        return min(end, self.bound.until)

    def _end_of(self, log: StoredLog) -> Offset:
        noted = self.archive.noted_end(log)
        return self.archive.end_of(log) if noted is None else noted


def _candidates(view: ArchiveView, offset: Offset) -> Iterator[StoredLog]:
    """Who may hold the offset: the highest base first."""
    holder = view.holder(offset)
    if holder is not None:
        yield holder
        yield from view.below(holder.base_offset)
