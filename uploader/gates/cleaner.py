"""Find out which part of a log Kafka's cleaner has compacted.

Offsets may be missing anywhere in that part. The topic's configuration does not show it: a topic
may have been compacted before its `cleanup.policy` was changed to `delete`, and there may be no
broker to ask. The broker keeps the first offset that it has not cleaned in
`cleaner-offset-checkpoint`, as long as the log exists (Kafka's `LogCleanerManager`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.watching.disk import read_text

CLEANER_CHECKPOINT_NAME: Final = "cleaner-offset-checkpoint"
_LOOK_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    written_ns: int = -1
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    looked_at: float = float("-inf")


class CleanerCheckpoints:
    """Reads the checkpoint of each log dir when it has changed, at most once a second.

    Args:
        now: Monotonic seconds.
        on_checkpoint: Called with the path of each checkpoint that is read, and with the reason
            where it cannot be used.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_checkpoint: Callable[[str, SegmentError | None], None] = lambda _, __: None,
    ) -> None:
        self._now = now
        self._on_checkpoint = on_checkpoint
        self._known: dict[str, _Checkpoint] = {}

    def has_cleaned(self, log_dir: str, tp: TopicPartition, log_start: Offset) -> bool:
        """Return whether the cleaner has compacted a part of the log that still exists."""
        known = self._known.get(log_dir, _Checkpoint())
        if self._now() - known.looked_at >= _LOOK_AGAIN_SECONDS:
            known = self._known[log_dir] = self._read(log_dir, known)
        return known.offsets.get(tp, Offset(0)) > log_start

    def _read(self, log_dir: str, known: _Checkpoint) -> _Checkpoint:
        path = os.path.join(log_dir, CLEANER_CHECKPOINT_NAME)
        try:
            written = os.stat(path).st_mtime_ns
            if written == known.written_ns:
                return _Checkpoint(written, known.offsets, self._now())
            offsets = parse_offset_checkpoint(read_text(path), path)
        except OSError:
            return _Checkpoint(looked_at=self._now())
        except SegmentError as error:
            self._on_checkpoint(path, error)
            return _Checkpoint(looked_at=self._now())
        self._on_checkpoint(path, None)
        return _Checkpoint(written, offsets, self._now())
