"""High watermarks from the brokers: ListOffsets for the latest offset, read-uncommitted (KIP-396).

Read-committed would give the last stable offset, which an open transaction holds back.
"""

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException

from sidetier.leadership.admin import admin_client
from sidetier.leadership.offsets import End, ask_offsets
from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition


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
        try:
            found = ask_offsets(self._client, partitions, End.LATEST, self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        failures = [told for told in found.values() if isinstance(told, KafkaException)]
        if failures and len(failures) == len(found):
            raise self._unavailable(failures[-1]) from failures[-1]
        return {
            tp: HighWatermark(told.offset, UNKNOWN_EPOCH if told.epoch is None else told.epoch)
            for tp, told in found.items()
            if not isinstance(told, KafkaException)
        }

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(f"{self._servers}: no high watermark: {error}")

    def close(self) -> None:
        """Nothing to wait for: the connections go with the client."""
