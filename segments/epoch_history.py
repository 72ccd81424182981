"""The epoch history of a log: the leader epoch of each offset, from `leader-epoch-checkpoint`
(KIP-101).

The file has a row for each leader epoch with the offset of the epoch's first record. An epoch ends
where the next one starts. Retention drops rows, and raises the start offset of the first row that
is left.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from typing import Final
from zlib import crc32

from sidetier.segments.checkpoints import checkpoint_rows
from sidetier.segments.errors import ArchiveConflictError, SegmentError
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange

Entry = tuple[LeaderEpoch, Offset]


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Leader epochs in strictly ascending order, each with its start offset, which never falls."""

    entries: tuple[Entry, ...]

    def epoch_at(self, offset: int) -> LeaderEpoch | None:
        """Return the epoch that wrote this offset; None below the first start."""
        at = bisect_right(self.entries, offset, key=itemgetter(1)) - 1
        return self.entries[at][0] if at >= 0 else None

    def end_of(self, epoch: int) -> Offset | None:
        """Return the start of the next known epoch, where this one ends; None if no later one is
        known.
        """
        at = bisect_right(self.entries, epoch, key=itemgetter(0))
        return self.entries[at][1] if at < len(self.entries) else None

    def up_to(self, end: int) -> "EpochHistory":
        """Return the history of the offsets below `end`: without the epochs that start at `end` or
        later.

        The history that is stored beside an archive is cut at the archive end offset: the start of
        a later epoch may not be committed, and another replica may never have seen it.
        """
        return EpochHistory(tuple(entry for entry in self.entries if entry[1] < end))

    def violation(self, epochs: Iterable[Entry], next_offset: int | None) -> str | None:
        """Describe the first batches of a segment that contradict this history; None if none do.

        Args:
            epochs: Each run of batches of one epoch with the run's first offset, in order
                (`SegmentFacts.epochs`).
            next_offset: Where the last run ends; None if the segment is empty.
        """
        if next_offset is None:
            return None
        ends: Entry = (LeaderEpoch(-1), Offset(next_offset))
        for (epoch, start), (_, end) in pairwise(chain(epochs, [ends])):
            problem = self._run_violation(epoch, start, end)
            if problem:
                return f"offsets [{start}, {end}) are of leader epoch {epoch}, but {problem}"
        return None

    def _run_violation(self, epoch: int, start: int, end: int) -> str | None:
        if not self.entries:
            return "the checkpoint has no epoch"
        first_epoch, first_start = self.entries[0]
        if epoch < first_epoch:
            # Retention has dropped the epoch's row, so the epoch must end at the first start.
            below = end <= first_start
            return None if below else f"epoch {first_epoch} starts at {first_start}"
        known = dict(self.entries)
        if epoch not in known:
            return "the checkpoint does not know that epoch"
        # Retention moves the start of the first row only.
        if epoch != first_epoch and start < known[LeaderEpoch(epoch)]:
            return f"that epoch starts at {known[LeaderEpoch(epoch)]}"
        epoch_end = self.end_of(epoch)
        if epoch_end is not None and end > epoch_end:
            return f"that epoch ends at {epoch_end}"
        return None


NO_EPOCHS: Final = EpochHistory(())
"""The empty history: no epoch is known."""


def with_earlier_epochs(checkpoint: EpochHistory, earlier: EpochHistory) -> EpochHistory:
    """Restore the entries that a checkpoint has dropped from its front as the log start offset
    moved.

    A leader epoch has one leader, whose log is one history. If the log once had the checkpoint's
    first epoch, at the same start or a lower one, nothing before that epoch has changed since.

    Args:
        checkpoint: The checkpoint now. It is right from its first start on.
        earlier: The earlier result of this function for the same log.

    Returns:
        The checkpoint alone if its first epoch is not in `earlier`: an election that the sidecar
        did not see may have replaced the records below its first start.
    """
    if not checkpoint.entries:
        return checkpoint
    epoch, start = checkpoint.entries[0]
    before = tuple(entry for entry in earlier.entries if entry[0] <= epoch)
    # A higher remembered start means that the file now has an earlier
    # beginning of the same epoch. Then the two files do not describe one log.
    if not before or before[-1][0] != epoch or before[-1][1] > start:
        return checkpoint
    # The remembered entry of the shared epoch stays, because its start
    # is the true one: the file's first start moves with the log start.
    return EpochHistory(before + checkpoint.entries[1:])


def merge(
    stored: EpochHistory,
    local: EpochHistory,
    *,
    sparse: bool = False,
    gaps: Sequence[OffsetRange] = (),
) -> EpochHistory:
    """Return the union of two histories; never less than `stored`.

    If both know an epoch, its start is the same, except in a first row: retention raises that
    start, so the lower one is right. The start was raised in the stored history, too, if all
    offsets between the two starts are in recorded `gaps`. In a `sparse` log, compaction may have
    removed the first records of an epoch. A replica that was copied from such a log has a higher
    start, and the lower one is right there, too.

    Raises:
        ArchiveConflictError: The histories contradict each other: the archive and the log have
            diverged.
    """
    mismatch = None if sparse else next(_two_starts(stored, local, gaps), None)
    if mismatch is not None:
        epoch, known, start = mismatch
        raise ArchiveConflictError(
            f"leader epoch {epoch} starts at {known} in the archive and at {start} in the log"
        )
    merged = dict(stored.entries)
    for epoch, start in local.entries:
        merged[epoch] = min(merged.get(epoch, start), start)
    entries = tuple(sorted(merged.items()))
    for (epoch, start), (later_epoch, later_start) in pairwise(entries):
        if later_start < start:
            raise ArchiveConflictError(
                f"archive and log have diverged: leader epoch {epoch} starts at {start}, but the "
                f"later epoch {later_epoch} at {later_start}"
            )
    return EpochHistory(entries)


def _two_starts(
    stored: EpochHistory, local: EpochHistory, gaps: Sequence[OffsetRange]
) -> Iterator[tuple[LeaderEpoch, Offset, Offset]]:
    """Yield the epochs with different starts that retention does not explain, with both starts.

    An epoch has one leader, and begins once.
    """
    known = dict(stored.entries)
    for epoch, start in local.entries:
        stored_start = known.get(epoch, start)
        # The history in which the epoch starts later is the one that may have lost its beginning.
        later = local if start > stored_start else stored
        # Retention raises the start of a first entry only.
        if stored_start == start or epoch == later.entries[0][0]:
            continue
        # Retention had deleted the records in a gap, and raised the epoch's start with them.
        if later is local or behind(start, gaps) < stored_start:
            yield epoch, stored_start, start


def behind(offset: Offset, gaps: Iterable[OffsetRange]) -> Offset:
    """Return the first offset at or above this one that is in none of the gaps."""
    # Sorted, so that adjacent gaps are passed in one loop.
    for first, end in sorted(gaps):
        if first <= offset < end:
            offset = end
    return offset


def extend(
    stored: EpochHistory,
    local: EpochHistory,
    committed: int,
    end: int,
    *,
    gaps: Sequence[OffsetRange] = (),
    sparse: bool = False,
) -> EpochHistory:
    """Return the history to store when an archive grows from its end offset `committed` to `end`.

    Stored entries that begin at `committed` or later belong to a commit that was never completed.
    No committed record has them, so they are not believed. Those that begin at `end` or later stay,
    for a commit that reaches them. Entries of the log that begin at `end` or later are left to the
    commit that stores a record of them. Nothing is stored in the recorded `gaps`, so nothing is
    compared there.

    Raises:
        ContradictionError: In the log, another epoch has written offsets that are archived.
        ArchiveConflictError: As `merge`.
    """
    # Kept before the next line cuts them off.
    above = [entry for entry in stored.entries if entry[1] >= end]
    stored, local = stored.up_to(committed), local.up_to(end)
    conflict = None if sparse else contradiction(stored, local, committed, gaps)
    if conflict is not None:
        raise ContradictionError(conflict)
    merged = merge(stored, local, sparse=sparse, gaps=gaps).entries
    # The entries above may be of a sidecar that is ahead: a sidecar that loses the race for a
    # commit must not shorten the history that the winner has stored.
    return EpochHistory(merged + tuple(e for e in above if not merged or e[0] > merged[-1][0]))


def continues(stored: EpochHistory, local: EpochHistory, end: int) -> bool:
    """Return whether a log is known to have the same history as an archive below its end offset
    `end`.

    A log that begins at `end` or above continues the archive if its first records are of the leader
    epoch of the last archived record: an epoch has one leader. A later epoch may have begun below
    `end`, in an unclean election, and its checkpoint entry has moved with the log start.
    """
    archived = stored.epoch_at(end - 1)
    if archived is None or not local.entries:
        return False
    return local.epoch_at(max(end - 1, local.entries[0][1])) == archived


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The first offset that one leader epoch has written in the archive, and another in the log.

    Attributes:
        offset: The divergence offset.
        archived: The epoch that wrote it in the archive.
        local: The epoch that wrote it in the log.
        newest: The newest epoch of which records are archived.
    """

    offset: Offset
    archived: LeaderEpoch
    local: LeaderEpoch
    newest: LeaderEpoch


class ContradictionError(ArchiveConflictError):
    """Archive and log have diverged: an election has discarded records that are archived."""

    def __init__(self, found: Contradiction) -> None:
        super().__init__(
            f"archive and log have diverged: offset {found.offset} is of leader epoch "
            f"{found.archived} in the archive and of {found.local} in the log"
        )
        self.found = found


def contradiction(
    stored: EpochHistory, local: EpochHistory, committed: int, gaps: Sequence[OffsetRange] = ()
) -> Contradiction | None:
    """Find the first divergence between an archive up to `committed` and a log that reaches as far.

    Offsets are compared from the first one that both histories know: an epoch can start exactly
    where an earlier one did. An epoch that starts later in the archive than in the log is compared,
    too: it was stored from a log that had begun anew within it, behind the segments of an earlier
    log.

    Returns:
        None if there is no divergence below `committed`. Also None if an epoch starts later in the
        log than in the archive: compaction, and not an election, causes that.
    """
    stored = stored.up_to(committed)
    if not stored.entries or not local.entries:
        return None
    # The comparison by offset would report a divergence between the
    # two starts, where compaction has only removed the first records.
    if any(start > stored_start for _, stored_start, start in _two_starts(stored, local, gaps)):
        return None
    first = max(stored.entries[0][1], local.entries[0][1])
    # The epoch of an offset can only change at a start, and a range can
    # only leave a gap at the gap's end. No other offset needs a comparison.
    starts = {start for _, start in chain(stored.entries, local.entries)} | {end for _, end in gaps}
    for offset in sorted(start for start in starts if first <= start < committed):
        archived, current = stored.epoch_at(offset), local.epoch_at(offset)
        if archived is None or current is None or archived == current:
            continue
        if not any(start <= offset < end for start, end in gaps):
            return Contradiction(offset, archived, current, stored.entries[-1][0])
    return None


def joined(below: EpochHistory, above: EpochHistory, border: Offset) -> EpochHistory:
    """Return `below` for the offsets below the border, and `above` from there on."""
    entries = [(epoch, start) for epoch, start in above.entries if start >= border]
    lower = above.up_to(border).entries
    if lower and (not entries or entries[0][1] > border):
        entries.insert(0, (lower[-1][0], border))
    if not entries:
        return below.up_to(border)
    first = entries[0][0]
    # A higher epoch below can only be one in a gap.
    kept = [entry for entry in below.up_to(border).entries if entry[0] <= first]
    return EpochHistory((*kept, *entries[bool(kept and kept[-1][0] == first) :]))


def truncate(epoch_history: EpochHistory, divergence_offset: int) -> EpochHistory:
    """Return the history below `divergence_offset`, as Kafka's `truncateFromEnd`.

    An epoch that begins at this offset or later is dropped. An epoch that reaches beyond it ends
    at it.
    """
    return epoch_history.up_to(divergence_offset)


_RUN = re.compile(r"(\d{1,10})@(\d{1,19})", re.ASCII)


def encode_runs(runs: Iterable[Entry]) -> str:
    """Encode the runs of batches of one epoch in a segment (`SegmentFacts.epochs`) in one line."""
    return ",".join(f"{epoch}@{start}" for epoch, start in runs)


def parse_runs(text: str) -> EpochHistory:
    """Parse the text of `encode_runs` as the epoch history of that segment.

    Only the first run can start above its epoch's start: the segment begins there.

    Returns:
        An empty history if the text is not of that form.
    """
    matches = [_RUN.fullmatch(part) for part in text.split(",")]
    entries = [(LeaderEpoch(int(m[1])), Offset(int(m[2]))) for m in matches if m is not None]
    rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
    return EpochHistory(tuple(entries)) if rising and len(entries) == len(matches) else NO_EPOCHS


def parse_leader_epoch_checkpoint(text: str, path: str) -> EpochHistory:
    """Parse a local or stored `leader-epoch-checkpoint`; `path` is for errors.

    Raises:
        UnsupportedFormatError: Another version than 0.
        SegmentError: A row is not an epoch and an offset, or rows do not ascend.
    """
    entries: list[Entry] = []
    for row in checkpoint_rows(text, path):
        try:
            epoch, start = map(int, row.split())
        except ValueError:
            raise SegmentError(f"{path}: {row[:80]!r} is not an epoch and an offset") from None
        if entries and (epoch <= entries[-1][0] or start < entries[-1][1]):
            raise SegmentError(f"{path}: {row!r} comes after {entries[-1]}: epochs must rise")
        entries.append((LeaderEpoch(epoch), Offset(start)))
    return EpochHistory(tuple(entries))


def encode_leader_epoch_checkpoint(epoch_history: EpochHistory) -> str:
    """Encode the file's text as a broker writes it."""
    rows = "".join(f"{epoch} {start}\n" for epoch, start in epoch_history.entries)
    return f"0\n{len(epoch_history.entries)}\n{rows}"


def checksum_below(epoch_history: EpochHistory, end: int) -> str:
    """Return the CRC32 of the text of the history below `end`, as 8 hexadecimal digits."""
    return f"{crc32(encode_leader_epoch_checkpoint(epoch_history.up_to(end)).encode()):08x}"
