"""Batches that go to the target unchanged, re-encoded batches, and dropped ones."""

import numpy as np
import pytest

from sidetier.mirror.copy.batches import (
    Selection,
    encode_record,
    reencode,
    select_batches,
)
from sidetier.segments.arrow.codecs import decompress_into
from sidetier.segments.batches import Producer, build_batch, set_producer
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError
from sidetier.segments.headers import Compression, TimestampType, parse_batch_header
from sidetier.segments.offsets import Offset
from sidetier.segments.records import Record, decode_records
from sidetier.wire.record_requests import AbortedTransaction
from tests.harness.record_batches import Framing, MadeBatch, MadeRecord, TransactionalLog

START = 1_700_000_000_000


def records(*offsets: int) -> tuple[MadeRecord, ...]:
    return tuple(
        MadeRecord(
            offset,
            START + offset,
            key=b"key %d" % offset,
            value=None if offset % 4 == 0 else b"value %d" % offset * 20,
            headers=((b"source", b"%d" % offset), (b"empty", None)),
        )
        for offset in offsets
    )


def selected(
    *batches: MadeBatch,
    position: int = 0,
    aborted: tuple[tuple[int, int], ...] = (),
    until: int = 2**40,
) -> Selection:
    data = memoryview(bytearray(b"".join(batch.encoded() for batch in batches)))
    transactions = [AbortedTransaction(producer, Offset(first)) for producer, first in aborted]
    return select_batches(data, Offset(position), transactions, until=Offset(until))


def decoded(data: bytes | bytearray | memoryview) -> list[Record]:
    header = parse_batch_header(data)
    payload = bytes(data[61:])
    if header.compression is not Compression.NONE:
        room = np.empty(1 << 20, dtype=np.uint8)
        payload = room[: decompress_into(header.compression, memoryview(payload), room)].tobytes()
        plain = bytearray(data[:61])
        plain[21:23] = (header.attributes & ~7).to_bytes(2)
        header = parse_batch_header(plain)
    return list(decode_records(header, payload))


def test_plain_batches_are_copied_unchanged() -> None:
    result = selected(MadeBatch(records(0, 1, 2)), MadeBatch(records(3, 4)))
    assert [(batch.start, batch.end) for batch in result.batches] == [(0, 3), (3, 5)]
    assert not any(item.must_be_reencoded for item in result.batches)
    assert result.next_offset == 5


def test_records_that_were_copied_before_are_skipped() -> None:
    result = selected(MadeBatch(records(0, 1, 2)), MadeBatch(records(3, 4)), position=3)
    assert [batch.start for batch in result.batches] == [3]
    assert result.next_offset == 5


def test_truncated_last_batch_is_left_for_the_next_read() -> None:
    whole, cut = MadeBatch(records(0, 1)).encoded(), MadeBatch(records(2, 3)).encoded()[:-1]
    result = select_batches(memoryview(bytearray(whole + cut)), Offset(0), ())
    assert result.next_offset == 2


def test_control_batches_and_aborted_transactions_are_dropped() -> None:
    log = TransactionalLog()
    log.write(7, 3)  # 0 to 2, aborted
    log.write(8, 2)  # 3 to 4, committed
    log.write(7, 1, transactional=False)  # 5
    log.mark(7, commit=False)  # 6
    log.write(7, 2)  # 7 to 8: the next transaction of the same producer
    log.mark(8, commit=True)
    log.mark(7, commit=True)
    result = selected(*log.batches, aborted=((7, 0),))
    assert [batch.start for batch in result.batches] == [3, 5, 7]
    assert result.dropped_records == 3
    assert result.next_offset == 11


def test_second_aborted_transaction_of_a_producer_begins_at_its_listed_offset() -> None:
    log = TransactionalLog()
    log.write(7, 2)
    log.mark(7, commit=True)
    log.write(7, 2)  # 3 to 4
    log.mark(7, commit=False)
    result = selected(*log.batches, aborted=((7, 3),))
    assert [batch.start for batch in result.batches] == [0]


def test_aborted_transaction_from_before_the_read_is_dropped() -> None:
    log = TransactionalLog()
    log.write(7, 2)
    log.write(7, 2)
    log.mark(7, commit=False)
    result = selected(*log.batches[1:], position=2, aborted=((7, 0),))
    assert result.batches == ()
    assert result.next_offset == 5


def test_batch_emptied_by_compaction_only_moves_the_position() -> None:
    result = selected(MadeBatch((), base_offset=0, last_offset=9))
    assert result == Selection((), Offset(10), 0)


@pytest.mark.parametrize("codec", list(Compression))
def test_compacted_batch_gets_dense_offsets_and_keeps_everything_else(
    codec: Compression,
) -> None:
    source = MadeBatch(records(10, 12, 13, 19), codec=codec, base_offset=10, last_offset=25)
    (batch,) = selected(source).batches
    assert batch.must_be_reencoded
    (other,) = reencode(batch, 1 << 20, "t-0")
    assert other.source_offsets == (10, 12, 13, 19)
    set_producer(memoryview(other.data), Producer(5, 0), 0, transactional=True)
    header = parse_batch_header(other.data)
    assert (header.compression, header.record_count, header.last_offset) == (codec, 4, 3)
    assert header.max_timestamp == START + 19
    before = [
        (record.timestamp, record.key, record.value, record.headers)
        for record in records(10, 12, 13, 19)
    ]
    assert [
        (item.timestamp, item.key, item.value, tuple((k.encode(), v) for k, v in item.headers))
        for item in decoded(other.data)
    ] == before


def test_log_append_timestamps_are_kept_as_create_time() -> None:
    source = MadeBatch(
        records(0, 1, 2), timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=START + 999
    )
    (batch,) = selected(source).batches
    (other,) = reencode(batch, 1 << 20, "t-0")
    assert parse_batch_header(other.data).timestamp_type is TimestampType.CREATE_TIME
    assert {record.timestamp for record in decoded(other.data)} == {START + 999}


def test_range_within_a_batch_contains_no_other_record() -> None:
    (batch,) = selected(MadeBatch(records(0, 1, 2, 3, 4)), position=1, until=4).batches
    (other,) = reencode(batch, 1 << 20, "t-0")
    assert other.source_offsets == (1, 2, 3)
    assert selected(MadeBatch(records(0, 1, 2, 3, 4)), position=1, until=4).next_offset == 4


def test_range_without_a_remaining_record_gives_no_batch() -> None:
    source = MadeBatch(records(0, 9))
    (batch,) = selected(source, position=3, until=6).batches
    assert reencode(batch, 1 << 20, "t-0") == []


def test_raw_snappy_is_read() -> None:
    source = MadeBatch(records(0, 2), codec=Compression.SNAPPY, framing=Framing.RAW)
    (batch,) = selected(source).batches
    assert len(reencode(batch, 1 << 20, "t-0")) == 1


def test_small_zstd_batch_of_repeated_bytes_is_decompressed() -> None:
    """The codec shrinks them 10,000 times and more."""
    big = MadeRecord(0, START, value=bytes(16 << 20))
    source = MadeBatch((big, MadeRecord(2, START)), codec=Compression.ZSTD)
    (batch,) = selected(source).batches
    assert len(batch.data) * 4096 < 16 << 20
    (other,) = reencode(batch, 17 << 20, "t-0")
    assert other.source_offsets == (0, 2)


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_above_the_limit_of_the_target_are_split_between_records(
    codec: Compression,
) -> None:
    noise = np.random.default_rng(1)
    made = tuple(
        MadeRecord(offset, START + offset, value=noise.bytes(300)) for offset in range(10, 30, 2)
    )
    made += (MadeRecord(30, START + 30, value=noise.bytes(4000)),)
    source = MadeBatch(made, codec=codec, base_offset=10, last_offset=31)
    (batch,) = selected(source).batches
    others = reencode(batch, 1 << 20, "t-0", 1200)
    assert sum((other.source_offsets for other in others), ()) == tuple(
        record.offset for record in made
    )
    # A record is never split, so one batch is larger.
    assert [len(other.source_offsets) for other in others if len(other.data) > 1200] == [1]
    for other in others:
        set_producer(memoryview(other.data), Producer(5, 0), 0, transactional=True)
        header = parse_batch_header(other.data)
        expected = [record for record in made if record.offset in other.source_offsets]
        assert (header.compression, header.last_offset) == (codec, len(expected) - 1)
        assert header.max_timestamp == expected[-1].timestamp
        assert [(item.timestamp, item.value) for item in decoded(other.data)] == [
            (record.timestamp, record.value) for record in expected
        ]


def test_decompression_bomb_is_refused() -> None:
    big = MadeRecord(0, START, value=bytes(1 << 20))
    source = MadeBatch((big, MadeRecord(2, START)), codec=Compression.ZSTD)
    (batch,) = selected(source).batches
    with pytest.raises(BatchTooLargeError, match="more than 65536 bytes"):
        reencode(batch, 65536, "t-0")


def test_damaged_batch_does_not_get_a_matching_crc() -> None:
    data = bytearray(MadeBatch(records(0, 2)).encoded())
    data[-1] ^= 1
    (batch,) = select_batches(memoryview(data), Offset(0), ()).batches
    with pytest.raises(DamagedSegmentError, match="CRC"):
        reencode(batch, 1 << 20, "t-0")


@pytest.mark.parametrize(
    ("positions", "count"), [((0, 1, 7), 3), ((0, 2, 1), 3), ((0, 0, 1), 3), ((0, 1, 2), 2)]
)
def test_record_that_its_batch_does_not_announce_is_damage(
    positions: tuple[int, ...], count: int
) -> None:
    """It would be left out, and the position would pass it."""
    payload = b"".join(encode_record(b"k", b"v", position) for position in positions)
    data = build_batch(payload, record_count=count, attributes=0, base_timestamp=5, max_timestamp=5)
    (batch,) = select_batches(memoryview(data), Offset(0), ()).batches
    with pytest.raises(DamagedSegmentError, match="its records are cut or damaged"):
        reencode(batch, 1 << 20, "t-0")


def test_truncated_records_are_damage() -> None:
    source = MadeBatch(records(0, 2))
    (batch,) = select_batches(
        memoryview(bytearray(source.encoded(payload=source.payload[:-3]))), Offset(0), ()
    ).batches
    with pytest.raises(DamagedSegmentError, match="t-0: the batch at offset 0"):
        reencode(batch, 1 << 20, "t-0")
