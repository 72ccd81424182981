"""Collect the facts: read this host, and ask broker, store and sidecar."""

import os
import resource
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidetier.archive.objects.layout import LayoutNote, read_note
from sidetier.cli.inspect.cluster import ClusterMap, Settings, open_cluster
from sidetier.cli.inspect.sidecar import ask_partitions, ask_readiness, bearer_token_of, url_of
from sidetier.cli.stores import layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.segments.errors import PreconditionFailedError, SidetierError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.sending.reading import count_cached
from sidetier.uploader.watching.disk import find_partitions, free_bytes


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """File system of one log dir; sizes are in bytes.

    Attributes:
        unreadable: A directory or file that this process may not read.
        cache_problem: Why the kernel does not report which pages of its files are cached.
        device: Id of the file system's device.
    """

    path: str
    free: int
    total: int
    unreadable: str | None = None
    cache_problem: str | None = None
    device: int | None = None
    may_link: bool = True
    """Whether this process may hard-link the broker's files (link(2), fs.protected_hardlinks)."""


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """A directory of `uploader.pins.spool`; `device` is None if it does not exist."""

    path: str
    device: int | None
    writable: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """This host, as this process sees it; a limit is None if it is unlimited or not known."""

    max_open_files: int | None = None
    max_watches: int | None = None
    max_instances: int | None = None
    partition_directories: int = 0
    log_dirs: tuple[LogDirFacts, ...] = ()
    spools: tuple[SpoolFacts, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems of the log dirs that `sidetier config check` finds."""
    kafka_cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A selected topic with partitions in the log dirs; `replicas` is the smallest replica count of
    its partitions.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One configured store.

    Attributes:
        error: Why the store does not answer.
        honours_conditions: Whether it honours conditional writes; None if that was not tried.
        skew_seconds: Seconds by which its clock is ahead of this host's.
    """

    url: str
    error: str | None = None
    note: LayoutNote | None = None
    declares_conditions: bool = True
    honours_conditions: bool | None = None
    skew_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SidecarFacts:
    """State of the running sidecar and of its partitions, as it reports them."""

    url: str
    ready: bool
    conditions: tuple[Mapping[str, Any], ...] = ()
    partitions: tuple[Mapping[str, Any], ...] = ()

    def of_topic(self, topic: str) -> list[Mapping[str, Any]]:
        """Return its partitions of one topic."""
        return [row for row in self.partitions if row["topic"] == topic]


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """All facts.

    Attributes:
        broker_settings: Settings of this host's broker.
        problems: By source, why it could not be asked.
    """

    config: Config
    host: HostFacts = field(default_factory=HostFacts)
    topics: tuple[TopicFacts, ...] = ()
    topics_known: bool = False
    broker_settings: Settings = field(default_factory=dict)
    stores: tuple[StoreFacts, ...] = ()
    sidecar: SidecarFacts | None = None
    partitions: tuple[TopicPartition, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


_SECONDS: Final = 5.0
_DATE_IS_CUT: Final = 0.5
"""A Date has whole seconds, so it is half a second too early on average."""


def skew_of(endpoint: StorageEndpoint) -> float | None:
    """Return the seconds by which an S3 store is ahead of this host.

    None for other stores, and without an answer. Sends one request without credentials: only the
    Date of the answer matters, not its status.
    """
    if urlsplit(endpoint.url).scheme != "s3":
        return None
    region = endpoint.s3.region or "us-east-1"
    url = endpoint.s3.endpoint_url or f"https://s3.{region}.amazonaws.com"
    before = SYSTEM_CLOCK.wall()
    headers = _headers(url, endpoint)
    after = SYSTEM_CLOCK.wall()
    return None if headers is None else skew(headers.get("Date"), before, after)


def skew(date: str | None, before: float, after: float) -> float | None:
    """Return the seconds ahead, from a Date written between two moments (in s since 1970)."""
    try:
        store_time = parsedate_to_datetime(date or "").timestamp() + _DATE_IS_CUT
    except ValueError:
        return None
    return store_time - (before + after) / 2


def _headers(url: str, endpoint: StorageEndpoint) -> Message | None:
    bundle = endpoint.s3.ca_bundle
    trust = ssl.create_default_context(cafile=None if bundle is None else str(bundle))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust))
    try:
        with opener.open(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS) as answer:  # noqa: S310 -- http or https, as configured
            return Message() if answer.headers is None else answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.headers
    except (OSError, HTTPException):
        return None


_INOTIFY: Final = Path("/proc/sys/fs/inotify")
_PROTECTED_LINKS: Final = Path("/proc/sys/fs/protected_hardlinks")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to ask; `try_conditions` sends a PUT of the store's own layout note over itself."""

    config: Config
    sidecar_url: str | None = None
    try_conditions: bool = False


def gather(scope: Scope) -> DoctorFacts:
    """Return all facts that are available; `problems` has the sources that failed."""
    config = scope.config
    machine = check_machine(config, LocalMachine())
    on_disk = find_partitions(map(str, config.log_dirs), config.topics.selects)
    log_dir_problems = [problem.message for problem in (*machine.problems, *machine.warnings)]
    log_dir_problems += on_disk.refused.values()
    problems: dict[str, str] = {}
    facts = DoctorFacts(
        config,
        _host(log_dir_problems, machine.identity, config),
        stores=tuple(_stores(scope, problems)),
        partitions=tuple(sorted(on_disk.directories)),
    )
    facts = _with_cluster(facts, machine.identity, problems)
    try:
        sidecar = _sidecar(scope)
    except SidetierError as error:
        problems["sidecar"], sidecar = str(error), None
    return replace(facts, sidecar=sidecar, problems=problems)


def _host(problems: Iterable[str], identity: MetaProperties | None, config: Config) -> HostFacts:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    present = [path for path in config.log_dirs if _device(path) is not None and path.is_dir()]
    return HostFacts(
        max_open_files=None if hard == resource.RLIM_INFINITY else hard,
        max_watches=_kernel_number("max_user_watches"),
        max_instances=_kernel_number("max_user_instances"),
        partition_directories=sum(len(_directories(path)) for path in present),
        log_dirs=tuple(_log_dir(path) for path in present),
        spools=tuple(_spool(path) for path in config.uploader.pins.spool),
        problems=tuple(problems),
        kafka_cluster_id=None if identity is None else identity.cluster_id,
    )


def _kernel_number(name: str) -> int | None:
    try:
        return int((_INOTIFY / name).read_text())
    except (OSError, ValueError):
        return None


def _directories(log_dir: Path) -> list[Path]:
    try:
        return sorted(path for path in log_dir.iterdir() if path.is_dir())
    except OSError:
        return []


def _log_dir(path: Path) -> LogDirFacts:
    free, total = free_bytes(str(path))
    directories = _directories(path)
    logs = [log for directory in directories if (log := _any_log(directory)) is not None]
    unreadable = [
        directory for directory in directories if not os.access(directory, os.R_OK | os.X_OK)
    ]
    unreadable += [log for log in logs if not os.access(log, os.R_OK)]
    name = str(unreadable[0]) if unreadable else None
    return LogDirFacts(
        str(path),
        free,
        total,
        name,
        _cache_problem(logs),
        _device(path),
        may_link=not _links_are_protected() or all(_may_link(log) for log in logs[:1]),
    )


def _spool(path: Path) -> SpoolFacts:
    return SpoolFacts(str(path), _device(path), os.access(path, os.W_OK | os.X_OK))


def _device(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None


def _links_are_protected() -> bool:
    try:
        return int(_PROTECTED_LINKS.read_text()) != 0
    except (OSError, ValueError):
        return False


def _may_link(log: Path) -> bool:
    """Return whether link(2) is allowed: to the owner, and with read and write access.

    See proc_sys_fs(5), protected_hardlinks.
    """
    try:
        owner = log.stat().st_uid
    except OSError:
        return True  # the broker has deleted it meanwhile
    return owner == os.geteuid() or os.access(log, os.R_OK | os.W_OK)


def _any_log(directory: Path) -> Path | None:
    try:
        return next(directory.glob("*.log"), None)
    except OSError:
        return None


def _cache_problem(logs: Iterable[Path]) -> str | None:
    """Return why the kernel does not report cached pages of a broker's file; read no data."""
    for log in logs:
        try:
            descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            count_cached(descriptor, range(1))
        except OSError as error:
            return str(error.strerror)
        finally:
            os.close(descriptor)
        return None
    return None


def _stores(scope: Scope, problems: dict[str, str]) -> Iterable[StoreFacts]:
    config = with_short_timeouts(scope.config)
    try:
        with open_every_store(config) as stores:
            for endpoint, store in stores.by_endpoint.items():
                yield _store(endpoint, store, scope)
    except SidetierError as error:  # such as a missing directory or driver
        problems["store"] = str(error)
        yield StoreFacts(config.storage.url, error=str(error))


def _store(endpoint: StorageEndpoint, store: RemoteStorage, scope: Scope) -> StoreFacts:
    layout = layout_of(scope.config)
    facts = StoreFacts(
        endpoint.url,
        declares_conditions=store.capabilities.conditional_writes,
        skew_seconds=skew_of(endpoint),
    )
    try:
        note = read_note(store, layout)
        honours = _honours(store, layout, note) if scope.try_conditions else None
    except SidetierError as error:
        return replace(facts, error=str(error))
    return replace(facts, note=note, honours_conditions=honours)


def _honours(store: RemoteStorage, layout: ArchiveLayout, note: LayoutNote | None) -> bool | None:
    """Return whether the store honours conditional writes; None without a layout note.

    Put the layout note under its own key, on condition that the key is absent. Only a store that
    ignores the condition writes it, and it writes the same bytes.
    """
    if note is None:
        return None
    key = layout.layout_key()
    try:
        store.put_object(key, BytesBody(store.get_object(key).data), condition=IfAbsent())
    except PreconditionFailedError:
        return True
    return False


def _with_cluster(
    facts: DoctorFacts, identity: MetaProperties | None, problems: dict[str, str]
) -> DoctorFacts:
    try:
        cluster = open_cluster(facts.config)
        if cluster is None:
            return facts
        cluster_map = cluster.map()
        names = sorted({tp.topic for tp in facts.partitions})
        settings = cluster.topic_settings(names)
        topics = tuple(_topic(name, settings, cluster_map) for name in names if name in settings)
        broker = {} if identity is None else cluster.broker_settings(identity.broker_id)
    except SidetierError as error:
        problems["cluster"] = str(error)
        return facts
    if names and not topics:
        problems["cluster"] = "the broker does not tell their configuration (DescribeConfigs)"
    return replace(
        facts, topics=topics, topics_known=bool(topics) or not names, broker_settings=broker
    )


def _topic(name: str, settings: Mapping[str, Settings], told: ClusterMap) -> TopicFacts:
    replicas = [len(held.replicas) for tp, held in told.partitions.items() if tp.topic == name]
    return TopicFacts(name, settings[name], min(replicas, default=None))


def _sidecar(scope: Scope) -> SidecarFacts:
    url = scope.sidecar_url or url_of(scope.config.http)
    token = bearer_token_of(scope.config.http)
    answer = ask_partitions(url, bearer_token=token)
    readiness = ask_readiness(url, bearer_token=token)
    return SidecarFacts(
        url,
        bool(answer.get("ready")),
        tuple(readiness.get("conditions", ())),
        tuple(answer["partitions"]),
    )
