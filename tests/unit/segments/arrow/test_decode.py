import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sidetier.segments.arrow import (
    COLUMNS,
    RECORD_SCHEMA,
    decode,
    decode_batches,
    decode_in_pieces,
    scan_headers,
)
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import Compression, TimestampType
from tests.harness.arrow_reading import WAYS, decoded, only, rows
from tests.harness.batches import with_crc
from tests.harness.metadata_log import zigzag
from tests.harness.record_batches import (
    Framing,
    MadeBatch,
    MadeRecord,
    TransactionalLog,
    compress,
)

CODECS = [(codec, Framing.XERIAL) for codec in Compression] + [(Compression.SNAPPY, Framing.RAW)]
FAR = 2**62


def batch_of(*offsets: int, **fields: Any) -> MadeBatch:  # noqa: ANN401  those of MadeBatch
    records = tuple(MadeRecord(o, key=f"k{o}".encode(), value=b"v" * (o % 300)) for o in offsets)
    return MadeBatch(records, **fields)


@pytest.mark.parametrize(("codec", "framing"), CODECS)
@pytest.mark.parametrize("few", WAYS.values(), ids=WAYS)
def test_every_codec_is_decoded(codec: Compression, framing: Framing, few: int) -> None:
    batches = [
        batch_of(*range(at, at + 40), codec=codec, framing=framing) for at in range(0, 400, 40)
    ]
    with only(few):
        found = decoded(b"".join(batch.encoded() for batch in batches))
    assert found == [row for batch in batches for row in batch.rows]


def test_adjacent_batches_of_several_codecs_are_decoded() -> None:
    batches = [batch_of(at, at + 1, codec=codec) for at, (codec, _) in enumerate(CODECS * 3)]
    spread = [batch_of(10 * at, 10 * at + 3, codec=batch.codec) for at, batch in enumerate(batches)]
    log = b"".join(batch.encoded() for batch in spread)
    assert decoded(log) == [row for batch in spread for row in batch.rows]


RECORDS = (
    MadeRecord(100, key=None, value=None),
    MadeRecord(101, key=b"", value=b""),
    MadeRecord(107, timestamp=-1, key=b"k" * 70_000, value=b"v" * 3_000_000),
    MadeRecord(108, timestamp=FAR, value=b"x", headers=((b"a", b"1"), (b"a", None), (b"", b""))),
    MadeRecord(109, timestamp=-FAR, value=None, headers=((b"\xff\xc3\xa9", b"\0" * 200),)),
    MadeRecord(2**31 + 90, headers=tuple((str(n).encode(), b"v" * n) for n in range(300))),
)


@pytest.mark.parametrize("few", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_nulls_empty_values_headers_and_extreme_timestamps_are_decoded(
    few: int, codec: Compression
) -> None:
    batch = MadeBatch(
        RECORDS,
        codec,
        leader_epoch=2**31 - 1,
        producer_id=2**62,
        producer_epoch=2**15 - 1,
        base_timestamp=5,
    )
    with only(few):
        found = decoded(batch.encoded())
    assert found == batch.rows
    assert found[4]["headers"][0]["key"] == "\ufffd\u00e9"


def test_log_append_time_is_the_batchs_max_timestamp() -> None:
    appended = batch_of(0, 1, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=77)
    created = batch_of(2, 3, max_timestamp=77)
    log = appended.encoded() + created.encoded()
    assert decoded(log) == appended.rows + created.rows
    assert [row["timestamp"] for row in decoded(log)] == [77, 77] + [1_700_000_000_000] * 2
    assert decoded(appended.encoded()) == appended.rows


def test_compacted_batches_with_missing_offsets_are_decoded() -> None:
    """A batch that begins below its first record and ends above its last, and an empty batch."""
    gaps = batch_of(103, 105, base_offset=100, last_offset=109)
    empty = MadeBatch((), base_offset=110, last_offset=119, base_timestamp=5)
    last = batch_of(120)
    log = gaps.encoded() + empty.encoded() + last.encoded()
    assert [row["offset"] for row in decoded(log)] == [103, 105, 120]
    assert [row["offset"] for row in decoded(log, columns=["offset"])] == [103, 105, 120]
    whole = decode(gaps.encoded() + empty.encoded())
    assert (whole.next_offset, whole.position) == (120, len(log) - len(last.encoded()))


def test_incomplete_tail_is_left_to_the_caller() -> None:
    log = batch_of(0, 1).encoded() + batch_of(2, 3).encoded()
    border = len(batch_of(0, 1).encoded())
    for size in range(border, len(log)):
        found = decode(log[:size])
        assert (found.position, found.next_offset) == (border, 2)
        assert found.records.column("offset").to_pylist() == [0, 1]
    for size in range(border):
        found = decode(log[:size])
        assert (found.position, found.next_offset, found.records.num_rows) == (0, None, 0)
        assert found.records.schema == RECORD_SCHEMA


@pytest.mark.parametrize(
    ("first", "end", "offsets"),
    [
        (0, None, range(60)),
        (25, None, range(25, 60)),
        (0, 25, range(25)),
        (19, 41, range(19, 41)),
        (30, 30, range(0)),
        (33, 30, range(0)),
        (60, None, range(0)),
    ],
)
def test_only_wanted_offsets_are_decoded(first: int, end: int | None, offsets: range) -> None:
    log = b"".join(batch_of(*range(at, at + 20)).encoded() for at in (0, 20, 40))
    found = decoded(log, first=first, end=end)
    assert [row["offset"] for row in found] == list(offsets)
    assert found == [row for row in decoded(log) if row["offset"] in offsets]


def test_unwanted_batch_is_not_checked() -> None:
    good, bad = batch_of(0, 1).encoded(), bytearray(batch_of(2, 3).encoded())
    bad[-1] ^= 1
    log = good + bytes(bad)
    headers = scan_headers(log)
    assert decode_batches(log, headers, end=2).num_rows == 2
    assert decode_batches(log, headers, keep=np.array([True, False])).num_rows == 2
    assert decode_batches(log, headers.where(slice(0, 1))).num_rows == 2
    with pytest.raises(DamagedSegmentError, match="CRC32C"):
        decode_batches(log, headers)
    after = log + batch_of(4, 5).encoded()
    assert decode_batches(after, scan_headers(after), first=4).num_rows == 2
    assert decode_batches(log, headers, check_crc=False, columns=["offset"]).num_rows == 4


def test_markers_are_decoded_only_on_request() -> None:
    log = TransactionalLog()
    log.write(7, 2)
    log.mark(7, commit=True)
    assert [row["is_control"] for row in decoded(log.encoded)] == [False, False]
    everything = decoded(log.encoded, keep=np.array([True, True]))
    assert [row["is_control"] for row in everything] == [False, False, True]
    assert everything[2]["key"] == b"\0\0\0\1"


def test_columns_have_the_requested_order_and_unknown_ones_are_refused() -> None:
    log = batch_of(4).encoded()
    records = decode_batches(log, scan_headers(log), columns=["value", "offset"])
    assert records.schema.names == ["value", "offset"]
    for columns in (["offset", "offset"], ["ofset"]):
        with pytest.raises(ValueError, match=r"ofset|twice"):
            decode_batches(log, scan_headers(log), columns=columns)
    with pytest.raises(ValueError, match="keep has 2 flags, there are 1 batches"):
        decode_batches(log, scan_headers(log), keep=np.ones(2, dtype=np.bool_))


NUMBERS = ["offset", "timestamp_type", "leader_epoch", "producer_id", "producer_epoch"]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_header_columns_are_decoded_without_reading_the_records(codec: Compression) -> None:
    batches = [
        batch_of(
            *range(at, at + 20), codec=codec, leader_epoch=at, producer_id=at, producer_epoch=1
        )
        for at in (0, 20, 50)
    ]
    unreadable = [with_crc(one.encoded(b"\xff" * len(one.payload))) for one in batches]
    log = b"".join(unreadable)
    wanted = [{name: row[name] for name in NUMBERS} for one in batches for row in one.rows]
    assert decoded(log, columns=NUMBERS) == wanted
    assert decoded(log, columns=NUMBERS, first=7, end=55) == wanted[7:45]
    pieces = list(decode_in_pieces(log, scan_headers(log), columns=NUMBERS, piece_bytes=1500))
    assert [row for piece in pieces for row in rows(piece)] == wanted
    assert [piece.num_rows for piece in pieces] == [40, 20]
    with pytest.raises(DamagedSegmentError):
        decode_batches(log, scan_headers(log), columns=["offset", "timestamp"])
    flipped = bytearray(log)
    flipped[-1] ^= 1
    with pytest.raises(DamagedSegmentError, match="CRC32C"):
        decode_batches(flipped, scan_headers(flipped), columns=["offset"])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("count", [2**31 - 1, 50_000_000])
def test_record_count_is_bounded_by_the_batch_size(codec: Compression, count: int) -> None:
    batch = batch_of(0, 1, codec=codec, last_offset=count - 1)
    log = with_crc(batch.encoded(count=count))
    with pytest.raises(DamagedSegmentError, match="records"):
        decode_batches(log, scan_headers(log), columns=["offset"])


def test_decoded_records_keep_no_reference_to_the_buffer() -> None:
    log = bytearray(batch_of(*range(50)).encoded())
    records = decode_batches(log, scan_headers(log))
    before = records.to_pylist()
    log[:] = bytes(len(log))
    log += b"the buffer may grow, too: nobody holds it"
    assert records.to_pylist() == before


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_type_is_accepted(kind: type[bytes | bytearray | memoryview]) -> None:
    batch = batch_of(0, 1, codec=Compression.ZSTD)
    assert decoded(kind(batch.encoded())) == batch.rows  # type: ignore[arg-type]


def test_empty_log_has_no_records() -> None:
    assert decoded(b"") == []
    assert list(decode_in_pieces(b"", scan_headers(b""))) == []
    headers = scan_headers(batch_of(0).encoded())
    nothing = decode_batches(b"", headers.where(slice(0, 0)), columns=["key"])
    assert (nothing.num_rows, nothing.schema.names) == (0, ["key"])


def test_schema_says_which_columns_can_be_null() -> None:
    assert [field.name for field in RECORD_SCHEMA if field.nullable] == ["key", "value"]
    assert RECORD_SCHEMA.names == list(COLUMNS)
    records = decode_batches(batch_of(0).encoded(), scan_headers(batch_of(0).encoded()))
    assert records.schema == RECORD_SCHEMA
    assert isinstance(records, pa.RecordBatch)


# Errors are reported with their position.

SOUND = batch_of(*range(40, 45))
LEAST = b"\x0c\0\0\0\1\1\0"


def refused(batch: bytes, reason: str, kind: type[Exception] = DamagedSegmentError) -> None:
    before = batch_of(*range(30, 40)).encoded()
    log = before + batch
    where = rf"^t/00\.log: byte {1000 + len(before)}: batch with base offset 40: .*{reason}"
    for few in WAYS.values():
        with only(few), pytest.raises(kind, match=where):
            decode_batches(log, scan_headers(log, position=1000), name="t/00.log", position=1000)


def test_flipped_bit_is_detected() -> None:
    for codec in Compression:
        batch = bytearray(batch_of(*range(40, 45), codec=codec).encoded())
        batch[-3] ^= 4
        refused(bytes(batch), "its CRC32C does not match")


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec.value])
def test_payload_that_is_not_compressed_data_is_refused(codec: Compression) -> None:
    sound = batch_of(*range(40, 45), codec=codec)
    for payload in (b"nonsense" * 9, b"\x82SNAPPY\0" + bytes(8) + b"\0\0\1\0xx"):
        head = bytearray(sound.encoded()[:61] + payload)
        head[8:12] = struct.pack(">i", len(head) - 12)
        refused(with_crc(head), f"its {codec.name.lower()} data: ")


@pytest.mark.parametrize("size", [-4, -1, 9999])
def test_snappy_block_with_a_wrong_size_is_refused(size: int) -> None:
    """For example a block that points back to itself."""
    head = bytearray(batch_of(40, codec=Compression.SNAPPY).encoded()[:61])
    head += b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", size) + b"some bytes"
    head[8:12] = struct.pack(">i", len(head) - 12)
    refused(with_crc(head), f"its snappy data: a block of {size} bytes where 10 are left")


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec.value])
def test_truncated_compressed_data_is_refused(codec: Compression) -> None:
    sound = batch_of(*range(40, 60), codec=codec).encoded()
    for size in range(62, len(sound)):
        cut = bytearray(sound[:size])
        cut[8:12] = struct.pack(">i", len(cut) - 12)
        log = with_crc(cut)
        with pytest.raises(DamagedSegmentError, match="batch with base offset 40"):
            decode_batches(log, scan_headers(log))


@pytest.mark.parametrize("codec", list(Compression))
def test_decompressed_size_above_the_limit_is_refused(codec: Compression) -> None:
    batch = MadeBatch((MadeRecord(40, value=bytes(1 << 20)),), codec)
    log = batch.encoded()
    headers = scan_headers(log)
    size = len(batch.payload)
    assert decode_batches(log, headers, most_batch_bytes=size).num_rows == 1
    if codec is Compression.NONE:
        return
    with pytest.raises(BatchTooLargeError, match=f"offset 40: .*more than {size - 1} bytes"):
        decode_batches(log, headers, most_batch_bytes=size - 1)


def test_decompression_bomb_uses_no_more_memory_than_the_limit() -> None:
    """100 MiB of zeros in a few kilobytes."""
    bomb = compress(Compression.ZSTD, bytes(100 << 20))
    head = bytearray(batch_of(40, codec=Compression.ZSTD).encoded()[:61] + bomb)
    head[8:12] = struct.pack(">i", len(head) - 12)
    assert len(head) < 20_000
    log = with_crc(head)
    with pytest.raises(BatchTooLargeError, match="more than 1000000 bytes"):
        decode_batches(log, scan_headers(log), most_batch_bytes=1_000_000)


def test_limit_does_not_apply_to_uncompressed_batches() -> None:
    """The batch is already in memory and does not grow."""
    plain = MadeBatch((MadeRecord(0, value=bytes(5000)),))
    small = MadeBatch((MadeRecord(1),), Compression.ZSTD)
    log = plain.encoded() + small.encoded()
    assert decode_batches(log, scan_headers(log), most_batch_bytes=100).num_rows == 2


def test_unknown_codec_is_refused() -> None:
    batch = bytearray(SOUND.encoded())
    batch[22] |= 6
    refused(with_crc(batch), "unknown compression 6", UnsupportedFormatError)


@pytest.mark.parametrize("count", [-1, 0, 4, 6, 2**31 - 1])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_wrong_record_count_is_refused(count: int, codec: Compression) -> None:
    batch = batch_of(*range(40, 45), codec=codec)
    refused(
        batch.encoded(count=count), r"(records are found in .* should be|bytes cannot be) -?\d+"
    )


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (LEAST + LEAST, 2, "record 1, at byte 7 of its records, has an offset"),
        (LEAST + LEAST[:5] + b"\1\0", 2, "record 1.*has an offset"),
        (b"\x0c\0\0\1\1\1\0", 1, "record 0.*has an offset"),
        (LEAST + b"x", 1, "records are found in"),
        (b"\x7f" * 9, 1, "records are found in"),
        (zigzag(200) + LEAST, 1, "records are found in"),
        (b"\xff" * 30, 1, "records are found in"),
        (b"\xff" * 30, 4, "records are found in"),
        (b"\0" * 7, 1, "records are found in"),
        (b"\0" * 14, 2, "records are found in"),
        (b"\x0d" + LEAST[1:], 1, "record 0, at byte 0 of its records, is none"),
        (zigzag(7) + b"\0\0\0" + zigzag(90) + b"\0\0", 1, "is none"),
        (zigzag(6) + b"\0\0\0" + b"\1\1" + zigzag(-3), 1, "is none"),
        (zigzag(6) + b"\0\0\0" + b"\1\1" + zigzag(9), 1, "is none"),
        (zigzag(8) + b"\0\0\0" + b"\1\1" + zigzag(1) + b"\1\1", 1, "has headers that do not parse"),
        (zigzag(8) + b"\0\0\0" + b"\1\1" + zigzag(1) + b"\2\1", 1, "has headers that do not parse"),
        (
            zigzag(9) + b"\0\0\0" + b"\1\1" + zigzag(1) + b"\0\1\0",
            1,
            "has headers that do not parse",
        ),
        (
            zigzag(10) + b"\0\0\0" + b"\1\1" + zigzag(1) + b"\0\xf0\1\0",
            1,
            "headers that do not parse",
        ),
        (zigzag(19) + b"\0\0\0\1\1" + zigzag(1) + b"\xff" * 13, 1, "headers that do not parse"),
    ],
)
def test_invalid_record_is_refused(payload: bytes, count: int, reason: str) -> None:
    refused(SOUND.encoded(payload, count), reason)


@pytest.mark.parametrize("delta", [-1, 5, 2**62])
def test_offset_outside_the_batch_is_refused(delta: int) -> None:
    """The record is alone in its log, so that no other record's offset reveals the error."""
    fields = b"\0\0" + zigzag(delta) + b"\1\1\0"
    log = SOUND.encoded(zigzag(len(fields)) + fields, 1)
    with pytest.raises(DamagedSegmentError, match=r"record 0, at byte 0 .*has an offset"):
        decode_batches(log, scan_headers(log))


def test_record_longer_than_its_fields_is_refused_beside_one_with_headers() -> None:
    with_header = zigzag(8) + b"\0\0\0\1\1" + zigzag(1) + b"\0\1"
    longer = zigzag(7) + b"\0\0" + zigzag(1) + b"\1\1\0" + b"x"
    refused(SOUND.encoded(with_header + longer, 2), "record 1, at byte 9 of its records, is none")


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_impossible_record_count_is_refused_before_allocating_memory(
    count: int, codec: Compression
) -> None:
    batch = batch_of(*range(40, 45), codec=codec)
    refused(batch.encoded(count=count), f"bytes cannot be {count} records")


def test_lengths_that_overflow_the_address_space_are_refused() -> None:
    """The sum of two sizes is slightly above 2^64, so that the end seems to fit."""
    for first in (2**63 - 1, 2**62, -(2**63)):
        payload = zigzag(first) + bytes(60)
        refused(SOUND.encoded(payload, 3), "records are found in")


def test_old_message_format_is_distinguished_from_damage() -> None:
    old = bytearray(SOUND.encoded())
    old[16] = 1
    with pytest.raises(UnsupportedFormatError, match=r"t: byte 5: .*message format v1"):
        scan_headers(bytes(old), name="t", position=5)


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 2**63 - 1])
def test_timestamp_is_the_exact_number_the_producer_sent(timestamp: int) -> None:
    """`consume_arrow` and `consume` return 64 bits of milliseconds without interpreting them."""
    log = MadeBatch((MadeRecord(0, timestamp),)).encoded()
    records = decode_batches(log, scan_headers(log), columns=["timestamp"])
    assert records.column("timestamp").to_pylist() == [timestamp]
