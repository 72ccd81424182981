"""Options of `mirror` and `restore`: the clusters, the topics, and how to copy them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from sidetier.archive.positions import Position
from sidetier.cli.arguments import (
    BATCH_BYTES,
    BOOTSTRAP,
    DURATION,
    FILE,
    FIXED_WHERE,
    SIZE,
)
from sidetier.cli.extras import RECORD_PACKAGES
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, OUTPUT, group, option, options
from sidetier.cli.output import OutputFormat
from sidetier.config.properties_file import read_properties
from sidetier.config.types import PropertyValue, References, SecretRef, resolved
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.config.model import Config

LIBRARIES: Final = RECORD_PACKAGES
"""Packages that the extra `mirror` installs."""
_SECRET: Final = re.compile(r"password|secret|token", re.IGNORECASE)


@options
class ClusterOptions:
    """One cluster: properties in librdkafka's names. They override the file's properties."""

    properties: tuple[str, ...] = option(
        "--{}",
        metavar="NAME=VALUE",
        help="Property of the {} cluster's client in librdkafka's names, such as "
        "bootstrap.servers=broker:9092; repeatable. Secrets as env:NAME or file:/path.",
    )
    config: Path | None = option(
        "--{}-config",
        metavar="PATH",
        type=FILE,
        help="Properties file of the {} cluster's client.",
    )

    def references(self, name: str) -> dict[str, str | SecretRef]:
        """Return the client's properties; secrets of the command line are references.

        Raises:
            ConfigurationError: The file cannot be read, or a secret is on the command line.
        """
        properties: dict[str, str | SecretRef] = {}
        if self.config is not None:
            properties |= read_properties(self.config, f"--{name}-config")
        for text in self.properties:
            key, separator, value = text.partition("=")
            if not separator or not key:
                raise ConfigurationError(f"--{name} {text!r}: give NAME=VALUE")
            is_secret = _SECRET.search(key)
            option = f"--{name} {key}"
            properties[key] = SecretRef.of_text(option, value) if is_secret else value
        return properties


_SOURCE: Final[Any] = group("source")
_TARGET: Final[Any] = group("target")
_EXCLUDE: Final[Any] = option(
    "--exclude",
    metavar="PATTERN",
    help="Regular expression for whole names of topics to leave out; repeatable.",
)


@options
class CopyOptions:
    """What is copied, and how."""

    topics: tuple[str, ...] = option(
        "--topic",
        metavar="PATTERN",
        help="Regular expression for whole names of source topics; repeatable.",
    )
    exclude: tuple[str, ...] = _EXCLUDE
    rename: tuple[str, ...] = option(
        "--rename",
        metavar="PATTERN=NAME",
        help=r"Name of the copies of topics that match; \1 is the first group. Repeatable, the "
        r"first match counts. Example: --rename '(.*)=eu.\1'  [default: the source's name]",
    )
    replication_factor: int | None = option(
        "--replication-factor",
        type=click.IntRange(1),
        help="Replication factor of created topics.  [default: the target's default]",
    )
    accept_log_append_time: bool = option(
        "--accept-log-append-time",
        help="Copy also into topics whose brokers replace the timestamps "
        "(message.timestamp.type=LogAppendTime).",
    )
    on_gap: Literal["stop", "skip"] = option(
        "--on-gap",
        default="stop",
        help="Action where the source no longer has a record: stop there and report it, or report "
        "the gap and continue after it.",
    )
    max_rate: int | None = option(
        "--max-rate",
        type=SIZE,
        help="Maximum bytes per second, such as 50MiB. With --engine spark, concurrent tasks share "
        "it equally.  "
        "[default: no limit]",
    )
    transaction_bytes: int = option(
        "--transaction-bytes",
        type=SIZE,
        default="256MiB",
        help="Commit a transaction after this number of bytes.",
    )
    transaction_interval: float = option(
        "--transaction-interval",
        type=DURATION,
        default="1s",
        help="Commit a transaction after this time, counted from its first record.",
    )
    max_batch_bytes: int = BATCH_BYTES
    dry_run: bool = option("--dry-run", help="Show what would be copied, and change nothing.")
    metrics_port: int | None = option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        help="Serve Prometheus metrics on this port.  [default: none]",
    )

    @property
    def served_port(self) -> int | None:
        """Port for metrics; None for none, and with `--dry-run`."""
        return None if self.dry_run else self.metrics_port


@options
class EngineOptions:
    """Where the copy runs."""

    engine: Literal["local", "spark"] = option(
        "--engine",
        default="local",
        help="Where the copy runs: in this process, or in Spark tasks, one for each partition.",
    )
    master: str | None = option(
        "--master",
        metavar="MASTER",
        help="Spark master, such as local[2] or spark://host:7077.  [default: from spark-submit]",
    )


@options
class MirrorOptions:
    """Options of `sidetier mirror`."""

    name: str | None = option(
        "--name", metavar="NAME", help="Name of the mirror; its progress is kept under it."
    )
    source: ClusterOptions = _SOURCE
    target: ClusterOptions = _TARGET
    copy: CopyOptions = group()
    delivery: Literal["exactly-once", "at-least-once"] = option(
        "--delivery",
        default="exactly-once",
        help="Records and progress in one transaction; or progress after the records, so that a "
        "failure copies some records twice.",
    )
    begin: Literal["beginning", "end"] = option(
        "--from",
        default="beginning",
        help="Where to start a partition that this mirror has never copied.",
    )
    accept_target_records: bool = option(
        "--accept-target-records",
        help="Copy also into topics that already have records, but no progress of this mirror.",
    )
    on_new_partitions: Literal["add", "refuse"] = option(
        "--on-new-partitions",
        default="add",
        help="Action when a source topic gets more partitions: add them to the copy, or stop "
        "copying the topic.",
    )
    on_recreate: Literal["stop", "restart"] = option(
        "--on-recreate",
        default="stop",
        help="Action when a source topic is deleted and created again: stop copying it and keep "
        "the copy, or delete the copy with all its records, and copy the new topic from its "
        "beginning.",
    )
    copy_settings: Literal["none", "once", "sync"] = option(
        "--copy-settings",
        default="once",
        help="Which copies get the configuration of their source topic: none; once, when the "
        "mirror creates the copy; or sync, all copies, updated whenever the source changes.",
    )
    copy_acls: bool = option(
        "--copy-acls",
        help="Give the copies the ACLs of their source topics, without the permission to write.",
    )
    no_archive: bool = option("--no-archive", help="Read the brokers only, not the archive.")
    until_caught_up: bool = option(
        "--until-caught-up",
        help="Stop after the records that the source had committed at the start.",
    )
    engine: EngineOptions = group()
    worker: str = option(
        "--worker",
        metavar="NAME",
        default="0",
        help="Name of this process among the workers that share the partitions, such as the pod's "
        "name. A new process takes over from an earlier one of the same name.",
    )
    session_timeout: float = option(
        "--session-timeout",
        type=DURATION,
        default="30s",
        help="Time without a heartbeat after which other workers take over this worker's "
        "partitions.",
    )
    transaction_timeout: float = option(
        "--transaction-timeout",
        type=DURATION,
        default="60s",
        help="Time after which the target aborts an open transaction of a dead worker.",
    )
    group_patterns: tuple[str, ...] = option(
        "--translate-groups",
        metavar="PATTERN",
        help="Regular expression for whole names of consumer groups; repeatable. The mirror sets "
        "these groups on the target to their positions on the source.  [default: none]",
    )
    translate_interval: float = option(
        "--translate-interval",
        type=DURATION,
        default="60s",
        help="Interval at which the mirror sets these groups.",
    )
    offset_map_runs: int = option(
        "--offset-map-runs",
        type=click.IntRange(256),
        default=1024,
        help="Maximum entries of each partition in the offset map. The newest half is exact; older "
        "entries are thinned out. Each transaction adds one entry.",
    )
    output: OutputFormat = OUTPUT
    call: Invocation = CONFIGURATION


@options
class AdoptOptions:
    """Options of `sidetier mirror adopt`."""

    name: str = option("--name", required=True, metavar="NAME", help="Name of the new mirror.")
    group: str = option(
        "--group",
        required=True,
        metavar="GROUP",
        help="Consumer group on the source whose offsets are the old mirror's progress.",
    )
    committed: Literal["next-offset", "last-record"] = option(
        "--committed",
        default="next-offset",
        help="Which offset the old mirror commits: that of the next record, as consumers do, or "
        "that of the last copied record.",
    )
    source: ClusterOptions = _SOURCE
    target: ClusterOptions = _TARGET
    topics: tuple[str, ...] = option(
        "--topic",
        metavar="PATTERN",
        help="Regular expression for whole names of source topics; repeatable.  [default: all "
        "topics of the group]",
    )
    exclude: tuple[str, ...] = _EXCLUDE
    rename: tuple[str, ...] = option(
        "--rename",
        metavar="PATTERN=NAME",
        help="Name of the copies of topics that match, in the old and the new mirror; repeatable.  "
        "[default: the source's name]",
    )
    accept_log_append_time: bool = option(
        "--accept-log-append-time",
        help="Take over also topics whose brokers replace the timestamps "
        "(message.timestamp.type=LogAppendTime). Their records cannot be compared.",
    )
    compare: int = option(
        "--compare",
        type=click.IntRange(0),
        default=1000,
        metavar="OFFSETS",
        help="Last offsets of each target partition to compare with the source; 0 compares none.",
    )
    search: int = option(
        "--search",
        type=click.IntRange(1),
        default=1_000_000,
        metavar="OFFSETS",
        help="Source offsets to search after the committed one.",
    )
    dry_run: bool = option("--dry-run", help="Show the progress, and write none.")
    output: OutputFormat = OUTPUT
    call: Invocation = CONFIGURATION


@options
class TranslateOptions:
    """Options of `sidetier mirror translate-offsets`."""

    name: str = option("--name", required=True, metavar="NAME", help="Name of the mirror.")
    groups: tuple[str, ...] = option("--group", metavar="GROUP", help="Consumer group; repeatable.")
    patterns: tuple[str, ...] = option(
        "--groups",
        metavar="PATTERN",
        help="Regular expression for whole names of the source's consumer groups; repeatable.",
    )
    source: ClusterOptions = _SOURCE
    target: ClusterOptions = _TARGET
    from_snapshot: bool = option(
        "--from-snapshot",
        help="Take the groups' offsets from the newest cluster snapshot in the archive: the source "
        "is lost.",
    )
    allow_rewind: bool = option(
        "--allow-rewind",
        help="Also set groups back that are further ahead on the target: they read records again.",
    )
    dry_run: bool = option("--dry-run", help="Show the offsets, and set none.")
    output: OutputFormat = OUTPUT
    call: Invocation = CONFIGURATION


_RESTORE_NAME: Final[Any] = option(
    "--name",
    metavar="NAME",
    help="Name of the restore; its progress is kept under it.  [default: cluster.name]",
)


@options
class RestoreOptions:
    """Options of `sidetier restore`."""

    name: str | None = _RESTORE_NAME
    partitions: tuple[str, ...] = option(
        "-p",
        "--partition",
        metavar="TOPIC-N",
        help="Only this partition of its topic, such as orders-3; repeatable.",
    )
    begin: Position | None = option(
        "--from",
        type=FIXED_WHERE,
        help="First record to restore, inclusive.  [default: beginning]",
    )
    end: Position | None = option(
        "--to", type=FIXED_WHERE, help="Where to stop, exclusive.  [default: end]"
    )
    from_quarantine: str | None = option(
        "--from-quarantine",
        metavar="[NAME]",
        is_flag=False,
        flag_value="",
        help="Restore segments that a sidecar has moved to quarantine, from the folder NAME.",
    )
    from_retired: str | None = option(
        "--from-retired",
        metavar="[NAME]",
        is_flag=False,
        flag_value="",
        help="Restore the retired archive of a deleted or recreated topic, from the folder NAME.",
    )
    bootstrap: str | None = BOOTSTRAP
    target: ClusterOptions = _TARGET
    copy: CopyOptions = group()
    with_tail: bool = option(
        "--with-tail",
        help="Restore the records of active segments that tail packs have, too.",
    )
    open_transactions: Literal["leave-out", "abort"] = option(
        "--open-transactions",
        default="leave-out",
        help="Action if a transaction is open at the end of the archive: leave out its partition's "
        "records from its first record on, or treat it as aborted and restore the other records.",
    )
    engine: EngineOptions = group()
    accept_cleanup: bool = option(
        "--accept-cleanup",
        help="Restore also into topics whose retention or compaction may delete restored records.",
    )
    verify: bool = option(
        "--verify/--no-verify",
        default=True,
        help="Consume the restored records, and compare them with the archive.",
    )
    output: OutputFormat = OUTPUT
    call: Invocation = CONFIGURATION


@options
class TranslateRestoredOptions:
    """Options of `sidetier restore translate-offsets`."""

    name: str | None = _RESTORE_NAME
    group: str = option(
        "--group", required=True, metavar="GROUP", help="Consumer group of the lost cluster."
    )
    bootstrap: str | None = BOOTSTRAP
    target: ClusterOptions = _TARGET
    dry_run: bool = option("--dry-run", help="Show the offsets, and set none.")
    output: OutputFormat = OUTPUT
    call: Invocation = CONFIGURATION


Value = TypeVar("Value")


def client_references(
    name: Literal["source", "target"], given: ClusterOptions, config: "Config | None" = None
) -> References:
    """Return the properties of one cluster's client; secrets are references, except those in a
    file.

    Args:
        name: The name of the cluster's options.
        given: The options; they override `broker.client`.
        config: Its `broker` is the cluster unless the options name `bootstrap.servers`.

    Raises:
        ConfigurationError: The address of the cluster is missing.
    """
    properties: dict[str, PropertyValue | SecretRef] = {**given.references(name)}
    if config is not None and "bootstrap.servers" not in properties:
        properties = config.broker.client_references() | properties
    return require_bootstrap(properties, name)


def client_properties(
    name: Literal["source", "target"], given: ClusterOptions, config: "Config | None" = None
) -> Mapping[str, str]:
    """Return the same properties with secrets resolved.

    Raises:
        ConfigurationError: The address of the cluster is missing, or a secret cannot be read.
    """
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415 -- `--help` needs no Kafka

    return as_texts(resolved(client_references(name, given, config)))


def require_bootstrap(properties: Mapping[str, Value], name: str) -> Mapping[str, Value]:
    """Return the properties; raise ConfigurationError if the cluster's address is missing."""
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            f"--{name} bootstrap.servers=HOST:PORT is missing (or in --{name}-config)"
        )
    return properties
