"""One call of `sidetier serve`, from the configuration to the exit code."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from sidetier.cli import exits
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive, require_directory
from sidetier.config.loading import LoadedConfig
from sidetier.endpoint.connection import ServerSettings
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.logs import configure_logs
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application
from sidetier.telemetry.status import StatusSource

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
    config = loaded.config
    configure_logs(config.log.format, config.log.level)
    require_directory(config.storage.url)
    settings = EndpointSettings(
        listen, advertise, memory, ServerSettings(max_connections=max_connections)
    )
    registry = create_registry()
    stop = threading.Event()
    with (
        handled_signals(stop.set),
        open_archive(config, connections=_CONNECTIONS, stop=stop) as archive,
        serving(archive, settings, registry) as endpoint,
        _http_server(metrics_port, registry, endpoint),
    ):
        stop.wait()
    return exits.OK


@contextmanager
def _http_server(
    port: int | None, registry: CollectorRegistry, status: StatusSource
) -> Iterator[None]:
    """Answer /metrics, /healthz and /readyz on a port until the block ends; None for no port.

    Raises:
        ConfigurationError: The port is taken.
    """
    if port is None:
        yield
        return
    application = Application(registry, status, with_partitions=False)
    everywhere = "0.0.0.0"  # noqa: S104 -- Prometheus and probes are on other hosts
    server = HttpServer(everywhere, port, application, settings="--metrics-port")
    server.start()
    try:
        yield
    finally:
        server.stop()
