"""State of the whole cluster: from librdkafka's admin client; quotas and offsets from `wire`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)

from sidetier.leadership.cluster import admin_client, topic_id_of
from sidetier.leadership.consumer_groups import may_see_all_groups, read_offsets
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
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    KafkaApiError,
    LeadershipUnavailableError,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sidetier.segments.offsets import TopicPartition
    from sidetier.wire.cluster import Cluster
    from sidetier.wire.requests import CommittedOffset as WireOffset

T = TypeVar("T")
_Offsets = Mapping[str, Mapping[int, CommittedOffset]]

_TOPICS_AT_ONCE: Final = 100
_GROUPS_AT_ONCE: Final = 20
_PROBLEMS_SHOWN: Final = 3
_NO_PERMISSION: Final[Mapping[SnapshotKind, str]] = {
    SnapshotKind.TOPICS: "DESCRIBE and DESCRIBE_CONFIGS on the topics",
    SnapshotKind.BROKER_CONFIGS: "DESCRIBE_CONFIGS on the cluster",
    SnapshotKind.ACLS: "DESCRIBE on the cluster",
    SnapshotKind.QUOTAS: "DESCRIBE_CONFIGS on the cluster",
    SnapshotKind.SCRAM_USERS: "DESCRIBE on the cluster",
    SnapshotKind.GROUP_OFFSETS: "DESCRIBE on the cluster and on the topics",
}
_REFUSALS: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
_TOPIC_GONE: Final = KafkaError.UNKNOWN_TOPIC_OR_PART
_RESOURCES: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: "TOPIC",
    ResourceType.GROUP: "GROUP",
    ResourceType.BROKER: "CLUSTER",  # librdkafka calls Kafka's CLUSTER (the same number) BROKER
    ResourceType.TRANSACTIONAL_ID: "TRANSACTIONAL_ID",
}


class KafkaClusterState:
    """Reads cluster state in batches with pauses in between. For one thread at a time.

    Args:
        bootstrap_servers: Addresses of one or more brokers.
        properties: Further librdkafka properties.
        pause: Waits the given seconds; returns True early when the process is to end.
        timeout: Maximum wait for one response, in seconds.

    Raises:
        ConfigurationError: librdkafka rejects a property.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str],
        pause: Callable[[float], bool],
        timeout: float = 10.0,
    ) -> None:
        self._servers = bootstrap_servers
        self._pause = pause
        self._timeout = timeout
        self._properties = properties
        self._client = admin_client(bootstrap_servers, properties)

    @property
    def kinds(self) -> Collection[SnapshotKind]:
        """All kinds."""
        return tuple(SnapshotKind)

    def read(self, kind: SnapshotKind, before: SnapshotContent | None, seconds: float) -> ReadState:
        """Send librdkafka's admin requests for this kind."""
        try:
            match kind:
                case SnapshotKind.TOPICS:
                    known = before if isinstance(before, TopicDefinitions) else None
                    return self._topics(known, seconds)
                case SnapshotKind.BROKER_CONFIGS:
                    return self._broker_configs(
                        before if isinstance(before, BrokerConfigs) else None
                    )
                case SnapshotKind.ACLS:
                    return self._acls()
                case SnapshotKind.SCRAM_USERS:
                    return self._scram_users()
                case SnapshotKind.GROUP_OFFSETS:
                    committed = before if isinstance(before, GroupOffsets) else None
                    return self._group_offsets(committed, seconds)
                case SnapshotKind.QUOTAS:
                    return self._quotas()
        except KafkaException as error:
            raise LeadershipUnavailableError(f"{kind}: {self._text_of(kind, error)}") from error

    def close(self) -> None:
        """Do nothing: librdkafka closes the connections when the client is destroyed."""

    def _text_of(self, kind: SnapshotKind, error: KafkaException) -> str:
        if error.args[0].code() in _REFUSALS:
            return f"{error.args[0].str()}: the sidecar's principal needs {_NO_PERMISSION[kind]}"
        return f"{self._servers}: {self._client.reason(error)}"

    def _spread(self, items: Sequence[T], size: int, seconds: float) -> Iterator[Sequence[T]]:
        """Yield the items in batches that are spread over `seconds`."""
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        for number, batch in enumerate(batches):
            # No pause before the first batch.
            if number and self._pause(seconds / len(batches)):
                raise LeadershipUnavailableError(
                    "the sidecar stopped while it read the cluster's state"
                )
            yield batch

    def _topics(self, before: TopicDefinitions | None, seconds: float) -> ReadState:
        listed = self._client.list_topics(timeout=self._timeout).topics
        definitions: dict[str, TopicDefinition] = {}
        problems: list[str] = []
        for names in self._spread(sorted(listed), _TOPICS_AT_ONCE, seconds):
            described = self._client.describe_topics(
                TopicCollection(list(names)), request_timeout=self._timeout
            )
            configs = self._client.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in names],
                request_timeout=self._timeout,
            )
            config_futures = {resource.name: future for resource, future in configs.items()}
            for name in names:
                known = before.topics.get(name) if before else None
                try:
                    topic = described[name].result()
                    entries, problem = self._or_before(
                        config_futures[name], _set_for_topic, known.configs if known else {}
                    )
                except KafkaException as error:
                    if error.args[0].code() == _TOPIC_GONE:
                        continue
                    problems.append(f"{name}: {self._text_of(SnapshotKind.TOPICS, error)}")
                    if known is not None:
                        # A definition that cannot be read now still exists: after a snapshot
                        # without it, a restore would not create the topic.
                        definitions[name] = known
                    continue
                if problem is not None:
                    problems.append(f"configuration of {name}: {problem}")
                definitions[name] = TopicDefinition(
                    partitions=len(topic.partitions),
                    replication_factor=max(
                        len(partition.replicas) for partition in topic.partitions
                    ),
                    configs=entries,
                    topic_id=topic_id_of(topic.topic_id),
                )
        return ReadState(TopicDefinitions(definitions), _joined(problems))

    def _or_before(
        self,
        future: "Future[Mapping[str, ConfigEntry]]",
        of: Callable[[Mapping[str, ConfigEntry]], dict[str, str]],
        before: Mapping[str, str],
    ) -> tuple[Mapping[str, str], str | None]:
        try:
            return of(future.result()), None
        except KafkaException as error:
            if error.args[0].code() == _TOPIC_GONE:
                raise
            return before, self._text_of(SnapshotKind.TOPICS, error)

    def _broker_configs(self, before: BrokerConfigs | None) -> ReadState:
        default: dict[str, str] = {}
        brokers = dict(before.brokers) if before else {}
        secret = dict(before.secret) if before else {}
        problems = []
        ids = sorted(self._client.list_topics(timeout=self._timeout).brokers)
        for broker_id in ids:  # a broker returns only its own configuration
            resource = ConfigResource(ResourceType.BROKER, str(broker_id))
            future = self._client.describe_configs([resource], request_timeout=self._timeout)[
                resource
            ]
            try:
                entries = future.result()
            except KafkaException as error:
                if error.args[0].code() in _REFUSALS:
                    # Without permission, no broker answers: that
                    # is a failure of the kind, not of one broker.
                    raise
                problems.append(f"broker {broker_id}: {error}")
                # A broker that is down keeps what was read
                # of it before (`brokers` starts with that).
                continue
            all_options = [option for entry in entries.values() for option in _with_synonyms(entry)]
            of_broker = [
                option
                for option in all_options
                if _is_from(option, ConfigSource.DYNAMIC_BROKER_CONFIG)
            ]
            of_all = [
                option
                for option in all_options
                if _is_from(option, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            ]
            brokers[broker_id] = _values(of_broker)
            default |= _values(of_all)
            secret[str(broker_id)] = _secrets(of_broker)
            secret["default"] = _secrets(of_all)
        if problems and len(problems) == len(ids):
            raise LeadershipUnavailableError(f"broker-configs: {_joined(problems)}")
        # A broker without dynamic settings has no entry: a restore then sets nothing for it.
        brokers = {broker_id: configs for broker_id, configs in brokers.items() if configs}
        secret = {owner: names for owner, names in secret.items() if names}
        return ReadState(BrokerConfigs(default, brokers, secret), _joined(problems))

    def _acls(self) -> ReadState:
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # None matches any name, principal and host
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        try:
            listed = self._client.describe_acls(everything, request_timeout=self._timeout).result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.SECURITY_DISABLED:
                return ReadState(AclBindings((), enabled=False))
            raise
        # librdkafka shows resource types that it does not
        # know, such as delegation tokens, as UNKNOWN.
        known = [
            acl
            for acl in listed
            if acl.restype in _RESOURCES and acl.operation is not AclOperation.UNKNOWN
        ]
        bindings = sorted(
            AclBinding(
                _RESOURCES[acl.restype],
                acl.name,
                acl.resource_pattern_type.name,
                acl.principal,
                acl.host,
                acl.operation.name,
                acl.permission_type.name,
            )
            for acl in known
        )
        unknown = len(listed) - len(known)
        problem = (
            f"{unknown} ACLs of users or delegation tokens cannot be read" if unknown else None
        )
        return ReadState(AclBindings(tuple(bindings), enabled=True), problem)

    def _quotas(self) -> ReadState:
        """Read client quotas through `wire`: librdkafka has no request for them."""
        from sidetier.wire.requests import client_quotas  # noqa: PLC0415 -- see `_wire`

        try:
            with self._wire(SnapshotKind.QUOTAS) as cluster:
                entries = client_quotas(cluster, timeout=self._timeout)
        except BrokerError as error:
            raise LeadershipUnavailableError(
                f"quotas: {error}; the sidecar's principal needs "
                f"{_NO_PERMISSION[SnapshotKind.QUOTAS]}"
                if isinstance(error, KafkaApiError)
                else f"quotas: {error}"
            ) from error
        quotas = [
            ClientQuota(
                tuple(sorted(QuotaEntity(*part) for part in entry.entity.items())), entry.values
            )
            for entry in entries
        ]
        # Equal states must give equal text: a snapshot is stored only if its checksum has changed.
        quotas.sort(key=lambda quota: str(quota.entity))
        return ReadState(ClientQuotas(tuple(quotas)))

    def _scram_users(self) -> ReadState:
        future = self._client.describe_user_scram_credentials(request_timeout=self._timeout)
        users: dict[str, tuple[ScramMechanism, ...]] = {}
        descriptions = future.result()  # type: ignore[union-attr]  # no user is named: a single future
        for name, user in descriptions.items():
            infos = user.scram_credential_infos
            users[name] = tuple(
                sorted(ScramMechanism(info.mechanism.name, info.iterations) for info in infos)
            )
        return ReadState(ScramUsers(users))

    def _group_offsets(self, before: GroupOffsets | None, seconds: float) -> ReadState:
        """List the groups, and read their offsets through `wire`."""
        cluster = self._wire(SnapshotKind.GROUP_OFFSETS)
        listed = self._client.list_consumer_groups(request_timeout=self._timeout).result()
        names = {group_listing.group_id for group_listing in listed.valid}
        problems = [f"groups are missing: {error}" for error in listed.errors]
        offsets_by_group: dict[str, _Offsets] = {}
        known = before.groups if before else {}
        if problems:  # a broker did not respond: keep the groups of the previous read
            offsets_by_group |= {group: known[group] for group in known.keys() - names}
        for group, offsets in self._offsets(cluster, sorted(names), seconds):
            if isinstance(offsets, str):
                problems.append(f"group {group}: {offsets}")
                # As for topics: offsets that cannot be read now are taken from the snapshot before.
                offsets = known.get(group, {})  # noqa: PLW2901
            if offsets:
                offsets_by_group[group] = offsets
        if not self._may_see_all_groups(cluster):
            problems.append(
                "only groups that the sidecar's principal may describe are listed: it needs "
                f"{_NO_PERMISSION[SnapshotKind.GROUP_OFFSETS]}"
            )
        return ReadState(GroupOffsets(offsets_by_group), _joined(problems))

    def _offsets(
        self, cluster: "Cluster", groups: Sequence[str], seconds: float
    ) -> Iterator[tuple[str, _Offsets | str]]:
        """Yield each group's committed offsets, or why they could not be read.

        Deleted groups are left out. The batches are spread over `seconds`.
        """
        spread = chain.from_iterable(self._spread(groups, _GROUPS_AT_ONCE, seconds))
        with cluster:
            for group, answer in read_offsets(cluster, spread, self._timeout):
                if isinstance(answer, BrokerError):
                    yield group, _with_permission(answer)
                else:
                    yield group, _by_topic(answer)

    def _wire(self, kind: SnapshotKind) -> "Cluster":
        """Return a client that can ask what librdkafka cannot.

        Raises:
            LeadershipUnavailableError: It does not support one of `broker.client`.
        """
        # Importing Kafka's messages takes 25 MB, and only one sidecar of the cluster needs them.
        from sidetier.wire.cluster import Cluster  # noqa: PLC0415
        from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

        properties = {**self._properties, "bootstrap.servers": self._servers}
        try:
            return Cluster(ClientSettings.from_properties(properties))
        except ConfigurationError as error:
            raise LeadershipUnavailableError(
                f"{kind}: broker.client: {error}; without such snapshots, list {kind} in "
                "uploader.cluster_snapshots.exclude"
            ) from error

    def _may_see_all_groups(self, cluster: "Cluster") -> bool:
        """Raise LeadershipUnavailableError if no broker answers."""
        try:
            with cluster:
                return may_see_all_groups(cluster, self._timeout)
        except BrokerError as error:
            raise LeadershipUnavailableError(f"{SnapshotKind.GROUP_OFFSETS}: {error}") from error


def _set_for_topic(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return _values(
        entry for entry in entries.values() if _is_from(entry, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    )


def _is_from(entry: ConfigEntry, source: ConfigSource) -> bool:
    return ConfigSource(entry.source) is source  # `source` is an int, despite its declared type


def _with_synonyms(entry: ConfigEntry) -> list[ConfigEntry]:
    """Return the effective entry and those that it overrides: a broker's hides the cluster's."""
    return [entry, *entry.synonyms.values()]


def _values(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    return {entry.name: entry.value for entry in entries if entry.value is not None}


def _secrets(entries: Iterable[ConfigEntry]) -> tuple[str, ...]:
    return tuple(sorted({entry.name for entry in entries if entry.is_sensitive}))


def _with_permission(error: BrokerError) -> str:
    if not (isinstance(error, KafkaApiError) and error.code in _REFUSALS):
        return str(error)
    return f"{error}: the sidecar's principal needs {_NO_PERMISSION[SnapshotKind.GROUP_OFFSETS]}"


def _by_topic(
    offsets: "Mapping[TopicPartition, WireOffset]",
) -> dict[str, dict[int, CommittedOffset]]:
    by_topic: dict[str, dict[int, CommittedOffset]] = {}
    for tp, offset in offsets.items():
        committed = CommittedOffset(offset.offset, offset.metadata)
        by_topic.setdefault(tp.topic, {})[tp.partition] = committed
    return by_topic


def _joined(problems: Sequence[str]) -> str | None:
    """Return the first problems and the number of further ones; None without problems."""
    if not problems:
        return None
    more = len(problems) - _PROBLEMS_SHOWN
    text = "; ".join(problems[:_PROBLEMS_SHOWN])
    return text + (f"; and {more} more" if more > 0 else "")
