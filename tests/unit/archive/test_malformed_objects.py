"""Malformed stored objects: each reader names the key, and raises one type of error."""

from collections.abc import Callable

import pytest

from sidetier.archive.objects.acknowledgements import Acknowledgement, read_acknowledgement
from sidetier.archive.objects.chapters import decode_chapter
from sidetier.archive.objects.cluster_snapshots import decode_index, decode_snapshot
from sidetier.archive.objects.drill_record import decode_drill
from sidetier.archive.objects.gaps import shorten_gap
from sidetier.archive.objects.layout import read_note
from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.quarantine import decode_plan
from sidetier.archive.objects.starts import read_earliest_start
from sidetier.archive.objects.tail_index import read_tail_index
from sidetier.archive.objects.watermark import decode_watermark
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.daemons import LAYOUT

TP = TopicPartition("t", 0)
DEEP = b"[" * 100_000 + b"]" * 100_000
BAD = {
    "deep": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "deep field": b'{"version": 1, "segments": ' + DEEP + b"}",
    "no JSON": b"\xff{",
    "empty": b"",
    "list": b"[]",
    "number": b"7",
    "null": b"null",
    "text": b'"text"',
    "infinite": b'{"version": 1e999, "bits": 1e999, "start_offset": 1e999}',
}


def _stored(key: str, data: bytes) -> FakeStorage:
    store = FakeStorage()
    store.put_object(key, BytesBody(data))
    return store


def _note(data: bytes, _key: str) -> object:
    return read_note(_stored(LAYOUT.layout_key(), data), LAYOUT)


def _start(data: bytes, _key: str) -> object:
    return read_earliest_start(_stored(LAYOUT.start_key(TP), data), LAYOUT, TP, None)


def _tail_index(data: bytes, _key: str) -> object:
    return read_tail_index(_stored(LAYOUT.tail_index_key(1), data), LAYOUT, 1)


def _line_2(data: bytes, key: str) -> object:
    return decode_watermark(b"0" * 20 + b'\n{"a": ' + data + b"}\n", key)


DECODERS: dict[str, Callable[[bytes, str], object]] = {
    "chapter": decode_chapter,
    "cluster snapshot": decode_snapshot,
    "index of snapshots": decode_index,
    "drill": decode_drill,
    "layout": _note,
    "metadata": decode_metadata,
    "plan": decode_plan,
    "start": _start,
    "index of tail packs": _tail_index,
    "watermark": _line_2,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_malformed_object_is_named(decode: Callable[[bytes, str], object], data: bytes) -> None:
    with pytest.raises(MalformedObjectError) as caught:
        decode(data, "a/key.json")
    text = str(caught.value)
    keys = LAYOUT.layout_key(), LAYOUT.start_key(TP), LAYOUT.tail_index_key(1)
    assert any(key in text for key in ("a/key.json", *keys))
    assert len(text) < 1000


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_malformed_records_of_an_operator_are_empty(data: bytes) -> None:
    assert read_acknowledgement(_stored("k", data), "k") == Acknowledgement()
    key = LAYOUT.gap_key(TP, Offset(0), Offset(10))
    store = _stored(key, data)
    shorten_gap(store, LAYOUT, TP, Offset(5))
    assert LAYOUT.gap_key(TP, Offset(0), Offset(5)) in store.contents()
