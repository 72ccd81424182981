"""Record batch headers changed in place, on genuine batches."""

import pytest

from sidetier.segments.batches import (
    Producer,
    check_crc,
    next_sequence,
    set_leader_epoch,
    set_producer,
    split_batches,
)
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import Compression, TimestampType, parse_batch_header
from tests.harness.batches import make_batch, with_crc
from tests.harness.record_batches import MadeBatch, MadeRecord

PRODUCER = Producer(id=2**40, epoch=7)


def made(**changes: object) -> memoryview:
    """A batch of a source broker: three records from offset 500 on."""
    records = tuple(MadeRecord(offset, value=b"v" * 50) for offset in (500, 501, 502))
    batch = MadeBatch(records, codec=Compression.LZ4, leader_epoch=4, **changes)  # type: ignore[arg-type]
    return memoryview(bytearray(batch.encoded()))


@pytest.mark.parametrize("was_transactional", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_batch_gets_the_producer_of_the_target(
    *, was_transactional: bool, transactional: bool
) -> None:
    batch = made(is_transactional=was_transactional, producer_id=3, producer_epoch=1)
    before, records = parse_batch_header(batch), bytes(batch[61:])
    set_producer(batch, PRODUCER, 41, transactional=transactional)
    header = parse_batch_header(batch)
    assert (header.producer_id, header.producer_epoch) == (PRODUCER.id, PRODUCER.epoch)
    assert header.base_sequence == 41
    assert header.is_transactional is transactional
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (0, 2, -1)
    assert header.compression is Compression.LZ4
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (
        before.base_timestamp,
        before.max_timestamp,
        before.record_count,
    )
    assert bytes(batch[61:]) == records
    assert bytes(batch) == with_crc(bytes(batch))
    check_crc(batch)


def test_batch_has_no_producer_without_idempotence() -> None:
    batch = made(is_transactional=True, producer_id=3, producer_epoch=1)
    set_producer(batch, None, 0, transactional=False)
    header = parse_batch_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not header.is_transactional
    check_crc(batch)


def test_log_append_time_bit_is_cleared() -> None:
    batch = made(timestamp_type=TimestampType.LOG_APPEND_TIME)
    set_producer(batch, PRODUCER, 0, transactional=True)
    assert parse_batch_header(batch).timestamp_type is TimestampType.CREATE_TIME
    check_crc(batch)


@pytest.mark.parametrize("position", [21, 30, 45, 60, 61, -1])
def test_damaged_batch_never_gets_a_matching_crc(position: int) -> None:
    batch = made()
    batch[position] ^= 0x20
    with pytest.raises(DamagedSegmentError, match="base offset 500: its CRC32C does not match"):
        set_producer(batch, PRODUCER, 0, transactional=True)
    with pytest.raises(DamagedSegmentError, match="batch with base offset 500"):
        check_crc(batch)


def test_leader_epoch_is_changed_without_affecting_the_crc() -> None:
    batch = made()
    set_leader_epoch(batch, 0)
    assert parse_batch_header(batch).leader_epoch == 0
    check_crc(batch)


def test_fetched_records_are_split_without_a_copy_up_to_the_truncated_batch() -> None:
    log = bytearray(make_batch(0, 2) + make_batch(2, 3) + make_batch(5, 1))
    for cut in (1, 20, len(make_batch(5, 1)) - 1):
        split = list(split_batches(memoryview(log)[: len(log) - cut]))
        assert [header.base_offset for _, header in split] == [0, 2]
    split = list(split_batches(memoryview(log)))
    assert b"".join(batch for batch, _ in split) == log
    set_leader_epoch(split[0][0], 9)
    assert parse_batch_header(log).leader_epoch == 9


def test_old_message_formats_are_refused() -> None:
    log = bytearray(make_batch(0, 2))
    log[16] = 1
    with pytest.raises(UnsupportedFormatError, match="message format v1"):
        list(split_batches(memoryview(log)))


def test_sequences_wrap_around_to_zero() -> None:
    assert next_sequence(7, 3) == 10
    assert next_sequence(2**31 - 1, 1) == 0
    assert next_sequence(2**31 - 2, 5) == 3
