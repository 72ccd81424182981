"""Read consumer groups through `wire`: their committed offsets and members.

Not through librdkafka: it copies commit metadata without the terminating zero byte, so that
confluent-kafka reads beyond its end, and it can end the process while a coordinator loads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sidetier.leadership.port import ReadGroups
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import BrokerError, KafkaApiError

if TYPE_CHECKING:
    from sidetier.segments.offsets import Offset, TopicPartition
    from sidetier.wire.cluster import Cluster
    from sidetier.wire.requests import CommittedOffset
    from sidetier.wire.settings import ClientSettings

_IMPATIENT_SECONDS: Final = 1.0
_DESCRIBE: Final = 8
_GROUP_GONE: Final = 69
"""GROUP_ID_NOT_FOUND: the group was deleted since it was listed."""


def read_offsets(
    cluster: "Cluster", groups: Iterable[str], timeout: float
) -> Iterator[tuple[str, "Mapping[TopicPartition, CommittedOffset] | BrokerError"]]:
    """Yield each group's committed offsets, or why they cannot be read.

    Deleted groups are left out. `timeout` is that of one group, in seconds.
    """
    from sidetier.wire.requests import committed_offsets  # noqa: PLC0415 - as in `_connected`

    for group in groups:
        try:
            offsets = committed_offsets(cluster, group, require_stable=False, timeout=timeout)
        except BrokerError as error:
            if error.retry:
                # More groups may have this coordinator: shorten their timeout.
                timeout = min(timeout, _IMPATIENT_SECONDS)
            if not (isinstance(error, KafkaApiError) and error.code == _GROUP_GONE):
                yield group, error
        else:
            yield group, offsets


def may_see_all_groups(cluster: "Cluster", timeout: float) -> bool:
    """Return whether ListGroups is complete: it omits groups without permission silently.

    Through `wire`: `cluster_id_of` has the reason not to use `describe_cluster`.

    Raises:
        BrokerError: No broker answers.
    """
    from sidetier.wire.requests import allowed_on_cluster  # noqa: PLC0415 - as in `_connected`

    allowed = allowed_on_cluster(cluster, timeout=timeout)
    return allowed is None or _DESCRIBE in allowed


def client_settings(
    bootstrap_servers: str, properties: Mapping[str, str], timeout: float
) -> "ClientSettings":
    """Return the settings of a client through `wire`, with no longer timeouts than this.

    Raises:
        ConfigurationError: A property is not supported.
    """
    # Importing Kafka's messages takes 25 MB: only where they are used.
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    settings = ClientSettings.from_properties(
        {"bootstrap.servers": bootstrap_servers, **properties}
    )
    return replace(
        settings,
        connect_timeout=min(timeout, settings.connect_timeout),
        request_timeout=min(timeout, settings.request_timeout),
    )


class KafkaConsumerGroups:
    """`ConsumerGroupSource` with connections of its own, which are opened for each call.

    Args:
        bootstrap_servers: Addresses of brokers.
        properties: The user's librdkafka properties.
        timeout: Timeout of connections and requests, in seconds.

    Raises:
        ConfigurationError: A property is not supported, or a certificate cannot be loaded.
    """

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 10.0
    ) -> None:
        self._settings = client_settings(bootstrap_servers, properties, timeout)
        self._timeout = timeout

    def committed_offsets(
        self, names: Collection[str], wanted: Callable[[str], bool] | None
    ) -> ReadGroups:
        """Send ListGroups to every broker, and one request for each group."""
        from sidetier.wire.requests import list_groups  # noqa: PLC0415 - as in `_connected`

        offsets: dict[str, Mapping[TopicPartition, Offset]] = {}
        unread: dict[str, str] = {}
        with self._connected() as cluster:
            listed = list_groups(cluster, timeout=self._timeout)
            groups = {*names, *(group for group in listed if wanted is None or wanted(group))}
            for group, answer in read_offsets(cluster, sorted(groups), self._timeout):
                if isinstance(answer, BrokerError):
                    unread[group] = str(answer)
                else:
                    offsets[group] = {tp: committed.offset for tp, committed in answer.items()}
            incomplete = None if wanted is not None else self._incomplete(cluster)
        return ReadGroups(offsets, unread, incomplete)

    def _incomplete(self, cluster: "Cluster") -> str | None:
        try:
            if may_see_all_groups(cluster, self._timeout):
                return None
        except BrokerError as error:
            return f"it is not known whether the brokers list all groups: {error}"
        return (
            "the brokers list only the groups that the sidecar's principal may describe: it needs "
            "Describe on the cluster to see all"
        )

    def members(self, groups: Collection[str]) -> Mapping[str, tuple[GroupMember, ...]]:
        """Send one request for each group, and a second one for groups of KIP-848's protocol."""
        from sidetier.wire.requests import group_members  # noqa: PLC0415 - as in `_connected`

        members: dict[str, tuple[GroupMember, ...]] = {}
        timeout = self._timeout
        with self._connected() as cluster:
            for group in sorted(groups):
                try:
                    members[group] = group_members(cluster, group, timeout=timeout)
                except BrokerError:
                    timeout = min(timeout, _IMPATIENT_SECONDS)
        return members

    def _connected(self) -> "Cluster":
        from sidetier.wire.cluster import Cluster  # noqa: PLC0415

        return Cluster(self._settings)
