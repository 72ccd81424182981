import base64
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES, parse_batch_header
from sidetier.segments.records import Record, decode_records, read_records
from tests.harness.batches import make_batch
from tests.harness.broker_segments import consumed, directories
from tests.harness.log_dir import encode_record, with_max_timestamp
from tests.harness.metadata_log import zigzag

OTHER_CODECS = ("lz4", "snappy", "zstd")
UNREADABLE = {"append-time-0", *(f"comp-{codec}-0" for codec in OTHER_CODECS)}
READABLE = [path for path in directories() if path.name not in UNREADABLE]


def logs(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.glob("*.log")):
        yield path.name, path.read_bytes()


def as_consumed(record: Record) -> dict[str, object]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
    }


@pytest.mark.parametrize("directory", READABLE, ids=lambda path: path.name)
def test_decoded_records_equal_the_consumer_output(directory: Path) -> None:
    records = [record for name, data in logs(directory) for record in read_records(data, name)]
    expected = [
        {key: row[key] for key in ("offset", "timestamp", "key", "value", "headers")}
        for row in consumed(directory)
    ]
    assert [as_consumed(record) for record in records if not record.control] == expected


def test_transaction_markers_are_flagged(segment_fixtures: Path) -> None:
    found = logs(segment_fixtures / "tx-0")
    markers = [r for name, data in found for r in read_records(data, name) if r.control]
    kinds = {struct.unpack(">hh", marker.key or b"") for marker in markers}
    assert kinds == {(0, 0), (0, 1)}  # version, and abort or commit


@pytest.mark.parametrize("codec", OTHER_CODECS)
def test_error_for_another_codec_names_it(codec: str, segment_fixtures: Path) -> None:
    name, data = next(logs(segment_fixtures / f"comp-{codec}-0"))
    with pytest.raises(UnsupportedFormatError, match=f"{name}: .*compressed by {codec}"):
        list(read_records(data, name))


def test_flipped_bit_is_detected(segment_fixtures: Path) -> None:
    name, data = next(logs(segment_fixtures / "comp-none-0"))
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    with pytest.raises(DamagedSegmentError, match=name):
        list(read_records(bytes(damaged), name))


def test_truncated_tail_is_detected(segment_fixtures: Path) -> None:
    name, data = next(logs(segment_fixtures / "comp-none-0"))
    with pytest.raises(DamagedSegmentError, match=f"{name}: byte"):
        list(read_records(data[:-1], name))


def decoded(batch: bytes) -> tuple[Record, ...]:
    return decode_records(parse_batch_header(batch), batch[HEADER_BYTES:])


def test_timestamps_and_offsets_are_relative_to_the_batch() -> None:
    payload = encode_record(0, b"a", b"k") + encode_record(7, b"")
    records = decoded(make_batch(100, 2, timestamp=5000, payload=payload, span=8))
    assert records == (
        Record(records[0].offset, 5000, b"k", b"a"),
        Record(records[1].offset, 5007, None, b""),
    )
    assert [record.offset for record in records] == [100, 107]


def test_log_append_time_applies_to_all_records_of_a_batch() -> None:
    payload = encode_record(0, b"a") + encode_record(7, b"b")
    batch = bytearray(make_batch(100, 2, timestamp=5000, payload=payload, attributes=8, span=8))
    appended = decoded(with_max_timestamp(batch, 9000))
    assert [record.timestamp for record in appended] == [9000, 9000]


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (encode_record(0, b"a"), 2, "no varint ends within 10 bytes at byte"),
        (encode_record(0, b"a") + b"x", 1, "1 bytes follow its last record"),
        (b"\x7f" * 9, 1, "a record of -64 bytes"),
        (zigzag(200) + b"x", 1, "a record of 200 bytes"),
        (b"\xff" * 20, 1, "no varint ends within 10 bytes"),
        (zigzag(6) + b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(90) + b"x", 1, "90 bytes"),
        (zigzag(7) + b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(0) + b"x", 1, "ends -1 bytes"),
        (zigzag(6) + b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(-3), 1, "-3 headers"),
        (b"\x10\0\0\0" + zigzag(-1) * 2 + zigzag(1) + zigzag(-1) * 2, 1, "without a key"),
        (encode_record(0, b"a") * 2, 2, "a record with offset 40, expected 41 or later"),
        (encode_record(1, b"a"), 1, "a record with offset 41"),
    ],
)
def test_invalid_record_is_refused(payload: bytes, count: int, reason: str) -> None:
    with pytest.raises(DamagedSegmentError, match=f"base offset 40: .*{reason}"):
        decoded(make_batch(40, count, payload=payload))


def test_gzip_is_decompressed_up_to_a_limit() -> None:
    """A small batch may decompress to gigabytes, which are never held in memory."""
    record = encode_record(0, b"v" * 1_000_000)
    batch = make_batch(40, 1, payload=gzip.compress(record), attributes=1)
    header, payload = parse_batch_header(batch), batch[HEADER_BYTES:]
    (found,) = decode_records(header, payload, most_batch_bytes=len(record))
    assert found.value == b"v" * 1_000_000
    with pytest.raises(BatchTooLargeError, match=f"base offset 40: .* {len(record) - 1} bytes"):
        decode_records(header, payload, most_batch_bytes=len(record) - 1)


def test_invalid_gzip_data_is_refused() -> None:
    sound = gzip.compress(encode_record(0, b"value"))
    assert decoded(make_batch(40, 1, payload=sound, attributes=1))[0].value == b"value"
    for payload in (b"no gzip", sound[:-4], sound[:12] + b"\xff" + sound[13:]):
        with pytest.raises(DamagedSegmentError, match="base offset 40: its gzip data"):
            decoded(make_batch(40, 1, payload=payload, attributes=1))


def test_empty_batch_has_no_records() -> None:
    assert decoded(make_batch(40, 0, payload=b"", span=3)) == ()


def test_negative_record_count_is_refused() -> None:
    with pytest.raises(DamagedSegmentError, match="base offset 40: a count of -1 records"):
        decoded(make_batch(40, -1, payload=b"", span=3))
