"""Stored segments that do not belong to the archive."""

import pytest

from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, encode_metadata
from sidetier.archive.reader import Records
from sidetier.segments.offsets import BaseOffset
from tests.harness.made_archive import TP, MadeArchive, offsets, read_from
from tests.harness.record_batches import MadeBatch, MadeRecord


def strange(first: int, end: int) -> list[MadeBatch]:
    """Records that an election truncated."""
    return [MadeBatch((MadeRecord(at, at, value=b"thrown away"),)) for at in range(first, end)]


def name(archive: MadeArchive, *bases: int) -> None:
    """Write `_metadata`."""
    entries = [(BaseOffset(base), base) for base in bases]
    data = encode_metadata(PartitionMetadata(TP).with_segments(entries))
    archive.put(archive.layout.metadata_key(TP), data)


def values(archive: MadeArchive, offset: int = 0) -> list[bytes]:
    taken = read_from(archive, offset)
    return [
        value
        for one in taken
        if isinstance(one, Records)
        for value in one.records.column("value").to_pylist()
    ]


@pytest.fixture
def archive() -> MadeArchive:
    """50 records in segments of ten, and `25.log`, which a former leader left."""
    made = MadeArchive()
    made.segments(0, 10, 20, 30, 40, 50)
    made.segment(25, strange(25, 35))
    return made


@pytest.mark.parametrize("offset", [0, 24, 25, 29, 31])
def test_segment_superseded_by_others_is_not_read(archive: MadeArchive, offset: int) -> None:
    name(archive, 0, 10, 20, 30, 40)

    assert values(archive, offset) == [f"value-{at}".encode() for at in range(offset, 50)]


def test_segment_committed_over_others_is_read(archive: MadeArchive) -> None:
    """A later leader has other base offsets and begins below the end of the previous leader's
    segments.
    """
    name(archive, 0, 10, 20, 25, 30, 40)

    assert values(archive)[24:30] == [b"value-24", *[b"thrown away"] * 5]


def test_segment_that_alone_has_its_offsets_is_read(archive: MadeArchive) -> None:
    """`_metadata` has lost entries, which must not appear as gaps."""
    name(archive, 0, 10, 30, 40)

    assert offsets(read_from(archive, 0)) == list(range(50))


@pytest.mark.parametrize("data", [None, b"{}"])
def test_all_stored_segments_are_read_without_metadata(
    archive: MadeArchive, data: bytes | None
) -> None:
    if data is not None:
        archive.put(archive.layout.metadata_key(TP), data)

    assert offsets(read_from(archive, 0)) == list(range(50))
