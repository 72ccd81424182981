import numpy as np
import pyarrow as pa
import pytest

from sidetier.segments.arrow import columns
from sidetier.segments.arrow.arrays import bytes_of
from sidetier.segments.arrow.columns import binary_column, headers_column, no_headers
from sidetier.segments.arrow.fields import Spans
from sidetier.segments.arrow.schema import HEADERS_TYPE
from tests.harness.arrow_reading import longs

DATA = bytes_of(b"keyONE...keyTWO" + b"." * 5000 + b"keyLAST")
PLACES = Spans(longs(3, 6, 9, 12, 5018), longs(3, -1, 0, 3, 4))
WANTED = [b"ONE", None, b"", b"TWO", b"LAST"]


def test_strings_are_gathered_with_nulls_and_empty_ones() -> None:
    found = binary_column(DATA, PLACES)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (pa.binary(), WANTED)
    assert binary_column(DATA, PLACES.where(slice(1, 2))).to_pylist() == [None]
    assert binary_column(DATA, PLACES.where(slice(0, 0))).to_pylist() == []


def test_strings_may_lie_further_apart_than_a_column_can_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrow's own offsets end at 2 GiB, in this test at 1,000 bytes."""
    monkeypatch.setattr(columns, "MAX_COLUMN_BYTES", 1000)
    found = binary_column(DATA, PLACES)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (pa.binary(), WANTED)


def test_more_bytes_than_a_column_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_COLUMN_BYTES", 9)
    with pytest.raises(ValueError, match="decode in pieces"):
        binary_column(DATA, PLACES)
    with pytest.raises(ValueError, match="10 headers in one column: decode in pieces"):
        headers_column(DATA, longs(4, 6), PLACES, PLACES)


def test_records_without_headers_have_empty_lists() -> None:
    found = no_headers(3)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (HEADERS_TYPE, [[], [], []])
    some = headers_column(
        DATA, longs(0, 1, 0), Spans(longs(0), longs(3)), Spans(longs(3), longs(-1))
    )
    some.validate(full=True)
    assert some.to_pylist() == [[], [{"key": "key", "value": None}], []]
    assert some.type == HEADERS_TYPE
    assert np.array_equal(some.offsets.to_numpy(), [0, 0, 1, 1])
