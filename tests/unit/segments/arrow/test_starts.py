"""Large batches are split where a record seems to begin; wrong guesses do not affect the result."""

import random

import numpy as np
import pytest

from sidetier.segments.arrow.arrays import Bytes, Longs, bytes_of
from sidetier.segments.arrow.starts import NoRecordsError, guess_anchors, record_starts
from sidetier.segments.errors import DamagedSegmentError
from tests.harness.arrow_reading import WAYS, decoded, longs, only
from tests.harness.record_batches import MadeBatch, MadeRecord

BATCH = 3000


def value_of(kind: str, number: int, source: random.Random) -> bytes:
    """Values, some of which look like records or contain records."""
    match kind:
        case "random":
            return source.randbytes(source.randint(0, 150))
        case "zeros":
            return bytes(source.randint(20, 90))
        case "records":
            inner = (MadeRecord(at, value=b"x" * (at % 9)) for at in range(8))
            return b"".join(record.encoded(0, 0) for record in inner)
        case "long":
            return source.randbytes(9000 if number % 50 == 0 else 20)
        case _:
            return b"the same in each"


def batch_of(kind: str, base: int = 0, count: int = BATCH) -> MadeBatch:
    source = random.Random(kind)
    records = tuple(
        MadeRecord(base + at, 1000 + at // 7, None, value_of(kind, at, source))
        for at in range(count)
    )
    return MadeBatch(records)


def payloads(*batches: MadeBatch) -> tuple[Bytes, Longs, Longs, Longs]:
    """Arguments of `record_starts`."""
    parts = [batch.payload for batch in batches]
    ends = np.cumsum(longs(*map(len, parts)))
    begins = ends - longs(*map(len, parts))
    return bytes_of(b"".join(parts)), begins, ends, longs(*(len(b.records) for b in batches))


def true_starts(batch: MadeBatch) -> list[int]:
    base = batch.records[0].timestamp
    sizes = [len(record.encoded(batch.first, base)) for record in batch.records]
    return [0, *np.cumsum(sizes).tolist()[:-1]]


KINDS = pytest.mark.parametrize("kind", ["random", "zeros", "records", "long", "same"])


@KINDS
@pytest.mark.parametrize("few", [*WAYS.values(), 20], ids=[*WAYS, "few"])
def test_records_are_found_for_any_values(kind: str, few: int) -> None:
    batch = batch_of(kind)
    assert record_starts(*payloads(batch), few=few).tolist() == true_starts(batch)
    with only(few):
        assert decoded(batch.encoded()) == batch.rows


@pytest.mark.parametrize("few", [2, 30, 1 << 40])
def test_adjacent_batches_of_all_sizes_are_decoded(few: int) -> None:
    counts = [3000, 0, 1, 400, 0, 2000, 7, 0]
    batches = [
        batch_of("random", 10_000 * at, count)
        if count
        else MadeBatch((), base_offset=10_000 * at, last_offset=10_000 * at)
        for at, count in enumerate(counts)
    ]
    with only(few):
        assert decoded(b"".join(batch.encoded() for batch in batches)) == [
            row for batch in batches for row in batch.rows
        ]


@pytest.mark.parametrize("kind", ["random", "same"])
def test_guesses_are_many_and_correct_for_ordinary_values(kind: str) -> None:
    batch = batch_of(kind)
    anchors = guess_anchors(*payloads(batch)).tolist()
    assert len(anchors) > BATCH // 128 * 0.9
    assert set(anchors) <= set(true_starts(batch))


def test_guesses_are_wrong_where_values_contain_records() -> None:
    """Proves that the test above covers wrong guesses."""
    batch = batch_of("records")
    assert not set(guess_anchors(*payloads(batch)).tolist()) <= set(true_starts(batch))


@KINDS
@pytest.mark.parametrize("few", [2, 1 << 40])
@pytest.mark.parametrize("more", [-1, 1])
def test_wrong_record_count_is_refused(kind: str, few: int, more: int) -> None:
    data, begins, ends, counts = payloads(batch_of(kind), batch_of(kind, BATCH))
    with pytest.raises(NoRecordsError, match=f"should be {BATCH + more}") as raised:
        record_starts(data, begins, ends, counts + longs(0, more), few=few)
    assert raised.value.row == 1


@pytest.mark.parametrize("few", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("row", [0, 1, 2500, BATCH - 1])
def test_misleading_length_is_refused(few: int, row: int) -> None:
    batch = batch_of("random")
    payload = bytearray(batch.payload)
    payload[true_starts(batch)[row]] ^= 2
    log = batch.encoded(bytes(payload))
    with only(few), pytest.raises(DamagedSegmentError, match="batch with base offset 0"):
        decoded(log)
