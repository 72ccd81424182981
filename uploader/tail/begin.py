"""Where the tail of a partition begins in a leader epoch: at the end of what is stored already."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from sidetier.archive.tail.merge import (
    ZOMBIE_MS,
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    Reason,
    merge,
    unread_reason,
)
from sidetier.archive.tail.pack import claim
from sidetier.segments.epoch_history import EpochHistory, contradiction
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import MAX_OFFSET, Offset, OffsetRange, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.uploader.gates.remembered_epochs import from_first_batch
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.progress import Reached

log: Final = structlog.get_logger()
_CLOCKS_MS: Final = 60_000
"""How far the clock of the store may be behind that of this machine."""


class TailBegin(NamedTuple):
    """Where the tail of a partition begins.

    Attributes:
        start: Where it begins without packs: the archive end offset, or the divergence offset.
        reached: The end of the merged tail.
        joined_to: Up to where readers join it, whatever is stored; None if they join all. It holds
            until the archive changes, or the packs are read again.
        history: The epoch history of the log, from its first batch on.
        gaps: The recorded gaps of the archive, as far as they were needed.
        has_claim: Whether a stored row shows all that this leader's claim shows.
        log_start: Highest log start offset in the packs.
        unread: Why readers join nothing: a pack that cannot be read may show that a later leader
            has discarded the records. None if they do.
    """

    start: Offset
    reached: Reached
    joined_to: Offset | None
    history: EpochHistory
    gaps: Sequence[OffsetRange]
    has_claim: bool
    log_start: Offset
    unread: str | None = None

    @property
    def unjoined(self) -> OffsetRange | None:
        """See `TailProgress`."""
        return None if self.joined_to is None else OffsetRange(self.joined_to, Offset(MAX_OFFSET))


def find_begin(
    led: TailPartition,
    history: EpochHistory,
    rows: Iterable[PackedRow],
    gaps_of: Callable[[TopicPartition], Sequence[OffsetRange]],
    unread: Sequence[PackRef] = (),
    now_ms: int = 0,
) -> TailBegin:
    """Find where a tail begins: where this leader's own claim ends the merged tail. The records
    below are the same in its own log.

    Rows of later leader epochs do not count. The own broker is asked whether it leads; a row cannot
    prove that it does not. But readers go by such a row.

    Args:
        led: The partition.
        history: The `leader-epoch-checkpoint` of its log.
        rows: The stored rows of all brokers.
        gaps_of: Reads the recorded gaps of an archive; called where its epochs contradict the log.
        unread: The live packs that cannot be read.
        now_ms: The time, in ms since 1970.

    Raises:
        StorageError, ArchiveError: The gaps cannot be read.
        SegmentError, OSError: The log cannot be read.
    """
    history = from_first_batch(led.directory, history)
    # Where retention has cut the history, nothing may be guessed about what is below.
    cut_at = history.entries[0][1]
    own = PackedRow(None, claim(led.tp, led.topic_id, history, cut_at, Offset(0)))
    # The topic id comes from the broker's own directory, so rows of another are dead.
    rows = [source for source in rows if source.row.topic_id == led.topic_id]
    known = [source for source in rows if source.row.leader_epoch <= led.leader_epoch]
    has_claim = any(source.row.epochs == history for source in known)
    known.append(own)
    epochs, gaps = led.archived_epochs, list[OffsetRange]()
    start, merged = led.archive_end, _merged(led, led.archive_end, known)
    seen = history if merged is None else merged.epochs
    at = divergence_offset(epochs, seen, start)
    if at is not None:
        gaps += gaps_of(led.tp)
        at = divergence_offset(epochs, seen, start, gaps)
        start = start if at is None else at
        merged = _merged(led, start, known, gaps)
    joined_to = at
    if len(known) <= len(rows):
        joined_to = _joined_by_readers(led, start, rows, gaps)
    # Only what is stored counts: readers do not see the own claim before.
    doubt = unread_reason(rows, history, unread)
    if doubt is not None:
        has_claim = has_claim and not _are_old(unread, now_ms)
    elif unread:
        stored = _merged(led, start, rows, gaps, unread)
        doubt = None if stored is None else stored.unread
    if doubt is not None:
        joined_to = start
    if merged is None:
        reached = Reached(start, None)
        return TailBegin(start, reached, joined_to, history, gaps, has_claim, Offset(0), doubt)
    if any(out.reason is Reason.DIVERGED for out in merged.left_out):
        joined_to = start
    newest = -1 if merged.newest_ms is None else merged.newest_ms
    reached = Reached(merged.end, _open_at_end(merged), newest)
    log_start = merged.log_start or Offset(0)
    return TailBegin(start, reached, joined_to, history, gaps, has_claim, log_start, doubt)


def _are_old(packs: Iterable[PackRef], now_ms: int) -> bool:
    """Whether a claim that is stored now shows that packs have no claim of a later leader."""
    return all(pack.modified_ms + ZOMBIE_MS + _CLOCKS_MS < now_ms for pack in packs)


def _joined_by_readers(
    led: TailPartition, start: Offset, rows: Sequence[PackedRow], gaps: Sequence[OffsetRange]
) -> Offset:
    """Return up to where readers join rows of which some are of a later leader epoch."""
    newest = max(rows, key=lambda source: source.row.leader_epoch)
    log.warning(
        "tail.later_epoch",
        topic=led.tp.topic,
        partition=led.tp.partition,
        leader_epoch=led.leader_epoch,
        stored=newest.row.leader_epoch,
        pack=None if newest.pack is None else newest.pack.key,
    )
    merged = _merged(led, start, rows, gaps)
    return start if merged is None else merged.end


def _merged(
    led: TailPartition,
    start: Offset,
    rows: Iterable[PackedRow],
    gaps: Sequence[OffsetRange] = (),
    unread: Sequence[PackRef] = (),
) -> MergedTail | None:
    """Merge rows behind the archive up to `start`; None if they contradict each other."""
    archived = ArchivedPart(start, led.archived_epochs, led.topic_id, gaps)
    try:
        return merge(archived, rows, unread)
    except ArchiveError as error:
        log.warning(
            "tail.conflict", topic=led.tp.topic, partition=led.tp.partition, error=str(error)
        )
        return None


def divergence_offset(
    archived: EpochHistory, log_epochs: EpochHistory, end: Offset, gaps: Sequence[OffsetRange] = ()
) -> Offset | None:
    """Return the first archived offset that the log has of another epoch; None if the archive up to
    `end` has not diverged.

    The last archived offset decides: logs that have the same epoch there are equal below.
    """
    last = end - 1
    for gap in sorted(gaps, reverse=True):
        if last in gap:
            last = gap.start - 1
    stored, epoch = archived.up_to(end).epoch_at(last), log_epochs.epoch_at(last)
    if stored is None or epoch is None or stored == epoch:
        return None
    found = contradiction(archived, log_epochs, end, gaps)
    return None if found is None else found.offset


def _open_at_end(merged: MergedTail) -> tuple[OpenTransaction, ...] | None:
    """Return the transactions that are open at the end of a merged tail; None if unknown.

    Where the transactions that began below a range were not known, its last stable offset is lower
    than they show.
    """
    if not merged.slices or merged.slices[-1].end != merged.slices[-1].source.row.end:
        return None
    row = merged.slices[-1].source.row
    return row.open if row.last_stable == stable_end(row.open, row.end) else None


def stable_end(open_transactions: Iterable[OpenTransaction], end: Offset) -> Offset:
    """Return the last stable offset of a log that ends at `end` with these open transactions."""
    return min((each.first_offset for each in open_transactions), default=end)
