"""A client of an endpoint that reads archive and tail."""

from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.archive.reader import IsolationLevel
from sidetier.segments.headers import HEADER_BYTES, batch_bytes, parse_batch_header
from tests.harness.endpoint import EAGER, Parts
from tests.harness.tailed_log import TailedLog

WITH_TAIL: Final = replace(EAGER, with_tail=True, tail_interval=0.0)


def shown(data: Any, log: TailedLog, start: int) -> tuple[list[int], int]:  # noqa: ANN401 - kio's
    """Return the records that Java's client shows of an answer, and where it goes on."""
    records, aborting = bytes(data.records or b""), set[int]()
    aborted = sorted(
        (each.first_offset, each.producer_id) for each in data.aborted_transactions or ()
    )
    found: list[int] = []
    by_base = {batch.first: batch for batch in log.batches}
    at = 0
    while len(records) - at >= HEADER_BYTES and at + batch_bytes(records[at:]) <= len(records):
        header = parse_batch_header(records[at:])
        at += header.length
        batch = by_base[header.base_offset]
        while aborted and aborted[0][0] <= batch.last:
            aborting.add(aborted.pop(0)[1])
        if batch.is_control:
            aborting.discard(batch.producer_id)
        elif not batch.is_transactional or batch.producer_id not in aborting:
            found += [r.offset for r in batch.records if r.offset >= start]
        start = header.next_offset
    return found, start


def read_on(
    parts: Parts, log: TailedLog, start: int, isolation: IsolationLevel, most: int = 1 << 20
) -> list[int]:
    """Read orders-0 to its end, and return the offsets that the client shows."""
    found: list[int] = []
    while True:
        number = int(isolation is IsolationLevel.READ_COMMITTED)
        data = parts.read(start, isolation=number, partition_max_bytes=most)
        assert data.error_code is ErrorCode.none, (start, data.error_code)
        assert data.high_watermark == log.next_offset
        more, start = shown(data, log, start)
        found += more
        if not data.records:
            return found
