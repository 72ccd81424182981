"""The parts of one endpoint, from its start to its end."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from sidetier.archive.access import ArchiveAccess
from sidetier.endpoint.blocks import BlockCache, SegmentBytes
from sidetier.endpoint.catalog import Catalog, CatalogSettings
from sidetier.endpoint.connection import ServerSettings, Service
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.groups.none import Groups, NoGroups
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.logins import Logins
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.offsets import OffsetAnswers
from sidetier.endpoint.positions import Positions
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.server import Endpoint, open_listener
from sidetier.endpoint.tls import TlsFiles
from sidetier.endpoint.users import read_users
from sidetier.storage.attempt import monotonic
from sidetier.storage.token_bucket import TokenBucket
from sidetier.telemetry.logs import logger

log = logger()

DEFAULT_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Options of an endpoint.

    Attributes:
        listen: Host and port to listen at; port 0 lets the system choose.
        advertised: Host and port that clients are told; None for `listen`.
        memory: Memory for blocks of segments, in bytes. Not used for `file://` stores.
        server: Bounds on what clients can ask.
        catalog: How often the store is asked.
        tls: Certificates of the listener; None for connections without TLS.
        users: The users file; None if clients need no login.
        bytes_per_second: Cap on the record bytes that are sent to all clients together; None for no
            cap.
    """

    listen: tuple[str, int]
    advertised: tuple[str, int] | None = None
    memory: int = DEFAULT_MEMORY
    server: ServerSettings = field(default_factory=ServerSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    tls: TlsFiles | None = None
    users: Path | None = None
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class RunningEndpoint:
    """An endpoint that serves clients.

    Attributes:
        address: Host and port at which it listens.
        server: Its connections.
        blocks: Its memory.
        catalog: Its topics.
        groups: Its consumer groups.
    """

    address: tuple[str, int]
    server: Endpoint
    blocks: BlockCache
    catalog: Catalog
    groups: Groups

    def stop(self) -> None:
        """End all connections; see `Endpoint.stop`. May be called twice."""
        self.server.stop(wake=self._wake)

    def _wake(self) -> None:
        self.catalog.close()
        self.groups.close()


@contextmanager
def serving(
    archive: ArchiveAccess,
    settings: EndpointSettings,
    registry: CollectorRegistry | None = None,
) -> Iterator[RunningEndpoint]:
    """Serve the topics of an archive until the block ends.

    Raises:
        ConfigurationError: The address cannot be listened at, or a certificate or the users file
            cannot be loaded.
        ConfigurationError, ArchiveError, StorageError: The archive cannot be read.
    """
    blocks = BlockCache(settings.memory)
    metrics = EndpointMetrics(registry or CollectorRegistry(), lambda: blocks.used)
    tls = None if settings.tls is None else _reloaded_tls(settings.tls, metrics)
    logins = None
    if settings.users is not None:
        logins = _logins(settings.users, metrics, encrypted=tls is not None)
    rate = settings.bytes_per_second
    segment_bytes = SegmentBytes(archive, blocks)
    catalog = Catalog(archive, segment_bytes, settings.catalog)
    listener = open_listener(*settings.listen)
    host, port = listener.getsockname()[:2]
    try:
        catalog.start()
    except BaseException:
        listener.close()
        catalog.close()
        blocks.close()
        raise
    groups = NoGroups()
    server = Endpoint(
        Service(
            RequestHandlers(
                catalog, OffsetAnswers(catalog, segment_bytes), settings.advertised or (host, port)
            ),
            Fetcher(catalog, segment_bytes, Positions(archive, segment_bytes)),
            groups,
            logins,
            None if rate is None else TokenBucket(rate, monotonic),
        ),
        metrics,
        settings.server,
        tls,
    )
    acceptor = threading.Thread(
        target=server.serve, args=(listener,), name="endpoint-accept", daemon=True
    )
    acceptor.start()
    log.info(
        "endpoint.listening",
        host=host,
        port=port,
        topics=len(catalog.topics),
        security_protocol=_security_protocol(settings),
    )
    running = RunningEndpoint((host, port), server, blocks, catalog, groups)
    try:
        yield running
    finally:
        log.info("endpoint.stopping", connections=server.open_connections)
        running.stop()
        acceptor.join()
        blocks.close()


def _reloaded_tls(files: TlsFiles, metrics: EndpointMetrics) -> Reloaded[ssl.SSLContext]:
    failures = metrics.reload_failures.labels("certificate")
    return Reloaded(files.paths, files.context, failures.inc)


def _logins(path: Path, metrics: EndpointMetrics, *, encrypted: bool) -> Logins:
    failures = metrics.reload_failures.labels("users")
    users = Reloaded((path,), lambda: read_users(path), failures.inc)
    return Logins(users, metrics, encrypted=encrypted)


def _security_protocol(settings: EndpointSettings) -> str:
    """Return the value of `security.protocol` that clients need."""
    transport = "PLAINTEXT" if settings.tls is None else "SSL"
    return transport if settings.users is None else f"SASL_{transport}"
