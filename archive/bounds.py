"""From where to where a partition's archive can be read."""

from dataclasses import dataclass

from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class ArchiveBounds:
    """What the newest look at an archive has shown.

    `start_offset` is the first offset that is stored, `next_offset` one past the last that may be
    handed out: equal where nothing is. Gaps may lie between them. Where Pinterest's uploader fills
    the archive `is_pinterest` is True: nothing then says that what is stored was ever committed.
    `looked_at` is the reader's clock at that look, in seconds.
    """

    start_offset: Offset
    next_offset: Offset
    is_pinterest: bool
    looked_at: float
