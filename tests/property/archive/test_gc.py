"""Any sequence of uploads, collections and kills leaves a contiguous archive."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.listing import list_archive
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    encode_metadata,
    read_metadata,
)
from sidetier.archive.objects.watermark import read_watermark
from sidetier.segments.keys import parse_object_key
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.fake import FakeStorage
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, batches

uploads = st.tuples(st.just("upload"), st.integers(1, 3), st.just(0))
collections = st.tuples(st.just("collect"), st.integers(0, 60), st.integers(0, 60))
kills = st.tuples(st.just("kill"), st.integers(0, 60), st.integers(0, 25))


class Uploads:
    """Appends segments of five records, as a sidecar commits them."""

    def __init__(self) -> None:
        self.store = FakeStorage()
        self.archive = MadeArchive(self.store)
        self.end = 0

    def append(self, count: int) -> None:
        for _ in range(count):
            base, self.end = self.end, self.end + 5
            self.archive.segment(base, batches(base, self.end))
            key = LAYOUT.metadata_key(TP)
            stored = read_metadata(self.store, key)
            known = PartitionMetadata(TP) if stored is None else stored.metadata
            self.archive.put(key, encode_metadata(known.with_segment(BaseOffset(base), base)))
            mark = read_watermark(self.store, LAYOUT.watermark_key(TP))
            start = 0 if mark is None else mark.watermark.start_offset
            self.archive.mark(base, self.end, start_offset=start)


def check(uploaded: Uploads) -> tuple[int, list[int]]:
    """Return the start and the base offsets of the archive, which has no hole."""
    stored = StoredPartition(uploaded.store, LAYOUT, TP)
    _, inventory = list_archive(stored)
    view = inventory.view(stored.prefix)
    bases = [int(log.base_offset) for log in view.logs]
    assert view.end == uploaded.end
    assert bases[0] == view.start
    assert all(following - base == 5 for base, following in pairwise([*bases, uploaded.end]))
    assert all(log.index is not None and log.timeindex is not None for log in view.logs)
    named = stored.names()
    assert set(bases) <= named, "Pinterest's consumer would skip a segment"
    logs = {segment.base_offset for segment in stored.logs()}
    assert named <= logs, "_metadata names a segment that is not stored"
    return int(view.start), bases


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(uploads, collections, kills), min_size=1, max_size=8))
def test_archive_is_contiguous_and_keeps_what_is_needed(
    steps: list[tuple[str, int, int]],
) -> None:
    uploaded = Uploads()
    uploaded.append(2)
    for step, first, second in steps:
        before, _ = check(uploaded)
        needs = [Need(Offset(second), "test", None)] if step == "collect" else []
        lives = second if step == "kill" else None
        if step == "upload":
            uploaded.append(first)
        else:
            store = MortalStore(uploaded.store, lives)
            collector = PartitionCollector(
                store,
                LAYOUT,
                TP,
                Retention(age=1.0),
                needs=needs,
                now_ms=lambda first=first: 1000 + first,  # type: ignore[misc]
            )
            try:
                collector.collect()
            except KilledError:
                assert step == "kill"
        after, _ = check(uploaded)
        assert after >= before, "the start never moves back"
        if step == "collect":
            assert after <= max(before, second), "a needed segment was deleted"
            prefix = LAYOUT.partition_prefix(TP)
            rows = uploaded.store.list_objects(prefix)
            parsed = [parse_object_key(row.key, prefix) for row in rows]
            assert min(name[0] for name in parsed if name is not None) == after
