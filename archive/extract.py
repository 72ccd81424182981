"""A part of an archive as one process has seen it, for another process that reads it.

The reader does not take its own snapshot of the archive. It reads each object in the version that
was seen, so it notices an object that was replaced. It takes a snapshot only if an object has
changed, or if it needs more than the extract holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.view import ArchiveView
from sidetier.segments.offsets import BaseOffset, Offset


@dataclass(frozen=True, slots=True)
class Extract:
    """Neighbouring segments of one partition.

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
        watermark = Watermark(last, None if self.is_pinterest else self.end, topic_id=self.topic_id)
        start = Offset(self.logs[0].base_offset)
        return ArchiveView(where, watermark, "", self.logs, start, self.end, is_part=True)
