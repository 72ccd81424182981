"""The names that a broker gives to segment files and partition directories.

Source: Kafka's `LogFileUtils` (file names), `LocalLog.parseTopicPartitionName` (directories) and
`Topic.validate` (legal topic names).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from sidetier.segments.offsets import MAX_OFFSET, BaseOffset, TopicPartition

_MAX_PARTITION = 2**31 - 1
_EMPTY_PARTITIONS: Final = 1000
_EMPTY_PER_STORED: Final = 9
# Kafka's limit, `Topic.MAX_NAME_LENGTH`.
_MAX_TOPIC_LENGTH = 249

_SEGMENT_FILE = re.compile(r"([0-9]{20})(\.(?:log|index|timeindex|txnindex|snapshot))(\.deleted)?")
# A broker appends `.<UUID without dashes>-delete`, `-future` or `-stray` (`LocalLog`).
_DIRECTORY = re.compile(
    r"([A-Za-z0-9._-]+)-(0|[1-9][0-9]{0,9})(?:\.[0-9a-f]{32}-(delete|future|stray))?"
)
_INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
    }
)


class FileKind(StrEnum):
    """The kind of a segment's file. The value is the extension."""

    LOG = ".log"
    INDEX = ".index"
    TIMEINDEX = ".timeindex"
    TXNINDEX = ".txnindex"
    SNAPSHOT = ".snapshot"


REQUIRED_KINDS: Final = (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX)
"""Files that every segment has."""
OPTIONAL_KINDS: Final = (FileKind.TXNINDEX, FileKind.SNAPSHOT)
"""Files that only some segments have."""


_KINDS: Final = {kind.value: kind for kind in FileKind}


class SegmentFileName(NamedTuple):
    """One file of a segment. `deleted` is True if the broker has marked it for deletion
    (`.deleted`).
    """

    base_offset: BaseOffset
    kind: FileKind
    deleted: bool


def parse_segment_file_name(name: str) -> SegmentFileName | None:
    """Parse the name of a segment file, without directories.

    Returns:
        None for every other name, also for files of a running compaction (`.cleaned`, `.swap`):
        their content becomes a segment only when they get the final name.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    digits, kind, deleted = match.groups()
    base = int(digits)
    if base > MAX_OFFSET:  # 20 digits can be higher than any offset
        return None
    return SegmentFileName(BaseOffset(base), _KINDS[kind], deleted is not None)


def segment_file_name(base: BaseOffset, kind: FileKind, *, deleted: bool = False) -> str:
    """Return the name of a segment's file as the broker writes it: 20 digits and the extension."""
    return f"{base:020d}{kind.value}{'.deleted' if deleted else ''}"


class DirectoryState(Enum):
    """The broker's state of a partition directory."""

    LIVE = "live"
    DELETED = "delete"
    """The topic was deleted or the replica was moved away. The broker deletes the files soon."""
    FUTURE = "future"
    """A replica that is being moved to another log dir. It becomes live with one rename."""
    STRAY = "stray"
    """The broker found it at its start, and the partition has no replica on this broker any
    more.
    """


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """A directory of a log dir that holds one partition's segments.

    The topic of a directory that is not live can be cut short: the broker limits the whole name to
    255 characters.
    """

    topic_partition: TopicPartition
    state: DirectoryState


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """Parse the name of a partition's directory; None for any other directory.

    `__cluster_metadata-0` parses as a partition. Callers that must not see it skip it.
    """
    match = _DIRECTORY.fullmatch(name)
    if match is None or int(match[2]) > _MAX_PARTITION or not is_legal_topic(match[1]):
        return None
    state = DirectoryState(match[3]) if match[3] else DirectoryState.LIVE
    return PartitionDirectory(TopicPartition(match[1], int(match[2])), state)


def partition_count(numbers: Iterable[int], known: int = 0) -> tuple[int, tuple[int, ...]]:
    """Return how many partitions a topic has, by the numbers that directories have.

    Kafka numbers partitions from 0 on, so a topic with the partition 7 has the partitions below it,
    too. A number counts only if at most 1,000 of the partitions below it have no directory, or at
    most nine tenths: one object under `orders-2147483647` would otherwise be a topic with two
    billion partitions.

    Args:
        numbers: The numbers, in any order.
        known: Number of partitions that the topic is known to have.

    Returns:
        The number of partitions, and the numbers that do not count, ascending.
    """
    above = sorted({number for number in numbers if number >= known})
    counting = [
        place
        for place, number in enumerate(above, 1)
        if number + 1 - known - place <= max(_EMPTY_PARTITIONS, _EMPTY_PER_STORED * place)
    ]
    counted = max(counting, default=0)
    return (above[counted - 1] + 1 if counted else known), tuple(above[counted:])


def is_legal_topic(topic: str) -> bool:
    """Return whether a broker would create a topic of this name."""
    return (
        len(topic) <= _MAX_TOPIC_LENGTH
        and topic not in {".", ".."}
        and re.fullmatch(r"[A-Za-z0-9._-]+", topic) is not None
    )


def is_internal_topic(topic: str) -> bool:
    """Return whether this is one of Kafka's internal topics."""
    return topic in _INTERNAL_TOPICS
