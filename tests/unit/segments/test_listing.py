from collections.abc import Iterable

from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset
from tests.harness.broker_segments import directories, meta


def _logs(live: Iterable[int] = (), marked_for_deletion: Iterable[int] = ()) -> list[str]:
    names = [segment_file_name(BaseOffset(base), FileKind.LOG) for base in live]
    names += [
        segment_file_name(BaseOffset(b), FileKind.LOG, deleted=True) for b in marked_for_deletion
    ]
    return names


def _closed(
    base: int, following: int | None, *, marked_for_deletion: bool = False
) -> ClosedSegment:
    return ClosedSegment(
        BaseOffset(base), None if following is None else BaseOffset(following), marked_for_deletion
    )


def test_empty_directory_has_no_segment() -> None:
    assert read_listing([]) == PartitionListing((), None)


def test_single_log_is_active() -> None:
    assert read_listing(_logs([0])) == PartitionListing((), BaseOffset(0))


def test_log_is_closed_once_a_higher_one_exists() -> None:
    listing = read_listing(_logs([1040, 0, 520]))
    assert listing.closed == (_closed(0, 520), _closed(520, 1040))
    assert listing.active == 1040


def test_only_log_files_count() -> None:
    names = [*_logs([0]), "00000000000000000520.index", "00000000000000000520.log.swap"]
    assert read_listing([*names, "partition.metadata"]).closed == ()


def test_segments_marked_for_deletion_are_closed() -> None:
    listing = read_listing(_logs([1040], marked_for_deletion=[0, 520]))
    assert listing.closed == (
        _closed(0, 520, marked_for_deletion=True),
        _closed(520, 1040, marked_for_deletion=True),
    )
    assert listing.active == 1040


def test_live_log_takes_precedence_over_one_marked_for_deletion() -> None:
    listing = read_listing(_logs([0, 520], marked_for_deletion=[0]))
    assert listing.closed == (_closed(0, 520),)


def test_segment_marked_for_deletion_at_the_active_base_is_ignored() -> None:
    listing = read_listing(_logs([0, 520], marked_for_deletion=[520]))
    assert listing == PartitionListing((_closed(0, 520),), BaseOffset(520))


def test_segment_merged_by_compaction_does_not_end_the_live_one() -> None:
    listing = read_listing(_logs([0, 1040], marked_for_deletion=[520]))
    assert listing.closed == (_closed(0, 1040), _closed(520, 1040, marked_for_deletion=True))


def test_end_of_the_highest_segment_marked_for_deletion_is_unknown() -> None:
    listing = read_listing(_logs([0], marked_for_deletion=[520, 1040]))
    assert listing.closed == (
        _closed(520, 1040, marked_for_deletion=True),
        _closed(1040, None, marked_for_deletion=True),
    )
    assert listing.active == 0


def test_no_segment_is_active_without_a_live_log() -> None:
    listing = read_listing(_logs(marked_for_deletion=[0]))
    assert listing == PartitionListing((_closed(0, None, marked_for_deletion=True),), None)


def test_genuine_directories_have_the_segments_the_broker_reported() -> None:
    for directory in directories():
        listing = read_listing(path.name for path in directory.iterdir())
        said = meta(directory)
        closed = [f"{segment.base_offset:020d}" for segment in listing.closed]
        assert closed == said["closed_segments"]
        assert listing.active == int(said["active_segment"])
        ends = [segment.next_base for segment in listing.closed]
        assert ends == [*(s.base_offset for s in listing.closed[1:]), listing.active]
