"""Parse Kafka's checkpoint files: text with a version, a row count, and the rows
(`CheckpointFile`).

A broker replaces such a file as a whole, so a reader never sees a partial one.
"""

import re

from sidetier.segments.errors import SegmentError, UnsupportedFormatError
from sidetier.segments.offsets import Offset, TopicPartition

_VERSION = "0"
_COUNT = re.compile(r"[0-9]{1,18}")


def checkpoint_rows(text: str, path: str) -> list[str]:
    """Return the rows of a checkpoint file of version 0; `path` is for errors.

    Raises:
        UnsupportedFormatError: Another version.
        SegmentError: There is no count, or the number of rows differs from it.
    """
    version, _, rest = text.partition("\n")
    if version.strip() != _VERSION:
        raise UnsupportedFormatError(
            f"{path}: checkpoint version {version.strip()[:40]!r}, expected {_VERSION}"
        )
    count, _, body = rest.partition("\n")
    rows = [row for row in body.split("\n") if row.strip()]
    if not _COUNT.fullmatch(count.strip()):
        raise SegmentError(f"{path}: line 2 is {count[:40]!r}, expected the number of rows")
    if int(count) != len(rows):
        raise SegmentError(f"{path}: line 2 says {int(count)} rows, there are {len(rows)}")
    return rows


def parse_offset_checkpoint(text: str, path: str) -> dict[TopicPartition, Offset]:
    """Return the offset of each partition in a file like `replication-offset-checkpoint`.

    `recovery-point-offset-checkpoint` and `log-start-offset-checkpoint` have the same form. An
    empty file has no rows: the broker creates `cleaner-offset-checkpoint` empty.

    Raises:
        UnsupportedFormatError: Another version than 0.
        SegmentError: A row is not topic, partition and offset, a partition occurs twice, or the
            number of rows differs from the count.
    """
    offsets: dict[TopicPartition, Offset] = {}
    rows = checkpoint_rows(text, path) if text else []
    for row in rows:
        try:
            topic, partition, offset = row.split()
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        except ValueError:
            raise SegmentError(
                f"{path}: {row[:300]!r} is not a topic, a partition and an offset"
            ) from None
    if len(offsets) != len(rows):
        raise SegmentError(f"{path}: {len(rows) - len(offsets)} partitions occur twice")
    return offsets
