"""Metadata records: relevant kinds in every version, and refused records."""

from collections.abc import Callable

import pytest

from sidetier.leadership.kraft.image import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
)
from sidetier.segments.errors import UnsupportedFormatError
from tests.harness import metadata_log as written

ID = bytes(range(16))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_partition_record_of_every_version_is_read(version: int) -> None:
    value = written.partition(ID, 7, 3, epoch=12, version=version)
    assert decode_record(value) == PartitionRecord(ID, 7, leader=3, leader_epoch=12)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("leader", [-1, 0, 300])
def test_change_with_a_leader_is_read(version: int, leader: int) -> None:
    value = written.partition_change(ID, 7, leader, version=version)
    assert decode_record(value) == PartitionChangeRecord(ID, 7, leader)


def test_change_of_only_the_isr_keeps_the_leader() -> None:
    assert decode_record(written.partition_change(ID, 7, None)) == PartitionChangeRecord(
        ID, 7, None
    )


def test_leader_minus_two_equals_a_missing_leader_field() -> None:
    assert decode_record(written.partition_change(ID, 7, -2)) == PartitionChangeRecord(ID, 7, None)


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (written.topic("orders", ID), TopicRecord("orders", ID)),
        (written.remove_topic(ID), RemoveTopicRecord(ID)),
        (written.begin_transaction(), BeginTransactionRecord()),
        (written.end_transaction(), EndTransactionRecord()),
        (written.abort_transaction(), AbortTransactionRecord()),
        (written.no_op(), None),
    ],
)
def test_other_kinds_are_read(value: bytes, record: MetadataRecord | None) -> None:
    assert decode_record(value) == record


def test_unknown_kind_is_skipped() -> None:
    assert decode_record(written.frame(90, 7, b"\xff" * 9)) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x02" + written.topic("orders", ID)[1:], "frame version 2"),
        (written.frame(3, 3, b""), "version 3 of PartitionRecord is not known .0 to 2 are."),
        (written.topic("orders", ID)[:-10], "16 bytes are needed"),
        (written.frame(2, 0, b"\x00" + ID), "-1 bytes are needed"),
        (b"\xff" * 12, "varint"),
        (b"", "no varint ends within 5 bytes"),
    ],
)
def test_malformed_record_is_refused(value: bytes, text: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=text):
        decode_record(value)


@pytest.mark.parametrize(
    "write",
    [
        lambda: written.partition(ID, 7, 3, version=2),
        lambda: written.partition_change(ID, 7, 3),
        lambda: written.topic("orders", ID),
    ],
)
def test_truncated_record_is_never_taken_for_another(write: Callable[[], bytes]) -> None:
    value = write()
    whole = decode_record(value)
    for length in range(3, len(value)):
        try:
            cut = decode_record(value[:length])
        except UnsupportedFormatError:
            continue
        assert cut == whole, "only what lies behind the fields that we read may be missing"
