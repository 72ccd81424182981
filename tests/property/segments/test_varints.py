"""Each varint codec against an encoder that shares no code with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.segments.arrow.arrays import bytes_of
from sidetier.segments.arrow.varints import read_varints
from sidetier.segments.varints import (
    encode_unsigned,
    encode_zigzag,
    read_unsigned,
    read_zigzag,
)
from tests.harness.metadata_log import uvarint, zigzag

SIGNED = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1) | st.integers(0, 200), st.binary(max_size=3))
def test_unsigned_numbers(value: int, before: bytes) -> None:
    assert encode_unsigned(value) == uvarint(value)
    data = before + uvarint(value)
    assert read_unsigned(data + b"\x80", len(before)) == (value, len(data))
    assert read_unsigned(memoryview(data), len(before)) == (value, len(data))


@settings(max_examples=150, deadline=None)
@given(st.lists(SIGNED, min_size=1))
def test_signed_numbers_one_at_a_time_and_many_at_once(values: list[int]) -> None:
    parts = [zigzag(value) for value in values]
    assert [encode_zigzag(value) for value in values] == parts
    data, ends = b"".join(parts), np.cumsum([len(part) for part in parts])
    starts = ends - [len(part) for part in parts]
    one_by_one = [read_zigzag(data, at) for at in starts.tolist()]
    assert one_by_one == list(zip(values, ends.tolist(), strict=True))
    found, behind = read_varints(bytes_of(data), starts)
    assert list(zip(found.tolist(), behind.tolist(), strict=True)) == one_by_one


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=10, max_size=40))
def test_any_bytes_are_the_same_number_for_both_decoders(data: bytes) -> None:
    found, behind = read_varints(bytes_of(data), np.arange(len(data) - 9))
    for at in range(len(data) - 9):
        try:
            assert read_zigzag(data, at) == (found[at], behind[at])
        except ValueError:
            assert behind[at] > len(data)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 4, b"\xff" * 20])
def test_varint_that_does_not_end_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"within 5 bytes at byte 0 of {len(data)}"):
        read_unsigned(data, 0)
    with pytest.raises(ValueError, match=f"within 10 bytes at byte 0 of {len(data)}"):
        read_zigzag(data, 0)
