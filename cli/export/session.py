"""The common steps of all export commands before and after their runs, for files and tables.

It connects to the output's store, stops at a signal, waits for the archive (`--tail wait`), reports
what is held back on standard error and as metrics, and chooses the exit code.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from sidetier.cli import exits
from sidetier.cli.export.kafka_options import BOOTSTRAP, by_reference
from sidetier.cli.metrics_file import write_metrics_file
from sidetier.cli.output import say
from sidetier.config.model import BrokerConfig
from sidetier.config.secrets import is_secret_property
from sidetier.config.sources import read_config_text, yaml_layer
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.held_back import Cause, HeldBack
from sidetier.pipeline.export.run import should_retry
from sidetier.pipeline.export.source import Source, TailedSource
from sidetier.pipeline.export.state import Offsets
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.segments.isolation import IsolationLevel
from sidetier.telemetry import export_catalogue
from sidetier.telemetry.instruments import gauge

_PAUSE: Final = 5.0


def will_retry(
    error: SidetierError, planner: Planner, offsets_without_epoch: Callable[[], Offsets]
) -> bool:
    """Return `should_retry`, and print a message if it is true."""
    again = should_retry(error, planner, offsets_without_epoch)
    if again:
        say(f"{error}; tried again")
    return again


class HeldBackReporter:
    """Prints which partitions are held back and need attention.

    It prints each change once: with `--follow`, every run reports all of them again.
    """

    def __init__(self) -> None:
        self._reported: dict[str, set[tuple[str, Cause, int]]] = {}

    def report(self, held_back: Iterable[HeldBack], topic: str = "") -> None:
        """Report the partitions that are held back now, of one topic or of all."""
        findings = {
            (str(finding.tp), finding.cause, finding.offset): finding.detail
            for finding in held_back
            if finding.is_finding
        }
        reported = self._reported.get(topic, set())
        self._reported[topic] = set(findings)
        for finding, detail in findings.items():
            if finding not in reported:
                say(detail)


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
        else {partition: log.last_stable_offset for partition, log in topic_logs.logs.items()}
    )


def waits(source: Source) -> bool:
    """Return whether the export has stopped before records that the brokers have deleted and that
    the archive will only show later.
    """
    return isinstance(source, TailedSource) and bool(source.logs.waiting)


def exit_code(*, findings: bool, waits: bool, fail_on_data_loss: bool) -> int:
    """Return the exit code of a completed export; for `waits` see the function of that name."""
    if waits and fail_on_data_loss:
        return exits.FAILED
    return exits.FINDINGS if findings or waits else exits.OK


def wait_for(
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
) -> dict[int, tuple[int, int]]:
    """Wait until all records below the wanted offsets are stored.

    `pause` waits a while, and returns False when there is no more time.

    Returns:
        By Kafka partition, the stored end and the wanted end of each partition with missing
        records.
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


def paused(stop: threading.Event, patience: float) -> Callable[[], bool]:
    """Return a function that waits a while.

    It returns False once `patience` seconds have passed, or when `stop` is set.
    """
    end = monotonic() + patience

    def pause() -> bool:
        left = end - monotonic()
        return left > 0 and not stop.wait(min(left, _PAUSE))

    return pause


def wait_for_archive(
    topic: str,
    wanted: Mapping[int, int],
    stored: Callable[[], Mapping[int, int]],
    pause: Callable[[], bool],
    can_pass: Callable[[SidetierError], bool] = lambda _error: False,
) -> bool:
    """Run `wait_for`, and print the records that only the brokers still have; return whether there
    are any.

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
        say(f"{topic}: the brokers have no topic of this name: only archived records are exported")
    missing = wait_for(wanted, known, pause)
    for partition, (until, end) in sorted(missing.items()):
        say(f"{topic}-{partition}: offsets [{until}, {end}) are still only on the broker")
    return bool(missing)


def write_metrics(path: Path, held_back: Iterable[HeldBack], failed_topics: int) -> None:
    """Write the metrics of the run.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    registry = CollectorRegistry()
    entries = list(held_back)
    partitions = gauge(export_catalogue.HELD_BACK, registry)
    for (topic, cause), count in Counter(
        (entry.tp.topic, entry.cause) for entry in entries
    ).items():
        partitions.labels(topic, cause.value).set(count)
    ages = gauge(export_catalogue.OPEN_TRANSACTION, registry)
    for entry in entries:
        if entry.age_s is not None:
            ages.labels(entry.tp.topic, entry.tp.partition).set(entry.age_s)
    gauge(export_catalogue.FAILED_TOPICS, registry).set(failed_topics)
    gauge(export_catalogue.LAST_ROUND, registry).set_to_current_time()
    write_metrics_file(path, registry)


def target_of(archive: StorageConfig, into: str | None, file: Path | None) -> StorageConfig:
    """Return the store of the output.

    Without a file, credentials and options are those of the archive's store.

    Raises:
        ConfigurationError: No URL is given, or a setting in the file is wrong.
    """
    if file is None:
        checked = _checked({"url": into}, "--into")
        return archive.model_copy(update={"url": checked.url, "overrides": ()})
    values: dict[str, object] = dict(yaml_layer(read_config_text(file), str(file)).values)
    if into is not None:
        values["url"] = into
    return _checked(values, str(file))


def _checked(values: dict[str, object], where: str) -> StorageConfig:
    if values.get("url") is None:
        raise ConfigurationError(f"{where}: the url of the output is missing: --into URL")
    try:
        return StorageConfig.model_validate(values)
    except ValidationError as error:
        lines = [
            f"{where}: {'.'.join(str(step) for step in problem['loc'])}: "
            f"{str(problem['msg']).removeprefix('Value error, ')}"
            for problem in error.errors()
        ]
        raise ConfigurationError("\n".join(lines)) from None
