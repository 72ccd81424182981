"""Facts that the checks use; None, or an empty mapping, if a fact is not available."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidetier.archive.objects.layout import LayoutNote
from sidetier.cli.cluster_facts import Settings
from sidetier.config.model import Config
from sidetier.segments.offsets import TopicPartition


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
