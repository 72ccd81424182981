"""What must be true of a partition's archive at every moment, whoever was killed when."""

from collections.abc import Container

from sidetier.segments.batches import BatchWalker
from sidetier.segments.indexes import parse_offset_index, parse_time_index
from sidetier.segments.keys import parse_gap_key
from sidetier.segments.metadata import decode_metadata
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.daemons import LAYOUT, key_of, stored_logs, watermark_of


def recorded_gaps(store: FakeStorage, tp: TopicPartition) -> list[tuple[int, int]]:
    """Start and end of each gap that is recorded, in order."""
    prefix = LAYOUT.gap_prefix(tp)
    found = [parse_gap_key(key, prefix) for key in store.contents() if key.startswith(prefix)]
    return sorted((int(gap[0]), int(gap[1])) for gap in found if gap is not None)


def offsets_of(log: bytes, base: int) -> tuple[int, int]:
    """First and next offset of a stored `.log`, every batch of which is checked."""
    walker = BatchWalker(segment_file_name(BaseOffset(base), FileKind.LOG))
    walker.feed(memoryview(log))
    facts = walker.finish()
    assert facts.first_offset is not None
    assert facts.next_offset is not None
    return facts.first_offset, facts.next_offset


def check_archive(store: FakeStorage, tp: TopicPartition, start: int = 0) -> None:
    """The watermark names what is there, without a hole from `start` on that is not recorded;
    every `.log` is whole, with indexes that belong to it; `_metadata` names nothing that is not
    there, and everything below the watermark but for segments that others cover: two sidecars with
    other segments may leave one.
    """
    contents, logs = store.contents(), stored_logs(store, tp)
    for base in logs:
        _check_indexes(contents, tp, base)
    watermark = watermark_of(store, tp)
    metadata = contents.get(LAYOUT.metadata_key(tp))
    named = set()
    if metadata is not None:
        named = {entry.base_offset for entry in decode_metadata(metadata, "_metadata").entries}
    assert named <= logs.keys(), f"_metadata names {named - logs.keys()}, which are not stored"
    if watermark is None:
        return
    assert watermark.base_offset in logs, "the watermark names a segment that is not stored"
    assert watermark.base_offset in named, "_metadata hides the segment that the watermark names"
    assert watermark.next_offset is not None
    _check_contiguous(store, tp, named, start, watermark.next_offset)


def _check_indexes(contents: dict[str, bytes], tp: TopicPartition, base: int) -> None:
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
        assert key_of(tp, base, kind) in contents, f"{base}.log is there without {kind}"
    log = contents[key_of(tp, base)]
    _, following = offsets_of(log, base)
    index = parse_offset_index(contents[key_of(tp, base, FileKind.INDEX)], BaseOffset(base))
    times = parse_time_index(contents[key_of(tp, base, FileKind.TIMEINDEX)], BaseOffset(base))
    assert all(offset < following and at < len(log) for offset, at in index.entries)
    assert all(offset < following for _, offset in times.entries)


def _check_contiguous(
    store: FakeStorage, tp: TopicPartition, named: Container[int], start: int, end: int
) -> None:
    logs = stored_logs(store, tp)
    spans = [offsets_of(log, base) for base, log in logs.items() if base in named]
    expected = start
    for first, following in sorted(spans + recorded_gaps(store, tp)):
        if expected >= end:
            break
        assert first <= expected, f"nothing named holds {expected} to {first - 1}, below {end}"
        expected = max(expected, following)
    assert expected >= end, f"the watermark says {end}, what is stored ends at {expected}"
