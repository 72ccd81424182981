import json

import pytest

from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    TimeIndexEntry,
    append_segments,
    count_entries,
    decode_metadata,
    encode_metadata,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BaseOffset, TopicPartition

KEY = "c/t-0/_metadata"
EMPTY = PartitionMetadata(TopicPartition("t", 0))


def _with(*segments: tuple[int, int]) -> PartitionMetadata:
    metadata = EMPTY
    for base, timestamp in segments:
        metadata = metadata.with_segment(BaseOffset(base), timestamp)
    return metadata


def _rows(metadata: PartitionMetadata) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.timestamp) for entry in metadata.entries]


def test_document_has_pinterests_format() -> None:
    assert json.loads(encode_metadata(_with((520, 9)))) == {
        "topicPartition": {"hash": 0, "partition": 0, "topic": "t"},
        "metadata": {
            "timeindex": {
                "entries": [{"timestamp": 9, "relativeOffset": 0, "baseOffset": 520}],
                "timeIndexType": "TOPIC_PARTITION",
                "size": 1,
            }
        },
    }


def test_entries_are_sorted_by_base_offset_and_timestamps_never_decrease() -> None:
    assert _rows(_with((520, 30), (0, 10), (1040, 20))) == [(0, 10), (520, 30), (1040, 30)]


def test_late_timestamp_raises_those_after_it() -> None:
    assert _rows(_with((0, 10), (1040, 20), (520, 50))) == [(0, 10), (520, 50), (1040, 50)]


def test_segment_keeps_its_entry() -> None:
    metadata = _with((0, 10), (520, 20))
    assert metadata.with_segment(BaseOffset(520), 99) == metadata


def test_additional_fields_of_pinterest_are_ignored() -> None:
    document = json.loads(encode_metadata(_with((0, 10), (520, 20))))
    document["topicPartition"]["hash"] = -77
    document["loadHash"] = '"an etag"'
    document["metadata"]["timeindex"]["size"] = 5
    document["metadata"]["somethingelse"] = {"a": 1}
    assert decode_metadata(json.dumps(document).encode(), KEY) == _with((0, 10), (520, 20))


def test_unsorted_entries_of_pinterest_are_sorted() -> None:
    document = json.loads(encode_metadata(EMPTY))
    document["metadata"]["timeindex"]["entries"] = [
        {"timestamp": ts, "relativeOffset": 0, "baseOffset": base}
        for ts, base in [(5, 1040), (7, 520), (9, 520), (1, 0)]
    ]
    decoded = decode_metadata(json.dumps(document).encode(), KEY)
    assert _rows(decoded) == [(0, 1), (520, 9), (1040, 9)]


def test_document_without_a_time_index_has_no_entries() -> None:
    document = b'{"topicPartition":{"partition":0,"topic":"t"},"metadata":{}}'
    assert decode_metadata(document, KEY) == EMPTY


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b"{}",
        b'{"topicPartition":{"partition":0,"topic":"t"}}',
        b'{"topicPartition":{"partition":0,"topic":"t"},"metadata":[]}',
        b'{"topicPartition":{"partition":0,"topic":5},"metadata":{}}',
        b'{"topicPartition":{"partition":"0","topic":"t"},"metadata":{}}',
        b'{"topicPartition":{"partition":0,"topic":"t"},"metadata":{"timeindex":{"size":1}}}',
        b"[" * 100_000,
    ],
)
def test_error_for_a_malformed_document_names_the_key(data: bytes) -> None:
    with pytest.raises(
        MalformedObjectError, match=rf"^{KEY}: not a partition's metadata"
    ) as caught:
        decode_metadata(data, KEY)
    assert repr(data[:60]) in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {},
        {"timestamp": 1, "relativeOffset": 0},
        {"timestamp": 1.5, "relativeOffset": 0, "baseOffset": 0},
        {"timestamp": 1, "relativeOffset": 0, "baseOffset": -1},
        {"timestamp": 1, "relativeOffset": 0, "baseOffset": True},
    ],
)
def test_invalid_entry_is_refused(entry: object) -> None:
    document = json.loads(encode_metadata(EMPTY))
    document["metadata"]["timeindex"]["entries"] = [entry]
    with pytest.raises(MalformedObjectError, match=KEY):
        decode_metadata(json.dumps(document).encode(), KEY)


def test_entries_of_many_segments_are_added_at_once() -> None:
    many = EMPTY.with_segments([(BaseOffset(520), 5), (BaseOffset(0), 9)])
    assert many.entries == (TimeIndexEntry(9, BaseOffset(0)), TimeIndexEntry(9, BaseOffset(520)))


# -- appending without parsing all entries --------------------------------------------------------


@pytest.mark.parametrize("topic", ["t", 'a "quoted" {"timestamp":1}', "é.ö-_"])
@pytest.mark.parametrize(
    "added",
    [
        pytest.param([(1040, 40)], id="one"),
        pytest.param([(2080, 60), (1040, 40)], id="two, not in order"),
        pytest.param([(1040, 5)], id="an earlier time"),
        pytest.param([(1040, -1)], id="no time"),
    ],
)
def test_append_gives_the_same_bytes_as_reading_and_writing_everything(
    topic: str, added: list[tuple[int, int]]
) -> None:
    document = PartitionMetadata(TopicPartition(topic, 3)).with_segments(
        [(BaseOffset(0), 10), (BaseOffset(520), 30)]
    )
    segments = [(BaseOffset(base), time) for base, time in added]
    appended = append_segments(encode_metadata(document), segments)
    assert appended == encode_metadata(document.with_segments(segments))
    assert count_entries(appended) == 2 + len(added)


@pytest.mark.parametrize(
    ("document", "added"),
    [
        pytest.param(encode_metadata(EMPTY), [(0, 1)], id="no entry yet"),
        pytest.param(encode_metadata(_with((520, 9))), [(520, 9)], id="there already"),
        pytest.param(encode_metadata(_with((520, 9))), [(0, 9)], id="below the last"),
        pytest.param(encode_metadata(_with((520, 9))), [(1040, 9), (0, 9)], id="one of two below"),
        pytest.param(encode_metadata(_with((520, 9))), [], id="nothing"),
        pytest.param(encode_metadata(_with((520, 9))) + b" ", [(1040, 9)], id="another form"),
        pytest.param(
            b" " + encode_metadata(_with((520, 9))), [(1040, 9)], id="another form at its start"
        ),
        pytest.param(b"", [(1040, 9)], id="no document"),
    ],
)
def test_document_that_cannot_be_appended_to_returns_none(
    document: bytes, added: list[tuple[int, int]]
) -> None:
    segments = [(BaseOffset(base), time) for base, time in added]
    assert append_segments(document, segments) is None
