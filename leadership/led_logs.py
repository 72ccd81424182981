"""Ask the own broker about the logs that it leads, in one leader epoch.

Not through librdkafka: its ListOffsets goes to the broker that leads by then, and has no leader
epoch. A broker refuses the request in any epoch but its own (KIP-320).
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from sidetier.leadership.consumer_groups import client_settings
from sidetier.leadership.port import LedLog
from sidetier.segments.errors import (
    BrokerUnavailableError,
    LeadershipError,
    SidetierError,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster

_PAUSE_AFTER_FAILURE: Final = 5.0
_LONGEST_WAIT: Final = 1.0
"""How long a caller waits for the request of another one."""
_UNREACHED: Final = LeadershipError("the broker's response has nothing about the partition")


class KafkaLedLogs:
    """`LedLogSource` with one connection, which is opened again after an error.

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
        self._began = 0.0
        self._cluster: Cluster | None = None
        self._closed = False
        self._failed: SidetierError | None = None
        self._again_at = 0.0

    def led_logs(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, stable: bool = True
    ) -> Mapping[TopicPartition, LedLog | SidetierError]:
        """Send a ListOffsets request for high watermarks, and one for last stable offsets.

        A broker that hangs holds one caller: the others give up after a second. For some seconds
        after a failure, the same error is raised without a request.
        """
        if not epochs:
            return {}
        self._take_turn()
        try:
            if self._failed is not None and self._now() < self._again_at:
                raise self._failed
            self._failed = None
            try:
                return self._asked_again(epochs, stable=stable)
            except SidetierError as error:
                self._close()
                self._failed, self._again_at = error, self._now() + _PAUSE_AFTER_FAILURE
                raise
        finally:
            self._lock.release()

    def _take_turn(self) -> None:
        """Take the lock, or raise BrokerUnavailableError while one request takes long."""
        while not self._lock.acquire(timeout=_LONGEST_WAIT):
            if self._now() - self._began >= _LONGEST_WAIT:
                raise BrokerUnavailableError("the broker has not answered an earlier request yet")
        self._began = self._now()

    def _asked_again(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, stable: bool
    ) -> dict[TopicPartition, LedLog | SidetierError]:
        """Ask once more where an open connection fails: the broker closes it after some minutes."""
        if self._cluster is not None:
            began = self._now()
            try:
                return self._asked(epochs, stable=stable)
            except BrokerUnavailableError:
                self._close()
                if self._now() - began >= self._timeout:
                    raise  # it hangs
        return self._asked(epochs, stable=stable)

    def _asked(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, stable: bool
    ) -> dict[TopicPartition, LedLog | SidetierError]:
        # Importing Kafka's messages takes 25 MB: only where topics are archived early.
        from sidetier.wire.record_deletion import led_log_ends  # noqa: PLC0415

        if self._closed:
            raise BrokerUnavailableError("the connection to the broker was closed")
        cluster, broker = self._connected(), self._broker_id
        ends = led_log_ends(cluster, broker, epochs)
        decided = led_log_ends(cluster, broker, epochs, stable=True) if stable else {}
        answers: dict[TopicPartition, LedLog | SidetierError] = {}
        for tp in epochs:
            end, last_stable = ends.get(tp, _UNREACHED), decided.get(tp, _UNREACHED)
            if isinstance(end, SidetierError):
                answers[tp] = end
            elif not stable:
                answers[tp] = LedLog(end.offset, None, end.leader_epoch)
            elif isinstance(last_stable, SidetierError):
                answers[tp] = last_stable
            else:
                answers[tp] = LedLog(end.offset, last_stable.offset, end.leader_epoch)
        return answers

    def _connected(self) -> "Cluster":
        from sidetier.wire.cluster import Cluster  # noqa: PLC0415 - as in `_asked`

        if self._cluster is None:
            cluster = self._cluster = Cluster(self._settings)
            # Another cluster may have a broker of this id that leads a topic of the same name.
            found = cluster.metadata((), timeout=self._timeout).cluster_id
            if found is None or found != self._cluster_id:
                raise LeadershipError(
                    f"broker.bootstrap_servers belong to Kafka cluster {found}, and the log dirs "
                    f"to {self._cluster_id}"
                )
        return self._cluster

    def close(self) -> None:
        """Close the connection, and make a request in flight fail. May be called twice."""
        self._closed, cluster = True, self._cluster
        if cluster is not None:
            cluster.interrupt()
        with self._lock:
            self._close()
            self._failed = None

    def _close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
