"""Steps of `sidetier hydrate` that need no extra: prepare the topics, and place the segments.

`place` runs beside a stopped broker, on a host that may have only the base packages.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from sidetier.archive.progress import Amount, ProgressCounter
from sidetier.cli import exits
from sidetier.cli.hydrate.options import PlaceOptions, PrepareOptions
from sidetier.cli.hydrate.view import DestinationsResult, PlacedResult, PreparedResult
from sidetier.cli.kernel import Outcome
from sidetier.cli.output import say
from sidetier.cli.progress import shown
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.mirror.hydrate import log_dir, topics
from sidetier.mirror.hydrate.place import Journal, PlaceSettings, StoppedError, place
from sidetier.mirror.hydrate.plan import HydratePlan, read_plan, with_prepared, write_plan
from sidetier.mirror.hydrate.topics import TopicAdmin
from sidetier.segments.errors import ConfigurationError
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.sending.throttle import Throttle

CONNECTIONS = 32
"""Connections to the store."""


def prepare_topics(config: Config, options: PrepareOptions) -> PreparedResult:
    """Create the planned topics on the new cluster, and write their ids into the plan."""
    plan = read_plan(options.plan_file)
    admin = TopicAdmin.connected(cluster_properties(config, options.bootstrap))
    if options.dry_run:
        return PreparedResult(plan, sorted(topics.to_create(plan, admin)), dry_run=True)
    cluster_id, prepared = topics.prepare(plan, admin)
    plan = with_prepared(plan, cluster_id, prepared)
    write_plan(options.plan_file, plan)
    return PreparedResult(plan, sorted(prepared), dry_run=False)


def place_partitions(config: Config, options: PlaceOptions) -> Outcome:
    """Place this broker's partitions into its log dirs.

    Raises:
        ConfigurationError: A log dir is in use, or belongs to another cluster.
        SidetierError: The archive cannot be read.
    """
    plan = read_plan(options.plan_file)
    paths = options.log_dirs or tuple(config.log_dirs)
    if not paths:
        raise ConfigurationError("no log dir is known: set log_dirs, or give --log-dir")
    # The broker's own lock: the broker cannot start while its directories are replaced.
    with log_dir.locked_log_dirs(paths) as locked:
        journals = {entry.path: Journal(entry.path, plan.plan_id) for entry in locked}
        pending = {path: journal.switching for path, journal in journals.items()}
        destinations = log_dir.destinations(plan, locked, pending)
        if options.dry_run:
            return DestinationsResult(destinations, journals)
        return _place(config, plan, destinations, journals, options.parallel, options.max_rate)


def _place(
    config: Config,
    plan: HydratePlan,
    destinations: Sequence[log_dir.Destination],
    journals: dict[Path, Journal],
    parallel: int,
    rate: float | None,
) -> Outcome:
    todo = [
        entry.plan
        for entry in destinations
        if str(entry.plan.topic_partition) not in journals[entry.log_dir.path].placed
    ]
    total = Amount(sum(len(entry.segments) for entry in todo), sum(entry.size for entry in todo))
    stop = threading.Event()
    with (
        open_archive(config, connections=CONNECTIONS) as archive,
        shown() as report,
        handled_signals(stop.set),
    ):
        throttle = Throttle(rate, SYSTEM_CLOCK.monotonic, stop.wait)
        amounts = ProgressCounter(total, report)
        settings = PlaceSettings(parallel, throttle.acquire, amounts.add, stop=stop)
        try:
            return PlacedResult(place(plan, archive, destinations, journals, settings))
        except StoppedError:
            say("stopped; run the same command again to continue")
            return exits.INTERRUPTED


def cluster_properties(
    config: Config, bootstrap: str | None
) -> dict[str, str | int | float | bool]:
    """Return the client properties of the new cluster."""
    properties = config.broker.client_properties()
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: give the new cluster's address by "
            "--bootstrap-server"
        )
    return dict(properties)
