"""The parts of one endpoint, from its start to its end."""

import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Final, Literal
from uuid import uuid4

from prometheus_client import CollectorRegistry

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.layout import read_note
from sidetier.endpoint.blocks import BlockCache, SegmentBytes
from sidetier.endpoint.catalog import Catalog, CatalogSettings, parse_topic_id
from sidetier.endpoint.connection import ServerSettings, Service
from sidetier.endpoint.fetch import Fetcher
from sidetier.endpoint.groups.coordinator import GroupCoordinator
from sidetier.endpoint.groups.expiry import DEFAULT_RETENTION, GroupExpiry
from sidetier.endpoint.groups.local import LocalGroups
from sidetier.endpoint.groups.none import Groups, NoGroups
from sidetier.endpoint.groups.permissions import PermittedGroups
from sidetier.endpoint.groups.relay import ArchivedTopics, RelayGroups
from sidetier.endpoint.groups.stored_offsets import GroupObjects
from sidetier.endpoint.handlers import RequestHandlers
from sidetier.endpoint.idle_polls import IdlePolls
from sidetier.endpoint.live.client import LiveCluster
from sidetier.endpoint.live.logs import LiveLogs, LiveSettings
from sidetier.endpoint.logins import Logins
from sidetier.endpoint.metrics import EndpointMetrics, GroupMetrics, LiveMetrics
from sidetier.endpoint.offsets import OffsetAnswers
from sidetier.endpoint.positions import Positions
from sidetier.endpoint.reloading import Reloaded
from sidetier.endpoint.server import Endpoint, open_listener, shown
from sidetier.endpoint.tls import TlsFiles
from sidetier.endpoint.users import read_users
from sidetier.segments.errors import ConfigurationError, StorageError
from sidetier.storage.attempt import monotonic
from sidetier.storage.token_bucket import TokenBucket
from sidetier.telemetry.logs import logger
from sidetier.telemetry.status import Condition, StatusSnapshot

log = logger()

DEFAULT_MEMORY = 256 << 20
_INDEX_SHARE: Final = 8
"""Share of the memory for indexes of segments: an eighth. Another eighth is left for answers by
time and for buffers, so that the process does not grow beyond the memory and what it has at its
start.
"""
_SEARCH_SHARE: Final = 8
_LIVE_SHARE: Final = 4
"""Share of the memory for records of the live cluster that several clients read."""
_MIN_SEARCH: Final = 16 << 20
"""Least size of the batches, decompressed, in which searches for a timestamp look."""
_GROUP_WRITERS: Final = 8
"""Groups whose offsets are read or written at the same time."""


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Options of an endpoint.

    Attributes:
        listen: Host and port to listen at; port 0 lets the system choose.
        advertised: Host and port in the answers to clients; None for `listen`.
        memory: Memory for segments and their indexes, in bytes; three quarters of it for blocks.
            Segments in `file://` stores take none of it.
        server: Bounds on what clients can ask.
        groups: Consumer groups: none, an own coordinator's, or a live cluster's.
        group_retention: Seconds for which the own coordinator keeps the offsets of a group that is
            no longer used; infinite for ever.
        catalog: How often the store is asked.
        tls: Certificates of the listener; None for connections without TLS.
        users: The users file; None if clients need no login.
        bytes_per_second: Cap on the record bytes that are sent to all clients together; None for no
            cap.
        live: The live cluster that is shown with the archive as one; None for the archive alone.
    """

    listen: tuple[str, int]
    advertised: tuple[str, int] | None = None
    memory: int = DEFAULT_MEMORY
    server: ServerSettings = field(default_factory=ServerSettings)
    groups: Literal["none", "local"] | LiveCluster = "none"
    group_retention: float = DEFAULT_RETENTION
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    tls: TlsFiles | None = None
    users: Path | None = None
    bytes_per_second: int | None = None
    live: LiveSettings | None = None


@dataclass(frozen=True, slots=True)
class RunningEndpoint:
    """An endpoint that serves clients.

    Attributes:
        address: Host and port at which it listens.
        advertised: Host and port in the answers to clients.
        metrics: What it has counted.
        server: Its connections.
        blocks: Its memory.
        catalog: Its topics.
        groups: Its consumer groups.
        idle_polls: Its waiting connections.
        acceptor: The thread that accepts connections.
        live: The live cluster; None for the archive alone.
        started_ms: Its start, in milliseconds since 1970.
    """

    address: tuple[str, int]
    advertised: tuple[str, int]
    metrics: EndpointMetrics
    server: Endpoint
    blocks: BlockCache
    catalog: Catalog
    groups: Groups
    idle_polls: IdlePolls
    acceptor: threading.Thread
    live: LiveLogs | None
    started_ms: int = field(default_factory=lambda: round(time.time() * 1000))  # noqa: TID251 -- for people

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002
        """Return whether the endpoint is alive, and whether it accepts another client.

        A store that does not answer does not make it unready: clients get a retriable error, and
        every other endpoint of this archive has the same store. `with_partitions` is ignored.
        """
        deaths = [
            f"the thread {name} has ended"
            for name, is_alive in (
                *((each.name, each.is_alive()) for each in self._threads()),
                ("endpoint-idle", self.idle_polls.is_alive),
            )
            if not is_alive
        ]
        if self.live is not None and self.live.watch.is_of_another_cluster:
            deaths.append(self.live.watch.mismatch)
        is_full = self.server.is_full
        reason = "as many connections as allowed are open" if is_full else ""
        return StatusSnapshot(
            self.catalog.cluster,
            started_ms=self.started_ms,
            alive=not deaths,
            death="; ".join(deaths) or None,
            conditions=(Condition("accepts connections", not is_full, reason),),
        )

    def status(self) -> dict[str, object]:
        """Return what the endpoint serves, and what it cannot reach, as JSON."""
        topics = self.catalog.topics
        return {
            "address": shown(*self.address),
            "advertised": shown(*self.advertised),
            "connections": self.server.open_connections,
            "max_connections": self.server.max_connections,
            **self.metrics.totals(),
            "topics": len(topics),
            "partitions": sum(topic.partitions for topic in topics.values()),
            "stores": self.catalog.status(),
            "live": None if self.live is None else self.live.status(),
        }

    def _threads(self) -> Iterator[threading.Thread]:
        yield self.acceptor
        yield from self.catalog.threads
        if self.live is not None:
            yield self.live.watch.thread

    def stop(self) -> None:
        """End all connections; see `Endpoint.stop`. May be called twice."""
        self.server.stop(wake=self._wake)

    def _wake(self) -> None:
        if self.live is not None:
            self.live.close()
        self.catalog.close()
        self.idle_polls.close()
        self.groups.close()


@contextmanager
def serving(
    archive: ArchiveAccess,
    settings: EndpointSettings,
    registry: CollectorRegistry | None = None,
) -> Iterator[RunningEndpoint]:
    """Serve the topics of an archive until the block ends.

    Raises:
        ConfigurationError: The address cannot be listened at, a certificate, the users file or the
            properties of the groups' client cannot be loaded, or the store does not allow these
            groups.
        ConfigurationError, ArchiveError, StorageError: The archive cannot be read.
        BrokerError: The live cluster refuses the login.
    """
    live_memory = settings.memory // _LIVE_SHARE if settings.live else 0
    blocks = BlockCache(settings.memory - settings.memory // _INDEX_SHARE * 2 - live_memory)
    registry = registry or CollectorRegistry()
    metrics = EndpointMetrics(registry, lambda: blocks.used)
    tls = None if settings.tls is None else _reloaded_tls(settings.tls, metrics)
    logins = None
    if settings.users is not None:
        logins = _logins(settings.users, metrics, encrypted=tls is not None)
    rate = settings.bytes_per_second
    segment_bytes = SegmentBytes(archive, blocks)
    live = None
    if settings.live is not None:
        failures = metrics.reload_failures.labels("live_properties").inc
        live = LiveLogs(settings.live, live_memory, LiveMetrics(registry), failures)
    catalog = Catalog(archive, segment_bytes, settings.catalog, live=live)
    listener = open_listener(*settings.listen)
    host, port = listener.getsockname()[:2]
    advertised = settings.advertised or (host, port)
    try:
        if live is not None:
            live.start()
            _check_cluster(archive, live)
        catalog.start()
        groups = _groups(settings, archive, catalog, advertised, registry, metrics)
        if logins is not None:
            groups = PermittedGroups(groups)
    except BaseException:
        listener.close()
        if live is not None:
            live.close()
        catalog.close()
        blocks.close()
        raise
    idle_polls = IdlePolls(catalog, metrics)
    search = max(settings.memory // _SEARCH_SHARE, _MIN_SEARCH)
    server = Endpoint(
        Service(
            RequestHandlers(catalog, OffsetAnswers(catalog, segment_bytes, search), advertised),
            Fetcher(
                catalog,
                segment_bytes,
                Positions(archive, segment_bytes, settings.memory // _INDEX_SHARE),
            ),
            idle_polls,
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
    idle_polls.start()
    acceptor.start()
    log.info(
        "endpoint.listening",
        host=host,
        port=port,
        topics=len(catalog.topics),
        security_protocol=_security_protocol(settings),
    )
    running = RunningEndpoint(
        (host, port),
        advertised,
        metrics,
        server,
        blocks,
        catalog,
        groups,
        idle_polls,
        acceptor,
        live,
    )
    try:
        yield running
    finally:
        log.info("endpoint.stopping", connections=server.open_connections)
        running.stop()
        acceptor.join()
        blocks.close()


def _reloaded_tls(files: TlsFiles, metrics: EndpointMetrics) -> Reloaded[ssl.SSLContext]:
    failures = metrics.reload_failures.labels("certificate")
    return Reloaded(lambda: files.paths, files.context, failures.inc)


def _logins(path: Path, metrics: EndpointMetrics, *, encrypted: bool) -> Logins:
    failures = metrics.reload_failures.labels("users")
    users = Reloaded(lambda: (path,), lambda: read_users(path), failures.inc)
    return Logins(users, metrics, encrypted=encrypted)


def _security_protocol(settings: EndpointSettings) -> str:
    """Return the value of `security.protocol` that clients need."""
    transport = "PLAINTEXT" if settings.tls is None else "SSL"
    return transport if settings.users is None else f"SASL_{transport}"


@dataclass(slots=True)
class ArchivedCluster:
    """Kafka's id of the archived cluster."""

    archive: ArchiveAccess
    _id: str | None = None

    def id(self) -> str | None:
        """Return the id; None if it is not known.

        It is read again until it is known: the first sidecar may start after the endpoint.

        Raises:
            MalformedObjectError: `layout.json` does not parse.
        """
        if self._id is None:
            note = read_note(self.archive.default_store, self.archive.layout)
            self._id = None if note is None else note.kafka_cluster_id
        return self._id


def _check_cluster(archive: ArchiveAccess, live: LiveLogs) -> None:
    """Refuse the brokers of another cluster. Wait for a store that is away in another thread.

    Raises:
        ConfigurationError: The archive is of another cluster.
        ArchiveError: The note of its cluster is damaged.
    """
    cluster = ArchivedCluster(archive)
    try:
        archived = cluster.id()
    except StorageError as error:
        log.warning("endpoint.cluster_not_checked", error=str(error))
        live.check_later(cluster.id)
        return
    live.expect_cluster(archived)
    if archived is None:
        live.check_later(cluster.id)  # the first sidecar may start after the endpoint
    if live.watch.is_of_another_cluster:
        raise ConfigurationError(f"--live: {live.watch.mismatch}")


def _archived_topics(archive: ArchiveAccess, catalog: Catalog) -> ArchivedTopics:
    live = catalog.live
    if live is not None:
        # Clients commit offsets of the live topics, whether they are archived or not.
        return ArchivedTopics(
            lambda: live.topics.cluster_id,
            lambda name: live.topics.ids([name]).get(name),
            lambda topic_id: catalog.topic_of_id(topic_id) is not None,
        )
    cluster = ArchivedCluster(archive)
    cluster.id()  # a damaged note ends the start, not the first request
    return ArchivedTopics(
        cluster.id,
        lambda name: parse_topic_id(catalog.archived_topic_id(name)),
        lambda topic_id: catalog.topic_of_id(topic_id) is not None,
    )


def _groups(
    settings: EndpointSettings,
    archive: ArchiveAccess,
    catalog: Catalog,
    advertised: tuple[str, int],
    registry: CollectorRegistry,
    endpoint_metrics: EndpointMetrics,
) -> Groups:
    metrics = GroupMetrics(registry)
    if settings.groups == "none":
        return NoGroups()
    if isinstance(settings.groups, LiveCluster):
        groups = settings.groups
        failures = endpoint_metrics.reload_failures.labels("groups_properties")
        relay = RelayGroups(
            Reloaded(groups.files, groups.client, failures.inc).current,
            advertised,
            _archived_topics(archive, catalog),
            metrics,
        )
        relay.start()
        return relay
    store = archive.default_store
    if not store.capabilities.conditional_writes:
        raise ConfigurationError(
            "--groups local: this store has no conditional writes, so two endpoints could "
            "overwrite each other's committed offsets; use --groups relay, or another store"
        )
    objects = GroupObjects(
        store,
        archive.layout,
        uuid4().hex,
        gethostname(),
        ThreadPoolExecutor(_GROUP_WRITERS, thread_name_prefix="endpoint-groups"),
        metrics.writes.inc,
    )
    coordinator = GroupCoordinator(objects, metrics)
    expiry = GroupExpiry(objects, coordinator, settings.group_retention)
    expiry.start()
    return LocalGroups(
        coordinator,
        lambda tp: catalog.partition(tp.topic, tp.partition) is not None,
        catalog.archived_topic_id,
        advertised,
        expiry,
    )
