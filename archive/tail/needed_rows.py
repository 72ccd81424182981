"""Which rows of packs cleaning keeps. Pure.

A row is dropped only if another object has its records. One row and the archive decide, whatever
the other brokers' packs say: a later leader may have records that the packs of one broker show to
be stale.

- `Need.ARCHIVED`: the archive has records of the row's leader epoch or of a later one, and at each
  of the row's offsets one of the same leader epoch: the same record (KIP-101). Until then a row is
  kept, also below the archive end offset: the archive may have diverged.
- `Need.LOST`: as above, but at some of the row's offsets the archive has records of another leader
  epoch, or none: a recorded gap, or below its start. The cluster has acknowledged the row's
  records, and lost them in an unclean election or a power failure, or deleted them before they were
  archived. No other object has them.
- `Need.OTHER_TOPIC`: the row belongs to another topic of the same name. Ids have no order: who asks
  knows whether it is the deleted one.
- A row is not needed twice (`Kept`).
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from sidetier.archive.tail.merge import ArchivedPart, is_cut, replaced
from sidetier.archive.tail.pack import LeaderKey, TailRow
from sidetier.segments.crc import combine_crc64nvme
from sidetier.segments.offsets import Offset, OffsetRange


class Need(StrEnum):
    """Whether a row is needed, and why not."""

    NEEDED = "needed"
    ARCHIVED = "archived"
    LOST = "lost"
    OTHER_TOPIC = "other_topic"


def need_of(row: TailRow, archived: ArchivedPart) -> Need:
    """Return whether the archive has what a row has."""
    if archived.topic_id is None:
        return Need.NEEDED
    if row.topic_id != archived.topic_id:
        return Need.OTHER_TOPIC
    if archived.end is None or row.end > archived.end:
        return Need.NEEDED
    stored = archived.epochs.up_to(archived.end)
    if not stored.entries or stored.entries[-1][0] < row.leader_epoch:
        return Need.NEEDED
    if next(replaced(row, stored, archived.end), None) is not None or _is_in_gap(row, archived):
        return Need.LOST
    return Need.ARCHIVED


def _is_in_gap(row: TailRow, archived: ArchivedPart) -> bool:
    """Whether the archive has no record at some of a row's offsets."""
    # A claim has no records that a gap could lack.
    return not row.is_claim and any(
        gap.start < row.end and row.start < gap.end for gap in archived.gaps
    )


@dataclass(slots=True)
class Kept:
    """The ranges that are kept, to find those that other packs have, too.

    One leader epoch has one leader: rows of one epoch and topic have the same records. Rows of the
    same offsets with other bytes contradict that, and are all kept. 32 bytes for each row. The
    newest pack comes first: what is sent again includes what was sent before.
    """

    _ranges: dict[LeaderKey, list[OffsetRange]] = field(default_factory=dict)
    _rows: dict[LeaderKey, "array[int]"] = field(default_factory=dict)
    """Start, end, size and checksum of each row."""

    def add(self, row: TailRow) -> bool:
        """Note that a row is kept. Return whether it is needed: not if others have all of it."""
        if row.is_claim:
            return True
        key = row.leader_key
        known = self._ranges.setdefault(key, [])
        start, end, apart = row.start, row.end, list[OffsetRange]()
        rows = self._rows.setdefault(key, array("q"))
        for each in known:
            if each.start <= row.start and row.end <= each.end and not _is_refuted(row, rows):
                return False
            if each.end < start or end < each.start:
                apart.append(each)
            else:
                start, end = min(start, each.start), max(end, each.end)
        self._ranges[key] = [*apart, OffsetRange(Offset(start), Offset(end))]
        rows.extend(_numbers(row))
        return True


def _numbers(row: TailRow) -> tuple[int, int, int, int]:
    # The checksum as a signed number, as in a pack.
    return row.start, row.end, row.size, row.crc64nvme - (row.crc64nvme >> 63 << 64)


def _is_refuted(row: TailRow, rows: "array[int]") -> bool:
    """Whether rows of the same offsets have other bytes, and none has the same."""
    start, end, *content = _numbers(row)
    same = [
        rows[at + 2 : at + 4].tolist()
        for at in range(0, len(rows), 4)
        if rows[at] == start and rows[at + 1] == end
    ]
    return bool(same) and content not in same


def joined(first: TailRow, second: TailRow, max_bytes: int) -> TailRow | None:
    """Return one row of two that follow each other, without its position; None if they do not, or
    have more bytes than `max_bytes`.

    Only of one leader epoch: what its leader has answered for both holds for the whole.
    """
    log_start = max(first.log_start, second.log_start)
    if (
        first.is_claim
        or second.is_claim
        or (first.tp, first.topic_id, first.end) != (second.tp, second.topic_id, second.start)
        or first.size + second.size > max_bytes
        or not _is_one_history(first, second)
        or is_cut(first.epochs, log_start) != is_cut(first.epochs, first.log_start)
    ):
        return None
    return second._replace(
        epochs=first.epochs,
        start=first.start,
        log_start=log_start,
        batches=first.batches + second.batches,
        max_timestamp=max(first.max_timestamp, second.max_timestamp),
        aborted=first.aborted + second.aborted,
        first_stored_ms=max(first.first_stored_ms, second.first_stored_ms),
        size=first.size + second.size,
        crc64nvme=combine_crc64nvme(first.crc64nvme, second.crc64nvme, second.size),
    )


def _is_one_history(first: TailRow, second: TailRow) -> bool:
    """Whether the second row's epoch history, with its leader epoch, is the end of the first
    one's.
    """
    entries, later = first.epochs.entries, second.epochs.entries
    return entries[-len(later) :] == later
