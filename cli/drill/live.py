"""The live brokers that a drill compares with."""

from collections.abc import Sequence

from sidetier.config.model import Config
from sidetier.leadership.cluster import as_texts
from sidetier.leadership.cluster_map import Cluster, open_cluster
from sidetier.mirror.drill.sample import RecordSource
from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.mirror.hydrate.verify import BrokerSide
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.offsets import TopicPartition


class LiveBrokers:
    """The cluster that is archived.

    Args:
        cluster: Returns topics, their settings, and log start offsets.
        records: Consumes the records.
        sampled: The topics of the sample.

    Raises:
        LeadershipUnavailableError: No broker answers.
    """

    def __init__(self, cluster: Cluster, records: RecordSource, sampled: Sequence[str]) -> None:
        self.records = records
        self._cluster = cluster
        self._partitions = set(cluster.map().partitions)
        live_topics = {tp.topic for tp in self._partitions}
        self._settings = cluster.topic_settings([name for name in sampled if name in live_topics])

    def reason_to_skip(self, tp: TopicPartition) -> str | None:
        """Return why the records cannot be compared; None if they can."""
        if tp not in self._partitions:
            return "not on the live brokers"
        policy = self._settings.get(tp.topic, {}).get("cleanup.policy") or ""
        return "compacted since" if "compact" in policy.split(",") else None

    def log_start(self, tp: TopicPartition) -> int:
        """Return the start offset of the live log; raises LeadershipUnavailableError."""
        log_offsets = self._cluster.log_offsets([tp])[tp]
        if log_offsets.start is None:
            raise LeadershipUnavailableError(f"{tp}: no log start offset: {log_offsets.problem}")
        return int(log_offsets.start)


def live_brokers(config: Config, sample: Sequence[PlannedPartition]) -> LiveBrokers:
    """Connect to the brokers of the archived cluster.

    Raises:
        ConfigurationError: No brokers are configured.
        LeadershipUnavailableError: No broker answers.
    """
    cluster = open_cluster(config)
    if cluster is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: set it to compare with the live brokers, or give "
            "--no-live"
        )
    records = BrokerSide(as_texts(dict(config.broker.client_properties())))
    topics = sorted({partition.topic for partition in sample})
    return LiveBrokers(cluster, records, topics)
