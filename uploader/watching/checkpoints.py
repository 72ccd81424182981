"""The broker's checkpoint files in each log dir, such as `replication-offset-checkpoint`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.watching.disk import read_text

OnCheckpoint = Callable[[str, SegmentError | None], None]
"""Called with the path of each checkpoint that is read, and why it cannot be used, if so."""


def read_offset_checkpoint(path: str) -> dict[TopicPartition, Offset]:
    """Return the offset of each partition in a checkpoint file. Raises OSError, SegmentError."""
    return parse_offset_checkpoint(read_text(path), path)


@dataclass(frozen=True, slots=True)
class OffsetCheckpoint:
    """A checkpoint file.

    Attributes:
        written_ns: Its modification time, in ns since 1970; -1 if it cannot be read.
        offsets: The offset of each partition; empty if it cannot be read.
        read_at: When it was read, in monotonic seconds.
    """

    written_ns: int = -1
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    read_at: float = float("-inf")


_NEVER_READ = OffsetCheckpoint()


class OffsetCheckpoints:
    """Reads one kind of checkpoint of each log dir when it has changed.

    Args:
        name: File name.
        seconds: A file is looked at once in this time, however many partitions need it.
        now: Monotonic seconds.
        on_checkpoint: Notes what was read.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        now: Callable[[], float],
        on_checkpoint: OnCheckpoint = lambda _, __: None,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._now = now
        self._on_checkpoint = on_checkpoint
        self._known: dict[str, OffsetCheckpoint] = {}

    def of(self, log_dir: str) -> OffsetCheckpoint:
        """Return the checkpoint of a log dir, at most `seconds` old."""
        known = self._known.get(log_dir, _NEVER_READ)
        if self._now() - known.read_at >= self._seconds:
            known = replace(self._read(log_dir, known), read_at=self._now())
            self._known[log_dir] = known
        return known

    def _read(self, log_dir: str, known: OffsetCheckpoint) -> OffsetCheckpoint:
        path = os.path.join(log_dir, self._name)
        try:
            written = os.stat(path).st_mtime_ns
            if written == known.written_ns:
                return known
            offsets = read_offset_checkpoint(path)
        except OSError:  # not written yet, or a disk error: the next call reads it again
            return _NEVER_READ
        except SegmentError as error:
            self._on_checkpoint(path, error)
            return _NEVER_READ
        self._on_checkpoint(path, None)
        # The stat came before the read. If the broker replaced the file in between, new offsets get
        # an old time, which only delays uploads. After the other order, old offsets could get a new
        # time, and count for segments that were written after them.
        return OffsetCheckpoint(written, offsets)
