"""Part of an archive as somebody has seen it, handed on to who reads it without another look.

What is read is asked for in the version that was seen, so another one in its place is noticed; the
archive itself is looked at only where something is not as it was, or where more is needed than was
handed on.
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
        topic_id: the topic's, None where it is not known.
        is_peers: whether Pinterest's uploader has filled the archive.
        logs: the segments, by rising base, at least one.
        end: up to here they are read.
        begins: the offset that is wanted first, and the byte of the first segment at which its
            batch, or one before it, begins.
        ends: of the segments that are wanted in part only, the byte behind which they are not.
    """

    topic_id: str | None
    is_pinterest: bool
    logs: tuple[StoredLog, ...]
    end: Offset
    begins: tuple[Offset, int]
    ends: Mapping[Version, int] = field(default_factory=dict)

    def view(self, where: str) -> ArchiveView:
        """As a look at the archive at this place shows it."""
        last = BaseOffset(self.logs[-1].base_offset)
        watermark = Watermark(last, None if self.is_pinterest else self.end, topic_id=self.topic_id)
        start = Offset(self.logs[0].base_offset)
        return ArchiveView(where, watermark, "", self.logs, start, self.end, is_part=True)
