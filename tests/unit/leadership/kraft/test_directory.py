"""Files in the metadata log's directory that count."""

from sidetier.leadership.kraft.metadata_log import SnapshotId, parse_files
from sidetier.segments.offsets import Offset

LISTING = [
    "00000000000000000557-0000000001.checkpoint",
    "00000000000000000279-0000000002.checkpoint",
    "00000000000000000900-0000000003.checkpoint.part",
    "00000000000000000100-0000000003.checkpoint.deleted",
    "00000000000000000600.log",
    "00000000000000000300.log",
    "00000000000000000000.log.deleted",
    "00000000000000000300.index",
    "leader-epoch-checkpoint",
    "quorum-state",
]


def test_segments_and_snapshots_are_sorted_by_age() -> None:
    files = parse_files(LISTING)
    assert files.logs == (300, 600)
    assert files.snapshots == (SnapshotId(Offset(279), 2), SnapshotId(Offset(557), 1))
    assert files.snapshots[-1].file_name == LISTING[0]


def test_first_segment_to_read_and_its_successors_are_found() -> None:
    files = parse_files(LISTING)
    assert files.segment_holding(Offset(557)) == 300
    assert files.segment_holding(Offset(600)) == 600
    assert files.segment_holding(Offset(299)) is None
    assert files.segment_after(files.logs[0]) == 600
    assert files.segment_after(files.logs[1]) is None
