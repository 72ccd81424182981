"""Records a broker writes into its metadata log are read unchanged."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from sidetier.leadership.kraft.image import (
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    decode_record,
)
from sidetier.leadership.kraft.metadata_log import read_batches
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from tests.harness import metadata_log as written

ids = st.binary(min_size=16, max_size=16)
int32s = st.integers(-(2**31), 2**31 - 1)
brokers = st.integers(0, 2**31 - 1)
versions = st.integers(0, 2)
values = st.lists(st.binary(max_size=200), min_size=1, max_size=20)


@given(st.text(st.characters(codec="utf-8"), max_size=300), ids)
def test_topic_records_round_trip(name: str, topic_id: bytes) -> None:
    assert decode_record(written.topic(name, topic_id)) == TopicRecord(name, topic_id)


@given(ids, int32s, int32s, int32s, st.lists(brokers, max_size=20), versions)
def test_partition_records_round_trip(
    topic_id: bytes, number: int, leader: int, epoch: int, replicas: list[int], version: int
) -> None:
    value = written.partition(
        topic_id, number, leader, epoch=epoch, replicas=replicas, version=version
    )
    assert decode_record(value) == PartitionRecord(topic_id, number, leader, epoch)


@given(ids, int32s, st.none() | st.integers(-1, 2**31 - 1), versions)
def test_partition_change_records_round_trip(
    topic_id: bytes, number: int, leader: int | None, version: int
) -> None:
    value = written.partition_change(topic_id, number, leader, version=version)
    assert decode_record(value) == PartitionChangeRecord(topic_id, number, leader)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_refused_or_read(value: bytes) -> None:
    with suppress(UnsupportedFormatError):
        decode_record(b"\x01" + value)


@given(st.lists(values, min_size=1, max_size=5), st.integers(0, 2**40), st.integers(0, 500))
def test_batches_are_read_up_to_any_truncation(
    batches: list[list[bytes]], base: int, cut: int
) -> None:
    data, ends, expected = b"", list[int](), list[tuple[bytes, ...]]()
    for content in batches:
        data += written.batch(base, content)
        base += len(content)
        ends.append(len(data))
        expected.append(tuple(content))
    left = max(len(data) - cut, 0)
    found = list(read_batches(data[:left]))
    whole = sum(end <= left for end in ends)
    assert [batch.values for batch in found] == expected[:whole]


@given(values, values, st.data())
def test_flipped_bit_is_never_read_as_a_record(
    first: list[bytes], second: list[bytes], data: st.DataObject
) -> None:
    one = written.batch(0, first)
    both = bytearray(one + written.batch(len(first), second))
    # the CRC covers everything from the attributes on
    place = data.draw(st.integers(21, len(one) - 1))
    both[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = list(read_batches(bytes(both)))
    except (DamagedSegmentError, UnsupportedFormatError):
        return
    raise AssertionError(f"read as {found}")
