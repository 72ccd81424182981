"""High watermarks from the brokers: ListOffsets for the latest offset, read-uncommitted (KIP-396).

Read-committed would give the last stable offset, which an open transaction holds back.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from sidetier.leadership.admin import admin_client
from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future


class KafkaHighWatermarks:
    """Asks the leaders of partitions for their high watermarks, all of them in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 5.0
    ) -> None:
        """Connects in the background.

        Raises:
            ConfigurationError: librdkafka refuses a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """What could be learned; partitions whose leader does not answer are left out.

        Raises:
            LeadershipUnavailableError: no partition got an answer.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        specs = {KafkaPartition(tp.topic, tp.partition): latest for tp in partitions}
        try:
            futures = self._client.list_offsets(
                specs,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._timeout,
            )
        except KafkaException as error:
            raise self._unavailable(error) from error
        answers, failure = _collect(futures)
        if not answers and failure is not None:
            raise self._unavailable(failure) from failure
        return answers

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(f"{self._servers}: no high watermark: {error}")

    def close(self) -> None:
        """Nothing to wait for: the connections go with the client."""


def _collect(
    futures: Mapping[KafkaPartition, "Future[ListOffsetsResultInfo]"],
) -> tuple[dict[TopicPartition, HighWatermark], KafkaException | None]:
    answers: dict[TopicPartition, HighWatermark] = {}
    failure = None
    for asked, future in futures.items():
        try:
            answer = future.result()
        except KafkaException as error:
            failure = error
            continue
        epoch = answer.leader_epoch
        answers[TopicPartition(asked.topic, asked.partition)] = HighWatermark(
            Offset(answer.offset), LeaderEpoch(epoch) if epoch is not None else UNKNOWN_EPOCH
        )
    return answers, failure
