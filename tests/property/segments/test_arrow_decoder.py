"""The Arrow decoder compared with the pure Python decoder, and with input that is not a log.

`DECODER_EXAMPLES` in the environment sets the number of examples of each test; they are then
different in each run.
"""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidetier.segments.arrow import (
    decode_batches,
    fates_of,
    feed_table,
    read_markers,
    scan_headers,
)
from sidetier.segments.arrow.arrays import FAR, bytes_of
from sidetier.segments.arrow.starts import FEW, record_starts
from sidetier.segments.arrow.varints import read_varints
from sidetier.segments.errors import SegmentError
from sidetier.segments.headers import Compression, TimestampType
from sidetier.segments.records import Record, read_records
from sidetier.segments.transactions import TransactionTracker
from tests.harness.arrow_reading import WAYS, decoded, only, rows
from tests.harness.batches import with_crc
from tests.harness.broker_segments import directories
from tests.harness.record_batches import Framing, MadeBatch, MadeRecord

PURE_CODECS = (Compression.NONE, Compression.GZIP)
LOGS = [path for folder in directories() for path in sorted(folder.glob("*.log"))]
MAX_BYTES = 1 << 20


def examples(ordinarily: int) -> settings:
    """Number of examples: the default ones, or as many new ones as the environment asks for."""
    return settings(
        max_examples=int(os.environ.get("DECODER_EXAMPLES", ordinarily)),
        deadline=None,
        derandomize="DECODER_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


maybe_bytes = st.none() | st.binary(max_size=200)
timestamps = st.integers(-1, 5) | st.integers(-(2**61), 2**61)
headers = st.lists(st.tuples(st.binary(max_size=9), maybe_bytes), max_size=5).map(tuple)


@st.composite
def batches(draw: st.DrawFn, base: int, codecs: tuple[Compression, ...]) -> MadeBatch:
    offset, records = base, []
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 100]))
        some = draw(headers) if draw(st.booleans()) else ()
        record = MadeRecord(offset, draw(timestamps), draw(maybe_bytes), draw(maybe_bytes), some)
        records.append(record)
        offset += 1
    return MadeBatch(
        tuple(records),
        draw(st.sampled_from(codecs)),
        draw(st.sampled_from(Framing)),
        draw(st.sampled_from(TimestampType)),
        is_transactional=draw(st.booleans()),
        leader_epoch=draw(st.integers(0, 3)),
        producer_id=draw(st.integers(-1, 2**63 - 1)),
        producer_epoch=draw(st.integers(-1, 2**15 - 1)),
        base_offset=draw(st.integers(base, records[0].offset)),
        last_offset=offset - 1 + draw(st.integers(0, 2)),
    )


@st.composite
def made_logs(
    draw: st.DrawFn, codecs: tuple[Compression, ...] = tuple(Compression)
) -> list[MadeBatch]:
    made: list[MadeBatch] = []
    for _ in range(draw(st.integers(0, 6))):
        made.append(draw(batches(made[-1].last + 1 if made else 0, codecs)))
    return made


def encoded(made: list[MadeBatch]) -> bytes:
    return b"".join(batch.encoded() for batch in made)


@examples(60)
@given(made_logs(), st.sampled_from(sorted(WAYS)))
def test_encoded_records_are_decoded(made: list[MadeBatch], way: str) -> None:
    with only(WAYS[way]):
        assert decoded(encoded(made)) == [row for batch in made for row in batch.rows]


@examples(30)
@given(made_logs(), st.integers(0, 1500), st.integers(0, 1500))
def test_bounds_and_truncation_only_remove_records(
    made: list[MadeBatch], first: int, end: int
) -> None:
    log = encoded(made)
    wanted = [row for batch in made for row in batch.rows if first <= row["offset"] < end]
    assert decoded(log, first=first, end=end) == wanted
    cut = log[: max(0, len(log) - end)]
    table = scan_headers(cut)
    assert rows(decode_batches(cut, table)) == [
        row for batch in made[: len(table)] for row in batch.rows
    ]


def outcome(log: bytes, few: int = FEW) -> list[tuple[Any, ...]] | None:
    """The records, or None if the log is refused."""
    with only(few):
        try:
            table = scan_headers(log)
            everything = np.ones(len(table), dtype=np.bool_)
            found = rows(decode_batches(log, table, keep=everything, most_batch_bytes=MAX_BYTES))
        except SegmentError:
            return None
    if table.next_position != len(log):
        return None
    return [
        (
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
            row["is_control"],
        )
        for row in found
    ]


def pure_outcome(log: bytes) -> list[tuple[Any, ...]] | None:
    try:
        return [as_row(record) for record in read_records(log, "pure")]
    except SegmentError:
        return None


def as_row(record: Record) -> tuple[Any, ...]:
    timestamp = (record.timestamp + 2**63) % 2**64 - 2**63  # it wraps around, as in Java
    return (
        int(record.offset),
        timestamp,
        record.key,
        record.value,
        record.headers,
        record.control,
    )


@examples(60)
@given(
    made_logs(PURE_CODECS).filter(bool),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=3),
    st.integers(-1, 1),
    st.data(),
)
def test_damage_with_a_correct_checksum_is_handled_like_in_the_pure_reader(
    made: list[MadeBatch], changes: list[tuple[int, int]], more: int, data: st.DataObject
) -> None:
    """Payloads with changed bytes and record counts: all three readers agree."""
    batch = data.draw(st.sampled_from(made))
    payload = bytearray(batch.payload)
    for at, byte in changes:
        payload[at % len(payload)] = byte
    log = batch.encoded(bytes(payload), len(batch.records) + more)
    wanted = pure_outcome(log)
    assert {way: outcome(log, few) for way, few in WAYS.items()} == dict.fromkeys(WAYS, wanted)


@examples(150)
@given(st.binary(max_size=120), st.integers(-1, 20), st.sampled_from(Compression))
def test_any_payload_is_refused_or_read_like_in_the_pure_reader(
    payload: bytes, count: int, codec: Compression
) -> None:
    log = bytearray(MadeBatch((MadeRecord(0),), last_offset=500).encoded(payload, count))
    log[22] |= codec.value
    found = [outcome(with_crc(log), few) for few in WAYS.values()]
    assert found[0] == found[1] == found[2]
    if codec in PURE_CODECS:
        assert found[0] == pure_outcome(with_crc(log))


@examples(150)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_or_no_batch(log: bytes) -> None:
    assert outcome(log, 0) in (None, [])


def test_varint_of_more_than_ten_bytes_is_refused() -> None:
    data = bytes_of(b"\xff" * 9 + b"\x01" + b"\xff" * 10 + b"\1" + b"\2" * 100)
    found, behind = read_varints(data, np.arange(len(data)))
    assert (found[0], behind[0]) == (-(2**63), 10)
    assert behind[10] == FAR
    assert behind[11:].tolist() == [21] * 10 + list(range(22, 122))


@examples(30)
@given(made_logs((Compression.NONE,)).filter(bool), st.integers(0, 8))
def test_record_starts_do_not_depend_on_the_number_of_walked_batches(
    made: list[MadeBatch], few: int
) -> None:
    log = encoded(made)
    table = scan_headers(log)
    begins = table.column("position") + 61
    ends = table.column("position") + table.column("length")
    counts = table.column("record_count").astype(np.int64)
    walked = record_starts(bytes_of(log), begins, ends, counts, few=1 << 40)
    assert record_starts(bytes_of(log), begins, ends, counts, few=few).tolist() == walked.tolist()


_WHOLE: dict[Path, list[tuple[Any, ...]]] = {}


def whole(path: Path) -> list[tuple[Any, ...]]:
    if path not in _WHOLE:
        _WHOLE[path] = outcome(path.read_bytes(), 0) or []
    return _WHOLE[path]


def is_part(some: list[tuple[Any, ...]], everything: list[tuple[Any, ...]]) -> bool:
    """Return whether these are records of that log in order; the CRC does not cover offsets."""
    rest = iter(row[1:] for row in everything)
    return all(row[1:] in rest for row in some)


@examples(300)
@given(st.sampled_from(LOGS), st.integers(0, 1 << 20), st.integers(1, 255))
def test_flipped_byte_invents_no_record(path: Path, position: int, change: int) -> None:
    log = bytearray(path.read_bytes())
    if not log:
        return
    log[position % len(log)] ^= change
    for few in WAYS.values():
        found = outcome(bytes(log), few)
        assert found is None or is_part(found, whole(path))


@examples(200)
@given(
    st.sampled_from(LOGS),
    st.integers(0, 1 << 20),
    st.integers(1, 255),
    st.sampled_from([None, 8, 27, 35, 57, 61]),
)
def test_flipped_byte_with_a_correct_checksum_invents_no_record(
    path: Path, position: int, change: int, field: int | None
) -> None:
    """One byte of a batch is changed and the CRC corrected: the batch is refused or has as many
    records.
    """
    log = path.read_bytes()
    table = scan_headers(log)
    if not len(table):
        return
    batch = table.rows[position % len(table)]
    begin, length = int(batch["position"]), int(batch["length"])
    damaged = bytearray(log[begin : begin + length])
    damaged[(field or 21) + position % (length - (field or 21))] ^= change
    count = struct.unpack_from(">i", damaged, 57)[0]
    for few in WAYS.values():
        found = outcome(with_crc(damaged), few)
        assert found is None or len(found) == count


@examples(100)
@given(st.sampled_from(LOGS), st.integers(0, 1 << 20), st.integers(1, 255))
def test_isolation_filter_survives_a_flipped_byte(path: Path, position: int, change: int) -> None:
    log = bytearray(path.read_bytes())
    if not log:
        return
    log[position % len(log)] ^= change
    tracker = TransactionTracker()
    try:
        table = scan_headers(log)
        feed_table(tracker, table, read_markers(log, table))
    except SegmentError:
        return
    assert len(fates_of(tracker, table)) == len(table)
    assert tracker.last_stable_offset <= tracker.end


def test_work_is_bounded_by_the_size_of_the_input() -> None:
    """A batch that claims many records or headers takes no more work than its bytes allow."""
    size = 200_000
    for payload in (b"\xff" * size, bytes(size), b"\x0c\0\0\0\1\1\0" * (size // 7)):
        for count in (1, size // 7, 2**31 - 1):
            log = MadeBatch((MadeRecord(0),), last_offset=size).encoded(payload, count)
            assert outcome(log) is None
    crowded = MadeBatch((MadeRecord(0, headers=((b"", None),) * (size // 2)),))
    assert len(decoded(crowded.encoded())[0]["headers"]) == size // 2
