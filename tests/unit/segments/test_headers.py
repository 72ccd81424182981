import pytest

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import (
    HEADER_BYTES,
    Compression,
    TimestampType,
    parse_batch_header,
    walk_headers,
)
from sidetier.segments.names import FileKind
from tests.harness.batches import make_batch, pread_of
from tests.harness.broker_segments import BrokerSegment, closed_segments, consumed

CODECS = {
    "comp-none-0": Compression.NONE,
    "comp-gzip-0": Compression.GZIP,
    "comp-snappy-0": Compression.SNAPPY,
    "comp-lz4-0": Compression.LZ4,
    "comp-zstd-0": Compression.ZSTD,
}


@pytest.mark.parametrize("segment", closed_segments(), ids=str)
def test_headers_of_genuine_segments_match_the_produced_records(segment: BrokerSegment) -> None:
    data = segment.read(FileKind.LOG)
    headers = [header for _, header in walk_headers(pread_of(data), len(data))]
    name = segment.directory.name
    if name in CODECS:
        assert {header.compression for header in headers} == {CODECS[name]}
    log_append = name in {"append-time-0", "segms-0"}
    assert {header.timestamp_type for header in headers} == {
        TimestampType.LOG_APPEND_TIME if log_append else TimestampType.CREATE_TIME
    }
    assert any(header.is_transactional for header in headers) == (name == "tx-0")
    assert all(header.producer_id >= 0 for header in headers) or name != "idempotent-0"
    assert sum(header.length for header in headers) == len(data)


def test_control_batches_cover_the_offsets_no_consumer_receives() -> None:
    for segment in closed_segments():
        data = segment.read(FileKind.LOG)
        seen = {row["offset"] for row in consumed(segment.directory)}
        for _, header in walk_headers(pread_of(data), len(data)):
            if segment.directory.name != "compacted-0":
                offsets = set(range(header.base_offset, header.next_offset))
                assert (seen >= offsets) != header.is_control


def test_header_is_read_field_by_field() -> None:
    header = parse_batch_header(b"xx" + make_batch(7, 3, epoch=4, attributes=0x3C, span=5), 2)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 11, 12)
    assert (header.leader_epoch, header.magic, header.record_count) == (4, 2, 3)
    assert header.length == HEADER_BYTES + len(b"records")
    assert header.compression is Compression.ZSTD
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_transactional
    assert header.is_control
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.base_timestamp == header.max_timestamp == 1_700_000_000_000


def test_unknown_codec_is_refused() -> None:
    header = parse_batch_header(make_batch(7, attributes=6))
    with pytest.raises(UnsupportedFormatError, match="offset 7: unknown compression 6"):
        _ = header.compression


@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 50_000])
@pytest.mark.parametrize("start", [0, 2])
def test_headers_are_walked_without_reading_the_records(payload: bytes, start: int) -> None:
    batches = [make_batch(n, payload=payload) for n in range(40)]
    data, read = b"".join(batches), 0

    def pread(at: int, length: int) -> bytes:
        nonlocal read
        read += length
        return data[at : at + length]

    skipped = len(b"".join(batches[:start]))
    walked = list(walk_headers(pread, len(data), start=skipped))
    assert [header.base_offset for _, header in walked] == list(range(start, 40))
    assert [position for position, _ in walked] == [n * len(batches[0]) for n in range(start, 40)]
    assert read <= max(len(data), 40 * HEADER_BYTES)
    if len(payload) > 1000:
        assert read == (40 - start) * HEADER_BYTES


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (make_batch(0, 5) + make_batch(4), "byte 68: base offset 4 after next offset 5"),
        (make_batch(0) + make_batch(1)[:-1], "byte 68: the batch at offset 1 is 68 bytes long"),
        (make_batch(0) + make_batch(1)[:30], "byte 68: 30 bytes are too few"),
        (make_batch(0) + b"\xff" * 80, "byte 68: magic byte 255"),
        (make_batch(-1), "byte 0: no batch has base offset -1"),
    ],
)
def test_damaged_header_is_reported_with_its_position(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedSegmentError, match=reason):
        list(walk_headers(pread_of(data), len(data)))
