"""Records that only the broker has yet: how far a topic goes there, and waiting for the sidecar."""

from collections.abc import Callable, Mapping

from sidetier.cli import exits
from sidetier.cli.export.kafka_options import BOOTSTRAP, by_reference
from sidetier.config.cluster import BrokerConfig
from sidetier.config.secrets import is_secret_property
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.segments.errors import SidetierError
from sidetier.segments.isolation import IsolationLevel


def reached_at(
    broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]
) -> BrokerConfig:
    """The cluster that is asked: at another address, where one is given."""
    servers = given.get(BOOTSTRAP, bootstrap)
    return broker if servers is None else broker.model_copy(update={"bootstrap_servers": servers})


def read_by(broker: BrokerConfig, bootstrap: str | None, given: Mapping[str, str]) -> BrokerConfig:
    """The same, read by librdkafka with these properties, too. It may be sent to executors: secrets
    are given by where they are.

    Raises:
        ConfigurationError: a secret itself is among them.
    """
    reached = reached_at(broker, bootstrap, given)
    client = {
        name: by_reference(name, value) if is_secret_property(name) else value
        for name, value in given.items()
        if name != BOOTSTRAP
    }
    return reached.model_copy(update={"client": {**reached.client, **client}})


def broker_ends(
    broker: BrokerConfig, bootstrap: str | None, topic: str, isolation: str
) -> dict[int, int]:
    """The offset behind the last record that a consumer could read now, by Kafka partition.

    Raises:
        ConfigurationError: no address of a broker is known.
        LeadershipUnavailableError: the cluster does not answer.
    """
    reached = reached_at(broker, bootstrap, {})
    found = broker_topic(reached, topic, IsolationLevel(isolation))
    return {} if found is None else {one: log.stable for one, log in found.logs.items()}


def exit_code(*, findings: bool, waits: bool, fail_on_data_loss: bool) -> int:
    """How an export ends that was carried out; `waits`: it has stopped before records that the
    brokers have deleted, and the archive will only show later.
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
    can_pass: Callable[[SidetierError], bool] = lambda _error: False,
) -> bool:
    """`wait_for`, and say what is still on the broker alone; whether anything is. Where `stored`
    fails by what `can_pass`, nothing is known to be stored until it is asked again.
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
    left = wait_for(wanted, known, pause)
    for partition, (until, end) in sorted(left.items()):
        say(f"{topic}-{partition}: offsets [{until}, {end}) are still on the broker alone")
    return bool(left)
