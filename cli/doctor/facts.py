"""What the checks look at; None, or an empty mapping, where it could not be had."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidetier.archive.objects.layout import LayoutNote
from sidetier.cli.cluster_facts import Settings
from sidetier.config.model import Config
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """One log dir's file system, in bytes; `unreadable` names a directory or file that this
    process may not read, `cache_problem` says why the page cache cannot be asked about its files.
    """

    path: str
    free: int
    total: int
    unreadable: str | None = None
    cache_problem: str | None = None
    device: int | None = None
    may_link: bool = True
    """This process may give the broker's files second names (link(2), fs.protected_hardlinks)."""


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """A directory of `uploader.pins.spool`; `device` is None where there is no such directory."""

    path: str
    device: int | None
    writable: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """This host, as this process sees it; limits are None where they cannot be read."""

    max_open_files: int | None = None
    max_watches: int | None = None
    max_instances: int | None = None
    partition_directories: int = 0
    log_dirs: tuple[LogDirFacts, ...] = ()
    spools: tuple[SpoolFacts, ...] = ()
    problems: tuple[str, ...] = ()
    """What `sidetier config check` finds in the log dirs."""
    kafka_cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic that the settings select and that lies in the log dirs; `replicas` is the smallest
    number of replicas of its partitions.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One configured place. `error` says why it does not answer; `honours_conditions` is None
    where it was not tried; `skew_seconds` is how far its clock is ahead of this host's.
    """

    url: str
    error: str | None = None
    note: LayoutNote | None = None
    declares_conditions: bool = True
    honours_conditions: bool | None = None
    skew_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SidecarFacts:
    """What the running sidecar says of itself and of its partitions."""

    url: str
    ready: bool
    conditions: tuple[Mapping[str, Any], ...] = ()
    partitions: tuple[Mapping[str, Any], ...] = ()

    def of_topic(self, topic: str) -> list[Mapping[str, Any]]:
        """Its partitions of one topic."""
        return [row for row in self.partitions if row["topic"] == topic]


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Everything. `broker_settings` are those of this host's broker, `problems` tells by source
    what could not be asked and why.
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
