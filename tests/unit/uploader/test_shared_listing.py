"""One listing for the archives of many partitions, before a trim."""

from collections.abc import Mapping, Sequence

import pytest

from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import REQUIRED_KINDS
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.trim.archive_check import (
    ArchiveCheck,
    CheckedSegments,
    LedPartition,
    Listed,
    SharedListing,
)
from sidetier.uploader.trim.decision import Trim

LAYOUT = ArchiveLayout("c", 0)
PREFIX = "c/"


def archives(store: FakeStorage, segments: Sequence[int]) -> list[CheckedSegments]:
    """Store that many segments of each partition; return a check of all but the first and last."""
    checks = []
    for number, count in enumerate(segments):
        tp = TopicPartition("t", number)
        for base in range(0, count * 10, 10):
            for kind in REQUIRED_KINDS:
                put(store, LAYOUT.object_key(tp, BaseOffset(base), kind))
        for name in ("_metadata", "leader-epoch-checkpoint", "offset.wm"):
            put(store, LAYOUT.partition_prefix(tp) + name)
        bases = [BaseOffset(base) for base in range(10, (count - 1) * 10, 10)]
        led = LedPartition(tp, "/d", LeaderEpoch(1), None)
        trim = Trim(tp, (), Offset(0), Offset(0))
        checks.append(CheckedSegments(led, trim, trim, "", bases, (), None))
    return sorted(checks, key=lambda check: f"{check.led.topic_partition}/")


def put(store: FakeStorage, key: str) -> None:
    store.put_object(key, BytesBody(key.encode()))


def archive_on(store: FakeStorage) -> ArchiveCheck:
    return ArchiveCheck(store, LAYOUT, {})


def needed(check: CheckedSegments, listed: Listed) -> Mapping[object, object]:
    return {"etag": listed.etag, **{base: listed.files.get(base) for base in check.bases}}


@pytest.mark.parametrize(
    ("segments", "requests"),
    [
        ([3] * 16, 1),
        ([3] * 200, 3),
        ([110] * 8, 3),
        # More than a page, or most of one: each partition is listed on its own from then on.
        ([400] * 4, 9),
        ([3, 3, 3, 400, 3, 3], 6),
    ],
)
def test_partitions_are_listed_together_as_they_are_one_by_one(
    segments: list[int], requests: int
) -> None:
    store = FakeStorage()
    checks = archives(store, segments)
    archive = archive_on(store)
    one_by_one = [needed(check, archive.listed(check)) for check in checks]
    store.requests.clear()

    listing = SharedListing(archive, PREFIX)
    together = [needed(check, listing.of(check)) for check in checks]

    assert together == one_by_one
    assert all(None not in row.values() for row in together)
    assert store.count("list") + store.count("head") == requests


def test_page_without_the_partition_shows_that_it_is_missing() -> None:
    """Its `offset.wm` is gone, or all of its objects."""
    store = FakeStorage()
    checks = archives(store, [3] * 5)
    tps = [check.led.topic_partition for check in checks]
    store.delete_object(LAYOUT.watermark_key(tps[1]))
    for row in list(store.list_objects(LAYOUT.partition_prefix(tps[3]))):
        store.delete_object(row.key)
    listing = SharedListing(archive_on(store), PREFIX)

    listed = [listing.of(check) for check in checks]

    assert [row.etag is None for row in listed] == [False, True, False, True, False]
    assert [bool(row.files) for row in listed] == [True, True, True, False, True]


def test_error_of_a_shared_page_concerns_one_partition() -> None:
    store = FakeStorage()
    checks = archives(store, [3] * 3)
    listing = SharedListing(archive_on(store), PREFIX)
    store.fail("list", StoreUnavailableError("503"))
    with pytest.raises(StoreUnavailableError):
        listing.of(checks[0])

    assert [listing.of(check).etag is None for check in checks[1:]] == [False, False]
