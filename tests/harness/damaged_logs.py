"""Stored `.log`s that were damaged, exchanged or overwritten, and what their readers report.

Three readers must notice it, each from what the sidecar noted when it archived the segment: the
consumer's reader, `sidetier verify --deep`, and the check before local retention deletes records.
"""

import random
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from time import monotonic

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.watermark import read_watermark
from sidetier.archive.reader import (
    ArchiveReader,
    DamagedArchiveError,
    Failed,
    Gap,
    IsolationLevel,
    ReachedEnd,
    ReaderSettings,
    Records,
)
from sidetier.archive.verify.findings import KINDS, Severity
from sidetier.archive.verify.run import Verification, VerifyRequest
from sidetier.segments.errors import StorageError
from sidetier.segments.headers import walk_headers
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage
from sidetier.uploader.trim.archive_check import ArchiveCheck, LedPartition
from sidetier.uploader.trim.decision import LocalSegment, Trim
from tests.harness.batches import with_crc
from tests.harness.cut_logs import can_be_cut, committed_logs, cut_log

_READ_SECONDS = 60.0
_KEPT = "kept-by-the-test"
_ERRORS = frozenset(kind for kind, facts in KINDS.items() if facts.severity is Severity.ERROR)

Record = tuple[bytes | None, bytes | None]
"""Key and value."""


class Damage(Enum):
    """How another program damages a `.log`.

    With COPIED, the bytes come with their metadata, as by `copy_object`. With PUT, the metadata is
    that of the replaced object.
    """

    CUT = auto()
    """The last batches are gone, at the border of a batch."""
    COPIED = auto()
    """Exchanged with another segment of the partition."""
    PUT = auto()
    COPIED_ELSEWHERE = auto()
    """Exchanged with a segment of another partition, with the same base offset if there is one."""
    PUT_ELSEWHERE = auto()
    FLIPPED = auto()
    """One byte of a record differs."""
    REWRITTEN = auto()
    """One byte of a record differs, and the batch has a valid CRC."""

    @property
    def other_partition(self) -> bool:
        """Whether a segment of another partition is needed."""
        return self in {Damage.COPIED_ELSEWHERE, Damage.PUT_ELSEWHERE}

    @property
    def shows_to_reader(self) -> bool:
        """Whether a reader must notice it from the batches. Valid batches with offsets of the
        segment are noticed only by the checksum or the metadata of the object.
        """
        return self is not Damage.REWRITTEN and not self.other_partition


@dataclass(frozen=True, slots=True)
class Segment:
    """A committed `.log`, and the part of the archive around it.

    Attributes:
        tp: Its partition.
        key: Its key.
        base: Its base offset.
        until: Where the next segment begins, or the archive end offset.
        around: Start and end of it and its two neighbours.
    """

    tp: TopicPartition
    key: str
    base: int
    until: int
    around: tuple[int, int]


def segments_of(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> list[Segment]:
    """Return the committed segments, by ascending base offset."""
    keys = committed_logs(store, layout, tp)
    mark = read_watermark(store, layout.watermark_key(tp))
    if mark is None or mark.watermark.next_offset is None:
        return []
    ends = [*(_base_of(key) for key in keys), int(mark.watermark.next_offset)]
    return [
        Segment(
            tp,
            key,
            ends[number],
            ends[number + 1],
            (ends[max(0, number - 1)], ends[min(number + 2, len(keys))]),
        )
        for number, key in enumerate(keys)
    ]


def _base_of(key: str) -> int:
    return int(key.rpartition("/")[2].partition(".")[0])


@contextmanager
def damaged(
    store: RemoteStorage,
    damage: Damage,
    victim: Segment,
    other: Segment | None,
    dice: random.Random,
) -> Iterator[frozenset[str]]:
    """Damage a segment until the context ends.

    Args:
        store: The store.
        damage: The damage.
        victim: The segment.
        other: The segment to exchange it with.
        dice: Chooses the byte that differs.

    Yields:
        The keys of the damaged objects; none if the segment cannot be damaged so.
    """
    kept = {key: f"{_KEPT}/{n}" for n, key in enumerate(_keys(damage, victim, other))}
    if damage is Damage.CUT and not can_be_cut(store, victim.key):
        kept = {}
    for key, copy in kept.items():
        store.copy_object(key, copy)
    try:
        if kept:
            _damage(store, damage, list(kept.items()), dice)
        yield frozenset(kept)
    finally:
        for key, copy in kept.items():
            store.copy_object(copy, key)
            store.delete_object(copy)


def _keys(damage: Damage, victim: Segment, other: Segment | None) -> Iterator[str]:
    if damage in {Damage.CUT, Damage.FLIPPED, Damage.REWRITTEN}:
        yield victim.key
    elif other is not None:
        yield from (victim.key, other.key)


def _damage(
    store: RemoteStorage, damage: Damage, kept: Sequence[tuple[str, str]], dice: random.Random
) -> None:
    if damage is Damage.CUT:
        cut_log(store, kept[0][0])
    elif damage in {Damage.FLIPPED, Damage.REWRITTEN}:
        key = kept[0][0]
        data = with_other_byte(store.get_object(key).data, dice, valid=damage is Damage.REWRITTEN)
        _overwrite(store, key, data)
    else:
        (first, first_kept), (second, second_kept) = kept
        for key, source in ((first, second_kept), (second, first_kept)):
            if damage in {Damage.COPIED, Damage.COPIED_ELSEWHERE}:
                store.copy_object(source, key)
            else:
                _overwrite(store, key, store.get_object(source).data)


def _overwrite(store: RemoteStorage, key: str, data: bytes) -> None:
    """Replace the bytes; the metadata stays."""
    store.put_object(
        key, BytesBody(data), PutOptions(metadata=dict(store.head_object(key).metadata))
    )


def with_other_byte(data: bytes, dice: random.Random, *, valid: bool) -> bytes:
    """Change the last byte of a record batch's payload, which is never a length: 0 headers.

    The byte before is the last one of the last value.

    Args:
        data: A `.log`.
        dice: Chooses the batch.
        valid: Whether the batch gets a valid CRC.
    """
    headers = list(walk_headers(lambda at, size: data[at : at + size], len(data)))
    plain = [(at, header) for at, header in headers if not header.is_control] or headers
    at, header = dice.choice(plain)
    batch = bytearray(data[at : at + header.length])
    batch[-2] ^= 1
    changed = with_crc(batch) if valid else bytes(batch)
    return data[:at] + changed + data[at + header.length :]


# -- the readers -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """Result of reading a range of offsets: records by offset, and what was reported as missing."""

    records: dict[int, Record] = field(default_factory=dict)
    missing: list[tuple[int, int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def reports(self, offset: int) -> bool:
        """Whether the reader has reported that this offset cannot be read."""
        return any(start <= offset < end for start, end in self.missing)


def read_range(archive: ArchiveAccess, tp: TopicPartition, start: int, until: int) -> Reading:
    """Read records, also of open and aborted transactions; step over what is missing."""
    reading = Reading()
    position: int = start
    settings = ReaderSettings(isolation=IsolationLevel.READ_UNCOMMITTED)
    reader = ArchiveReader(archive, settings)
    try:
        reader.assign(tp, start)
        deadline = monotonic() + _READ_SECONDS
        while position < until:
            assert monotonic() < deadline, f"{tp}: nothing was read at {position}"
            for taken in reader.take(1000, 0.5):
                if isinstance(taken, Records):
                    position = int(taken.next_offset)
                    _add(reading, taken, until)
                elif isinstance(taken, ReachedEnd):
                    return reading
                else:
                    position = max(position, _step_over(reading, taken, until))
                    reader.seek(tp, position)
                    break
    finally:
        reader.close()
    return reading


def _add(reading: Reading, taken: Records, until: int) -> None:
    columns = (taken.records.column(name).to_pylist() for name in ("offset", "key", "value"))
    for offset, key, value in zip(*columns, strict=True):
        if offset < until:
            reading.records[offset] = (key, value)


def _step_over(reading: Reading, taken: Gap | Failed, until: int) -> int:
    """Return the offset behind what is missing."""
    start: int
    end: int
    if isinstance(taken, Gap):
        start, end, text = taken.offsets.start, taken.offsets.end, taken.detail
    elif isinstance(taken.error, DamagedArchiveError):
        start, end, text = taken.error.offsets.start, taken.error.offsets.end, str(taken.error)
    elif isinstance(taken.error, StorageError):
        raise taken.error
    else:  # nothing behind it can be read
        start, end, text = taken.next_offset, until, str(taken.error)
    reading.missing.append((int(start), int(end)))
    reading.texts.append(text)
    return int(end)


@dataclass(frozen=True, slots=True)
class _Keys(VerifyRequest):
    """A verification that reads the bytes of these segments only."""

    keys: frozenset[str] = frozenset()

    def takes(self, key: str) -> bool:
        return key in self.keys


def deep_findings(archive: ArchiveAccess, keys: Mapping[str, TopicPartition]) -> list[str]:
    """Return the errors that `sidetier verify --deep` finds in these `.log`s."""
    request = _Keys(deep=True, keys=frozenset(keys))
    report = Verification(archive, request).run(sorted(set(keys.values())))
    found = [f"{one.key}: {one.kind}" for one in report.findings() if one.kind in _ERRORS]
    return [*found, *(f"{key} was not read" for key in report.unread)]


def can_be_trimmed(
    store: RemoteStorage, layout: ArchiveLayout, segment: Segment, log: bytes
) -> bool:
    """Whether the check before a deletion accepts the stored segment.

    The broker's log has this one closed segment, with the original bytes, and an active one behind
    it. No transaction is open.
    """
    mark = read_watermark(store, layout.watermark_key(segment.tp))
    assert mark is not None
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        base, until = BaseOffset(segment.base), BaseOffset(segment.until)
        (here / segment_file_name(base, FileKind.LOG)).write_bytes(log)
        (here / segment_file_name(until, FileKind.LOG)).write_bytes(b"")
        (here / segment_file_name(until, FileKind.SNAPSHOT)).write_bytes(encode_snapshot())
        epochs = store.get_object(layout.epoch_checkpoint_key(segment.tp)).data
        (here / "leader-epoch-checkpoint").write_bytes(epochs)
        watermark = mark.watermark
        led = LedPartition(segment.tp, directory, watermark.leader_epoch, watermark.topic_id)
        segments = (
            LocalSegment(base, Offset(until), len(log), 0.0),
            LocalSegment(until, None, 0, 0.0),
        )
        wanted = Trim(segment.tp, segments, Offset(until), Offset(until), None, Offset(base))
        return ArchiveCheck(store, layout, {}).bound(led, wanted).end > segment.base


# -- the judgement ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What the readers made of a damaged segment.

    Attributes:
        before: What was read around the segment before.
        after: What is read there now.
        findings: The errors that `sidetier verify --deep` finds.
        trimmed_before: Whether the check before a deletion accepted the segment.
        trimmed: Whether it does now.
    """

    before: Reading
    after: Reading
    findings: Sequence[str]
    trimmed_before: bool
    trimmed: bool

    def is_reported(self, damage: Damage) -> bool:
        """Whether all readers that must report the damage have done so."""
        read = self.after.missing != self.before.missing or not damage.shows_to_reader
        return bool(read and self.findings and self.trimmed_before and not self.trimmed)


def unreported(damage: Damage, keys: Collection[str], seen: Witnesses) -> Iterator[str]:
    """Yield the violations: records that are skipped, invented, or deleted on a broken promise."""
    what = f"{', '.join(sorted(keys))} ({damage.name})"
    skipped = [
        offset
        for offset in sorted(seen.before.records.keys() - seen.after.records.keys())
        if not seen.after.reports(offset)
    ]
    if skipped and damage.shows_to_reader:
        yield f"{what}: a reader has skipped {skipped}"
    other = [
        offset
        for offset, record in sorted(seen.after.records.items())
        if seen.before.records.get(offset) != record
    ]
    if other and damage.shows_to_reader:
        yield f"{what}: a reader has returned other records at {other}"
    if not seen.findings:
        yield f"{what}: `sidetier verify --deep` finds nothing"
    if seen.trimmed:
        yield f"{what}: local retention would delete the broker's segment"
