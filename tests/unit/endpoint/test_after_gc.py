"""What Kafka clients see of an archive whose oldest segments `sidetier gc` has deleted."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.retention import Retention
from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, encode_metadata
from sidetier.endpoint.catalog import CatalogSettings
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.endpoint import endpoint_over
from tests.harness.made_archive import LAYOUT, TP, MadeArchive
from tests.unit.endpoint.test_fetch import bases


@pytest.fixture(params=["objects", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStorage:
    """A store with orders-0: the offsets 0 to 59 in three segments, in batches of 5."""
    made: RemoteStorage = (
        FakeStorage() if request.param == "objects" else LocalStorage(tmp_path / "store")
    )
    archive = MadeArchive(made)
    archive.segments(0, 20, 40, 60)
    entries = [(BaseOffset(base), base) for base in (0, 20, 40)]
    metadata = encode_metadata(PartitionMetadata(TP).with_segments(entries))
    archive.put(LAYOUT.metadata_key(TP), metadata)
    return made


def collect(store: RemoteStorage) -> None:
    """Delete the segments 0 and 20: each record's timestamp is its offset."""
    collector = PartitionCollector(store, LAYOUT, TP, Retention(age=1.0), now_ms=lambda: 1050)
    done = collector.collect()
    assert (done.new_start, done.segments) == (40, 2)


def test_offsets_below_the_start_are_out_of_range(store: RemoteStorage) -> None:
    collect(store)
    with endpoint_over(store) as parts:
        below, first = parts.read(39), parts.read(40)
        assert below.error_code is ErrorCode.offset_out_of_range
        assert bases(first.records) == [40, 45, 50, 55]
        assert first.log_start_offset == 40


def test_snapshot_from_before_the_deletion_is_renewed(store: RemoteStorage) -> None:
    """The endpoint's snapshot still has the segments, and their bytes are gone. The client repeats
    the Fetch after the first error.
    """
    slow = CatalogSettings(3600, 3600, 3600, 3600)
    with endpoint_over(store, settings=slow) as parts:
        assert parts.read(59).log_start_offset == 0
        collect(store)
        assert parts.read(10).error_code is ErrorCode.not_leader_or_follower
        assert parts.read(10).error_code is ErrorCode.offset_out_of_range
        assert bases(parts.read(40).records) == [40, 45, 50, 55]
