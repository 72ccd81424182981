"""The readable part of an archive in one snapshot, and the difference between two. Pure functions.

The readable part of an archive that Sidetier writes ends at the `next_offset` of `offset.wm`, and
consists of the segments up to the one that `offset.wm` names. Segments above it are not committed,
or not yet. It begins at the `start_offset` of `offset.wm`; a segment below is not part of it.

The `offset.wm` of Pinterest's uploader proves nothing: see `pinterest`.

Segments may overlap. Then the one with the higher base offset is read from its base offset on: it
was stored later, perhaps by a later leader, and so is closer to the records that the cluster kept.
A lower segment that reaches further is read again after the end of the higher one.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from sidetier.archive.inventory.members import committed, from_start
from sidetier.archive.objects.segment import PackedLog, StoredLog, Version
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.offsets import BaseOffset, Offset

_BASE = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """The readable segments of an archive, and the range of offsets that can be read from them.

    Attributes:
        where: The place in words: URL and prefix.
        watermark: The contents of `offset.wm`.
        etag: The etag of `offset.wm`.
        logs: The segments, by ascending base offset.
        start: First readable offset.
        end: End of the readable range, exclusive.
        is_part: Whether the view comes from an extract. Then the archive continues after `end`.

    With tails, the ranges of packs follow the archived segments as `PackedLog`s, and `end` is the
    end of the tail; `archived_end` is the archive end offset.
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
        """Whether Pinterest's uploader wrote `offset.wm`."""
        return self.watermark.next_offset is None

    @property
    def archived_end(self) -> Offset:
        """The archive end offset."""
        end = self.watermark.next_offset
        return self.end if end is None else end

    def holder(self, offset: int) -> StoredLog | None:
        """Return the segment that may hold the offset: the one with the highest base at or below
        it.
        """
        at = bisect_right(self.logs, offset, key=_BASE) - 1
        return self.logs[at] if at >= 0 else None

    def after(self, base: int) -> StoredLog | None:
        """Return the segment with the next higher base offset."""
        at = bisect_right(self.logs, base, key=_BASE)
        return self.logs[at] if at < len(self.logs) else None

    def below(self, base: int) -> Sequence[StoredLog]:
        """Return the segments with lower base offsets, in descending order."""
        at = bisect_right(self.logs, base - 1, key=_BASE)
        return self.logs[:at][::-1]

    def until(self, offset: int) -> Offset:
        """Return the offset up to which the holder of `offset` is read: the next base, or the
        readable end.
        """
        following = self.after(offset)
        return self.end if following is None else min(Offset(following.base_offset), self.end)

    def has(self, log: StoredLog) -> bool:
        """Return whether the archive has the segment in this version."""
        stored = self.holder(log.base_offset)
        return stored is not None and stored.version == log.version


@dataclass(frozen=True, slots=True)
class Extract:
    """Neighbouring segments of one partition, as one process has seen them, for another process.

    The reader does not take its own snapshot of the archive. It reads each object in the version
    that was seen, so it notices an object that was replaced. It takes a snapshot only if an object
    has changed, or if it needs more than the extract holds.

    Attributes:
        topic_id: Kafka's topic id; None if it is not known.
        is_pinterest: Whether Pinterest's uploader has filled the archive.
        logs: The segments, by ascending base offset; at least one.
        end: Offset up to which they are read, exclusive.
        begins: First wanted offset, and a byte position in the first segment where the batch of
            this offset, or a batch before it, begins.
        ends: For segments that are wanted in part only: the byte position up to which they are
            wanted, exclusive.
    """

    topic_id: str | None
    is_pinterest: bool
    logs: tuple[StoredLog, ...]
    end: Offset
    begins: tuple[Offset, int]
    ends: Mapping[Version, int] = field(default_factory=dict)

    def view(self, where: str) -> ArchiveView:
        """Return the extract as a view of the archive at `where`."""
        last = BaseOffset(self.logs[-1].base_offset)
        packed = (Offset(log.base_offset) for log in self.logs if isinstance(log, PackedLog))
        archived = next(packed, self.end)
        if isinstance(self.logs[0], PackedLog):
            archived = Offset(0)  # not known, and not above the end of the archive
        watermark = Watermark(last, None if self.is_pinterest else archived, topic_id=self.topic_id)
        start = Offset(self.logs[0].base_offset)
        return ArchiveView(where, watermark, "", self.logs, start, self.end, is_part=True)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the archive's contents from offset `first` on.

    Attributes:
        first: First offset that is affected.
        message: What happened, if the records that were read are no longer this partition's
            history; None if the same records are stored in other segments now.
    """

    first: Offset
    message: str | None = None


def view_of_ours(
    where: str, watermark: Watermark, etag: str, logs: Sequence[StoredLog]
) -> ArchiveView:
    """Return the readable part of an archive that Sidetier writes.

    Raises:
        ValueError: The watermark has no `next_offset`: Pinterest's uploader wrote it.
    """
    end = watermark.next_offset
    if end is None:
        raise ValueError(f"{where}: Pinterest's watermark")
    begin = watermark.start_offset
    stored = from_start(committed(logs, watermark), begin)
    lowest = Offset(stored[0].base_offset) if stored else end
    start = lowest if begin is None else max(begin, lowest)
    return ArchiveView(where, watermark, etag, tuple(stored), min(start, end), end)


def view_of_pinterest(
    where: str, watermark: Watermark, etag: str, logs: Sequence[StoredLog], end: Offset
) -> ArchiveView:
    """Return the readable part of an archive of Pinterest's uploader, up to `end`."""
    stored = tuple(log for log in logs if log.base_offset < end)
    start = Offset(stored[0].base_offset) if stored else end
    return ArchiveView(where, watermark, etag, stored, min(start, end), end)


def continues(old: Watermark, new: Watermark) -> bool:
    """Return whether the archive has only grown between two versions of Sidetier's `offset.wm`."""
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
    """Return the change between two views.

    Returns:
        None if the archive has only grown, or has lost its oldest part.
    """
    if old is None or (old.logs and isinstance(old.logs[0], PackedLog)):
        return None  # nothing of the archive was seen
    if new is None:
        return Change(
            Offset(0),
            f"{old.where}: offset.wm is gone; the archive had reached offset {old.end} and was "
            "retired or removed while it was read",
        )
    if _is_another_topic(old.watermark, new.watermark):
        return Change(
            Offset(0),
            f"{new.where}: the archive belonged to topic id {old.watermark.topic_id} and now "
            f"belongs to {new.watermark.topic_id}: the topic was deleted and created again",
        )
    first = _first_difference(old, new)
    if first is None:
        return None
    # Pinterest's uploader stores the same records again in other objects, for example after a
    # leader change. Its `offset.wm` has no topic id or epoch that would prove another history.
    if old.is_pinterest or new.is_pinterest:
        return Change(first)
    return Change(
        first,
        f"{new.where}: the records from about offset {first} on were moved to quarantine or "
        "replaced: the cluster has discarded them (an unclean election), and has other records "
        "at these offsets now",
    )


def _is_another_topic(old: Watermark, new: Watermark) -> bool:
    return None not in {old.topic_id, new.topic_id} and old.topic_id != new.topic_id


def _first_difference(old: ArchiveView, new: ArchiveView) -> Offset | None:
    """Return the lowest offset at which another segment is stored. Retention at the start is not
    a change.
    """
    version_by_base = {log.base_offset: log.version for log in new.logs}
    # A lost segment of an extract is not a change: reading it reports the loss.
    lost = [
        Offset(log.base_offset)
        for log in old.logs
        if log.base_offset >= new.start
        and not isinstance(log, PackedLog)
        and version_by_base.get(log.base_offset, log.version if old.is_part else None)
        != log.version
    ]
    # A Sidetier archive never becomes shorter, except by quarantine or retirement.
    if new.archived_end < old.archived_end and not (old.is_pinterest or new.is_pinterest):
        lost.append(new.archived_end)
    return min(lost, default=None)
