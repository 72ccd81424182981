"""Apply a stored cluster state to a running cluster: offsets, ACLs, quotas, broker configs.

Topics must exist: the earlier steps create them. Every step compares the stored state with the
cluster's, so that it can be repeated, and reports skipped items with the reason. A dry run changes
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from sidetier.segments.cluster_state import (
    AclBinding,
    AclBindings,
    BrokerConfigs,
    ClientQuota,
    ClientQuotas,
    ClusterState,
    CommittedOffset,
    GroupOffsets,
    QuotaEntity,
    ScramUsers,
    SnapshotKind,
)
from sidetier.segments.offsets import OffsetRange, TopicPartition

_BY_HAND: Final = "kafka-configs.sh --alter --entity-type brokers"


class ClusterAdmin(Protocol):
    """The new cluster. Every method raises LeadershipUnavailableError if no broker answers."""

    def acls(self) -> AclBindings:
        """Return the cluster's ACLs."""
        ...

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        """Create ACLs. Return the refused ones, each with the reason."""
        ...

    def group_offsets(self) -> GroupOffsets:
        """Return the committed offsets of the cluster's consumer groups."""
        ...

    def log_ranges(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetRange]:
        """Return log start offset and high watermark of the partitions that exist."""
        ...

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, str]:
        """Commit a group's offsets without leader epochs. Return refused ones with the reason."""
        ...

    def quotas(self) -> ClientQuotas:
        """Return the cluster's client quotas."""
        ...

    def set_quota(self, quota: ClientQuota) -> str | None:
        """Set limits of one entity. Return why they were refused, or None."""
        ...

    def scram_users(self) -> ScramUsers:
        """Return the cluster's SCRAM users."""
        ...

    def brokers(self) -> Iterable[int]:
        """Return the ids of the brokers that are up."""
        ...

    def broker_configs(self) -> BrokerConfigs:
        """Return the cluster's dynamic broker configs."""
        ...

    def set_broker_config(self, broker_id: int, name: str, value: str) -> str | None:
        """Set one config of one broker. Return why it was refused, or None."""
        ...


@dataclass(slots=True)
class RestoredKind:
    """The result for one kind of state.

    `changed` has a line for each change; in a dry run, for each change that would be made.
    """

    kind: SnapshotKind
    changed: list[str] = field(default_factory=list)
    unchanged: int = 0
    """Number of items that were already as stored."""
    skipped: list[str] = field(default_factory=list)
    """Items that were not restored, with the reason, one line each."""


def restore_cluster_state(
    state: ClusterState, admin: ClusterAdmin, *, dry_run: bool, overwrite_offsets: bool = False
) -> list[RestoredKind]:
    """Restore the parts of the state that can be restored, broker configs last.

    ACLs come after group offsets, because a new ACL can take a permission away from the principal
    that runs the restore.

    Args:
        state: The stored state of the lost cluster.
        admin: The new cluster, with its topics and their records.
        dry_run: Change nothing.
        overwrite_offsets: Also set offsets that a group has already committed on the new cluster.

    Raises:
        LeadershipUnavailableError: No broker answers. Changes made so far stay; the call can be
            repeated.
    """
    done = []
    if state.group_offsets is not None:
        done.append(
            restore_group_offsets(
                state.group_offsets, admin, dry_run=dry_run, overwrite=overwrite_offsets
            )
        )
    if state.acls is not None:
        done.append(restore_acls(state.acls, admin, dry_run=dry_run))
    if state.quotas is not None:
        done.append(restore_quotas(state.quotas, admin, dry_run=dry_run))
    if state.scram_users is not None:
        done.append(missing_scram_users(state.scram_users, admin))
    if state.broker_configs is not None:
        done.append(restore_broker_configs(state.broker_configs, admin, dry_run=dry_run))
    return done


def restore_group_offsets(
    wanted: GroupOffsets, admin: ClusterAdmin, *, dry_run: bool, overwrite: bool = False
) -> RestoredKind:
    """Commit the offsets of each group, moved into the logs of the new cluster.

    An offset that the group has committed on the new cluster meanwhile stays, unless `overwrite` is
    set: a second run must not rewind running consumers.
    """
    result = RestoredKind(SnapshotKind.GROUP_OFFSETS)
    tps = {
        TopicPartition(topic, number)
        for topics in wanted.groups.values()
        for topic, partitions in topics.items()
        for number in partitions
    }
    logs = admin.log_ranges(sorted(tps))
    current = admin.group_offsets().groups
    for group, topics in sorted(wanted.groups.items()):
        group_offsets = current.get(group, {})
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for tp, committed in _by_partition(topics):
            known = group_offsets.get(tp.topic, {}).get(tp.partition)
            log = logs.get(tp)
            if log is None:
                result.skipped.append(f"group {group}: {tp} does not exist on this cluster")
            # Compared after clamping, so that a second run finds what the first one has committed.
            elif known is not None and known.offset == _clamped(committed.offset, log):
                result.unchanged += 1
            elif known is not None and not overwrite:
                result.skipped.append(
                    f"group {group}: {tp} stays at {known.offset}, which was committed on this "
                    f"cluster; the stored offset is {committed.offset}"
                )
            else:
                offsets[tp] = committed
        _commit(group, offsets, logs, result, None if dry_run else admin)
    return result


def _commit(
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    logs: Mapping[TopicPartition, OffsetRange],
    result: RestoredKind,
    admin: ClusterAdmin | None,
) -> None:
    clamped = {
        tp: CommittedOffset(_clamped(committed.offset, logs[tp]), committed.metadata)
        for tp, committed in offsets.items()
    }
    refused = {} if admin is None or not clamped else admin.commit(group, clamped)
    for tp, committed in clamped.items():
        line = f"group {group}: {tp} at {committed.offset}"
        stored = offsets[tp].offset
        if committed.offset != stored:
            line += f" ({stored} is outside of the log, {logs[tp]})"
        if tp in refused:
            result.skipped.append(f"{line} is refused: {refused[tp]}")
        else:
            result.changed.append(line)


def _clamped(offset: int, log: OffsetRange) -> int:
    """Return the offset, moved into the log.

    Kafka accepts commits outside of the log; consumers then start according to
    `auto.offset.reset`.
    """
    return min(max(offset, log.start), log.end)


def _by_partition(
    topics: Mapping[str, Mapping[int, CommittedOffset]],
) -> list[tuple[TopicPartition, CommittedOffset]]:
    return [
        (TopicPartition(topic, number), committed)
        for topic, partitions in sorted(topics.items())
        for number, committed in sorted(partitions.items())
    ]


def restore_acls(wanted: AclBindings, admin: ClusterAdmin, *, dry_run: bool) -> RestoredKind:
    """Create the missing ACLs. Other ACLs of the cluster stay."""
    result = RestoredKind(SnapshotKind.ACLS)
    if not wanted.bindings:
        return result
    existing = admin.acls()
    if not existing.enabled:
        result.skipped.append(
            f"{len(wanted.bindings)} ACLs: this cluster has no authorizer "
            "(authorizer.class.name of the brokers and controllers)"
        )
        return result
    missing = [binding for binding in wanted.bindings if binding not in existing.bindings]
    result.unchanged = len(wanted.bindings) - len(missing)
    refused = {} if dry_run or not missing else admin.create_acls(missing)
    for binding in missing:
        if binding in refused:
            result.skipped.append(f"{_acl_text(binding)} is refused: {refused[binding]}")
        else:
            result.changed.append(_acl_text(binding))
    return result


def _acl_text(acl: AclBinding) -> str:
    return (
        f"{acl.permission} {acl.principal} from {acl.host}: {acl.operation} on {acl.resource_type} "
        f"{acl.pattern_type} {acl.name}"
    )


def restore_quotas(wanted: ClientQuotas, admin: ClusterAdmin, *, dry_run: bool) -> RestoredKind:
    """Set client quotas that are missing or different. Other quotas of the cluster stay."""
    result = RestoredKind(SnapshotKind.QUOTAS)
    existing = {item.entity: item.limits for item in admin.quotas().quotas} if wanted.quotas else {}
    for quota in wanted.quotas:
        known = existing.get(quota.entity, {})
        different = {name: item for name, item in quota.limits.items() if known.get(name) != item}
        result.unchanged += len(quota.limits) - len(different)
        if not different:
            continue
        refused = None if dry_run else admin.set_quota(ClientQuota(quota.entity, different))
        line = _quota_text(quota.entity, different)
        if refused is None:
            result.changed.append(line)
        else:
            result.skipped.append(f"{line} is refused: {refused}")
    return result


def _quota_text(entity: Iterable[QuotaEntity], limits: Mapping[str, float]) -> str:
    target = ", ".join(f"{part.entity_type} {part.name or '(default)'}" for part in entity)
    return f"{target}: {', '.join(f'{name}={limit:g}' for name, limit in sorted(limits.items()))}"


def missing_scram_users(wanted: ScramUsers, admin: ClusterAdmin) -> RestoredKind:
    """List the SCRAM users that users must create again, because their passwords are not stored."""
    result = RestoredKind(SnapshotKind.SCRAM_USERS)
    existing = admin.scram_users().users if wanted.users else {}
    for name, mechanisms in sorted(wanted.users.items()):
        known = {credential.mechanism for credential in existing.get(name, ())}
        for credential in mechanisms:
            if credential.mechanism in known:
                result.unchanged += 1
            else:
                result.skipped.append(
                    f"SCRAM user {name}: create it again with a password ({credential.mechanism}, "
                    f"{credential.iterations} iterations)"
                )
    return result


def restore_broker_configs(
    wanted: BrokerConfigs, admin: ClusterAdmin, *, dry_run: bool
) -> RestoredKind:
    """Set the dynamic configs of the brokers that exist."""
    result = RestoredKind(SnapshotKind.BROKER_CONFIGS)
    existing = admin.broker_configs()
    brokers = set(admin.brokers())
    for broker_id, configs in sorted(wanted.brokers.items()):
        if broker_id not in brokers:
            result.skipped.append(f"{len(configs)} configs of broker {broker_id}, which is not up")
            continue
        known = existing.brokers.get(broker_id, {})
        different = {name: value for name, value in configs.items() if known.get(name) != value}
        result.unchanged += len(configs) - len(different)
        for name, value in sorted(different.items()):
            refused = None if dry_run else admin.set_broker_config(broker_id, name, value)
            if refused is None:
                result.changed.append(f"broker {broker_id}: {name}={value}")
            else:
                result.skipped.append(f"broker {broker_id}: {name}={value} is refused: {refused}")
    different = dict(wanted.default.items() - existing.default.items())
    result.unchanged += len(wanted.default) - len(different)
    result.skipped.extend(
        f"{name}={value} of all brokers: set it by hand, {_BY_HAND} --entity-default "
        f"--add-config '{name}={value}'"
        for name, value in sorted(different.items())
    )
    for owner, names in sorted(wanted.secret.items()):
        result.skipped.extend(
            f"{name} of {'all brokers' if owner == 'default' else f'broker {owner}'}: set it by "
            "hand, Kafka does not return its value"
            for name in names
        )
    return result
