"""Consumer groups whose committed offsets are below log start offsets. Pure functions.

A group that reads from the brokers then gets OFFSET_OUT_OF_RANGE when it comes back, and skips the
records, without an error unless `auto.offset.reset` is none. Brokers do not show whether a group
reads from them: TieredConsumer and clients of `sidetier serve` with relayed groups are ordinary
members, with the client id of their user.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.leadership.port import CommittedOffsets
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_PROGRESS_OF_COPIES: Final = re.compile(r"sidetier-(mirror|restore|drill)-.+")
"""Groups with the progress of Sidetier's copies: offsets of the source, not of this log."""

_MAX_CLIENTS: Final = 3
WHO_SKIPS: Final = (
    "A group that reads from the brokers skips these offsets when it comes back, or more if its "
    "auto.offset.reset is latest. TieredConsumer and clients of `sidetier serve --live` skip "
    "nothing; the brokers do not show which groups these are."
)
READ_THE_ARCHIVE: Final = (
    "set bootstrap.servers of the group's clients to `sidetier serve --live`, or use TieredConsumer"
)
CATCH_UP: Final = (
    "let the group catch up first: retention.local.protect_groups keeps its records until then"
)


class GroupBehind(NamedTuple):
    """A consumer group whose committed offset is below a log start offset, now or after a trim."""

    group: str
    topic_partition: TopicPartition
    committed: Offset
    log_start: Offset

    @property
    def skipped(self) -> int:
        """Number of offsets that it skips if it continues at the log start."""
        return self.log_start - self.committed


def groups_behind(
    log_starts: Mapping[TopicPartition, Offset],
    committed: CommittedOffsets,
    wanted: Callable[[str], bool] = lambda _: True,
) -> Iterator[GroupBehind]:
    """Yield the groups whose committed offset is below the log start offset of a partition.

    Args:
        log_starts: Log start offsets, as they are or will be.
        committed: The committed offsets of groups.
        wanted: Returns whether a group is of interest.
    """
    for group, offsets in sorted(committed.items()):
        if _PROGRESS_OF_COPIES.fullmatch(group) or not wanted(group):
            continue
        for tp in sorted(offsets.keys() & log_starts.keys()):
            if offsets[tp] < log_starts[tp]:
                yield GroupBehind(group, tp, offsets[tp], log_starts[tp])


def with_archive(
    behind: Iterable[GroupBehind], archived: Mapping[TopicPartition, OffsetRange]
) -> list[GroupBehind]:
    """Return the groups that skip offsets which the archive covers.

    Args:
        behind: The groups.
        archived: The archived offsets of partitions; partitions without an archive are missing.
    """
    return [
        entry
        for entry in behind
        if (stored := archived.get(entry.topic_partition)) is not None
        and max(stored.start, entry.committed) < min(stored.end, entry.log_start)
    ]


@dataclass(frozen=True, slots=True)
class GroupInTopic:
    """A consumer group that is behind in partitions of a topic.

    Attributes:
        skipped: Number of offsets that it skips in all of them.
        members: The members of the group; None if they cannot be read.
    """

    group: str
    topic: str
    partitions: int
    skipped: int
    members: tuple[GroupMember, ...] | None = None

    @property
    def members_text(self) -> str:
        """The number of members, and the clients of the first ones."""
        if self.members is None:
            return "unknown"
        if not self.members:
            return "none"
        clients = sorted({f"{member.client_id} at {member.host}" for member in self.members})
        more = ", ..." if len(clients) > _MAX_CLIENTS else ""
        return f"{len(self.members)}: {', '.join(clients[:_MAX_CLIENTS])}{more}"


def in_topics(
    behind: Iterable[GroupBehind], members: Mapping[str, tuple[GroupMember, ...]]
) -> list[GroupInTopic]:
    """Add up the partitions of each group and topic. The group that skips most comes first."""
    skipped: dict[tuple[str, str], list[int]] = {}
    for entry in behind:
        skipped.setdefault((entry.group, entry.topic_partition.topic), []).append(entry.skipped)
    rows = [
        GroupInTopic(group, topic, len(counts), sum(counts), members.get(group))
        for (group, topic), counts in skipped.items()
    ]
    return sorted(rows, key=lambda row: (-row.skipped, row.group, row.topic))
