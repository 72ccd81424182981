"""Ask the own broker for offsets of the logs that it leads, each in one leader epoch.

Not through librdkafka: its ListOffsets goes to the broker that leads by then, and has no leader
epoch. A broker refuses the request in any epoch but its own (KIP-320).

The last large request is kept: for 2,000 partitions, many times a minute, one takes 2 ms of CPU
time.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sidetier.leadership.consumer_groups import client_settings
from sidetier.leadership.topic_identity import other_cluster
from sidetier.segments.errors import BrokerUnavailableError, LeadershipError, SidetierError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster
    from sidetier.wire.connection import Connection
    from sidetier.wire.list_offsets import OffsetsQuestion

_UNREACHED: Final = LeadershipError("the broker's response has nothing about the partition")
_KEPT_FROM: Final = 100
"""Questions about fewer partitions are encoded anew."""


class KafkaLogOffsets:
    """`LogOffsetSource` with one connection, which is opened again after an error.

    Args:
        bootstrap_servers: Address of the own broker.
        properties: The user's librdkafka properties.
        broker_id: The own broker.
        cluster_id: Kafka's id of the cluster, from the broker's log dirs.
        timeout: Timeout of connections and requests, in seconds.
        clock: Monotonic seconds.

    Raises:
        ConfigurationError: A property is not supported, or a certificate cannot be loaded.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str],
        broker_id: BrokerId,
        cluster_id: str | None,
        timeout: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = client_settings(bootstrap_servers, properties, timeout)
        self._timeout = timeout
        self._now = clock
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._cluster: Cluster | None = None
        self._closed = False
        self._kept: OffsetsQuestion | None = None

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        """See `LogOffsetSource`. Asks once more where an open connection fails: the broker closes
        it after some minutes without a request.
        """
        # Importing Kafka's messages takes 25 MB: only where they are used.
        from sidetier.wire.list_offsets import list_offsets  # noqa: PLC0415

        if not partitions:
            return []
        question = self._question(partitions)
        began, reused = self._now(), self._connection is not None
        while True:
            try:
                connection = self._connected()
                answers = list_offsets(connection, question, kind, self._timeout)
            except SidetierError as error:
                self._disconnect()
                hangs = self._now() - began >= self._timeout
                if not (reused and isinstance(error, BrokerUnavailableError)) or hangs:
                    raise
                reused = False
            else:
                return [_UNREACHED if answer is None else answer for answer in answers]

    def _question(
        self, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> "OffsetsQuestion":
        from sidetier.wire.list_offsets import OffsetsQuestion  # noqa: PLC0415 - as above

        if len(partitions) < _KEPT_FROM:
            return OffsetsQuestion(partitions)
        if self._kept is None or self._kept.partitions != partitions:
            self._kept = OffsetsQuestion(partitions)
        return self._kept

    def _connected(self) -> "Connection":
        from sidetier.wire.cluster import Cluster  # noqa: PLC0415 - as above

        if self._connection is not None:
            return self._connection
        with Cluster(self._settings) as cluster:
            self._remember(cluster)
            found = cluster.metadata((), timeout=self._timeout).cluster_id
            other = other_cluster(found, self._cluster_id)
            if other is not None:
                raise other
            connection = cluster.connect(self._broker_id)
        with self._lock:
            self._cluster = None
            if self._closed:
                connection.close()
                raise BrokerUnavailableError("the connection to the broker was closed")
            self._connection = connection
        return connection

    def _remember(self, cluster: "Cluster") -> None:
        with self._lock:
            if self._closed:
                raise BrokerUnavailableError("the connection to the broker was closed")
            self._cluster = cluster

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection, self._cluster = self._connection, None, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Make a request in flight fail, and all later ones. May be called twice."""
        with self._lock:
            self._closed, connection, cluster = True, self._connection, self._cluster
        if cluster is not None:
            cluster.interrupt()
        if connection is not None:
            connection.interrupt()
