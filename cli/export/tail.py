"""Records that only the broker has yet: how far a topic goes there, and waiting for the sidecar."""

from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from sidetier.config.cluster import BrokerConfig
from sidetier.leadership.admin import admin_client
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError

_TIMEOUT: Final = 10.0
_LEVELS: Final = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


def broker_ends(
    broker: BrokerConfig, bootstrap: str | None, topic: str, isolation: str
) -> dict[int, int]:
    """The offset behind the last record that a consumer could read now, by Kafka partition.

    Raises:
        ConfigurationError: no address of a broker is known.
        LeadershipUnavailableError: the cluster does not answer.
    """
    properties = broker.client_properties()
    servers = bootstrap or properties.pop("bootstrap.servers", None)
    properties.pop("bootstrap.servers", None)
    if servers is None:
        raise ConfigurationError(
            "--tail wait asks the cluster how far it goes: give --bootstrap HOST:PORT, or "
            "broker.bootstrap_servers"
        )
    plain = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }
    client = admin_client(str(servers), plain, {"log_level": 0})
    try:
        described = client.list_topics(timeout=_TIMEOUT).topics.get(topic)
        numbers = () if described is None else tuple(described.partitions)
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {KafkaPartition(topic, number): latest for number in numbers}
        if not asked:
            return {}
        answers = client.list_offsets(
            asked, isolation_level=_LEVELS[isolation], request_timeout=_TIMEOUT
        )
        return {one.partition: future.result().offset for one, future in answers.items()}
    except KafkaException as error:
        raise LeadershipUnavailableError(
            f"{servers} tells no offsets of {topic}: {error}"
        ) from None


def wait_for(
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
) -> dict[int, tuple[int, int]]:
    """Wait until everything below the wanted offsets is stored.

    `pause` waits a while; False: there is no more time. Returns what is still not stored, by Kafka
    partition.
    """
    while True:
        now = stored()
        lacking = {
            one: (now.get(one, 0), end) for one, end in wanted.items() if now.get(one, 0) < end
        }
        if not lacking or not pause():
            return lacking


def told_lacking(
    topic: str,
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
    say: Callable[[str], None],
) -> bool:
    """`wait_for`, and say what is still on the broker alone; whether anything is."""
    left = wait_for(wanted, stored, pause)
    for partition, (until, end) in sorted(left.items()):
        say(f"{topic}-{partition}: offsets {until} to {end - 1} are still on the broker alone")
    return bool(left)
