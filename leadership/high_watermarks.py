"""High watermarks from the brokers: ListOffsets for the latest offset, read_uncommitted (KIP-396).

read_committed would return the last stable offset, which an open transaction holds back.
"""

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException

from sidetier.leadership.admin import admin_client
from sidetier.leadership.offsets import End, ask_offsets
from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition


class KafkaHighWatermarks:
    """Requests high watermarks from the partitions' leaders, all partitions in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 5.0
    ) -> None:
        """Create the client, which connects in the background.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """Return the high watermarks; partitions whose leader does not respond are left out.

        Raises:
            LeadershipUnavailableError: No partition got a response.
        """
        try:
            answers = ask_offsets(self._client, partitions, End.LATEST, self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        failures = [answer for answer in answers.values() if isinstance(answer, KafkaException)]
        if failures and len(failures) == len(answers):
            raise self._unavailable(failures[-1]) from failures[-1]
        return {
            tp: HighWatermark(
                answer.offset, UNKNOWN_EPOCH if answer.epoch is None else answer.epoch
            )
            for tp, answer in answers.items()
            if not isinstance(answer, KafkaException)
        }

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(f"{self._servers}: no high watermark: {error}")

    def close(self) -> None:
        """Do nothing: librdkafka closes the connections when the client is destroyed."""
