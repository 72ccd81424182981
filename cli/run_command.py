"""`sidetier run`: run the sidecar."""

import gc

import click
import structlog

from sidetier import __version__
from sidetier.cli import exits
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.priority import stand_back
from sidetier.cli.waiting import wait_for_log_dirs
from sidetier.cli.wiring import daemon, http_server, stopped_by_signals
from sidetier.telemetry.logs import configure_logs
from sidetier.telemetry.metrics import Metrics, create_registry


@click.command(name="run")
@click.option("--wait", is_flag=True, help="Wait until the broker has created its log dirs.")
@configuration_options
@click.pass_context
def command(context: click.Context, *, wait: bool) -> int:
    """Archive the closed segments of this host's broker, until stopped.

    On SIGTERM the sidecar starts no new upload, gives running uploads uploader.shutdown_grace to
    finish, and exits with code 0.

    \b
    Example:
      sidetier run --config /etc/sidetier/sidetier.yaml
    """  # noqa: D301 -- \b is click's marker and must be one character
    call = invocation(context)
    loaded = call.load()
    configure_logs(loaded.config.log.format, loaded.config.log.level)
    if wait:
        loaded = wait_for_log_dirs(call, loaded)
    config = loaded.config
    log = structlog.get_logger()
    for warning in loaded.warnings:
        log.warning("config.warning", message=warning)
    stand_back(config.uploader.niceness)
    registry = create_registry()
    metrics = Metrics(registry, config.http.max_partition_series)
    # Handle signals before the log event: a supervisor that reads `daemon.started` may send SIGTERM
    # at once.
    with daemon(config, metrics, loaded.origins) as built, stopped_by_signals(built):
        server = http_server(config.http, registry, built.status)
        server.start()
        log.info(
            "daemon.started",
            version=__version__,
            cluster=config.cluster.name,
            log_dirs=[str(path) for path in config.log_dirs],
            url=server.url,
        )
        gc.collect()
        gc.freeze()  # objects loaded so far stay for good: later collections skip them
        try:
            built.run()
        finally:
            server.stop()
    return exits.OK
