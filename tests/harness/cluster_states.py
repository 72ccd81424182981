"""A cluster state for tests, and a source that returns it."""

from collections.abc import Collection, Mapping

from sidetier.leadership.port import ReadState
from sidetier.segments.cluster_state import (
    AclBinding,
    AclBindings,
    BrokerConfigs,
    ClientQuota,
    ClientQuotas,
    CommittedOffset,
    GroupOffsets,
    QuotaEntity,
    ScramMechanism,
    ScramUsers,
    SnapshotContent,
    SnapshotKind,
    TopicDefinition,
    TopicDefinitions,
)
from sidetier.segments.errors import LeadershipUnavailableError

STATE: Mapping[SnapshotKind, SnapshotContent] = {
    SnapshotKind.TOPICS: TopicDefinitions(
        {
            "orders": TopicDefinition(
                3, 2, {"retention.ms": "86400000"}, topic_id="cym-TlqmRE2h0UHouOCTtg"
            ),
            "old": TopicDefinition(1, 1, {}),
        }
    ),
    SnapshotKind.BROKER_CONFIGS: BrokerConfigs(
        default={"log.cleaner.threads": "2"},
        brokers={1: {"leader.replication.throttled.rate": "1000000"}},
        secret={"1": ("listener.name.tls.ssl.keystore.password",)},
    ),
    SnapshotKind.ACLS: AclBindings(
        (AclBinding("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"),),
        enabled=True,
    ),
    SnapshotKind.QUOTAS: ClientQuotas(
        (
            ClientQuota(
                (QuotaEntity("client-id", None), QuotaEntity("user", "alice")),
                {"producer_byte_rate": 1024.0},
            ),
        )
    ),
    SnapshotKind.SCRAM_USERS: ScramUsers({"bob": (ScramMechanism("SCRAM_SHA_256", 8192),)}),
    SnapshotKind.GROUP_OFFSETS: GroupOffsets(
        {"billing": {"orders": {0: CommittedOffset(7), 2: CommittedOffset(9, "note")}}}
    ),
}


def offsets(offset: int) -> GroupOffsets:
    """Return offsets with one group that has committed one offset."""
    return GroupOffsets({"billing": {"orders": {0: CommittedOffset(offset)}}})


class StateByHand:
    """A ClusterStateSource that returns what the test sets."""

    def __init__(self, answers: Mapping[SnapshotKind, SnapshotContent] = STATE) -> None:
        self.answers = dict(answers)
        self.refused: dict[SnapshotKind, str] = {}
        self.incomplete: dict[SnapshotKind, str] = {}
        self.unexpected: Exception | None = None
        self.away = False
        self.asked: list[SnapshotKind] = []
        self.before: dict[SnapshotKind, SnapshotContent | None] = {}
        self.closed = False

    @property
    def kinds(self) -> Collection[SnapshotKind]:
        return self.answers.keys()

    def read(self, kind: SnapshotKind, before: SnapshotContent | None, seconds: float) -> ReadState:
        assert seconds > 0
        self.asked.append(kind)
        self.before[kind] = before
        if self.unexpected is not None:
            raise self.unexpected
        if self.away or kind in self.refused:
            raise LeadershipUnavailableError(self.refused.get(kind, "away for the test"))
        return ReadState(self.answers[kind], self.incomplete.get(kind))

    def close(self) -> None:
        self.closed = True
