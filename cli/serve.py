"""One call of `sidetier serve`, from the configuration to the exit code."""

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server

from sidetier.cli import exits
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive, require_directory
from sidetier.config.loading import LoadedConfig
from sidetier.endpoint.connection import ServerSettings
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.endpoint.tls import TlsFiles
from sidetier.telemetry.logs import configure_logs

_CONNECTIONS = 32
"""Most requests to one store at the same time."""


def serve(  # noqa: PLR0913 - one parameter for each option
    loaded: LoadedConfig,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    *,
    memory: int,
    max_connections: int,
    max_connections_per_host: int,
    bytes_per_second: int | None,
    tls_files: tuple[Path | None, Path | None, Path | None],
    users: Path | None,
    metrics_port: int | None,
) -> int:
    """Serve clients until a signal, and return the exit code.

    Raises:
        ConfigurationError: The address cannot be listened at, a store does not exist, or a
            certificate or the users file cannot be loaded.
        SidetierError: The archive cannot be read.
    """
    config = loaded.config
    configure_logs(config.log.format, config.log.level)
    require_directory(config.storage.url)
    certificate, key, client_ca = tls_files
    settings = EndpointSettings(
        listen,
        advertise,
        memory,
        tls=None if certificate is None else TlsFiles(certificate, key, client_ca),
        users=users,
        bytes_per_second=bytes_per_second,
        server=ServerSettings(
            max_connections=max_connections, max_connections_per_host=max_connections_per_host
        ),
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
