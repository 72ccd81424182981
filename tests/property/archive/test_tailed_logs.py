"""Readers of archive and tail against the log, however it is cut into segments and packs."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tail.pack import PackBuilder, TailRow, epochs_from
from sidetier.segments.offsets import Offset
from sidetier.segments.transactions import TransactionTracker
from tests.harness.endpoint import endpoint_over
from tests.harness.made_archive import LAYOUT, TP, reading, take_to_end
from tests.harness.record_batches import MadeBatch
from tests.harness.served_tail import WITH_TAIL, read_on
from tests.harness.splits import plan_of, read_splits
from tests.harness.tail_packs import TOPIC_ID
from tests.harness.tailed_log import TailedLog, borders, read_offsets, store_pack
from tests.harness.transactions import feed_headers

COMMITTED = IsolationLevel.READ_COMMITTED
_IDLE = 99
"""A producer without a transaction: a segment without any producer has no snapshot."""


def tracked(log: TailedLog, start: int, *ends: int) -> TransactionTracker:
    """The transactions that are known of the offsets from `start` on, up to the last end."""
    tracker = TransactionTracker(start)
    feed_headers(tracker, b"".join(batch.encoded() for batch in log.between(start, ends[-1])))
    return tracker


def made_log(source: random.Random) -> TailedLog:
    log, is_open = TailedLog(), set[int]()
    for _ in range(source.randrange(3, 30)):
        producer = source.randrange(4)
        action = source.randrange(4)
        if action == 0 and is_open:
            ended = source.choice(sorted(is_open))
            is_open.discard(ended)
            log.mark(ended, commit=source.random() < 0.5)
        elif action == 1:
            log.write(9, source.randrange(1, 4), transactional=False)
        else:
            is_open.add(producer)
            log.write(producer, source.randrange(1, 4))
    return log


def cut(source: random.Random, places: list[int]) -> list[int]:
    """The first and the last of some places, and others between them."""
    chosen = {place for place in places if source.random() < 0.4}
    return sorted({places[0], places[-1], *chosen})


def archive(log: TailedLog, segments: list[int]) -> None:
    log.archived(*segments)
    for base, end in pairwise(segments):
        before, behind = tracked(log, 0, base), tracked(log, 0, end)
        still_open = {each.producer_id: int(each.first_offset) for each in before.open.values()}
        aborted = list(behind.aborted)[len(before.aborted) :]
        log.archive.transaction_indexes(base, aborted, still_open or {_IDLE: -1})


def row_of(log: TailedLog, source: random.Random, began: int, start: int, end: int) -> TailRow:
    """The row of a sidecar that has read from `began` on. Either it knows which transactions are
    open there, or it asks the broker for the last stable offset, some records later.
    """
    is_exact = source.random() < 0.5
    known = tracked(log, 0 if is_exact else min(began, start), end)
    later = source.choice([place for place in borders(log) if place >= end])
    stable = (known if is_exact else tracked(log, 0, later)).last_stable_offset
    batches = log.between(start, end)
    return TailRow(
        TP,
        TOPIC_ID,
        epochs_from(log.epochs, start),
        Offset(start),
        Offset(end),
        Offset(0),
        stable,
        len(batches),
        max(row.timestamp for batch in batches for row in batch.records),
        tuple(known.open.values()),
        tuple(each for each in known.aborted if each.last_offset >= start),
    )


def pack(log: TailedLog, source: random.Random, broker: int, places: list[int]) -> None:
    """Store packs of one sidecar with all ranges between these places."""
    began, number = source.choice(places), 0
    ranges = list(pairwise(places))
    while ranges:
        builder = PackBuilder()
        for start, end in ranges[: source.randrange(1, 4)]:
            data = (encoded(batch) for batch in log.between(start, end))
            builder.add(row_of(log, source, began, start, end), *data)
        ranges = ranges[len(builder.rows) :]
        store_pack(log.store, LAYOUT, builder, broker, number)
        number += 1


def encoded(batch: MadeBatch) -> bytes:
    return batch.encoded()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**63))
def test_every_reader_gets_each_committed_record_once(seed: int) -> None:
    source = random.Random(seed)
    log = made_log(source)
    end, places = log.next_offset, list(borders(log))
    archived = source.choice(places)
    if archived:
        archive(log, cut(source, [place for place in places if place <= archived]))
    for broker in range(source.randrange(1, 3)):
        first = source.choice([place for place in places if place <= archived])
        if first < end:
            pack(log, source, broker, cut(source, [place for place in places if place >= first]))
    start = source.randrange(end + 1)
    isolation = source.choice(list(IsolationLevel))
    expected = [offset for offset in log.offsets(isolation, end) if offset >= start]
    stable = tracked(log, 0, end).last_stable_offset
    if start <= stable or isolation is not COMMITTED:  # it does not look below its start
        with reading(log.store, with_tail=True, isolation=isolation) as reader:
            reader.assign(TP, start)
            assert read_offsets(take_to_end(reader)) == expected
    with endpoint_over(log.store, settings=WITH_TAIL) as parts:
        most = source.choice([1, 300, 1 << 20])
        assert read_on(parts, log, start, isolation, most) == expected
        assert parts.offsets.list_offset("orders", 0, -1, 1).offset == stable
    most = source.choice([1, 300, 1 << 20])
    plan = plan_of(log.store, with_tail=True, isolation=isolation, max_split_bytes=most)
    assert plan.ranges[TP].end == (stable if isolation is COMMITTED else end)
    found = read_splits(log.store, plan.splits, isolation=isolation, with_tail=True)
    assert found.offsets == log.offsets(isolation, end)
