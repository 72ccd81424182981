"""The range of offsets that can be read from a partition's archive."""

from dataclasses import dataclass

from sidetier.segments.offsets import Offset


@dataclass(frozen=True, slots=True)
class ArchiveBounds:
    """The readable range of an archive, by its newest snapshot. The range may contain gaps.

    Attributes:
        start_offset: First stored offset. Equal to `next_offset` if nothing is stored.
        next_offset: One past the last readable offset.
        is_pinterest: Whether Pinterest's uploader fills the archive. Then nothing proves that the
            stored records were ever committed.
        looked_at: The reader's clock when the snapshot was taken, in seconds.
    """

    start_offset: Offset
    next_offset: Offset
    is_pinterest: bool
    looked_at: float
