"""The parts of one endpoint, from its start to its end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from sidetier.archive.access import ArchiveAccess
from sidetier.endpoint.blocks import BlockCache, SegmentBytes
from sidetier.endpoint.catalog import Catalog, CatalogSettings
from sidetier.endpoint.connection import ServerSettings, Service
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.groups.none import Groups, NoGroups
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.metrics import EndpointMetrics
from sidetier.endpoint.offsets import OffsetAnswers
from sidetier.endpoint.positions import Positions
from sidetier.endpoint.server import Endpoint, open_listener
from sidetier.telemetry.logs import logger
from sidetier.telemetry.status import Condition, StatusSnapshot

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
    """

    listen: tuple[str, int]
    advertised: tuple[str, int] | None = None
    memory: int = DEFAULT_MEMORY
    server: ServerSettings = field(default_factory=ServerSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)


@dataclass(frozen=True, slots=True)
class RunningEndpoint:
    """An endpoint that serves clients.

    Attributes:
        address: Host and port at which it listens.
        server: Its connections.
        blocks: Its memory.
        catalog: Its topics.
        groups: Its consumer groups.
        acceptor: The thread that accepts connections.
    """

    address: tuple[str, int]
    server: Endpoint
    blocks: BlockCache
    catalog: Catalog
    groups: Groups
    acceptor: threading.Thread

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002
        """Return whether the endpoint is alive, and whether it accepts another client.

        A store that does not answer is no reason to be unready: clients get a retriable error, and
        every other endpoint of this archive has the same store. `with_partitions` is ignored.
        """
        deaths = [
            f"the thread {name} has ended"
            for name, is_alive in (
                (self.acceptor.name, self.acceptor.is_alive()),
                ("endpoint-refresh", self.catalog.is_alive),
            )
            if not is_alive
        ]
        is_full = self.server.is_full
        reason = "as many connections as allowed are open" if is_full else ""
        return StatusSnapshot(
            self.catalog.cluster,
            alive=not deaths,
            death="; ".join(deaths) or None,
            conditions=(Condition("accepts_connections", not is_full, reason),),
        )

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
        ConfigurationError: The address cannot be listened at.
        ConfigurationError, ArchiveError, StorageError: The archive cannot be read.
    """
    blocks = BlockCache(settings.memory)
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
        ),
        EndpointMetrics(registry or CollectorRegistry(), lambda: blocks.used),
        settings.server,
    )
    acceptor = threading.Thread(
        target=server.serve, args=(listener,), name="endpoint-accept", daemon=True
    )
    acceptor.start()
    log.info("endpoint.listening", host=host, port=port, topics=len(catalog.topics))
    running = RunningEndpoint((host, port), server, blocks, catalog, groups, acceptor)
    try:
        yield running
    finally:
        log.info("endpoint.stopping", connections=server.open_connections)
        running.stop()
        acceptor.join()
        blocks.close()
