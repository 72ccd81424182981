"""A stored cluster state is restored once, inside the logs; skipped items are listed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from sidetier.mirror.cluster_state.restore import (
    RestoredKind,
    restore_acls,
    restore_broker_configs,
    restore_cluster_state,
    restore_group_offsets,
    restore_quotas,
)
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
    ScramMechanism,
    ScramUsers,
    SnapshotKind,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

READ = AclBinding("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
WRITE = AclBinding("TOPIC", "orders", "LITERAL", "User:alice", "*", "WRITE", "ALLOW")
ORDERS = TopicPartition("orders", 0)
NOTHING = BrokerConfigs({}, {}, {})


@dataclass
class FakeAdmin:
    """A ClusterAdmin in memory. `refused` names the changes it refuses; `calls` are its changes."""

    bindings: set[AclBinding] = field(default_factory=set)
    authorizer: bool = True
    committed: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    logs: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    users: dict[str, tuple[ScramMechanism, ...]] = field(default_factory=dict)
    limits: dict[tuple[QuotaEntity, ...], Mapping[str, float]] = field(default_factory=dict)
    configs: BrokerConfigs = NOTHING
    up: tuple[int, ...] = (1, 2)
    refused: set[object] = field(default_factory=set)
    calls: list[object] = field(default_factory=list)

    def acls(self) -> AclBindings:
        return AclBindings(tuple(sorted(self.bindings)), self.authorizer)

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        wanted = set(bindings)
        self.calls.append("acls")
        self.bindings |= wanted - self.refused
        return {binding: "for the test" for binding in wanted if binding in self.refused}

    def group_offsets(self) -> GroupOffsets:
        groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        for group, offsets in self.committed.items():
            for tp, offset in offsets.items():
                groups.setdefault(group, {}).setdefault(tp.topic, {})[tp.partition] = offset
        return GroupOffsets(groups)

    def log_ranges(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetRange]:
        return {tp: self.logs[tp] for tp in tps if tp in self.logs}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, str]:
        self.calls.append(group)
        refused = {tp: "for the test" for tp in offsets if tp in self.refused}
        known = self.committed.setdefault(group, {})
        known.update({tp: offset for tp, offset in offsets.items() if tp not in refused})
        return refused

    def quotas(self) -> ClientQuotas:
        return ClientQuotas(tuple(ClientQuota(*item) for item in self.limits.items()))

    def set_quota(self, quota: ClientQuota) -> str | None:
        self.calls.append("quota")
        if quota.entity in self.refused:
            return "for the test"
        self.limits[quota.entity] = {**self.limits.get(quota.entity, {}), **quota.limits}
        return None

    def scram_users(self) -> ScramUsers:
        return ScramUsers(self.users)

    def brokers(self) -> Iterable[int]:
        return self.up

    def broker_configs(self) -> BrokerConfigs:
        return self.configs

    def set_broker_config(self, broker_id: int, name: str, value: str) -> str | None:
        self.calls.append((broker_id, name))
        if name in self.refused:
            return "for the test"
        brokers = {broker: dict(known) for broker, known in self.configs.brokers.items()}
        brokers.setdefault(broker_id, {})[name] = value
        self.configs = BrokerConfigs(self.configs.default, brokers, self.configs.secret)
        return None


def group(offset: int, metadata: str = "") -> GroupOffsets:
    return GroupOffsets({"g": {"orders": {0: CommittedOffset(offset, metadata)}}})


def restored(admin: FakeAdmin, offset: int, *, overwrite: bool = False) -> RestoredKind:
    return restore_group_offsets(group(offset), admin, dry_run=False, overwrite=overwrite)


def test_offsets_are_committed_with_their_metadata() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(2), Offset(10))})
    result = restore_group_offsets(group(7, "note"), admin, dry_run=False)
    assert admin.committed == {"g": {ORDERS: CommittedOffset(7, "note")}}
    assert result.changed == ["group g: orders-0 at 7"]


def test_offsets_outside_the_log_are_clamped() -> None:
    for stored, clamped in ((1, 2), (11, 10), (2, 2), (10, 10)):
        admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(2), Offset(10))})
        (line,) = restored(admin, stored).changed
        assert admin.committed["g"][ORDERS].offset == clamped
        assert ("is outside of the log, [2, 10)" in line) == (stored != clamped)


def test_second_run_changes_nothing() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(2), Offset(10))})
    restored(admin, 99)
    again = restored(admin, 99)
    assert (again.changed, again.unchanged, again.skipped) == ([], 1, [])
    assert admin.calls == ["g"]


def test_offsets_that_a_group_has_committed_since_stay_unless_overwrite_is_set() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(2), Offset(10))})
    admin.committed["g"] = {ORDERS: CommittedOffset(9)}
    (line,) = restored(admin, 7).skipped
    assert "stays at 9" in line
    assert admin.calls == []
    restored(admin, 7, overwrite=True)
    assert admin.committed["g"][ORDERS].offset == 7


def test_a_partition_that_does_not_exist_is_reported() -> None:
    admin = FakeAdmin()
    assert restored(admin, 7).skipped == ["group g: orders-0 does not exist on this cluster"]
    assert admin.calls == []


def test_a_refused_commit_is_reported() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(2), Offset(10))}, refused={ORDERS})
    result = restored(admin, 7)
    assert result.changed == []
    assert result.skipped == ["group g: orders-0 at 7 is refused: for the test"]


def test_missing_acls_are_created_and_others_stay() -> None:
    other = AclBinding("GROUP", "g", "PREFIXED", "User:bob", "*", "READ", "DENY")
    admin = FakeAdmin(bindings={READ, other}, refused={WRITE})
    result = restore_acls(AclBindings((READ, WRITE), enabled=True), admin, dry_run=False)
    assert result.unchanged == 1
    assert len(result.skipped) == 1
    admin.refused.clear()
    result = restore_acls(AclBindings((READ, WRITE), enabled=True), admin, dry_run=False)
    assert result.changed == ["ALLOW User:alice from *: WRITE on TOPIC LITERAL orders"]
    assert admin.bindings == {READ, WRITE, other}


def test_acls_are_left_out_without_an_authorizer() -> None:
    admin = FakeAdmin(authorizer=False)
    result = restore_acls(AclBindings((READ,), enabled=True), admin, dry_run=False)
    assert "no authorizer" in result.skipped[0]
    assert admin.calls == []


def test_missing_and_different_quotas_are_set() -> None:
    alice = (QuotaEntity("client-id", None), QuotaEntity("user", "alice"))
    bob = (QuotaEntity("user", "bob"),)
    wanted = ClientQuotas(
        (
            ClientQuota(alice, {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0}),
            ClientQuota(bob, {"request_percentage": 50.0}),
        )
    )
    admin = FakeAdmin(limits={alice: {"consumer_byte_rate": 2048.0, "other": 1.0}}, refused={bob})
    result = restore_quotas(wanted, admin, dry_run=False)
    assert result.changed == ["client-id (default), user alice: producer_byte_rate=1024"]
    assert result.unchanged == 1
    assert result.skipped == ["user bob: request_percentage=50 is refused: for the test"]
    assert admin.limits[alice]["other"] == 1.0
    admin.refused.clear()
    restore_quotas(wanted, admin, dry_run=False)
    assert restore_quotas(wanted, admin, dry_run=True).unchanged == 3


def test_configs_of_running_brokers_are_set_and_the_others_reported() -> None:
    wanted = BrokerConfigs(
        default={"a": "1", "b": "2"},
        brokers={1: {"x": "1", "y": "2", "z": "3"}, 7: {"x": "1"}},
        secret={"1": ("p",), "default": ("q",)},
    )
    admin = FakeAdmin(configs=BrokerConfigs({"a": "1"}, {1: {"x": "1"}}, {}), refused={"z"})
    result = restore_broker_configs(wanted, admin, dry_run=False)
    assert result.changed == ["broker 1: y=2"]
    assert result.unchanged == 2
    assert [line.split(",")[0] for line in result.skipped] == [
        "broker 1: z=3 is refused: for the test",
        "1 configs of broker 7",
        "b=2 of all brokers: set it by hand",
        "p of broker 1: set it by hand",
        "q of all brokers: set it by hand",
    ]


STATE = ClusterState(
    broker_configs=BrokerConfigs({}, {1: {"x": "1"}}, {}),
    acls=AclBindings((READ,), enabled=True),
    scram_users=ScramUsers(
        {
            "bob": (ScramMechanism("SCRAM_SHA_256", 4096), ScramMechanism("SCRAM_SHA_512", 4096)),
        }
    ),
    group_offsets=group(7),
)


def test_a_dry_run_reports_changes_and_makes_none() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(0), Offset(10))})
    would = restore_cluster_state(STATE, admin, dry_run=True)
    assert admin.calls == []
    done = restore_cluster_state(STATE, admin, dry_run=False)
    assert [item.changed for item in would] == [entry.changed for entry in done]
    assert admin.calls == ["g", "acls", (1, "x")], "permissions after offsets, brokers last"


class KilledError(Exception):
    """Death of the process."""


class Calls(list[object]):
    """Allow the given number of changes; the next one ends the process before it takes effect."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def append(self, change: object) -> None:
        if not self.left:
            raise KilledError
        self.left -= 1
        super().append(change)


@pytest.mark.parametrize("changes", range(3))
def test_restore_killed_before_each_change_is_completed_by_the_next_run(changes: int) -> None:
    whole = FakeAdmin(logs={ORDERS: OffsetRange(Offset(0), Offset(10))})
    restore_cluster_state(STATE, whole, dry_run=False)
    assert len(whole.calls) == 3
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(0), Offset(10))}, calls=Calls(changes))
    with pytest.raises(KilledError):
        restore_cluster_state(STATE, admin, dry_run=False)
    admin.calls = []
    restore_cluster_state(STATE, admin, dry_run=False)
    assert admin == replace(whole, calls=whole.calls[changes:])


def test_scram_users_without_a_password_here_are_listed() -> None:
    admin = FakeAdmin(logs={ORDERS: OffsetRange(Offset(0), Offset(10))})
    admin.users["bob"] = (ScramMechanism("SCRAM_SHA_512", 8192),)
    by_kind = {item.kind: item for item in restore_cluster_state(STATE, admin, dry_run=False)}
    users = by_kind[SnapshotKind.SCRAM_USERS]
    assert users.unchanged == 1
    assert users.skipped == [
        "SCRAM user bob: create it again with a password (SCRAM_SHA_256, 4096 iterations)"
    ]


def test_kinds_without_a_snapshot_are_not_restored() -> None:
    admin = FakeAdmin(bindings={READ})
    assert restore_cluster_state(ClusterState(), admin, dry_run=False) == []
    assert admin.calls == []
