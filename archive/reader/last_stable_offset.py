"""The last stable offset of an archive: the first offset of the oldest transaction that no stored
marker decides.

The producer snapshot beside the last segment has the transactions that were open at its base
offset. Only the segment itself has their outcome, so the headers of all its batches are read once.
Without a snapshot (archives of Pinterest's uploader have none), the segment before is read as well.
Then a transaction that began even earlier, and has neither continued nor ended since, is not seen;
a reader of its records sees it, and holds them back.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sidetier.archive.objects.log_check import cut_at
from sidetier.archive.objects.segment import PackedLog, StoredLog, is_settled
from sidetier.archive.read_in_order import in_order
from sidetier.archive.reader.assembly import Assembler
from sidetier.archive.reader.source import ArchiveSource
from sidetier.archive.transactions import open_at_base
from sidetier.archive.view import ArchiveView
from sidetier.segments.arrow import feed_table, read_markers
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset
from sidetier.segments.transactions import StableEnd, TransactionTracker
from sidetier.storage.port import RemoteStorage

_RANGE: Final = 8 << 20
_AHEAD: Final = 3
_BATCH_RANGE: Final = 64 << 10


def last_stable_offset(source: ArchiveSource, view: ArchiveView) -> StableEnd:
    """Find the last stable offset of an archive.

    Needs two requests, and one for every 8 MiB of the last segment.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: A transaction is open, and the last segment is
            damaged, or has lost its last batches.
        StorageError: As `RemoteStorage` says.
    """
    if not view.logs:
        return StableEnd(view.end)
    newest = -1
    damage: DamagedSegmentError | UnsupportedFormatError | None = None
    known, logs = _begin(source.archive.store, view)
    for log in logs:
        until, reached = view.until(log.base_offset), Offset(log.base_offset)
        try:
            for largest, end in _scan(source, log, until, known):
                newest, reached = max(newest, largest), end
            if reached < until:
                source.archive.proven_end(log, reached)
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            damage = error
    oldest = known.oldest_open
    if oldest is None or oldest.first_offset >= min(known.end, view.end):
        return StableEnd(view.end)
    # The damaged batches may have had the marker. A reader that ends at the transaction would wait
    # for good, and never report them. Otherwise a reader reports them when it gets there.
    if damage is not None:
        raise damage
    return StableEnd(oldest.first_offset, oldest.producer_id, newest if newest >= 0 else None)


def timestamp_at(source: ArchiveSource, view: ArchiveView, offset: Offset) -> int | None:
    """Return the timestamp, in ms, of the first record of the batch that holds an offset.

    Usually needs an index and one range of 64 KiB.

    Returns:
        None if the offset is not stored or damaged, or if the batch has no timestamp.

    Raises:
        StorageError: As `RemoteStorage` says.
    """
    log = view.holder(offset)
    if log is None:
        return None
    start = source.locator.segment_position(source.read, log, offset).position
    assembler = Assembler(log.key, log.size, start)
    with suppress(DamagedSegmentError, UnsupportedFormatError):
        for at in range(start, log.size, _BATCH_RANGE):
            data = source.read(log.row, at, min(at + _BATCH_RANGE, log.size))
            for scanned in assembler.feed(data):
                rows = scanned.headers.rows[scanned.headers.rows["last_offset"] >= offset]
                if len(rows):
                    timestamp = int(rows["base_timestamp"][0])
                    return timestamp if timestamp >= 0 else None
    return None


def _begin(
    store: RemoteStorage, view: ArchiveView
) -> tuple[TransactionTracker, tuple[StoredLog, ...]]:
    """Return the transactions that are known at the start, and the segments to read."""
    start = len(view.logs)
    while start and not is_settled(view.logs[start - 1]):
        start -= 1
        if not isinstance(view.logs[start], PackedLog):
            break
    logs = view.logs[start:]
    if not logs or isinstance(logs[0], PackedLog):  # none is open where it begins
        return TransactionTracker(logs[0].base_offset if logs else view.end), logs
    # With the snapshot beside the last segment, only that segment has to be read.
    for first in (start, max(start - 1, 0)):
        still_open = open_at_base(store, view.logs[first])
        if still_open is not None:
            return TransactionTracker(view.logs[first].base_offset, still_open), view.logs[first:]
    return TransactionTracker(view.logs[first].base_offset), view.logs[first:]


def _scan(
    source: ArchiveSource, log: StoredLog, until: Offset, known: TransactionTracker
) -> Iterator[tuple[int, Offset]]:
    """Pass the segment's transactions to `known`, and yield the largest timestamp of each of its
    ranges, and the offset after the range's last batch.
    """
    assembler = Assembler(log.key, log.size, 0)
    size = 0
    spans = ((at, min(at + _RANGE, log.size)) for at in range(0, log.size, _RANGE))
    for data in in_order(lambda span: source.read(log.row, *span), spans, _AHEAD):
        size += len(data)
        for scanned in assembler.feed(data):
            headers = scanned.headers.where(scanned.headers.rows["base_offset"] < until)
            if len(headers):
                markers = read_markers(
                    scanned.data, headers, name=log.key, position=scanned.position
                )
                feed_table(known, headers, markers)
                reached = Offset(int(headers.rows["last_offset"][-1]) + 1)
                yield int(headers.rows["max_timestamp"].max()), reached
            # The rest of this segment is not valid: a later segment begins at `until`.
            if len(headers) < len(scanned.headers):
                return
    if size < log.size:
        raise cut_at(log.key, size, log.size)
