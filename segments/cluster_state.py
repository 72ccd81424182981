"""The state of a Kafka cluster apart from its records: definitions, permissions, limits, group
offsets.

A cluster snapshot stores these values, and a restore applies them to an empty cluster. Names of
resources, operations and mechanisms are Kafka's own, in upper case (`TOPIC`, `READ`,
`SCRAM_SHA_256`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class SnapshotKind(StrEnum):
    """The parts of a cluster's state. Each has its own snapshots and its own history."""

    TOPICS = "topics"
    """Definitions of topics: `TopicDefinitions`."""
    BROKER_CONFIGS = "broker-configs"
    """Dynamic configuration of brokers: `BrokerConfigs`."""
    ACLS = "acls"
    """Permissions: `AclBindings`."""
    QUOTAS = "quotas"
    """Client quotas: `ClientQuotas`."""
    SCRAM_USERS = "scram-users"
    """Names of SCRAM users, without secrets: `ScramUsers`."""
    GROUP_OFFSETS = "group-offsets"
    """Committed offsets of consumer groups: `GroupOffsets`."""


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """The input of CreateTopics, and the id that the topic had.

    `configs` holds only values that were set for the topic (source DYNAMIC_TOPIC_CONFIG), no
    defaults. `topic_id` is in Kafka's text form (22 characters); None if the brokers are older than
    topic ids.
    """

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class TopicDefinitions:
    """All topics by name, including internal topics."""

    topics: Mapping[str, TopicDefinition]


@dataclass(frozen=True, slots=True)
class BrokerConfigs:
    """Dynamic configuration: of the whole cluster, and of brokers by their id.

    `secret` names the configs whose value Kafka does not return, by broker id as text, or
    "default".
    """

    default: Mapping[str, str]
    brokers: Mapping[int, Mapping[str, str]]
    secret: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One permission. `pattern_type` is LITERAL or PREFIXED, `permission` ALLOW or DENY."""

    resource_type: str
    name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class AclBindings:
    """All permissions, sorted. `enabled` is False if the brokers have no authorizer."""

    bindings: tuple[AclBinding, ...]
    enabled: bool


@dataclass(frozen=True, slots=True, order=True)
class QuotaEntity:
    """One part of the entity that a quota applies to.

    `entity_type` is user, client-id or ip. `name` is None for the default of that type.
    """

    entity_type: str
    name: str | None


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """Limits of one combination of entities, by name (`producer_byte_rate`)."""

    entity: tuple[QuotaEntity, ...]
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    """All client quotas, sorted by entity."""

    quotas: tuple[ClientQuota, ...]


@dataclass(frozen=True, slots=True, order=True)
class ScramMechanism:
    """A mechanism for which a user has a password, and the number of iterations of its hash."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUsers:
    """SCRAM users by name. Kafka does not return their passwords."""

    users: Mapping[str, tuple[ScramMechanism, ...]]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset that a group reads, and the metadata that its consumer committed with it.

    The leader epoch of the commit is not kept: it means nothing in another cluster, and a Java
    consumer waits forever for an epoch that the partition never had.
    """

    offset: int
    metadata: str = ""


class GroupMember(NamedTuple):
    """A member of a consumer group: its `client.id`, and the address from which it connects."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Committed offsets by group, topic and partition. Groups without any are omitted."""

    groups: Mapping[str, Mapping[str, Mapping[int, CommittedOffset]]]


SnapshotContent = (
    TopicDefinitions | BrokerConfigs | AclBindings | ClientQuotas | ScramUsers | GroupOffsets
)
"""The content of a snapshot of one kind."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The known parts of a cluster's state; None for a part without a snapshot."""

    topics: TopicDefinitions | None = None
    broker_configs: BrokerConfigs | None = None
    acls: AclBindings | None = None
    quotas: ClientQuotas | None = None
    scram_users: ScramUsers | None = None
    group_offsets: GroupOffsets | None = None
    taken_ms: Mapping[SnapshotKind, int] = field(default_factory=dict)
    """When each part was read from the cluster, in milliseconds since 1970."""
