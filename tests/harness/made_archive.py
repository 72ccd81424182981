"""Handmade archives on a fake store, and readers over them."""

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.archive.reader import (
    ArchiveReader,
    DamagedArchiveError,
    Failed,
    Gap,
    ReachedEnd,
    ReaderSettings,
    ReadingObserver,
    Records,
    Taken,
)
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import EpochHistory, encode_leader_epoch_checkpoint
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import (
    MAX_TIMESTAMP_KEY,
    NEXT_OFFSET_KEY,
    NONE,
    NOTE_KEYS,
    object_note,
    records_note,
)
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index
from sidetier.segments.walker import BatchWalker
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions, RemoteStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from tests.harness.record_batches import MadeBatch, MadeRecord

LAYOUT = ArchiveLayout("prod-a", 3)
TP = TopicPartition("orders", 0)
URL = "memory://archive"
INDEX_INTERVAL = 200


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def batches(first: int, end: int, each: int = 5) -> list[MadeBatch]:
    """Return batches of `each` records over [first, end); a record's timestamp is its offset."""
    starts = range(first, end, each)
    return [
        MadeBatch(
            tuple(
                MadeRecord(offset, offset, value=f"value-{offset}".encode())
                for offset in range(start, min(start + each, end))
            )
        )
        for start in starts
    ]


def encoded(some: Iterable[MadeBatch]) -> bytes:
    return b"".join(batch.encoded() for batch in some)


@dataclass(slots=True)
class MadeArchive:
    """A partition's archive. With `is_pinterest`, it has only what Pinterest's uploader writes."""

    store: RemoteStorage = field(default_factory=FakeStorage)
    layout: ArchiveLayout = LAYOUT
    tp: TopicPartition = TP
    is_pinterest: bool = False

    def key(self, base: int, kind: FileKind = FileKind.LOG) -> str:
        return self.layout.object_key(self.tp, BaseOffset(base), kind)

    def put(self, key: str, data: bytes, notes: dict[str, str] | None = None) -> None:
        self.store.put_object(key, BytesBody(data), PutOptions(metadata=notes or {}))

    def segment(
        self, base: int, some: Sequence[MadeBatch] | bytes, next_offset: int | None = None
    ) -> bytes:
        """Store a segment with its indexes, and return the `.log`'s bytes."""
        log = some if isinstance(some, bytes) else encoded(some)
        walker = BatchWalker(
            f"{base:020d}.log", index_interval_bytes=INDEX_INTERVAL, rebuild_indexes=True
        )
        walker.feed(memoryview(log))
        facts = walker.finish()
        assert facts.indexes is not None
        end = facts.next_offset if next_offset is None else next_offset
        sidetier_notes = {
            NEXT_OFFSET_KEY: str(end),
            MAX_TIMESTAMP_KEY: str(facts.max_timestamp),
            **records_note(facts.plain_records if facts.next_offset == end else None),
            **object_note(self.key(base), len(log)),
        }
        notes = None if self.is_pinterest else sidetier_notes
        self.put(self.key(base, FileKind.INDEX), facts.indexes.index)
        self.put(self.key(base, FileKind.TIMEINDEX), facts.indexes.timeindex)
        self.put(self.key(base), log, notes)
        return log

    def transaction_indexes(
        self, base: int, aborted: Sequence[AbortedTxn], still_open: dict[int, int]
    ) -> None:
        """Store the broker's optional files of a stored segment, and note them with its `.log`.

        `still_open` has the first offset of each producer's transaction that is open at the
        segment's base.
        """
        row = struct.Struct(">qhiqiqiq")
        producers = [row.pack(p, 0, 0, 0, 0, 0, 0, first) for p, first in still_open.items()]
        files = {
            FileKind.TXNINDEX: encode_txn_index(aborted),
            FileKind.SNAPSHOT: encode_snapshot(producers) if producers else b"",
        }
        log = self.store.get_object(self.key(base))
        notes = dict(log.head.metadata)
        for kind, data in files.items():
            notes[NOTE_KEYS[kind]] = f"{crc64nvme(data):016x}" if data else NONE
            if data:
                self.put(self.key(base, kind), data)
        self.put(self.key(base), log.data, notes)

    def segments(self, *bases: int, each: int = 5) -> None:
        """Store whole segments, from each of these bases up to the next, and then `offset.wm`."""
        for base, end in pairwise(bases):
            self.segment(base, batches(base, end, each))
        self.mark(bases[-2], bases[-1])

    def mark(
        self,
        base: int,
        next_offset: int,
        *,
        leader_epoch: int = 3,
        topic_id: str | None = None,
        start_offset: int | None = None,
    ) -> None:
        """Write `offset.wm`, in the form of Sidetier or of Pinterest's uploader."""
        key = self.layout.watermark_key(self.tp)
        if self.is_pinterest:
            self.put(key, f"{base:020d}".encode())
            return
        watermark = Watermark(
            BaseOffset(base),
            Offset(next_offset),
            LeaderEpoch(leader_epoch),
            topic_id=topic_id,
            nonce=uuid.uuid4().hex,
            start_offset=None if start_offset is None else Offset(start_offset),
        )
        self.put(key, encode_watermark(watermark))

    def epoch_history(self, *entries: tuple[int, int]) -> None:
        """Write `leader-epoch-checkpoint`: epochs, each with its start offset."""
        rows = EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))
        key = self.layout.epoch_checkpoint_key(self.tp)
        self.put(key, encode_leader_epoch_checkpoint(rows).encode())

    def gap(self, first: int, end: int) -> None:
        key = self.layout.gap_key(self.tp, Offset(first), Offset(end))
        self.put(key, json.dumps({"version": 1}).encode())

    def lose(self, base: int, *kinds: FileKind) -> None:
        for kind in kinds or FileKind:
            self.store.delete_object(self.key(base, kind))


def access_to(store: RemoteStorage, layout: ArchiveLayout = LAYOUT) -> ArchiveAccess:
    """Return access to the archive on an open store."""
    provider = PatternEndpointProvider(StorageEndpoint(URL))
    return ArchiveAccess(provider, OpenStores(provider, lambda _: store), layout)


@contextmanager
def reading(
    store: RemoteStorage,
    *,
    layout: ArchiveLayout = LAYOUT,
    observer: ReadingObserver | None = None,
    clock: Callable[[], float] = monotonic,
    **settings: Any,  # noqa: ANN401  settings of ReaderSettings
) -> Iterator[ArchiveReader]:
    """Yield a reader, closed at the end."""
    reader = ArchiveReader(access_to(store, layout), ReaderSettings(**settings), observer, clock)
    try:
        yield reader
    finally:
        reader.close()


def take_until(
    reader: ArchiveReader,
    done: Callable[[Taken], bool],
    timeout: float = 20.0,
    most: int = 1000,
) -> list[Taken]:
    """Take everything up to the first item for which `done` returns True."""
    results: list[Taken] = []
    end = monotonic() + timeout
    while not (results and done(results[-1])):
        assert monotonic() < end, f"nothing more came after {results[-3:]}"
        results += reader.take(most, 0.5)
    return results


def take_to_end(reader: ArchiveReader, most: int = 1000) -> list[Taken]:
    """Take everything up to the end, or up to an item that is not records."""
    return take_until(reader, lambda taken: not isinstance(taken, Records), most=most)


def offsets(taken: Iterable[Taken]) -> list[int]:
    """Return the offsets of all records, in order."""
    return [
        offset
        for item in taken
        if isinstance(item, Records)
        for offset in item.records.column("offset").to_pylist()
    ]


def read_from(archive: MadeArchive, offset: int, **settings: Any) -> list[Taken]:  # noqa: ANN401
    """Read a partition from this offset, up to the first item that is not records."""
    with reading(archive.store, layout=archive.layout, **settings) as reader:
        reader.assign(archive.tp, offset)
        return take_to_end(reader)


def _end_of(last: Taken) -> int:
    if isinstance(last, Gap):
        return last.offsets.end
    assert isinstance(last, Failed)
    assert isinstance(last.error, DamagedArchiveError)
    return last.error.offsets.end


def read_over(archive: MadeArchive, offset: int, **settings: Any) -> list[Taken]:  # noqa: ANN401
    """Read like `read_from`, but continue after gaps and damage up to the end."""
    with reading(archive.store, layout=archive.layout, **settings) as reader:
        reader.assign(archive.tp, offset)
        results = take_to_end(reader)
        while not isinstance(results[-1], ReachedEnd):
            last = results[-1]
            reader.seek(archive.tp, _end_of(last))
            results += take_to_end(reader)
        return results
