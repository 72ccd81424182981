"""High watermarks from the brokers: ListOffsets for the latest offset, read-uncommitted (KIP-396).

Read-committed would give the last stable offset, which an open transaction holds back.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import ListOffsetsResultInfo, OffsetSpec

from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

_logger: Final = logging.getLogger(__name__)


class KafkaHighWatermarks:
    """Asks the leaders of partitions for their high watermarks, all of them in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 5.0
    ) -> None:
        self._servers = bootstrap_servers
        self._properties = dict(properties)
        self._timeout = timeout
        self._client: AdminClient | None = None

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """What could be learned; partitions whose leader does not answer are left out.

        Raises:
            LeadershipUnavailableError: no partition got an answer.
        """
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        specs = {KafkaPartition(tp.topic, tp.partition): latest for tp in partitions}
        futures = self._connected().list_offsets(
            specs,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout,
        )
        answers, failure = _collect(futures)
        if not answers and failure is not None:
            raise LeadershipUnavailableError(
                f"{self._servers}: no high watermark: {failure}"
            ) from failure
        return answers

    def close(self) -> None:
        """Let the connections go; may be called twice."""
        self._client = None

    def _connected(self) -> AdminClient:
        if self._client is None:
            settings: dict[str, str | int | float | bool] = {
                "bootstrap.servers": self._servers,
                "client.id": "sidetier",
                **self._properties,
            }
            self._client = AdminClient(settings, logger=_logger)
        return self._client


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
