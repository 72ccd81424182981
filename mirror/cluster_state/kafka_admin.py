"""Read and change the new cluster for `cluster_state`, through librdkafka's admin client."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding as KafkaAclBinding
from confluent_kafka.admin import (
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from sidetier.leadership.cluster import End, admin_client, ask_offsets
from sidetier.leadership.cluster_state import KafkaClusterState
from sidetier.segments.cluster_state import (
    AclBinding,
    AclBindings,
    BrokerConfigs,
    ClientQuota,
    ClientQuotas,
    CommittedOffset,
    GroupOffsets,
    ScramUsers,
    SnapshotContent,
    SnapshotKind,
)
from sidetier.segments.errors import BrokerError, KafkaApiError, LeadershipUnavailableError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.wire.cluster import Cluster, Controller
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import CommittedOffset as WireOffset
from sidetier.wire.requests import commit_offsets
from sidetier.wire.settings import ClientSettings

T = TypeVar("T")

_PARTITIONS_AT_ONCE: Final = 1000
_RESOURCES: Final = {
    "TOPIC": ResourceType.TOPIC,
    "GROUP": ResourceType.GROUP,
    "CLUSTER": ResourceType.BROKER,  # librdkafka's name for the same number
    "TRANSACTIONAL_ID": ResourceType.TRANSACTIONAL_ID,
}
_MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
)


class KafkaClusterAdmin:
    """The running cluster behind `ClusterAdmin`.

    Args:
        bootstrap_servers: The addresses of some brokers.
        properties: Further properties for librdkafka.
        timeout: Maximum wait for one response, in seconds.

    Raises:
        ConfigurationError: librdkafka refuses a property.
    """

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 30.0
    ) -> None:
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)
        self._settings = ClientSettings.from_properties(
            {**properties, "bootstrap.servers": bootstrap_servers}
        )
        self._state = KafkaClusterState(
            bootstrap_servers, properties, pause=lambda _: False, timeout=timeout
        )

    def acls(self) -> AclBindings:
        """Read all ACLs; raises LeadershipUnavailableError if the brokers refuse."""
        return cast("AclBindings", self._read(SnapshotKind.ACLS))

    def group_offsets(self) -> GroupOffsets:
        """An incomplete result is an error: a missing offset would be overwritten."""
        read = self._state.read(SnapshotKind.GROUP_OFFSETS, None, 0.0)
        if read.problem is not None:
            raise LeadershipUnavailableError(f"group offsets of this cluster: {read.problem}")
        return cast("GroupOffsets", read.content)

    def scram_users(self) -> ScramUsers:
        """Read all SCRAM users; raises LeadershipUnavailableError if the brokers refuse."""
        return cast("ScramUsers", self._read(SnapshotKind.SCRAM_USERS))

    def broker_configs(self) -> BrokerConfigs:
        """Read the dynamic configs; raises LeadershipUnavailableError if the brokers refuse."""
        return cast("BrokerConfigs", self._read(SnapshotKind.BROKER_CONFIGS))

    def quotas(self) -> ClientQuotas:
        """Read all quotas; raises LeadershipUnavailableError if the brokers refuse."""
        return cast("ClientQuotas", self._read(SnapshotKind.QUOTAS))

    def set_quota(self, quota: ClientQuota) -> str | None:
        """Set the limits in one request, on a connection of its own."""
        entity = [
            {"entity_type": part.entity_type, "entity_name": part.name} for part in quota.entity
        ]
        ops = [
            {"key": name, "value": limit, "remove": False} for name, limit in quota.limits.items()
        ]
        try:
            with Cluster(self._settings) as cluster:
                cluster.request(
                    Controller(),
                    ApiKey.ALTER_CLIENT_QUOTAS,
                    timeout=self._timeout,
                    entries=[{"entity": entity, "ops": ops}],
                    validate_only=False,
                )
        except KafkaApiError as error:
            return str(error)
        except BrokerError as error:
            raise LeadershipUnavailableError(f"the new cluster refuses: {error}") from error
        return None

    def brokers(self) -> Iterable[int]:
        """Read the ids from a Metadata response."""
        return self._ask(lambda: self._client.list_topics(timeout=self._timeout)).brokers.keys()

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        """Refuse bindings that librdkafka does not know; create the others in one request."""
        refused: dict[AclBinding, str] = {}
        known: dict[KafkaAclBinding, AclBinding] = {}
        for binding in bindings:
            try:
                known[_librdkafka_binding(binding)] = binding
            except KeyError as error:
                refused[binding] = f"librdkafka does not know {error}"
        if not known:
            return refused
        futures = self._ask(
            lambda: self._client.create_acls(list(known), request_timeout=self._timeout)
        )
        for requested, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                refused[known[requested]] = error.args[0].str()
        return refused

    def log_ranges(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetRange]:
        """Request the offsets of `_PARTITIONS_AT_ONCE` partitions at a time."""
        topics = self._ask(lambda: self._client.list_topics(timeout=self._timeout)).topics
        wanted = [
            tp for tp in tps if tp.topic in topics and tp.partition in topics[tp.topic].partitions
        ]
        ranges: dict[TopicPartition, OffsetRange] = {}
        for first in range(0, len(wanted), _PARTITIONS_AT_ONCE):
            part = wanted[first : first + _PARTITIONS_AT_ONCE]
            starts, ends = self._offsets(part, End.START), self._offsets(part, End.LATEST)
            ranges |= {
                tp: OffsetRange(starts[tp], ends[tp]) for tp in part if tp in starts and tp in ends
            }
        return ranges

    def _offsets(self, tps: list[TopicPartition], end: End) -> dict[TopicPartition, Offset]:
        answers = self._ask(lambda: ask_offsets(self._client, tps, end, self._timeout))
        offsets: dict[TopicPartition, Offset] = {}
        for tp, answer in answers.items():
            if not isinstance(answer, KafkaException):
                offsets[tp] = Offset(answer.offset)
            elif answer.args[0].code() not in _MISSING:
                raise LeadershipUnavailableError(f"{tp}: the brokers return no offsets: {answer}")
        return offsets

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Mapping[TopicPartition, str]:
        """Commit on a connection of its own: all partitions of a group in one request."""
        # Through `wire`, because librdkafka appends a zero byte to the metadata.
        wanted = {
            tp: WireOffset(Offset(committed.offset), metadata=committed.metadata)
            for tp, committed in offsets.items()
        }
        try:
            with Cluster(self._settings) as cluster:
                try:
                    commit_offsets(cluster, group, wanted, timeout=self._timeout)
                except KafkaApiError:
                    # Each partition is committed alone, so that a refused one does not keep the
                    # others from being committed.
                    return self._refused(cluster, group, wanted)
        except BrokerError as error:
            raise LeadershipUnavailableError(f"the new cluster refuses: {error}") from error
        return {}

    def _refused(
        self, cluster: Cluster, group: str, wanted: Mapping[TopicPartition, WireOffset]
    ) -> dict[TopicPartition, str]:
        """Commit each partition alone; return the refused ones, each with the reason."""
        refused = {}
        for tp, committed in wanted.items():
            try:
                commit_offsets(cluster, group, {tp: committed}, timeout=self._timeout)
            except KafkaApiError as error:
                refused[tp] = str(error)
        return refused

    def set_broker_config(self, broker_id: int, name: str, value: str) -> str | None:
        """Change the config incrementally: the broker's other configs stay."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=[entry])
        futures = self._ask(
            lambda: self._client.incremental_alter_configs(
                [resource], request_timeout=self._timeout
            )
        )
        try:
            futures[resource].result()
        except KafkaException as error:
            return str(error.args[0].str())
        return None

    def _read(self, kind: SnapshotKind) -> SnapshotContent:
        return self._state.read(kind, None, 0.0).content

    def _ask(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as error:
            raise LeadershipUnavailableError(f"the new cluster refuses: {error}") from error


def _librdkafka_binding(binding: AclBinding) -> KafkaAclBinding:
    return KafkaAclBinding(
        _RESOURCES[binding.resource_type],
        binding.name,
        ResourcePatternType[binding.pattern_type],
        binding.principal,
        binding.host,
        AclOperation[binding.operation],
        AclPermissionType[binding.permission],
    )
