"""Batches of the metadata log: complete ones are read, an incomplete tail is waited for."""

import pytest

from sidetier.leadership.kraft.metadata_log import read_batches
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from tests.harness.metadata_log import CONTROL, batch

FIRST = batch(5, [b"one", b"two"])
SECOND = batch(7, [b"three"])


def test_values_offsets_and_positions_are_read() -> None:
    one, two = read_batches(FIRST + SECOND, origin=1000)
    assert (one.start, one.end, one.base_offset, one.next_offset) == (1000, 1000 + len(FIRST), 5, 7)
    assert (two.start, two.end) == (one.end, one.end + len(SECOND))
    assert (one.values, two.values) == ((b"one", b"two"), (b"three",))
    assert one.raw_header == FIRST[:61]


def test_control_batch_has_no_values() -> None:
    (only,) = read_batches(batch(0, [b"leader change"], attributes=CONTROL))
    assert (only.values, only.next_offset) == ((), 1)


@pytest.mark.parametrize("length", [1, 60, 61, 62, len(SECOND) - 1])
def test_incomplete_batch_is_left_for_later(length: int) -> None:
    assert [found.base_offset for found in read_batches(FIRST + SECOND[:length])] == [5]


def test_last_batch_with_a_wrong_checksum_is_left_for_later() -> None:
    torn = SECOND[:-3] + b"\x00\x00\x00"
    assert [found.base_offset for found in read_batches(FIRST + torn)] == [5]


def test_flipped_bit_before_the_end_is_damage() -> None:
    flipped = bytearray(FIRST)
    flipped[-2] ^= 1
    with pytest.raises(DamagedSegmentError, match="base offset 5"):
        list(read_batches(bytes(flipped) + SECOND))


def test_compressed_batch_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="base offset 3: compressed by zstd"):
        list(read_batches(batch(3, [b"one"], attributes=4)))


def test_zeros_are_damage() -> None:
    with pytest.raises((DamagedSegmentError, UnsupportedFormatError)):
        list(read_batches(FIRST + bytes(100)))
