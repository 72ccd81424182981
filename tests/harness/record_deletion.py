"""A broker that deletes records at the start of its logs, for tests of local retention."""

from collections.abc import Callable, Collection, Iterable, Mapping

from sidetier.leadership.port import ReadGroups, RecordDeletion
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import BrokerUnavailableError, LeadershipError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition
from tests.harness.log_dir import LogDir, PartitionLog


class DeletingBroker:
    """A RecordDeleter over the files of log dirs.

    As a broker does, it marks segments below the new log start for deletion, and refuses a
    partition that it does not lead in the given epoch: `epochs` overrides that of the log.
    """

    def __init__(self, log_dirs: Iterable[LogDir]) -> None:
        self._log_dirs = list(log_dirs)
        self.epochs: dict[TopicPartition, int] = {}
        self.committed: dict[str, dict[TopicPartition, Offset]] = {}
        self.unread: dict[str, str] = {}
        self.members_of: dict[str, tuple[GroupMember, ...]] = {}
        self.incomplete: str | None = None
        self.groups_error: SidetierError | None = None
        self.away = False
        self.deletes_files = True
        """False for a broker whose next retention check is due later."""
        self.requests: list[dict[TopicPartition, int]] = []
        self.before_delete: Callable[[], None] = lambda: None

    def delete_records(
        self, deletions: Mapping[TopicPartition, RecordDeletion]
    ) -> Mapping[TopicPartition, Offset | SidetierError]:
        self.before_delete()
        self.requests.append({tp: deletion.end for tp, deletion in deletions.items()})
        if self.away:
            raise BrokerUnavailableError("away for the test")
        return {tp: self._delete(tp, deletion) for tp, deletion in deletions.items()}

    def _delete(self, tp: TopicPartition, deletion: RecordDeletion) -> Offset | SidetierError:
        log = self._log(tp)
        if self.epochs.get(tp, log.epoch) != deletion.leader_epoch:
            return LeadershipError(f"{tp}: FENCED_LEADER_EPOCH")
        for base in log.bases()[:-1] if self.deletes_files else []:
            if log._end_of(base) <= deletion.end:
                log.stage(base)
        log.start_at(deletion.end)
        return deletion.end

    def _log(self, tp: TopicPartition) -> PartitionLog:
        return next(one.partitions[tp] for one in self._log_dirs if tp in one.partitions)

    def committed_offsets(
        self, names: Collection[str], wanted: Callable[[str], bool] | None
    ) -> ReadGroups:
        if self.groups_error is not None:
            raise self.groups_error

        def reads(group: str) -> bool:
            return group in names or wanted is None or wanted(group)

        return ReadGroups(
            {group: offsets for group, offsets in self.committed.items() if reads(group)},
            {group: why for group, why in self.unread.items() if reads(group)},
            self.incomplete if wanted is None else None,
        )

    def members(self, groups: Collection[str]) -> Mapping[str, tuple[GroupMember, ...]]:
        return {group: self.members_of[group] for group in groups if group in self.members_of}
