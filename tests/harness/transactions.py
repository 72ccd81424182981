"""Feed a `TransactionTracker` with the batches of a log, in each way that it can be fed."""

from collections.abc import Callable

from sidetier.segments.arrow import feed_table, read_markers, scan_headers
from sidetier.segments.batches import split_batches
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.transactions import Marker, TransactionTracker, read_marker

Feed = Callable[[TransactionTracker, bytes], None]


def feed_headers(tracker: TransactionTracker, log: bytes) -> None:
    """Feed one header after the other, without numpy."""
    for batch, header in split_batches(memoryview(log)):
        marker = Marker.NONE
        if header.is_control:
            marker = read_marker(header, bytes(batch[HEADER_BYTES:]))
        tracker.feed(header, marker)


def feed_one_table(tracker: TransactionTracker, log: bytes) -> None:
    """Feed all headers at once."""
    headers = scan_headers(log)
    feed_table(tracker, headers, read_markers(log, headers))


def feed_tables(tracker: TransactionTracker, log: bytes) -> None:
    """Feed tables of up to three headers."""
    headers = scan_headers(log)
    for row in range(0, len(headers), 3):
        part = headers.where(slice(row, row + 3))
        feed_table(tracker, part, read_markers(log, part))


FEEDS: tuple[Feed, ...] = (feed_headers, feed_one_table, feed_tables)
