"""The epoch history of the stored segments, from the metadata of their `.log` objects.

A commit writes `leader-epoch-checkpoint` before `offset.wm`. If two sidecars commit over the same
`offset.wm`, only one of them writes it, but the other may have written `leader-epoch-checkpoint`
last. `offset.wm` has the checksum of the epoch history that it was written with. Where the stored
one differs, it is rebuilt from the segments.
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
    """The metadata of a stored `.log`: its runs of batches of one leader epoch, its last leader
    epoch, and its end offset, exclusive.
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
    """Rebuild the epoch history below the archive end offset, from a listing and the head of each
    segment.

    Segments without an entry in `_metadata` are ignored, and so are the offsets of a segment that
    earlier segments have. The stored epoch history (`beside`) is used in these cases:

    - below the first segment whose metadata has leader epochs: segments of Pinterest's uploader
      have none;
    - for a segment whose metadata has only its last leader epoch, if `beside` ends with that epoch
      there;
    - as a whole, if a later segment has no leader epochs at all;
    - as a whole, if the rebuilt one does not match the checksum in `offset.wm` either, and no
      segment contradicts `beside`: a later leader may have stored a better start of the first
      epoch.

    Args:
        store: The store.
        layout: The keys on it.
        tp: The partition.
        watermark: The content of `offset.wm`.
        beside: The stored epoch history.
    """
    segments = list(_noted(store, layout, tp, watermark))
    rebuilt = _told(segments, beside)
    if checksum_below(rebuilt, watermark.next_offset or 0) == watermark.epoch_history:
        return rebuilt
    agree = all(beside.violation(segment.runs, segment.end) is None for segment in segments)
    return beside if agree else rebuilt


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
    """Return the runs of a segment whose metadata has only its last leader epoch, from `start` on.

    Such a segment has too many runs for the metadata, or an earlier version cut it in a quarantine.
    """
    entries = beside.up_to(segment.end).entries
    if not entries or entries[-1][0] != segment.last:
        return ((segment.last, start),)
    return tuple((epoch, max(first, start)) for epoch, first in entries[_at(entries, start) :])


def _at(told: Sequence[Entry], start: Offset) -> int:
    """Return the index of the entry that covers `start`; 0 where none does."""
    return max(bisect_right(told, start, key=itemgetter(1)) - 1, 0)


def _noted(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, watermark: Watermark
) -> Iterator[_Noted]:
    """Yield the metadata of the segments by rising base offset, read in parallel if many."""
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
