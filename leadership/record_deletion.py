"""Delete records on the own broker."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sidetier.leadership.consumer_groups import KafkaConsumerGroups
from sidetier.leadership.port import RecordDeletion
from sidetier.leadership.topic_identity import identity_in, other_cluster
from sidetier.segments.errors import KafkaApiError, LeadershipError, SidetierError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster

_FOLLOWERS_SECONDS: Final = 2.0
"""How long the broker waits until followers have deleted the records, too. It deletes its own
records before, so a longer wait gains nothing.
"""
_REQUEST_TIMED_OUT: Final = 7


class KafkaRecordDeleter(KafkaConsumerGroups):
    """`RecordDeleter` with connections of its own, which are opened for each call.

    librdkafka would send DeleteRecords to the broker that leads by then. After an unclean election
    that broker's log has other records below the same offset, and they may not be archived.

    Args:
        bootstrap_servers: Address of the own broker.
        properties: The user's librdkafka properties.
        broker_id: The own broker.
        cluster_id: Kafka's id of the cluster, from the broker's log dirs.
        timeout: Timeout of connections and requests, in seconds.

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
    ) -> None:
        super().__init__(bootstrap_servers, properties, timeout)
        self._broker_id = broker_id
        self._cluster_id = cluster_id

    def delete_records(
        self, deletions: Mapping[TopicPartition, RecordDeletion]
    ) -> Mapping[TopicPartition, Offset | SidetierError]:
        """Send one DeleteRecords request, for the partitions that this broker leads."""
        from sidetier.wire.record_deletion import delete_records, led_log_ends  # noqa: PLC0415

        if not deletions:
            return {}
        broker = self._broker_id
        with self._connected() as cluster:
            answers: dict[TopicPartition, Offset | SidetierError] = {}
            answers |= self._of_others(cluster, deletions)
            ours = {tp: one for tp, one in deletions.items() if tp not in answers}
            if not ours:
                return answers
            log_ends = led_log_ends(
                cluster, broker, {tp: one.leader_epoch for tp, one in ours.items()}
            )
            ends: dict[TopicPartition, Offset] = {}
            for tp, deletion in ours.items():
                log_end = log_ends.get(tp)
                if isinstance(log_end, KafkaApiError):
                    answers[tp] = log_end
                elif log_end is None or log_end.offset < deletion.end:
                    reported = "nothing" if log_end is None else log_end.offset
                    answers[tp] = LeadershipError(
                        f"broker {broker} does not confirm that {tp} is committed up to "
                        f"{deletion.end}: it reports {reported}"
                    )
                else:
                    ends[tp] = deletion.end
            if ends:
                # On the same connection: the broker has just confirmed that it leads.
                deleted = delete_records(cluster, broker, ends, _FOLLOWERS_SECONDS)
                answers |= {tp: _outcome(deleted.get(tp), end) for tp, end in ends.items()}
        return answers

    def _of_others(
        self, cluster: "Cluster", deletions: Mapping[TopicPartition, RecordDeletion]
    ) -> dict[TopicPartition, LeadershipError]:
        """Return the partitions whose log may belong to another cluster or topic, and why."""
        metadata = cluster.metadata({tp.topic for tp in deletions}, timeout=self._timeout)
        other = other_cluster(metadata.cluster_id, self._cluster_id)
        if other is not None:
            return dict.fromkeys(deletions, other)
        topic_ids = {tp.topic: identity_in(metadata, tp.topic).topic_id for tp in deletions}
        return {
            tp: LeadershipError(
                f"the brokers have topic {tp.topic} with id {topic_ids[tp.topic]}, and the log is "
                f"of {deletion.topic_id}"
            )
            for tp, deletion in deletions.items()
            if topic_ids[tp.topic] is None or topic_ids[tp.topic] != deletion.topic_id
        }


def _outcome(answer: Offset | KafkaApiError | None, end: Offset) -> Offset | SidetierError:
    if isinstance(answer, KafkaApiError) and answer.code == _REQUEST_TIMED_OUT:
        # The leader has moved its log start offset before it waits for the followers, which move
        # theirs with their next fetch.
        return end
    if answer is None:
        return LeadershipError(f"the broker's response has nothing about the deletion up to {end}")
    return answer
