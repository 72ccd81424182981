"""Records that only the brokers have: their end offsets, and the wait for the sidecar."""

from collections.abc import Callable, Mapping

from sidetier.cli import exits
from sidetier.cli.export.kafka_options import BOOTSTRAP, by_reference
from sidetier.config.model import BrokerConfig
from sidetier.config.secrets import is_secret_property
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.segments.errors import SidetierError
from sidetier.segments.isolation import IsolationLevel


def reached_at(
    broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]
) -> BrokerConfig:
    """Return the cluster to ask, at another address if one is given."""
    servers = given.get(BOOTSTRAP, bootstrap)
    return broker if servers is None else broker.model_copy(update={"bootstrap_servers": servers})


def read_by(broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]) -> BrokerConfig:
    """Return the cluster to ask, with these librdkafka properties.

    The result may be sent to executors, so secrets are references.

    Raises:
        ConfigurationError: A property is a secret itself.
    """
    cluster = reached_at(broker, bootstrap, given)
    client = {
        name: by_reference(name, value) if is_secret_property(name) else value
        for name, value in given.items()
        if name != BOOTSTRAP
    }
    return cluster.model_copy(update={"client": {**cluster.client, **client}})


def broker_ends(
    broker: BrokerConfig, bootstrap: str | None, topic: str, isolation: str
) -> dict[int, int]:
    """Return the end offset that a consumer could read up to now, exclusive, by Kafka partition.

    Raises:
        ConfigurationError: No address of a broker is known.
        LeadershipUnavailableError: The cluster does not answer.
    """
    cluster = reached_at(broker, bootstrap, {})
    topic_logs = broker_topic(cluster, topic, IsolationLevel(isolation))
    return (
        {}
        if topic_logs is None
        else {partition: log.stable for partition, log in topic_logs.logs.items()}
    )


def exit_code(*, findings: bool, waits: bool, fail_on_data_loss: bool) -> int:
    """Return the exit code of a completed export.

    `waits` means that it has stopped before records that the brokers have deleted and that the
    archive will only show later.
    """
    if waits and fail_on_data_loss:
        return exits.FAILED
    return exits.FINDINGS if findings or waits else exits.OK


def wait_for(
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
) -> dict[int, tuple[int, int]]:
    """Wait until everything below the wanted offsets is stored.

    `pause` waits a while, and returns False when there is no more time.

    Returns:
        By Kafka partition, the stored end and the wanted end of what is still missing.
    """
    while True:
        now = stored()
        missing = {
            partition: (now.get(partition, 0), end)
            for partition, end in wanted.items()
            if now.get(partition, 0) < end
        }
        if not missing or not pause():
            return missing


def told_lacking(
    topic: str,
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
    say: Callable[[str], None],
    can_pass: Callable[[SidetierError], bool] = lambda _error: False,
) -> bool:
    """Run `wait_for`, and print what is still on the brokers alone; return whether anything is.

    If `stored` fails with an error that `can_pass` accepts, nothing counts as stored until the next
    try.
    """

    def known() -> Mapping[int, int]:
        try:
            return stored()
        except SidetierError as error:
            if not can_pass(error):
                raise
            return {}

    if not wanted:
        say(f"{topic}: the brokers have no topic of this name: only what is archived is exported")
    missing = wait_for(wanted, known, pause)
    for partition, (until, end) in sorted(missing.items()):
        say(f"{topic}-{partition}: offsets [{until}, {end}) are still on the broker alone")
    return bool(missing)
