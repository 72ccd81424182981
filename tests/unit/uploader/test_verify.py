"""Verification before an upload, with genuine segments of a broker and with broken ones."""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    DamagedSegmentError,
    SegmentChangedError,
    SegmentEndsElsewhereError,
    SegmentError,
    SegmentGoneError,
    UnprovenSegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import walk_headers
from sidetier.segments.indexes import (
    PREALLOCATED_INDEX_BYTES,
    PREALLOCATED_TIMEINDEX_BYTES,
    parse_offset_index,
    parse_time_index,
)
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.port import Body
from sidetier.uploader.pinning.pins import PinnedSegment, pin
from sidetier.uploader.sending.reading import ColdPages
from sidetier.uploader.sending.verify import Reading, VerifiedFile, VerifiedSegment, verify
from sidetier.uploader.state.plan import PlannedSegment
from tests.harness.batches import make_batch, pread_of
from tests.harness.broker_segments import BrokerSegment, closed_segments
from tests.harness.log_dir import PartitionLog

SEGMENTS = [s for s in closed_segments() if s.directory.name != "compacted-0"]
CHUNK = 4096


class Look:
    """Pin a segment of a directory and verify it; the pins are released at the end."""

    def __init__(self) -> None:
        self.pinned: list[PinnedSegment] = []

    def pin(self, directory: Path, base: int, end: int) -> PinnedSegment:
        segment = ClosedSegment(BaseOffset(base), BaseOffset(end), marked_for_deletion=False)
        self.pinned.append(pin(str(directory), segment))
        return self.pinned[-1]

    def __call__(
        self,
        directory: Path,
        base: int,
        end: int,
        *,
        start: int | None = None,
        compacted: bool = False,
    ) -> VerifiedSegment:
        return self.verify(self.pin(directory, base, end), start=start, compacted=compacted)

    def verify(
        self,
        pinned: PinnedSegment,
        *,
        start: int | None = None,
        compacted: bool = False,
        committed: bool = False,
    ) -> VerifiedSegment:
        wanted = pinned.segment.base_offset if start is None else start
        pages = ColdPages(pinned.log, watch=False)
        buffer = memoryview(bytearray(CHUNK))
        reading = Reading(pages, buffer, lambda _: None, compacted, committed=committed)
        return verify(pinned, PlannedSegment(pinned.segment, Offset(wanted)), reading)


@pytest.fixture
def look() -> Iterator[Look]:
    look = Look()
    yield look
    for pinned in look.pinned:
        pinned.close()


@pytest.fixture
def closed(log: PartitionLog) -> PartitionLog:
    """A closed segment with the offsets 0 to 99 in twenty batches."""
    log.closed_segment(100)
    return log


def read(body: Body) -> bytes:
    with body.open() as stream:
        return stream.read()


def checked(file: VerifiedFile) -> bytes:
    data = read(file.body)
    assert len(data) == file.body.size
    assert crc64nvme(data) == file.crc64nvme, "the checksum is of what will be sent"
    return data


@pytest.mark.parametrize("segment", SEGMENTS, ids=str)
def test_genuine_segment_passes_unchanged(segment: BrokerSegment, look: Look) -> None:
    found = look(segment.directory, segment.base, segment.next_base)
    assert checked(found.log) == segment.read(FileKind.LOG)
    assert checked(found.index) == segment.read(FileKind.INDEX)
    assert checked(found.timeindex) == segment.read(FileKind.TIMEINDEX)
    assert (found.base_offset, found.next_offset) == (segment.base, segment.next_base)
    assert found.size == len(segment.read(FileKind.LOG))


@pytest.mark.parametrize("segment", SEGMENTS[:3], ids=str)
@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
@pytest.mark.parametrize("damage", ["missing", "preallocated", "garbage", "cut"])
def test_unusable_index_is_rebuilt(
    segment: BrokerSegment, kind: FileKind, damage: str, look: Look, tmp_path: Path
) -> None:
    directory = tmp_path / segment.directory.name
    shutil.copytree(segment.directory, directory)
    path = directory / segment.path(kind).name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "preallocated":
        sizes = {FileKind.INDEX: PREALLOCATED_INDEX_BYTES}
        os.truncate(path, sizes.get(kind, PREALLOCATED_TIMEINDEX_BYTES))
    elif damage == "garbage":
        path.write_bytes(b"\xff" * (len(data) or 24))
    else:
        path.write_bytes(data[:-1] if data else b"\1")
    found = look(directory, segment.base, segment.next_base)
    assert checked(found.log) == segment.read(FileKind.LOG)
    index = parse_offset_index(checked(found.index), segment.base)
    times = parse_time_index(checked(found.timeindex), segment.base)
    assert not index.padded
    assert not times.padded
    assert times.entries, "the last entry of a time index is there always"
    assert times.entries[-1][0] == found.max_timestamp


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("byte", [4, 5, 6, 7])
def test_offset_index_with_a_flipped_bit_in_a_position_is_rebuilt(
    closed: PartitionLog, look: Look, byte: int, bit: int
) -> None:
    """The positions may still increase and lie within the log: a reader would start in the middle
    of a batch.
    """
    path = closed.file(0, FileKind.INDEX)
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[len(sound) // 16 * 8 + byte] ^= 1 << bit
    path.write_bytes(bytes(damaged))
    entries = parse_offset_index(checked(look(closed.path, 0, 100).index), BaseOffset(0)).entries
    log = closed.written[0]
    batches = dict(walk_headers(pread_of(log), len(log)))
    assert entries
    assert all(batches[position].base_offset <= offset for offset, position in entries)


@pytest.mark.parametrize("bit", [0, 4])
@pytest.mark.parametrize("byte", [6, 7, 11])
def test_time_index_with_a_flipped_bit_is_rebuilt(
    closed: PartitionLog, look: Look, byte: int, bit: int
) -> None:
    """The entries may still increase and lie within the log: a reader that seeks a time would miss
    records.
    """
    path = closed.file(0, FileKind.TIMEINDEX)
    damaged = bytearray(path.read_bytes())
    damaged[byte] ^= 1 << bit
    path.write_bytes(bytes(damaged))
    times = parse_time_index(checked(look(closed.path, 0, 100).timeindex), BaseOffset(0))
    log = closed.written[0]
    headers = [header for _, header in walk_headers(pread_of(log), len(log))]
    assert times.entries
    for timestamp, offset in times.entries:
        until = [header.max_timestamp for header in headers if header.base_offset <= offset]
        assert timestamp == max(until)


def test_index_of_zero_bytes_is_stored_unchanged(closed: PartitionLog, look: Look) -> None:
    closed.file(0, FileKind.INDEX).write_bytes(b"")
    found = look(closed.path, 0, 100)
    assert checked(found.index) == b""
    assert checked(found.timeindex) == closed.file(0, FileKind.TIMEINDEX).read_bytes()


@pytest.mark.parametrize("cut", [1, 30, 61, 100, 250])
def test_truncated_tail_is_refused(closed: PartitionLog, look: Look, cut: int) -> None:
    os.truncate(closed.file(0), len(closed.written[0]) - cut)
    with pytest.raises(DamagedSegmentError, match=r"00000000000000000000\.log"):
        look(closed.path, 0, 100)


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 16, 17, 20, 21, 26, 40, 60, 61, 100])
def test_flipped_bit_anywhere_in_a_batch_is_refused(
    closed: PartitionLog, look: Look, at: int
) -> None:
    """In base offset, length, leader epoch, magic, CRC, attributes, header and records."""
    data = bytearray(closed.written[0])
    second = 12 + struct.unpack_from(">i", data, 8)[0]
    data[second + at] ^= 0x40
    closed.file(0).write_bytes(data)
    with pytest.raises((DamagedSegmentError, UnsupportedFormatError)):
        look(closed.path, 0, 100)


def test_empty_log_is_refused(closed: PartitionLog, look: Look) -> None:
    closed.file(0).write_bytes(b"")
    with pytest.raises(DamagedSegmentError, match="no record batch"):
        look(closed.path, 0, 100)


def test_log_of_zeros_is_refused(closed: PartitionLog, look: Look) -> None:
    closed.file(0).write_bytes(bytes(500))
    with pytest.raises(DamagedSegmentError):
        look(closed.path, 0, 100)


def test_old_message_format_is_refused_by_name(closed: PartitionLog, look: Look) -> None:
    closed.file(0).write_bytes(make_batch(0, 10, magic=1))
    with pytest.raises(UnsupportedFormatError, match="v1"):
        look(closed.path, 0, 100)


@pytest.mark.parametrize("end", [99, 101, 150])
def test_log_that_ends_before_the_next_base_offset_is_refused(
    closed: PartitionLog, look: Look, end: int
) -> None:
    """Cut at a batch boundary, every CRC is right: only the next segment's base offset reveals the
    cut.
    """
    with pytest.raises(DamagedSegmentError, match=rf"begins at {end}"):
        look(closed.path, 0, end)


def test_compacted_log_may_end_before_the_next_base_offset(
    closed: PartitionLog, look: Look
) -> None:
    found = look(closed.path, 0, 150, compacted=True)
    assert found.next_offset == 150


def merged_to(pinned: PinnedSegment, end: int) -> VerifiedSegment:
    """Verify with the end that the later listing shows."""
    listed = replace(pinned.segment, next_base=BaseOffset(end))
    pages = ColdPages(pinned.log, watch=False)
    reading = Reading(pages, memoryview(bytearray(CHUNK)), lambda _: None, compacted=True)
    return verify(pinned, PlannedSegment(listed, Offset(0)), reading)


def test_segment_merged_with_its_successor_is_pinned_again(
    closed: PartitionLog, look: Look
) -> None:
    pinned = look.pin(closed.path, 0, 100)
    assert merged_to(pinned, 100).next_offset == 100
    closed.stage(0)
    closed.file(0).write_bytes(closed.written[0])
    with pytest.raises(SegmentChangedError, match="merged with what followed it"):
        merged_to(pinned, 150)
    assert merged_to(pinned, 100).next_offset == 100, "rewritten alone, it is whole as it was"


@pytest.mark.parametrize("unlinked", [False, True])
def test_segment_whose_merged_file_is_gone_is_stored_up_to_its_own_end(
    closed: PartitionLog, look: Look, *, unlinked: bool
) -> None:
    pinned = look.pin(closed.path, 0, 100)
    closed.stage(0)
    if unlinked:
        closed.unlink(0)
    with pytest.raises(SegmentEndsElsewhereError, match="merged") as caught:
        merged_to(pinned, 150)
    assert caught.value.next_offset == 100


def test_indexes_of_a_compacted_topic_are_always_rebuilt(closed: PartitionLog, look: Look) -> None:
    """Indexes of the file before compaction may fit by chance, with wrong times."""
    first_entry = closed.file(0, FileKind.INDEX).read_bytes()[:8]
    closed.file(0, FileKind.INDEX).write_bytes(first_entry)
    assert checked(look(closed.path, 0, 100).index) == first_entry
    rebuilt = checked(look(closed.path, 0, 100, compacted=True).index)
    assert rebuilt != first_entry
    index = parse_offset_index(rebuilt, BaseOffset(0))
    batches = dict(walk_headers(pread_of(closed.written[0]), len(closed.written[0])))
    places = {header.last_offset: position for position, header in batches.items()}
    assert all(places[Offset(offset)] == position for offset, position in index.entries)


@pytest.mark.parametrize(
    "epochs",
    [
        pytest.param("0\n1\n1 0\n", id="an epoch that it does not know"),
        pytest.param("0\n2\n0 0\n1 50\n", id="an epoch that ended in the middle"),
        pytest.param("0\n0\n", id="none"),
    ],
)
def test_batches_of_another_epoch_history_are_refused(
    closed: PartitionLog, look: Look, epochs: str
) -> None:
    (closed.path / "leader-epoch-checkpoint").write_text(epochs)
    with pytest.raises(DamagedSegmentError, match="epoch history"):
        look(closed.path, 0, 100)


def test_segment_of_a_dropped_epoch_is_accepted_only_in_the_live_log_or_committed(
    closed: PartitionLog, look: Look
) -> None:
    """Retention and truncation rename to the same file names."""
    pinned = look.pin(closed.path, 0, 100)
    (closed.path / "leader-epoch-checkpoint").write_text("0\n1\n1 100\n")
    assert look.verify(pinned).next_offset == 100, "it has its live name"
    closed.stage(0)
    with pytest.raises(UnprovenSegmentError, match="retention or truncation"):
        look.verify(pinned)
    assert look.verify(pinned, committed=True).next_offset == 100


@pytest.mark.parametrize("text", ["", "1\n1\n0 0\n", "0\nmany\n"])
def test_checkpoint_that_does_not_parse_says_nothing_about_the_segment(
    closed: PartitionLog, look: Look, text: str
) -> None:
    """A segment of an old format, or a damaged one, may become a gap; this one waits."""
    (closed.path / "leader-epoch-checkpoint").write_text(text)
    with pytest.raises(SegmentError, match="leader-epoch-checkpoint") as caught:
        look(closed.path, 0, 100)
    assert type(caught.value) is SegmentError


def test_deleted_partition_directory_raises_segment_gone(closed: PartitionLog, look: Look) -> None:
    pinned = look.pin(closed.path, 0, 100)
    closed.delete_topic()
    with pytest.raises(SegmentGoneError, match="leader-epoch-checkpoint"):
        look.verify(pinned)


def test_deleted_segment_passes_verification(closed: PartitionLog, look: Look) -> None:
    pinned = look.pin(closed.path, 0, 100)
    closed.stage(0)
    closed.unlink(0)
    found = look.verify(pinned)
    assert checked(found.log) == closed.written[0]


def _truncate(log: PartitionLog) -> None:
    os.truncate(log.file(0), 10)


def _rewrite(log: PartitionLog) -> None:
    log.file(0).write_bytes(log.written[0][::-1])


def _replace(log: PartitionLog) -> None:
    log.stage(0)
    log.file(0).write_bytes(log.written[0])


def _rewrite_without_a_name(log: PartitionLog) -> None:
    log.stage(0)
    log.file(0, deleted=True).write_bytes(log.written[0])


@pytest.mark.parametrize("change", [_truncate, _rewrite, _replace, _rewrite_without_a_name])
def test_change_before_the_verification_is_detected(
    closed: PartitionLog, look: Look, change: Callable[[PartitionLog], None]
) -> None:
    closed.set_age(0, 5)
    pinned = look.pin(closed.path, 0, 100)
    change(closed)
    with pytest.raises(SegmentChangedError):
        look.verify(pinned)


@pytest.mark.parametrize("change", [_rewrite, _replace, _rewrite_without_a_name])
def test_change_during_the_verification_is_detected(
    closed: PartitionLog,
    look: Look,
    change: Callable[[PartitionLog], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed.set_age(0, 5)
    pinned = look.pin(closed.path, 0, 100)
    plain = ColdPages.read_into
    changed: list[bool] = []

    def read_and_change(pages: ColdPages, view: memoryview, position: int) -> int:
        count = plain(pages, view, position)
        if not changed:
            changed.append(True)
            change(closed)
        return count

    monkeypatch.setattr(ColdPages, "read_into", read_and_change)
    with pytest.raises((SegmentChangedError, DamagedSegmentError)):
        look.verify(pinned)
    assert changed


@pytest.mark.parametrize("start", range(5, 100, 13))
def test_slice_begins_with_the_batch_that_holds_its_start(
    closed: PartitionLog, look: Look, start: int
) -> None:
    found = look(closed.path, 0, 100, start=start)
    first = start - start % 5
    assert (found.base_offset, found.next_offset) == (first, 100)
    data = checked(found.log)
    assert closed.written[0].endswith(data)
    assert struct.unpack_from(">q", data) == (first,)
    index = parse_offset_index(checked(found.index), found.base_offset)
    for offset, position in index.entries:
        base, length, delta = struct.unpack_from(">qi11xi", data, position)
        assert base <= offset <= base + delta
        assert position + 12 + length <= len(data)
    times = parse_time_index(checked(found.timeindex), found.base_offset)
    assert times.entries[-1] == (found.max_timestamp, 99)


def test_slice_beyond_the_end_of_the_segment_is_refused(closed: PartitionLog, look: Look) -> None:
    with pytest.raises(DamagedSegmentError, match="reaches offset 100"):
        look(closed.path, 0, 150, start=100)


def test_damage_before_a_slice_is_neither_sent_nor_an_obstacle(
    closed: PartitionLog, look: Look
) -> None:
    data = bytearray(closed.written[0])
    data[80] ^= 1  # in the records of the first batch
    closed.file(0).write_bytes(data)
    assert look(closed.path, 0, 100, start=50).base_offset == 50


def test_index_changed_after_verification_does_not_match_its_checksum(
    closed: PartitionLog, look: Look
) -> None:
    """The upload carries the checksum of the verified bytes, so the store refuses any other
    bytes.
    """
    found = look(closed.path, 0, 100)
    sound = closed.file(0, FileKind.INDEX).read_bytes()
    assert found.index.crc64nvme == crc64nvme(sound)
    closed.file(0, FileKind.INDEX).write_bytes(b"\xff" * len(sound))
    assert crc64nvme(read(found.index.body)) != found.index.crc64nvme
