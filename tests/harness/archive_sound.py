"""Invariants of a partition's archive that hold at every moment, also after any kill."""

from collections.abc import Iterable
from dataclasses import dataclass

from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.segments.indexes import parse_offset_index, parse_time_index
from sidetier.segments.keys import parse_gap_key
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.segments.walker import SegmentFacts
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ObjectHead
from tests.harness.batches import facts_of
from tests.harness.daemons import LAYOUT, key_of, stored_logs, watermark_of


def recorded_gaps(store: FakeStorage, tp: TopicPartition) -> list[tuple[int, int]]:
    """Return the recorded gaps as (start, end), end exclusive, in order."""
    prefix = LAYOUT.gap_prefix(tp)
    gap_offsets = [parse_gap_key(key, prefix) for key in store.contents() if key.startswith(prefix)]
    return sorted((int(gap[0]), int(gap[1])) for gap in gap_offsets if gap is not None)


@dataclass(frozen=True, slots=True)
class _Log:
    """A stored `.log` with checked batches. `facts` has its first and next offset."""

    base: int
    facts: SegmentFacts
    first_offset: int
    next_offset: int


def _checked(log: bytes, base: int) -> _Log:
    facts = facts_of(log, base)
    assert facts.first_offset is not None
    assert facts.next_offset is not None
    return _Log(base, facts, facts.first_offset, facts.next_offset)


def check_archive(store: FakeStorage, tp: TopicPartition, start: int = 0) -> None:
    """Check the invariants of an archive.

    - The segment in `offset.wm` is stored, and the segments from `start` to the archive end have no
      gap that is not recorded.
    - Every `.log` is complete, has indexes that belong to it, and matches the notes in its
      metadata.
    - `_metadata` names only stored segments. It names every segment below the archive end, except
      segments that others cover: two sidecars with different segment bases may leave one.
    """
    contents = store.contents()
    logs = {base: _checked(log, base) for base, log in stored_logs(store, tp).items()}
    for log in logs.values():
        _check_indexes(contents, tp, log)
        _check_notes(store.head_object(key_of(tp, log.base)), log)
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
    spans = [(log.first_offset, log.next_offset) for base, log in logs.items() if base in named]
    _check_contiguous(sorted(spans + recorded_gaps(store, tp)), start, watermark.next_offset)


def _check_indexes(contents: dict[str, bytes], tp: TopicPartition, log: _Log) -> None:
    base, following, size = BaseOffset(log.base), log.next_offset, log.facts.size
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
        assert key_of(tp, base, kind) in contents, f"{base}.log is there without {kind}"
    index = parse_offset_index(contents[key_of(tp, base, FileKind.INDEX)], base)
    times = parse_time_index(contents[key_of(tp, base, FileKind.TIMEINDEX)], base)
    assert all(offset < following and at < size for offset, at in index.entries)
    assert all(offset < following for _, offset in times.entries)


def _check_notes(head: ObjectHead, log: _Log) -> None:
    records, end = noted_records(head), noted_next_offset(head)
    assert records in {None, log.facts.plain_records}, f"{head.key} has {log.facts.records} records"
    if records is not None:
        assert end == log.next_offset, f"{head.key} ends at {log.next_offset}, not at {end}"


def _check_contiguous(spans: Iterable[tuple[int, int]], start: int, end: int) -> None:
    expected = start
    for first, following in spans:
        if expected >= end:
            break
        assert first <= expected, f"nothing named holds {expected} to {first - 1}, below {end}"
        expected = max(expected, following)
    assert expected >= end, f"the watermark says {end}, what is stored ends at {expected}"
