"""The format of tail packs."""

import re
import struct
import zlib
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.archive.tail import pack as format_of_packs
from sidetier.archive.tail.pack import (
    FOOTER_BYTES,
    MAX_INDEX_BYTES,
    MAX_ROWS,
    PackBuilder,
    TailRow,
    claim,
    decode_footer,
    decode_index,
    epochs_from,
    split_range,
)
from sidetier.segments.crc import crc32c
from sidetier.segments.errors import ChecksumMismatchError, MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn
from tests.harness.tail_packs import (
    TOPIC_ID,
    TP,
    MadePack,
    decode_pack,
    history,
    log,
    partitions,
)

KEY = "_sidetier/prod/tail/1/packs/00000000000000000007"
EPOCHS = history((0, 0), (2, 4), (5, 100))


def _bytes(builder: PackBuilder) -> bytes:
    with builder.body().open() as stream:
        return stream.read()


def _pack() -> tuple[bytes, tuple[TailRow, ...]]:
    made = MadePack()
    made.range(EPOCHS, 2, 9)
    made.claim(EPOCHS, tp=TopicPartition("orders", 1))
    row = made.range(history((7, 0)), 1 << 40, (1 << 40) + 3, tp=TopicPartition("a.b_c-d", 12))
    row = row._replace(
        open=(OpenTransaction(9, Offset(3), 4), OpenTransaction(1 << 50, row.start)),
        aborted=(AbortedTxn(8, Offset(0), row.start, row.start),),
        last_stable=Offset(3),
        log_start=Offset(2),
        tp=TopicPartition("a.b_c-d", 13),
    )
    made.builder.add(row, *log(history((7, 0)), row.start, row.end))
    return _bytes(made.builder), tuple(made.builder.rows)


def test_rows_and_bytes_come_back() -> None:
    data, rows = _pack()
    decoded = decode_pack(data, KEY)
    assert decoded == rows
    first, own, *_, last = decoded
    assert (first.leader_epoch, first.epochs.entries[-1], first.last_epoch) == (5, (5, 100), 2)
    assert (own.is_claim, own.start, own.leader_epoch, own.last_epoch) == (True, 100, 5, None)
    assert first.position == 0
    assert last.position + last.size == decode_footer(data, len(data), KEY).position
    batches = list(split_range(first, data[: first.size], KEY))
    assert [batch.header.leader_epoch for batch in batches] == [0, 2, 2, 2]
    assert b"".join(batch.data for batch in batches) == data[: first.size]


def test_footer_is_as_documented() -> None:
    data, rows = _pack()
    position, length, crc, count, magic, version = struct.unpack(">QIII3sB", data[-FOOTER_BYTES:])
    assert (position, count, magic, version) == (sum(row.size for row in rows), 4, b"STP", 1)
    assert position + length + FOOTER_BYTES == len(data)
    unsigned = struct.pack(">QIII3sB", position, length, 0, count, magic, version)
    assert crc == crc32c(unsigned, crc32c(data[position : position + length]))


def test_a_body_can_be_read_in_any_pieces() -> None:
    data, _ = _pack()
    made = MadePack()
    made.range(EPOCHS, 2, 9)
    body = made.builder.body()
    whole = _bytes(made.builder)
    with body.open() as stream:
        assert b"".join(iter(lambda: stream.read(7), b"")) == whole
        stream.seek(5)
        assert (stream.read(3), stream.tell()) == (whole[5:8], 8)
        stream.seek(0, 2)
        assert stream.read() == b""
    assert (body.size, body.topics) == (len(whole), frozenset({"orders"}))
    assert len(data) > len(whole)


def test_rows_that_do_not_fit_into_the_index_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pack is as before."""
    data, rows = _pack()
    size = len(_index_of(data)[0])
    monkeypatch.setattr(format_of_packs, "MAX_INDEX_BYTES", size)
    assert _pack() == (data, rows)
    monkeypatch.setattr(format_of_packs, "MAX_INDEX_BYTES", size - 1)
    with pytest.raises(ValueError, match=rf"would then have 4 rows and {size} bytes"):
        _pack()
    monkeypatch.setattr(format_of_packs, "MAX_INDEX_BYTES", size)
    monkeypatch.setattr(format_of_packs, "MAX_ROWS", 1)
    builder = PackBuilder()
    first = builder.add(claim(TP, TOPIC_ID, EPOCHS, Offset(0), Offset(0)))
    with pytest.raises(ValueError, match=r"would then have 2 rows"):
        builder.add(first)
    assert decode_pack(_bytes(builder), KEY) == (first,)


def test_a_newer_version_is_a_clear_error() -> None:
    data, _ = _pack()
    with pytest.raises(MalformedObjectError, match=rf"{KEY} has version 2, .*upgrade Sidetier"):
        decode_pack(data[:-1] + b"\x02", KEY)


def _reindexed(index: bytes, rows: int, position: int) -> bytes:
    """Return index and footer of made-up bytes, with right checksums."""
    packed = zlib.compress(index)
    fields = (position, len(packed), 0, rows, b"STP", 1)
    crc = crc32c(struct.pack(">QIII3sB", *fields), crc32c(packed))
    return packed + struct.pack(">QIII3sB", *fields[:2], crc, *fields[3:])


def _index_of(data: bytes) -> tuple[bytes, int, int]:
    footer = decode_footer(data, len(data), KEY)
    packed = data[footer.position : footer.position + footer.length]
    return zlib.decompress(packed), footer.rows, footer.position


def _made_up(index: bytes, rows: int) -> bytes:
    """Return the pack with another index."""
    data, _ = _pack()
    position = _index_of(data)[2]
    return data[:position] + _reindexed(index, rows, position)


@cache
def _damaged() -> dict[str, tuple[bytes, str]]:
    data, _ = _pack()
    index, rows, _ = _index_of(data)
    return {
        "a few bytes": (data[:10], "too few"),
        "cut at the end": (data[:-1], "magic"),
        "cut at the beginning": (data[1:], "position and length"),
        "with more bytes": (b"x" + data, "position and length"),
        "another byte in the index": (
            data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
            "crc32c",
        ),
        "another number of rows": (data[:-5] + b"\x09" + data[-4:], "crc32c"),
        "an empty index": (_made_up(b"", 1), "topics: the index is cut"),
        "topics that are cut": (_made_up(b"\0\0\xff\xff\5ab", 1), "topics: the one with number 0"),
        "more rows than bytes": (_made_up(index, MAX_ROWS), "rows: .* do not fit"),
        "more rows than a pack may have": (_made_up(index, MAX_ROWS + 1), "100001 rows"),
        "no rows": (_made_up(bytes(4), 0), "rows: there are none"),
        "a number that is cut": (_made_up(index + b"\0", rows), "cut within a number"),
        "fewer bytes than the rows have": (_reindexed(index, rows, 0), "size: the rows have"),
    }


@pytest.mark.parametrize("damage", _damaged())
def test_damage_is_an_error_that_names_key_and_field(damage: str) -> None:
    data, field = _damaged()[damage]
    with pytest.raises(MalformedObjectError, match=rf"{re.escape(KEY)}: .*{field}"):
        decode_pack(data, KEY)


def test_an_index_is_not_decompressed_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _reindexed(bytes(10_001), 1, 0)
    monkeypatch.setattr(format_of_packs, "MAX_INDEX_BYTES", 10_000)
    with pytest.raises(MalformedObjectError, match=f"{KEY}: index: .* more than 10000 bytes"):
        decode_pack(data, KEY)


def test_an_index_is_not_fetched_without_bound() -> None:
    """A footer needs no bytes behind its length: the limit is compared before they are read."""
    fields = (0, MAX_INDEX_BYTES + 1, 0, 1, b"STP", 1)
    size = MAX_INDEX_BYTES + 1 + FOOTER_BYTES
    with pytest.raises(MalformedObjectError, match=f"1 rows and {MAX_INDEX_BYTES + 1} bytes"):
        decode_footer(struct.pack(">QIII3sB", *fields), size, KEY)


def test_rows_of_chosen_partitions_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadePack()
    tps = list(partitions(60))
    for tp in [*tps, tps[3]]:
        made.range(EPOCHS, 0, 4, tp=tp)
    data = _bytes(made.builder)
    footer = decode_footer(data, len(data), KEY)
    packed = data[footer.position : -FOOTER_BYTES]
    built: list[TailRow] = []
    monkeypatch.setattr(format_of_packs, "_problem", built.append)
    found = decode_index(packed, footer, KEY, {tps[3], TP})
    assert found.partitions == set(tps)
    assert list(found.rows) == [row for row in made.builder.rows if row.tp == tps[3]]
    assert len(built) == 2


_RIGHT = TailRow(
    TP, TOPIC_ID, EPOCHS, Offset(0), Offset(4), Offset(0), Offset(4), batches=1, max_timestamp=5
)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tp": TopicPartition("a/b", 0)}, "topic"),
        ({"tp": TopicPartition("a", -1)}, "partition"),
        ({"topic_id": "short"}, "topic_id"),
        ({"start": Offset(-1)}, "start"),
        ({"end": Offset(1 << 63)}, "end"),
        ({"start": Offset(4)}, "size and batches"),
        ({"batches": 0}, "batches"),
        ({"batches": 9}, "batches"),
        ({"log_start": Offset(-1)}, "log_start"),
        ({"last_stable": Offset(-1)}, "last_stable"),
        ({"max_timestamp": -2}, "max_timestamp"),
        ({"first_stored_ms": -1}, "first_stored_ms"),
        ({"epochs": history()}, "epochs"),
        ({"epochs": history((3, 0), (2, 4))}, "epochs"),
        ({"epochs": history((2, 4), (3, 1))}, "epochs"),
        ({"epochs": history((-1, 0))}, "epochs"),
        ({"epochs": history((1, 2))}, "epochs"),
        ({"open": (OpenTransaction(1, Offset(4)),)}, "open"),
        ({"aborted": (AbortedTxn(1, Offset(0), Offset(4), Offset(4)),)}, "aborted"),
    ],
)
def test_no_pack_gets_a_row_that_contradicts_itself(
    change: dict[str, object], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(log(EPOCHS, 0, 2))
    PackBuilder().add(_RIGHT, data)
    wrong = _RIGHT._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=field):
        PackBuilder().add(wrong, data)
    # Nor does a reader believe one.
    if field in {"topic", "topic_id"}:
        return
    builder = PackBuilder()
    with monkeypatch.context() as patch:
        patch.setattr(format_of_packs, "_problem", lambda _: None)
        builder.add(wrong, data)
        stored = _bytes(builder) if change.get("end") != 1 << 63 else None
    if stored is not None:
        with pytest.raises(MalformedObjectError, match=rf"{KEY}: (row 0 .*)?{field}"):
            decode_pack(stored, KEY)


def test_a_claim_needs_an_epoch() -> None:
    with pytest.raises(ValueError, match="no epoch"):
        claim(TP, TOPIC_ID, history(), Offset(0), Offset(0))


def test_a_pack_needs_a_row() -> None:
    with pytest.raises(ValueError, match="without rows"):
        PackBuilder().body()


def test_the_history_of_a_range_begins_with_the_epoch_in_force() -> None:
    assert epochs_from(EPOCHS, 4) == history((2, 4), (5, 100))
    assert epochs_from(EPOCHS, 99) == history((2, 4), (5, 100))
    assert epochs_from(EPOCHS, 100) == history((5, 100))


def test_other_bytes_and_other_batches_are_refused() -> None:
    data, rows = _pack()
    row, part = rows[0], data[: rows[0].size]
    with pytest.raises(ChecksumMismatchError, match=rf"{KEY}: orders-0, .* crc64nvme"):
        list(split_range(row, part[:-1] + b"\0", KEY))
    with pytest.raises(ChecksumMismatchError):
        list(split_range(row, part[:-1], KEY))
    for change, field in (
        ({"batches": 3}, "batches"),
        ({"start": Offset(3)}, "offsets"),
        ({"end": Offset(8)}, "offsets"),
        ({"epochs": history((0, 0), (3, 4))}, "epochs"),
    ):
        with pytest.raises(MalformedObjectError, match=rf"{KEY}: orders-0.*{field}"):
            list(split_range(row._replace(**change), part, KEY))


offsets = st.integers(0, 2**62)


@st.composite
def _rows(draw: st.DrawFn) -> list[TailRow]:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(offsets)
        starts = sorted(draw(st.lists(offsets, max_size=3)))
        epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=4, max_size=4)))
        entries = [(epochs[0], min([start, *starts])), *zip(epochs[1:], starts, strict=False)]
        row = claim(
            TopicPartition(draw(st.sampled_from(["a", "b.c", "x" * 249])), draw(st.integers(0, 9))),
            draw(st.sampled_from([TOPIC_ID, "B_-" + TOPIC_ID[3:]])),
            history(*entries),
            Offset(draw(offsets)),
            Offset(draw(offsets)),
        )
        if draw(st.booleans()):
            end = start + draw(st.integers(1, 100))
            row = row._replace(
                start=Offset(start),
                end=Offset(end),
                batches=1,
                max_timestamp=draw(st.integers(-1, 2**62)),
                open=tuple(
                    OpenTransaction(draw(offsets), Offset(draw(st.integers(0, start))), 3)
                    for _ in range(draw(st.integers(0, 2)))
                ),
                aborted=tuple(
                    AbortedTxn(draw(offsets), Offset(0), Offset(end - 1), Offset(draw(offsets)))
                    for _ in range(draw(st.integers(0, 2)))
                ),
            )
        rows.append(row)
    return rows


@given(_rows(), st.binary(min_size=61, max_size=90))
def test_any_rows_come_back(rows: list[TailRow], payload: bytes) -> None:
    builder = PackBuilder()
    for row in rows:
        builder.add(row, *(() if row.is_claim else (payload[:30], payload[30:])))
    assert list(decode_pack(_bytes(builder), KEY)) == list(builder.rows)


@given(st.data())
def test_a_made_up_index_is_refused_or_read(data: st.DataObject) -> None:
    """With right checksums, any change of the index ends in rows or in MalformedObjectError."""
    stored, _ = _pack()
    index, rows, position = _index_of(stored)
    changed = bytearray(index)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(index) - 1))] = data.draw(st.integers(0, 255))
    count = data.draw(st.sampled_from([rows, rows + 1, 0, 1 << 31]))
    made = _reindexed(bytes(changed), count, position)
    try:
        decode_index(
            made[:-FOOTER_BYTES],
            decode_footer(made, len(made) + position, KEY),
            KEY,
        )
    except MalformedObjectError as error:
        assert KEY in str(error)  # noqa: PT017 - most changes are refused, and some are other rows
