"""Composition root of the sidecar: build a daemon, a backfill or a pass of local retention from the
configuration. Only this module knows every adapter.
"""

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

import structlog

from sidetier.archive.access import ArchiveAccess, open_archive, require_fencing
from sidetier.archive.objects.key_fingerprints import (
    check_stored_fingerprints,
    write_or_check_fingerprint,
)
from sidetier.archive.objects.layout import (
    LayoutNote,
    check_stored_note,
    other_archives,
    second_archive,
    write_or_check_note,
)
from sidetier.config.model import Config, HttpConfig, ZookeeperTlsConfig
from sidetier.config.problems import Origins, problem_line, raise_problems
from sidetier.config.retention import LocalRetentionConfig
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.leadership.factory import open_leadership
from sidetier.leadership.port import (
    ClusterStateSource,
    ConsumerGroupSource,
    LogOffsetSource,
    RecordDeleter,
    TopicConfigSource,
)
from sidetier.leadership.settings import (
    KraftSettings,
    LeadershipSettings,
    StaticSettings,
    ZookeeperSettings,
    ZookeeperTls,
)
from sidetier.segments.errors import (
    ConfigurationError,
    StorageError,
    StoreUnavailableError,
    TransientStorageError,
)
from sidetier.segments.offsets import OffsetRange, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.factory import check_encryption, open_plain
from sidetier.storage.port import RemoteStorage, StorageCapabilities
from sidetier.storage.settings import StorageEndpoint
from sidetier.storage.store_calls import StoreCalls
from sidetier.telemetry.allowed_hosts import AllowedHosts
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import LabelledRegistry, Metrics, create_registry
from sidetier.telemetry.pages import Application, PageSource, partition_page
from sidetier.telemetry.status import StatusSource
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.chapters import LongArchives
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.context import DaemonContext
from sidetier.uploader.daemon import Daemon
from sidetier.uploader.effects import report_gap
from sidetier.uploader.gates.high_watermark import HighWatermarkSource
from sidetier.uploader.sending.throttle import capped
from sidetier.uploader.status_board import StatusBoard
from sidetier.uploader.stores import Place
from sidetier.uploader.watching.log_dirs import LogDirs

if TYPE_CHECKING:
    from sidetier.archive.tail.inventory import TailInventory
    from sidetier.uploader.tail.packs import PackNumbers, TailPlace
    from sidetier.uploader.tail.writer import TailWriter
    from sidetier.uploader.trim.single_pass import ArchiveAt, TrimReport, TrimRequest
    from sidetier.uploader.trim.trimmer import Trimmer

_METADATA_CACHE_BYTES = 4 << 20
_NO_ORIGINS: Origins = MappingProxyType({})
_TAIL_READERS = 8
_TAIL_CONNECTIONS = 4 + 2 * _TAIL_READERS
"""Connections to each store for tail packs: those in flight, and the reading of rows for tails that
begin and for cleaning.
"""
_TAIL_CLEAN_SECONDS = 600.0
_METADATA_LOG = "__cluster_metadata-0"


class _Admission:
    """Check whether a store may be written to, repeated until the store has answered once.

    Other threads do not wait long for the lock: before a store has answered, the sidecar sends it
    one request at a time.
    """

    def __init__(self, check: Callable[[], None], *, admitted: bool) -> None:
        self._check = check
        self._admitted = admitted
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Check the store on the first calls.

        Raises:
            ConfigurationError: The store may not be written to.
            StorageError: The store does not answer.
        """
        with self._lock:
            if not self._admitted:
                self._check()
                self._admitted = True


class _UnplacedStore:
    """Store of a topic for which the endpoint plug-in failed. Each request asks the plug-in again.

    A failing plug-in therefore holds back this topic only.
    """

    capabilities: Final = StorageCapabilities(conditional_writes=True, checksum=None)

    def __init__(self, find: Callable[[], RemoteStorage]) -> None:
        self._find = find

    def located(self) -> RemoteStorage:
        """Return the store; raises StoreUnavailableError while the plug-in fails."""
        try:
            return self._find()
        except ConfigurationError as error:
            raise StoreUnavailableError(str(error)) from error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def request(*args: object, **named: object) -> object:
            return getattr(self.located(), name)(*args, **named)

        return request


@dataclass(frozen=True, slots=True)
class _Places:
    """The place of each topic, created on first use without a request.

    `seen` has the layout note that each store had at the start; None for a store without one. A
    store that did not answer has no entry. `admitted` has the stores that had a note and the
    fingerprint of the key that encrypts. `warnings` has what an operator must decide.
    """

    config: Config
    archive: ArchiveAccess
    kafka_cluster_id: str | None
    cache: MetadataCache
    long_archives: LongArchives
    report_gap: Callable[[TopicPartition, OffsetRange], None] = lambda _, __: None
    known: dict[int, Place] = field(default_factory=dict)
    seen: dict[StorageEndpoint, LayoutNote | None] = field(default_factory=dict)
    admitted: set[StorageEndpoint] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    unplaced: dict[str, Place] = field(default_factory=dict)

    def of(self, topic: str) -> Place:
        """Return the place of a topic."""
        try:
            return self._at(self.archive.provider.endpoint(topic))
        except ConfigurationError as error:
            if topic not in self.unplaced:
                structlog.get_logger().error("store.unknown", topic=topic, error=str(error))
                self.unplaced[topic] = self._unplaced(topic)
            return self.unplaced[topic]

    def _unplaced(self, topic: str) -> Place:
        store = _UnplacedStore(lambda: self.archive.store(topic))
        admit = _Admission(
            lambda: self.check(store.located(), self.archive.provider.endpoint(topic)),
            admitted=False,
        )
        remote = cast("RemoteStorage", store)
        archive_writer = ArchiveWriter(
            remote,
            self.archive.layout,
            self.cache,
            admit,
            self.long_archives,
            self.report_gap,
        )
        return Place(remote, self.archive.layout, archive_writer)

    def default(self) -> Place:
        """Return the place for objects that belong to no topic."""
        return self._at(self.archive.provider.default)

    def _at(self, endpoint: StorageEndpoint) -> Place:
        store = self.archive.stores.at(endpoint)
        if id(store) not in self.known:
            # What existed at the start was compared at the start.
            admitted = endpoint in self.admitted
            admit = _Admission(lambda: self.check(store, endpoint), admitted=admitted)
            archive_writer = ArchiveWriter(
                store,
                self.archive.layout,
                self.cache,
                admit,
                self.long_archives,
                self.report_gap,
            )
            self.known[id(store)] = Place(store, self.archive.layout, archive_writer)
        return self.known[id(store)]

    def check(self, store: RemoteStorage, endpoint: StorageEndpoint) -> None:
        """Check a store before the first write to it."""
        require_fencing(self.config.storage, store, endpoint.url)
        layout = self.archive.layout
        if self.seen.get(endpoint) is None:
            known_missing = endpoint in self.seen
            write_or_check_note(store, layout, self.kafka_cluster_id, known_missing=known_missing)
        write_or_check_fingerprint(store, layout, endpoint.encryption)

    def _warn_of_other_archives(self, store: RemoteStorage, url: str) -> None:
        if self.kafka_cluster_id is None:
            return
        for other in other_archives(store, self.archive.layout, self.kafka_cluster_id):
            text = second_archive(self.archive.layout.cluster, other, url)
            structlog.get_logger().warning("archive.second", other=other, url=url, message=text)
            self.warnings.append(text)

    def check_all(self) -> None:
        """Check each store once at the start, without writing.

        A store that does not answer now does not keep the sidecar from pinning segments. It is
        checked again when its first archive is read. A key that cannot encrypt refuses the start,
        and a key service that does not answer now is asked again by the first upload.
        """
        encryption = self.archive.provider.default.encryption
        if encryption is not None:
            try:
                check_encryption(encryption)
            except TransientStorageError as error:
                structlog.get_logger().warning("encryption_key.unreachable", error=str(error))
            except StorageError as error:
                raise ConfigurationError(str(error)) from None
        for endpoint in self.archive.provider.endpoints:
            store = open_plain(endpoint)
            try:
                require_fencing(self.config.storage, store, endpoint.url)
                layout = self.archive.layout
                note = check_stored_note(store, layout, self.kafka_cluster_id)
                self.seen[endpoint] = note
                is_complete = check_stored_fingerprints(store, layout, endpoint.encryption)
                if note is not None and is_complete:
                    self.admitted.add(endpoint)
                self._warn_of_other_archives(store, endpoint.url)
            except TransientStorageError as error:
                structlog.get_logger().warning(
                    "store.unreachable", url=endpoint.url, error=str(error)
                )
            finally:
                store.close()


def check_archive(config: Config, archive: ArchiveAccess, identity: MetaProperties) -> None:
    """Check the stores, the cluster of the archive and the encryption keys as the sidecar does at
    its start. Nothing is written.

    Raises:
        ConfigurationError: The sidecar would not start with these settings.
    """
    cache, long_archives = MetadataCache(_METADATA_CACHE_BYTES), LongArchives()
    _Places(config, archive, identity.cluster_id, cache, long_archives).check_all()


def promotion_places(config: Config, archive: ArchiveAccess) -> Callable[[str], Place]:
    """Return where the promotion of tails writes: the place of each topic, checked as by a sidecar
    before its first write.
    """
    cache = MetadataCache(_METADATA_CACHE_BYTES)
    return _Places(config, archive, None, cache, LongArchives()).of


def identify(config: Config, origins: Origins = _NO_ORIGINS) -> MetaProperties:
    """Return the broker and cluster that the log dirs belong to.

    An unreadable log dir is only logged as a warning while another one is readable, because the
    broker also continues without it.

    Raises:
        ConfigurationError: No log dir can be read, or one belongs to another broker or cluster.
    """
    report = check_machine(config, LocalMachine())
    raise_problems(list(report.problems), origins)
    for warning in report.warnings:
        structlog.get_logger().warning("config.warning", message=problem_line(warning, origins))
    if report.identity is None:
        raise ConfigurationError(
            "log_dirs: no log dir has a meta.properties file that names its broker"
        )
    return report.identity


@contextmanager
def daemon(
    config: Config,
    metrics: Metrics,
    origins: Origins = _NO_ORIGINS,
    *,
    leadership: LeadershipSettings | None = None,
    high_watermarks: HighWatermarkSource | None = None,
) -> Iterator[Daemon]:
    """Build and check a daemon with real adapters; it does not run yet.

    `leadership` and `high_watermarks`, if given, replace the configured ones.

    Raises:
        ConfigurationError: The daemon could never work with these settings. Nothing was changed.
    """
    identity = identify(config, origins)
    abandoned = threading.Event()
    connections = config.uploader.threads + config.uploader.request_threads
    if config.retention.local.enabled:
        from sidetier.uploader.trim.trimmer import CHECK_THREADS  # noqa: PLC0415 - as the engine does

        connections += CHECK_THREADS
    if config.uploader.tail.enabled:
        connections += _TAIL_CONNECTIONS
    calls = _store_calls(config)
    with (
        # A backfill, which gives `leadership`, may run beside a sidecar.
        nullcontext() if leadership else sidecar_of_broker(identity) as other_sidecar,
        open_archive(
            config.cluster.name,
            config.storage,
            connections=connections,
            observer=metrics,
            stop=abandoned,
            calls=calls,
        ) as archive,
    ):
        long_archives = LongArchives()
        places = _Places(
            config,
            archive,
            identity.cluster_id,
            MetadataCache(_METADATA_CACHE_BYTES),
            long_archives,
            partial(report_gap, metrics, below_start=True),
        )
        # Before anything watches or pins: a refused store must leave nothing changed.
        places.check_all()
        settings = leadership or leadership_settings(config, identity)
        is_static = isinstance(settings, StaticSettings)
        daemon_context = DaemonContext(
            log_dirs=LogDirs(map(str, config.log_dirs), config.topics.selects, identity),
            leadership=open_leadership(settings),
            places=places.of,
            high_watermarks=high_watermarks or high_watermark_source(config),
            topic_configs=topic_config_source(config),
            # A backfill, which gives `leadership`, stores no snapshots.
            cluster_state=None if leadership else cluster_state_source(config, abandoned),
            cluster_place=places.default(),
            topics=config.topics,
            # A backfill, which gives `leadership`, deletes nothing.
            local_retention=LocalRetentionConfig() if leadership else config.retention.local,
            record_deleter=None if leadership else record_deleter(config, identity),
            log_offsets=None if is_static else shared_log_offsets(config, identity),
            tail=None if is_static else tail_writer(config, identity, archive, metrics, abandoned),
            store_calls=calls,
            long_archives=long_archives,
            abandoned=abandoned,
            broker_id=identity.broker_id,
            cluster=config.cluster.name,
            warnings=(*filter(None, [other_sidecar]), *places.warnings),
            metrics=metrics,
            clock=SYSTEM_CLOCK,
        )
        built = Daemon(config.uploader.led_only() if is_static else config.uploader, daemon_context)
        metrics.observe_status(built.status)
        yield built


@contextmanager
def sidecar_of_broker(identity: MetaProperties) -> Iterator[str | None]:
    """Hold a name on this host that belongs to one sidecar of the broker.

    The name is an abstract Unix socket: it disappears with the process, and nothing is written.
    Containers see each other's names if they share a network namespace, as in a pod.

    Yields:
        A warning if another process has the name; None otherwise.
    """
    name = f"\0sidetier/{identity.cluster_id}/{identity.broker_id}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        warning = None
        try:
            holder.bind(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # otherwise this system has no abstract sockets
                warning = (
                    f"another sidecar of broker {identity.broker_id} of Kafka cluster "
                    f"{identity.cluster_id} runs on this host: stop one of them"
                )
                structlog.get_logger().warning("daemon.second_sidecar", message=warning)
        yield warning


def _store_calls(config: Config) -> StoreCalls:
    """Set the time after which an attempt hangs: all deadlines, slowed by a bandwidth cap."""
    deadline, uploader = config.storage.deadline, config.uploader
    slowest: float = deadline.min_bytes_per_second
    if uploader.max_bytes_per_second is not None:
        encryption = config.storage.encryption
        # A body that is encrypted is read twice, and the cap counts both readings.
        readings = 2 if encryption is not None and encryption.topics else 1
        slowest = min(slowest, uploader.max_bytes_per_second / uploader.threads / readings)
    return StoreCalls(max(deadline.hung_after, deadline.base), slowest)


def leadership_settings(config: Config, identity: MetaProperties) -> LeadershipSettings:
    """Return the leadership source's settings, for the configured or detected mode."""
    source = config.leadership.source
    mode = identity.mode if source == "auto" else source
    if mode == "static":
        named = config.leadership.static.topic_partitions()
        return StaticSettings(named or None, tuple(config.log_dirs))
    if mode == "zookeeper":
        return _zookeeper(config, identity)
    return _kraft(config, identity)


def _kraft(config: Config, identity: MetaProperties) -> KraftSettings:
    kraft = config.leadership.kraft
    directory = (
        (kraft.metadata_log_dir or _metadata_log_dir(config)) if kraft.metadata_log else None
    )
    return KraftSettings(
        broker_id=identity.broker_id,
        metadata_log_dir=directory,
        bootstrap_servers=config.broker.bootstrap_servers,
        cluster_id=identity.cluster_id,
        client_properties=_client_properties(config),
        poll_interval=kraft.confirm_interval,
    )


def _metadata_log_dir(config: Config) -> Path:
    """Return the log dir with the metadata log: without `metadata.log.dir`, one of the log dirs."""
    for log_dir in config.log_dirs:
        if LocalMachine().kind(log_dir / _METADATA_LOG) == "directory":
            return log_dir
    if config.broker.bootstrap_servers is None:
        raise ConfigurationError(
            f"no log dir holds {_METADATA_LOG}: set leadership.kraft.metadata_log_dir to the "
            "broker's metadata.log.dir, or broker.bootstrap_servers"
        )
    return config.log_dirs[0]


def _zookeeper(config: Config, identity: MetaProperties) -> ZookeeperSettings:
    zookeeper = config.leadership.zookeeper
    if zookeeper.connect is None:
        raise ConfigurationError("leadership.zookeeper.connect: is required")
    return ZookeeperSettings(
        broker_id=identity.broker_id,
        connect=zookeeper.connect,
        cluster_id=identity.cluster_id,
        session_timeout=zookeeper.session_timeout,
        sasl=_zookeeper_sasl(config),
        tls=_zookeeper_tls(zookeeper.tls),
    )


def _zookeeper_sasl(config: Config) -> dict[str, str] | None:
    sasl = config.leadership.zookeeper.sasl
    if sasl is None:
        return None
    options = {"mechanism": sasl.mechanism, "service": sasl.service}
    if sasl.username is not None:
        options["username"] = sasl.username
    if sasl.password is not None:
        options["password"] = sasl.password.resolve()
    return options


def _zookeeper_tls(tls: ZookeeperTlsConfig | None) -> ZookeeperTls | None:
    if tls is None:
        return None
    return ZookeeperTls(
        ca=tls.ca_file,
        certificate=tls.cert_file,
        key=tls.key_file,
        key_password=tls.key_password.resolve() if tls.key_password is not None else None,
        verify=tls.verify,
    )


def _client_properties(config: Config) -> dict[str, str]:
    properties = config.broker.client_properties()
    properties.pop("bootstrap.servers", None)
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415 - load librdkafka only if it is used

    return as_texts(properties)


def high_watermark_source(config: Config) -> HighWatermarkSource | None:
    """Return the source of high watermarks; None if it is disabled or has no servers."""
    servers = config.broker.bootstrap_servers
    if servers is None or not config.uploader.high_watermark.list_offsets:
        return None
    from sidetier.leadership.cluster import (  # noqa: PLC0415 - load librdkafka only if it is used
        KafkaHighWatermarks,
    )

    return KafkaHighWatermarks(servers, _client_properties(config))


def topic_config_source(config: Config) -> TopicConfigSource | None:
    """Return the source of topic configurations; None without configured servers."""
    servers = config.broker.bootstrap_servers
    if servers is None:
        return None
    from sidetier.leadership.cluster import (  # noqa: PLC0415 - load librdkafka only if it is used
        KafkaTopicConfigs,
    )

    return KafkaTopicConfigs(servers, _client_properties(config))


def record_deleter(config: Config, identity: MetaProperties) -> RecordDeleter | None:
    """Return the client that deletes records for local retention; None where that is off.

    Raises:
        ConfigurationError: The client does not support a property of `broker.client`.
    """
    servers = config.broker.bootstrap_servers
    if servers is None or not config.retention.local.enabled:
        return None
    from sidetier.leadership.record_deletion import KafkaRecordDeleter  # noqa: PLC0415 - as above

    return KafkaRecordDeleter(
        servers, _client_properties(config), identity.broker_id, identity.cluster_id
    )


def shared_log_offsets(config: Config, identity: MetaProperties) -> LogOffsetSource | None:
    """Return the client that asks the own broker which records are committed, for early archiving;
    None where that is off.

    Raises:
        ConfigurationError: The client does not support a property of `broker.client`.
    """
    servers = config.broker.bootstrap_servers
    if servers is None or not config.uploader.early.enabled:
        return None
    from sidetier.leadership.shared_log_offsets import SharedLogOffsets  # noqa: PLC0415 - as above

    return SharedLogOffsets(log_offset_source(config, servers, identity, "uploader.early.topics"))


def log_offset_source(
    config: Config, servers: str, identity: MetaProperties, setting: str
) -> LogOffsetSource:
    """Return the client that asks the own broker for offsets; `setting` is what needs it.

    Raises:
        ConfigurationError: The client does not support a property of `broker.client`.
    """
    from sidetier.leadership.log_offsets import KafkaLogOffsets  # noqa: PLC0415 - as above

    properties = _client_properties(config)
    try:
        return KafkaLogOffsets(servers, properties, identity.broker_id, identity.cluster_id)
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from None


def tail_places(
    archive: ArchiveAccess,
) -> "tuple[Callable[[str], TailPlace], Callable[[TailPlace | PackNumbers], TailInventory]]":
    """Return where packs of a topic are stored, and what reads the live packs of a store."""
    from sidetier.archive.tail.inventory import TailInventory  # noqa: PLC0415 - only where a tail is
    from sidetier.uploader.tail.packs import TailPlace  # noqa: PLC0415 - as above

    def place_of(topic: str) -> TailPlace:
        endpoint = archive.provider.endpoint(topic)
        encrypts = endpoint.encrypts(topic)
        if endpoint.refuses_plain(topic) and not encrypts:
            # In a pack with others, it would hold them up, too.
            raise ConfigurationError(
                f"{topic} is in storage.encryption.refuse_plain, and not in its topics"
            )
        return TailPlace(archive.stores.at(endpoint), archive.layout, encrypts)

    inventories: dict[int, TailInventory] = {}

    def inventory_of(place: "TailPlace | PackNumbers") -> TailInventory:
        # One for each store: it remembers which partitions packs have rows of.
        made = TailInventory(
            place.store,
            place.layout,
            concurrency=_TAIL_READERS,
            refuses_plain=lambda topic: archive.provider.endpoint(topic).refuses_plain(topic),
        )
        return inventories.setdefault(id(place.store), made)

    return place_of, inventory_of


def tail_writer(
    config: Config,
    identity: MetaProperties,
    archive: ArchiveAccess,
    metrics: Metrics,
    abandoned: threading.Event,
) -> "TailWriter | None":
    """Return what stores the tail; None where that is off.

    Raises:
        ConfigurationError: The client does not support a property of `broker.client`.
    """
    servers, rules = config.broker.bootstrap_servers, config.uploader.tail
    interval = rules.interval
    if servers is None or interval is None or not rules.enabled:
        return None
    # Only where a tail is stored.
    from sidetier.archive.inventory.stored_partition import StoredPartition  # noqa: PLC0415
    from sidetier.uploader.tail import cleaning, cycle, packs  # noqa: PLC0415
    from sidetier.uploader.tail.board import TailBoard  # noqa: PLC0415
    from sidetier.uploader.tail.writer import TailWriter, on_thread  # noqa: PLC0415

    source = log_offset_source(config, servers, identity, "uploader.tail.interval")

    place_of, inventory_of = tail_places(archive)

    def gaps_of(place: packs.TailPlace, tp: TopicPartition) -> Sequence[OffsetRange]:
        return StoredPartition(place.store, place.layout, tp).gaps()

    def bandwidth() -> Callable[[int], None]:
        limit = config.uploader.max_bytes_per_second
        return capped(limit, SYSTEM_CLOCK.monotonic, abandoned, metrics.throttled)

    cycles = cycle.TailCycle(
        source,
        place_of,
        inventory_of,
        packs.ThreadedSender(SYSTEM_CLOCK.wall),
        identity.broker_id,
        SYSTEM_CLOCK,
        interval,
        bandwidth(),
        on_thread,
        gaps_of,
        metrics.unexpected_error,
    )
    cleaner = cleaning.TailCleaner(
        cycles.stores,
        inventory_of,
        place_of,
        cleaning.stored_archive(place_of),
        cleaning.stored_retired(place_of),
        identity.broker_id,
        SYSTEM_CLOCK,
        before_read=bandwidth(),
    )
    return TailWriter(
        cycles,
        cleaner,
        TailBoard(rules),
        source,
        interval,
        _TAIL_CLEAN_SECONDS,
        SYSTEM_CLOCK,
        metrics,
    )


def consumer_groups(config: Config) -> ConsumerGroupSource:
    """Return the source of consumer groups.

    Raises:
        ConfigurationError: No servers are configured, or the client does not support a property of
            `broker.client`.
    """
    from sidetier.leadership.consumer_groups import (  # noqa: PLC0415 - only where it is used
        KafkaConsumerGroups,
    )

    return KafkaConsumerGroups(_servers(config), _client_properties(config))


def _servers(config: Config) -> str:
    servers = config.broker.bootstrap_servers
    if servers is None:
        raise ConfigurationError("broker.bootstrap_servers is not set")
    return servers


def cluster_state_source(config: Config, ending: threading.Event) -> ClusterStateSource | None:
    """Return the source of cluster state; None without configured servers, or if it is disabled."""
    servers = config.broker.bootstrap_servers
    if servers is None or not config.uploader.cluster_snapshots.enabled:
        return None
    from sidetier.leadership.cluster_state import (  # noqa: PLC0415 - load librdkafka only if it is used
        KafkaClusterState,
    )

    return KafkaClusterState(servers, _client_properties(config), ending.wait)


def http_server(http: HttpConfig, registry: LabelledRegistry, status: StatusSource) -> HttpServer:
    """Create the sidecar's HTTP server, not started. Its series have the labels cluster and broker.

    Raises:
        ConfigurationError: The bearer token cannot be read.
    """
    snapshot = status.snapshot()
    registry.labels = {"cluster": snapshot.cluster}
    if snapshot.broker_id is not None:
        registry.labels["broker"] = str(snapshot.broker_id)
    pages: PageSource | None = None
    if isinstance(status, StatusBoard):
        pages = lambda query: partition_page(status.page(query), http.runbook_url)  # noqa: E731
    application = Application(
        registry,
        status,
        http.token_reader(),
        pages=pages,
        hosts=AllowedHosts(http.allowed_hosts),
    )
    return HttpServer(http.host, http.port, application)


@dataclass(frozen=True, slots=True)
class ConfiguredBackfill:
    """The adapters of a backfill, see `BackfillAdapters`.

    Attributes:
        config: The configuration, with the changes of the request.
        origins: Sources of its values, for messages.
        calls: Collects the requests to the store that are in progress while the backfill plans.
    """

    config: Config
    origins: Origins = field(default_factory=lambda: _NO_ORIGINS)
    calls: StoreCalls | None = None

    def identity(self) -> MetaProperties:
        """Return the identity of the broker's log dirs."""
        return identify(self.config, self.origins)

    def topic_configs(self) -> TopicConfigSource | None:
        """Return the configured source of topic settings; None if nothing is configured."""
        return topic_config_source(self.config)

    def high_watermarks(self) -> HighWatermarkSource | None:
        """Return the configured source of high watermarks; None if nothing is configured."""
        return high_watermark_source(self.config)

    def archive(self, *, read_only: bool) -> AbstractContextManager[ArchiveAccess]:
        """Open the archive."""
        config = self.config.with_short_timeouts() if read_only else self.config
        return open_archive(config.cluster.name, config.storage, calls=self.calls)

    def daemon(
        self,
        partitions: tuple[TopicPartition, ...],
        high_watermarks: HighWatermarkSource | None,
    ) -> AbstractContextManager[Daemon]:
        """Build a daemon that leads these partitions."""
        metrics = Metrics(create_registry(), self.config.http.max_partition_series)
        leads = StaticSettings(partitions)
        return daemon(
            self.config, metrics, self.origins, leadership=leads, high_watermarks=high_watermarks
        )


def trimmer_maker(
    config: Config, identity: MetaProperties, *, all_groups: bool = False
) -> "Callable[[Callable[[str], ArchiveAt]], Trimmer]":
    """Return a function that builds the trimmer of this host's broker over the places of topics."""
    from sidetier.uploader.trim.trimmer import Trimmer  # noqa: PLC0415 - only where it is used

    deleter, configs = record_deleter(config, identity), topic_config_source(config)
    if deleter is None or configs is None:  # the configuration's check has refused this
        raise ConfigurationError("broker.bootstrap_servers is not set")
    return lambda places: Trimmer(
        config.retention.local, deleter, configs, places, SYSTEM_CLOCK.wall, all_groups=all_groups
    )


def trim_once(
    config: Config, request: "TrimRequest", calls: StoreCalls | None = None
) -> "TrimReport":
    """Make one pass of local retention with the configured adapters.

    Args:
        config: The configuration of this host's sidecar.
        request: What is trimmed.
        calls: Collects the requests to the store that are in progress.

    Raises:
        ConfigurationError: A setting is wrong, local retention is off, or the brokers belong to
            another cluster than the log dirs. Nothing was deleted.
        SidetierError: The broker or the store does not answer.
    """
    from sidetier.leadership.cluster_map import KafkaCluster  # noqa: PLC0415 - loads librdkafka
    from sidetier.uploader.trim.single_pass import check_request, trim  # noqa: PLC0415 - as above
    from sidetier.uploader.trim.trimmer import CHECK_THREADS  # noqa: PLC0415 - as above

    check_request(config, request)
    identity = identify(config)
    new_trimmer = trimmer_maker(config, identity, all_groups=True)
    cluster = KafkaCluster(_servers(config), _client_properties(config)).map()
    if cluster.cluster_id != identity.cluster_id:
        raise ConfigurationError(
            f"broker.bootstrap_servers belong to Kafka cluster {cluster.cluster_id}, and the log "
            f"dirs to {identity.cluster_id}: check broker.bootstrap_servers and log_dirs"
        )
    leaders = {tp: replicas.leader for tp, replicas in cluster.partitions.items()}
    with open_archive(
        config.cluster.name, config.storage, connections=CHECK_THREADS, calls=calls
    ) as archive:
        # A key with the right name and other bytes would show only when a record is read back.
        check_archive(config, archive, identity)
        return trim(config, request, identity.broker_id, leaders, archive, new_trimmer)
