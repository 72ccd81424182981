"""What one look at an archive has shown, and what two looks differ in: pure.

What may be read of an archive of ours ends at the watermark's next offset, and consists of the
segments up to the one that the watermark names: what lies above was not committed, or not yet.
`start_offset` of the watermark is where it begins; a segment below is no part of it.

Of Pinterest's archive the watermark proves nothing: see `pinterest`.

Segments may overlap. Then the one with the higher base offset holds from its base on: it was stored
later, perhaps by a later leader, and so is nearer to what the cluster kept. A lower one that
reaches farther holds again behind its end.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.offsets import Offset

_BASE = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """The readable segments, by rising base, and the offsets from where to where they can be read.

    `where` is the place in words: url and prefix. `etag` is that of `offset.wm`. `is_part` where
    somebody else has looked, and has handed on a part of what was seen: there is more behind `end`.
    """

    where: str
    watermark: Watermark
    etag: str
    logs: tuple[StoredLog, ...]
    start: Offset
    end: Offset
    is_part: bool = False

    @property
    def is_pinterest(self) -> bool:
        """Pinterest's uploader has written the watermark."""
        return self.watermark.next_offset is None

    def holder(self, offset: int) -> StoredLog | None:
        """The segment that holds the offset, if any does: the highest base at or below it."""
        at = bisect_right(self.logs, offset, key=_BASE) - 1
        return self.logs[at] if at >= 0 else None

    def after(self, base: int) -> StoredLog | None:
        """The segment with the next higher base."""
        at = bisect_right(self.logs, base, key=_BASE)
        return self.logs[at] if at < len(self.logs) else None

    def below(self, base: int) -> Sequence[StoredLog]:
        """The segments with lower bases, the nearest first."""
        at = bisect_right(self.logs, base - 1, key=_BASE)
        return self.logs[:at][::-1]

    def until(self, offset: int) -> Offset:
        """Up to where whoever holds the offset is read: the next base, or the readable end."""
        following = self.after(offset)
        return self.end if following is None else min(Offset(following.base_offset), self.end)

    def has(self, log: StoredLog) -> bool:
        """Whether the segment is there in this very version."""
        found = self.holder(log.base_offset)
        return found is not None and found.version == log.version


@dataclass(frozen=True, slots=True)
class Change:
    """From `first` on the archive is no longer what it was.

    `message` says what has happened where what was read there is not this partition's history; None
    where the same records lie elsewhere now.
    """

    first: Offset
    message: str | None = None


def view_of_ours(
    where: str, watermark: Watermark, etag: str, logs: Sequence[StoredLog]
) -> ArchiveView:
    """What may be read of an archive of ours: `watermark` has its next offset."""
    end = watermark.next_offset
    if end is None:
        raise ValueError(f"{where}: Pinterest's watermark")
    stored = [log for log in logs if log.base_offset <= watermark.base_offset < end]
    begin = watermark.start_offset
    if begin is not None:
        first = bisect_right(stored, begin, key=_BASE) - 1
        stored = stored[max(first, 0) :]
    lowest = Offset(stored[0].base_offset) if stored else end
    start = lowest if begin is None else max(begin, lowest)
    return ArchiveView(where, watermark, etag, tuple(stored), min(start, end), end)


def view_of_pinterest(
    where: str, watermark: Watermark, etag: str, logs: Sequence[StoredLog], end: Offset
) -> ArchiveView:
    """What may be read of an archive of Pinterest's, up to `end`."""
    stored = tuple(log for log in logs if log.base_offset < end)
    start = Offset(stored[0].base_offset) if stored else end
    return ArchiveView(where, watermark, etag, stored, min(start, end), end)


def continues(old: Watermark, new: Watermark) -> bool:
    """Whether nothing but growth lies between two watermarks of ours, as far as they can tell."""
    return (
        old.next_offset is not None
        and new.next_offset is not None
        and new.next_offset >= old.next_offset
        and new.leader_epoch == old.leader_epoch
        and not _is_another_topic(old, new)
        and old.pending is None
        and new.pending is None
    )


def compare(old: ArchiveView | None, new: ArchiveView | None) -> Change | None:
    """What is not as it was; None where the archive has only grown, or has lost its oldest part."""
    if old is None:
        return None
    if new is None:
        return Change(
            Offset(0),
            f"{old.where}: the watermark is gone, and reached {old.end} at least: the archive was "
            "retired or removed while it was read",
        )
    if _is_another_topic(old.watermark, new.watermark):
        return Change(
            Offset(0),
            f"{new.where}: the archive is that of topic id {new.watermark.topic_id} now, it was "
            f"that of {old.watermark.topic_id}: the topic was deleted and created again",
        )
    first = _first_difference(old, new)
    if first is None:
        return None
    if old.is_pinterest or new.is_pinterest:
        return Change(first)
    return Change(
        first,
        f"{new.where}: what was stored from about offset {first} on has been set aside, or "
        "replaced: the cluster has thrown those records away (an unclean election), and has others "
        "there now",
    )


def _is_another_topic(old: Watermark, new: Watermark) -> bool:
    return None not in {old.topic_id, new.topic_id} and old.topic_id != new.topic_id


def _first_difference(old: ArchiveView, new: ArchiveView) -> Offset | None:
    """The lowest offset at which something else is stored; retention at the start is none."""
    there = {log.base_offset: log.version for log in new.logs}
    # Of a part, what is not there any more is told as missing by who reads it.
    lost = [
        Offset(log.base_offset)
        for log in old.logs
        if log.base_offset >= new.start
        and there.get(log.base_offset, log.version if old.is_part else None) != log.version
    ]
    if new.end < old.end and not (old.is_pinterest or new.is_pinterest):
        lost.append(new.end)
    return min(lost, default=None)
