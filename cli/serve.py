"""One call of `sidetier serve`, from the configuration to the exit code."""

import threading

from prometheus_client import CollectorRegistry, start_http_server

from sidetier.cli import exits
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive, require_directory, with_short_timeouts
from sidetier.config.loading import LoadedConfig
from sidetier.endpoint.connection import ServerSettings
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.telemetry.logs import configure_logs

_CONNECTIONS = 32
"""Most requests to one store at the same time."""


def serve(
    loaded: LoadedConfig,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    memory: int,
    max_connections: int,
    metrics_port: int | None,
) -> int:
    """Serve clients until a signal, and return the exit code.

    Raises:
        ConfigurationError: The address cannot be listened at, or a store does not exist.
        SidetierError: The archive cannot be read.
    """
    # Clients repeat a request after an error, but wait for its answer for 30 s only (Java).
    config = with_short_timeouts(loaded.config)
    configure_logs(config.log.format, config.log.level)
    require_directory(config.storage.url)
    settings = EndpointSettings(
        listen, advertise, memory, ServerSettings(max_connections=max_connections)
    )
    registry = CollectorRegistry()
    stop = threading.Event()
    with (
        handled_signals(stop.set),
        open_archive(config, connections=_CONNECTIONS, stop=stop) as archive,
        serving(archive, settings, registry),
    ):
        if metrics_port is not None:
            server, thread = start_http_server(metrics_port, registry=registry)
        stop.wait()
        if metrics_port is not None:
            server.shutdown()
            server.server_close()
            thread.join()
    return exits.OK
