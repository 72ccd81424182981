"""One call of `sidetier serve`, from the configuration to the exit code."""

import ctypes
import resource
import socket
import threading
from contextlib import AbstractContextManager, nullcontext

from prometheus_client import CollectorRegistry

from sidetier.archive.access import require_directory
from sidetier.cli import exits
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config, HttpConfig
from sidetier.endpoint.service import EndpointSettings, RunningEndpoint, serving
from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.allowed_hosts import AllowedHosts
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.logs import configure_logs
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application, endpoint_status

_CONNECTIONS = 32
"""Most requests to one store at the same time."""
_M_MMAP_THRESHOLD = -3
"""Number of the option in glibc's `malloc.h`."""
_OTHER_FILES = 400
"""Open files beside the connections of clients: segments (256), connections to stores, threads."""


def serve(config: Config, settings: EndpointSettings, metrics_port: int | None) -> int:
    """Serve clients until a signal, and return the exit code.

    Raises:
        ConfigurationError: The address cannot be listened at, a store does not exist, a certificate
            or the users file cannot be loaded, or the process may open too few files.
        BrokerError: The live cluster of the groups refuses the login.
        SidetierError: The archive cannot be read.
    """
    raise_file_limit(settings.server.max_connections)
    # Clients repeat a request after an error, but wait for its answer for 30 s only (Java).
    config = config.with_few_retries()
    configure_logs(config.log.format, config.log.level)
    _return_large_memory_when_freed()
    require_directory(config.storage.url)
    registry = create_registry()
    stop = threading.Event()
    with (
        handled_signals(stop.set),
        open_archive(config, connections=_CONNECTIONS, stop=stop) as archive,
        serving(archive, settings, registry) as endpoint,
        http_server(metrics_port, registry, endpoint, config.http),
    ):
        stop.wait()
    return exits.OK


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit of open files to the hard limit.

    Raises:
        ConfigurationError: The hard limit is too low for so many connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    needed = max_connections + _OTHER_FILES
    if resource.RLIM_INFINITY != hard < needed:
        raise ConfigurationError(
            f"--max-connections {max_connections} needs {needed} open files, but this process may "
            f"open {hard}: raise the hard limit (`ulimit -Hn`, LimitNOFILE= in systemd), or use "
            f"--max-connections {max(hard - _OTHER_FILES, 1)}"
        )


def http_server(
    port: int | None, registry: CollectorRegistry, endpoint: RunningEndpoint, http: HttpConfig
) -> AbstractContextManager[object]:
    """Return a server of the status page, /metrics and probes; without a port, of nothing.

    Raises:
        ConfigurationError: The bearer token cannot be read, or at the start, the port is taken.
    """
    if port is None:
        return nullcontext()
    application = Application(
        registry,
        endpoint,
        http.token_reader(),
        endpoint=lambda: endpoint_status(endpoint.snapshot(), endpoint.status(), http.runbook_url),
        hosts=AllowedHosts(http.allowed_hosts),
    )
    # Prometheus and probes are on other hosts; in an IPv6 cluster, they use IPv6.
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 -- see above
    return HttpServer(everywhere, port, application, settings="--metrics-port")


def _return_large_memory_when_freed() -> None:
    """Make glibc return the memory of a block of a segment to the kernel when it is freed.

    By default glibc raises its threshold to the first large block that is freed, and keeps later
    ones in the arena of their thread (30 MB were measured).
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # musl has none, and always returns large blocks
        allocator.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
