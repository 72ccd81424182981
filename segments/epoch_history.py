"""Which leader wrote which offsets: the epoch history of a log, from `leader-epoch-checkpoint`
(KIP-101).

The file has a row for each leader epoch with the offset of the first record of that epoch. The
epoch ends where the next one starts. Retention drops rows, and moves the first start that is left.
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
    """Leader epochs, rising strictly, each with its start offset, which never falls."""

    entries: tuple[Entry, ...]

    def epoch_at(self, offset: int) -> LeaderEpoch | None:
        """The epoch that wrote this offset; None below the first start."""
        at = bisect_right(self.entries, offset, key=itemgetter(1)) - 1
        return self.entries[at][0] if at >= 0 else None

    def end_of(self, epoch: int) -> Offset | None:
        """Where the epoch ends, and the next known one starts; None while none is known."""
        at = bisect_right(self.entries, epoch, key=itemgetter(0))
        return self.entries[at][1] if at < len(self.entries) else None

    def up_to(self, end: int) -> "EpochHistory":
        """The epoch history of the offsets below `end`: epochs that start there or later are left
        out.

        What is stored beside an archive is cut at its next offset: a later epoch's start may not be
        committed, and another replica may never have seen it.
        """
        return EpochHistory(tuple(entry for entry in self.entries if entry[1] < end))

    def violation(self, epochs: Iterable[Entry], next_offset: int | None) -> str | None:
        """What is wrong with a segment's batches, None when all of them are of this epoch history.

        Args:
            epochs: each run of batches of one epoch with the run's first offset, in order
                (`SegmentFacts.epochs`).
            next_offset: where the last run ends; None when the segment is empty.
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
            # Retention has dropped the epoch's row: then nothing of it is left from there on.
            below = end <= first_start
            return None if below else f"epoch {first_epoch} starts at {first_start}"
        known = dict(self.entries)
        if epoch not in known:
            return "the checkpoint does not know that epoch"
        # Retention has moved the first row's start; the others stand where the epoch began.
        if epoch != first_epoch and start < known[LeaderEpoch(epoch)]:
            return f"that epoch starts at {known[LeaderEpoch(epoch)]}"
        epoch_end = self.end_of(epoch)
        if epoch_end is not None and end > epoch_end:
            return f"that epoch ends at {epoch_end}"
        return None


NO_EPOCHS: Final = EpochHistory(())
"""Nothing is known."""


def with_earlier_epochs(checkpoint: EpochHistory, earlier: EpochHistory) -> EpochHistory:
    """Put back the entries that a checkpoint has dropped from its front as the log start moved.

    A leader epoch has one leader, whose log is one history: where the log once had the checkpoint's
    first epoch, at the same start or a lower one, nothing before that epoch has changed since.

    Args:
        checkpoint: What the checkpoint says now. From its first start on, it is right.
        earlier: What this function returned for the same log before.

    Returns:
        The checkpoint alone where its first epoch is not in `earlier`: an election that nobody saw
        may have replaced the records below its first start.
    """
    if not checkpoint.entries:
        return checkpoint
    epoch, start = checkpoint.entries[0]
    before = tuple(entry for entry in earlier.entries if entry[0] <= epoch)
    if not before or before[-1][0] != epoch or before[-1][1] > start:
        return checkpoint
    return EpochHistory(before + checkpoint.entries[1:])


def merge(
    stored: EpochHistory,
    local: EpochHistory,
    *,
    sparse: bool = False,
    gaps: Sequence[OffsetRange] = (),
) -> EpochHistory:
    """All that either knows, never less than what is stored.

    Where both know an epoch, its start is the same, but for a first row: retention moves that one
    up, so the lower start holds. It was moved up in the stored one, too, where all between the two
    starts lies in recorded `gaps`. In a `sparse` log, whose first records of an epoch compaction
    may have removed, a replica made from it knows a higher start, and the lower one holds too.

    Raises:
        ArchiveConflictError: they tell different histories; the archive and the log have forked.
    """
    odd = None if sparse else next(_two_starts(stored, local, gaps), None)
    if odd is not None:
        epoch, known, start = odd
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
                f"archive and log have forked: leader epoch {epoch} starts at {start}, but the "
                f"later epoch {later_epoch} at {later_start}"
            )
    return EpochHistory(entries)


def _two_starts(
    stored: EpochHistory, local: EpochHistory, gaps: Sequence[OffsetRange]
) -> Iterator[tuple[LeaderEpoch, Offset, Offset]]:
    """The epochs that begin elsewhere in each, though retention has not moved them, with both
    starts: an epoch has one leader, and begins once.
    """
    known = dict(stored.entries)
    for epoch, start in local.entries:
        there = known.get(epoch, start)
        later = local if start > there else stored
        if there == start or epoch == later.entries[0][0]:
            continue
        # What is in a gap retention had taken, and the epoch's start with it.
        if later is local or behind(start, gaps) < there:
            yield epoch, there, start


def behind(offset: Offset, gaps: Iterable[OffsetRange]) -> Offset:
    """The first offset from this one on that lies in none of the gaps."""
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
    """What is to stand beside an archive that grows from the next offset `committed` to `end`.

    Entries of the stored one that begin at `committed` or later are those of a commit that never
    came through: no record that counts is of them, so they are not believed; what begins at `end`
    or later stays, for the commit that comes so far. Entries of the log
    that begin at `end` or later are left for the commit that stores a record of them. In the
    recorded `gaps` nothing is stored: nothing there is compared.

    Raises:
        ContradictionError: another epoch has written, in the log, what is stored.
        ArchiveConflictError: as `merge`.
    """
    above = [entry for entry in stored.entries if entry[1] >= end]
    stored, local = stored.up_to(committed), local.up_to(end)
    found = None if sparse else contradiction(stored, local, committed, gaps)
    if found is not None:
        raise ContradictionError(found)
    merged = merge(stored, local, sparse=sparse, gaps=gaps).entries
    # They may be of one who is ahead of us: whoever loses a commit must not shorten what he knows.
    return EpochHistory(merged + tuple(e for e in above if not merged or e[0] > merged[-1][0]))


def continues(stored: EpochHistory, local: EpochHistory, end: int) -> bool:
    """Whether a log is known to hold the same history as an archive below its next offset `end`.

    A log that begins at `end` or above continues the archive if its first records are of the leader
    epoch of the last archived one: an epoch has one leader. A later epoch may have begun below
    `end`, in an unclean election, and its checkpoint entry has moved with the log start.
    """
    archived = stored.epoch_at(end - 1)
    if archived is None or not local.entries:
        return False
    return local.epoch_at(max(end - 1, local.entries[0][1])) == archived


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The first offset that one leader epoch has written in the archive, another in the log; and
    the `newest` epoch of which something is stored.
    """

    offset: Offset
    archived: LeaderEpoch
    local: LeaderEpoch
    newest: LeaderEpoch


class ContradictionError(ArchiveConflictError):
    """Archive and log are not one history: an election has thrown away what is stored."""

    def __init__(self, found: Contradiction) -> None:
        super().__init__(
            f"archive and log have forked: offset {found.offset} is of leader epoch "
            f"{found.archived} in the archive and of {found.local} in the log"
        )
        self.found = found


def contradiction(
    stored: EpochHistory, local: EpochHistory, committed: int, gaps: Sequence[OffsetRange] = ()
) -> Contradiction | None:
    """Compare what is stored below the next offset `committed` with a log that reaches as far,
    offset by offset, from where both know: an epoch can start just where an earlier one did. Where
    an epoch starts later in the log than in the archive, nothing is said: that is no election's
    doing, but compaction's. One that starts later in the archive was stored from a log that had
    begun anew within it, behind what an earlier one had stored.
    """
    stored = stored.up_to(committed)
    if not stored.entries or not local.entries:
        return None
    if any(start > there for _, there, start in _two_starts(stored, local, gaps)):
        return None
    first = max(stored.entries[0][1], local.entries[0][1])
    starts = {start for _, start in chain(stored.entries, local.entries)} | {end for _, end in gaps}
    for offset in sorted(start for start in starts if first <= start < committed):
        archived, here = stored.epoch_at(offset), local.epoch_at(offset)
        if archived is None or here is None or archived == here:
            continue
        if not any(start <= offset < end for start, end in gaps):
            return Contradiction(offset, archived, here, stored.entries[-1][0])
    return None


def truncate(epoch_history: EpochHistory, fork: int) -> EpochHistory:
    """The history before `fork`, to go on with another one (Kafka's `truncateFromEnd`): an epoch
    that begins at the fork or later is gone, one that reaches over it ends there.
    """
    return epoch_history.up_to(fork)


_RUN = re.compile(r"(\d{1,10})@(\d{1,19})", re.ASCII)


def encode_runs(runs: Iterable[Entry]) -> str:
    """The runs of batches of one epoch in a segment (`SegmentFacts.epochs`), in one line."""
    return ",".join(f"{epoch}@{start}" for epoch, start in runs)


def parse_runs(text: str) -> EpochHistory:
    """What `encode_runs` wrote, as the epoch history of that segment; an empty one where it is
    none.

    Only the first run's start can lie above that of its epoch: the segment begins there.
    """
    found = [_RUN.fullmatch(part) for part in text.split(",")]
    entries = [(LeaderEpoch(int(m[1])), Offset(int(m[2]))) for m in found if m is not None]
    rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
    return EpochHistory(tuple(entries)) if rising and len(entries) == len(found) else NO_EPOCHS


def parse_leader_epoch_checkpoint(text: str, path: str) -> EpochHistory:
    """The epoch history in a `leader-epoch-checkpoint` file, local or stored; `path` is for errors.

    Raises:
        UnsupportedFormatError: another version than 0.
        SegmentError: rows that are not an epoch and an offset, or that do not rise.
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
    """The file's text as a broker writes it."""
    rows = "".join(f"{epoch} {start}\n" for epoch, start in epoch_history.entries)
    return f"0\n{len(epoch_history.entries)}\n{rows}"


def checksum_below(epoch_history: EpochHistory, end: int) -> str:
    """Of the epoch history of the offsets below `end`: the CRC32 of its text, as 8 hexadecimal
    digits.
    """
    return f"{crc32(encode_leader_epoch_checkpoint(epoch_history.up_to(end)).encode()):08x}"
