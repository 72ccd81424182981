"""The epoch history of what is stored, from the notes of the stored segments themselves.

Whoever commits writes `leader-epoch-checkpoint` before the watermark. Of two who go on from one
watermark only one moves it, and the other's epoch history may be what stands there in the end. The
watermark notes which one it was moved with; where that is another, the segments tell.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from sidetier.archive.objects.segment import files_by_base, noted_epoch, noted_next_offset
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.orphan_segments import readable_names
from sidetier.segments.epoch_history import Entry, EpochHistory, checksum_below, parse_runs
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import EPOCHS_KEY, LEADER_EPOCH_KEY
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.takeover.scan import at_once


@dataclass(frozen=True, slots=True)
class _Noted:
    """What a segment of the archive notes: its runs of batches of one epoch, its last epoch and its
    next offset.
    """

    runs: tuple[Entry, ...]
    last: LeaderEpoch
    end: Offset


def noted_epoch_history(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    watermark: Watermark,
    beside: EpochHistory,
) -> EpochHistory:
    """The epoch history below the watermark's next offset, in a request for each segment and a
    listing.

    What is stored `beside` is believed below the first segment that notes its epochs: what was
    taken over from Pinterest's uploader has no such notes; and all of it where a later one notes
    nothing. Of one that notes its last epoch alone it is believed where it ends with that. What
    `_metadata` does not name, or lies over earlier segments, tells nothing. Where what was told is
    not what the watermark was moved with, and no segment contradicts what is stored, that stands: a
    later leader may know better where the first epoch began.
    """
    segments = list(_noted(store, layout, tp, watermark))
    told = _told(segments, beside)
    if checksum_below(told, watermark.next_offset or 0) == watermark.epoch_history:
        return told
    agree = all(beside.violation(one.runs, one.end) is None for one in segments)
    return beside if agree else told


def _told(segments: Iterable[_Noted], beside: EpochHistory) -> EpochHistory:
    entries: list[Entry] = []
    expected: Offset | None = None
    for segment in segments:
        runs = segment.runs
        if expected is None:
            if not runs:
                continue
            entries.extend(beside.up_to(runs[0][1]).entries)
            expected = runs[0][1]
        elif not runs and segment.last == UNKNOWN_EPOCH:
            return beside
        runs = runs or _guessed(segment, expected, beside)
        for (epoch, start), (_, stop) in pairwise((*runs, (UNKNOWN_EPOCH, segment.end))):
            if stop > expected and (not entries or epoch > entries[-1][0]):
                entries.append((epoch, max(start, expected)))
        expected = max(expected, segment.end)
    return beside if expected is None else EpochHistory(tuple(entries))


def _guessed(segment: _Noted, start: Offset, beside: EpochHistory) -> tuple[Entry, ...]:
    """The runs of a segment from `start` on that notes its last epoch alone: it has too many, or
    was cut at a fork by an earlier version.
    """
    told = beside.up_to(segment.end).entries
    if not told or told[-1][0] != segment.last:
        return ((segment.last, start),)
    return tuple((epoch, max(first, start)) for epoch, first in told[_at(told, start) :])


def _at(told: Sequence[Entry], start: Offset) -> int:
    """Which of the entries tells the epoch of `start`; the first one where none does."""
    return max(bisect_right(told, start, key=itemgetter(1)) - 1, 0)


def _noted(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, watermark: Watermark
) -> Iterator[_Noted]:
    """By rising base offset; many segments are asked side by side."""
    prefix = layout.partition_prefix(tp)
    named = readable_names(store, layout.metadata_key(tp))
    start = watermark.start_offset or 0
    logs = [
        (base, files[FileKind.LOG].key)
        for base, files in files_by_base(store.list_objects(prefix), prefix)
        if start <= base <= watermark.base_offset
        and FileKind.LOG in files
        and (not named or base in named)
    ]
    heads = at_once(lambda log: store.head_object(log[1]), logs)
    for (base, _), head in zip(logs, heads, strict=True):
        runs = parse_runs(head.metadata.get(EPOCHS_KEY, "")).entries
        end = noted_next_offset(head)
        last = noted_epoch(head, LEADER_EPOCH_KEY)
        yield _Noted(runs, last, Offset(base) if end is None else end)
