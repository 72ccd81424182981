"""Options of `mirror` and `restore`: the clusters, the topics, and how to copy them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from sidetier.cli.arguments import MAX_BATCH_BYTES, checked_duration, checked_size
from sidetier.cli.export.kafka_options import by_reference
from sidetier.config.properties_file import read_properties
from sidetier.config.types import PropertyValue, References, SecretRef, resolved
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.config.model import Config

LIBRARIES: Final = ("cramjam", "kio", "numpy", "pyarrow", "scramp")
"""Packages that the extra `mirror` installs."""
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_SECRET: Final = re.compile(r"password|secret|token", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClusterOption:
    """Options of one cluster: properties in librdkafka's names, and a file of them.

    The command line overrides the file.
    """

    name: str
    given: tuple[str, ...]
    file: Path | None

    def references(self) -> dict[str, str | SecretRef]:
        """Return the client's properties; secrets of the command line are references.

        Raises:
            ConfigurationError: The file cannot be read, or a secret is on the command line.
        """
        properties: dict[str, str | SecretRef] = {}
        if self.file is not None:
            properties |= read_properties(self.file, f"--{self.name}-config")
        for text in self.given:
            key, separator, value = text.partition("=")
            if not separator or not key:
                raise ConfigurationError(f"--{self.name} {text!r}: give NAME=VALUE")
            is_secret = _SECRET.search(key)
            properties[key] = by_reference(key, value, f"--{self.name}") if is_secret else value
        return properties


def _cluster(name: str) -> Callable[[Decorated], Decorated]:
    def add(command: Decorated) -> Decorated:
        file = click.option(
            f"--{name}-config",
            metavar="PATH",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"Properties file of the {name} cluster's client.",
        )
        option = click.option(
            f"--{name}",
            f"{name}_properties",
            metavar="NAME=VALUE",
            multiple=True,
            help=f"Property of the {name} cluster's client in librdkafka's names, such as "
            "bootstrap.servers=broker:9092; repeatable. Secrets as env:NAME or file:/path.",
        )
        return option(file(command))

    return add


source_options: Final = _cluster("source")
target_options: Final = _cluster("target")


_TOPICS: Final = (
    click.option(
        "--topic",
        "topics",
        metavar="PATTERN",
        multiple=True,
        help="Regular expression for whole names of source topics; repeatable.",
    ),
    click.option(
        "--exclude",
        metavar="PATTERN",
        multiple=True,
        help="Regular expression for whole names of topics to leave out; repeatable.",
    ),
    click.option(
        "--rename",
        metavar="PATTERN=NAME",
        multiple=True,
        help=r"Name of the copies of topics that match; \1 is the first group. Repeatable, the "
        r"first match counts. Example: --rename '(.*)=eu.\1'  [default: the source's name]",
    ),
    click.option(
        "--replication-factor",
        type=click.IntRange(1),
        help="Replication factor of created topics.  [default: the target's default]",
    ),
    click.option(
        "--accept-log-append-time",
        is_flag=True,
        help="Copy also into topics whose brokers replace the timestamps "
        "(message.timestamp.type=LogAppendTime).",
    ),
)
_ENGINE: Final = (
    click.option(
        "--on-gap",
        type=click.Choice(["stop", "skip"]),
        default="stop",
        show_default=True,
        help="Action where the source no longer has a record: stop there and report it, or report "
        "the gap and continue after it.",
    ),
    click.option(
        "--max-rate",
        metavar="SIZE",
        callback=checked_size,
        help="Maximum bytes per second, such as 50MiB. With --engine spark, concurrent tasks share "
        "it equally.  "
        "[default: no limit]",
    ),
    click.option(
        "--transaction-bytes",
        metavar="SIZE",
        default="256MiB",
        show_default=True,
        callback=checked_size,
        help="Commit a transaction after this number of bytes.",
    ),
    click.option(
        "--transaction-interval",
        metavar="DURATION",
        default="1s",
        show_default=True,
        callback=checked_duration,
        help="Commit a transaction after this time, counted from its first record.",
    ),
    MAX_BATCH_BYTES,
    click.option("--dry-run", is_flag=True, help="Show what would be copied, and change nothing."),
    click.option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        help="Serve Prometheus metrics on this port.  [default: none]",
    ),
)


def copy_options(command: Decorated) -> Decorated:
    """Add the options for topics and for the engine."""
    for option in reversed((*_TOPICS, *_ENGINE)):
        command = option(command)
    return command


def engine_options(command: Decorated) -> Decorated:
    """Add the options that choose where the copy runs."""
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help="Where the copy runs: in this process, or in Spark tasks, one for each partition.",
    )
    master = click.option(
        "--master",
        metavar="MASTER",
        help="Spark master, such as local[2] or spark://host:7077.  [default: from spark-submit]",
    )
    return engine(master(command))


Value = TypeVar("Value")
Request = TypeVar("Request")


def client_references(
    name: Literal["source", "target"], given: Mapping[str, Any], config: "Config | None" = None
) -> References:
    """Return the properties of one cluster's client; secrets are references, except those in a
    file.

    Args:
        name: The cluster whose options count.
        given: The command's options.
        config: Its `broker` is the cluster unless the options name `bootstrap.servers`; the other
            options override `broker.client`.

    Raises:
        ConfigurationError: The address of the cluster is missing.
    """
    option = ClusterOption(name, given[f"{name}_properties"], given[f"{name}_config"])
    properties: dict[str, PropertyValue | SecretRef] = {**option.references()}
    if config is not None and "bootstrap.servers" not in properties:
        properties = config.broker.client_references() | properties
    return require_bootstrap(properties, name)


def client_properties(
    name: Literal["source", "target"], given: Mapping[str, Any], config: "Config | None" = None
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


def request_of(kind: Callable[..., Request], given: Mapping[str, Any], **changes: Any) -> Request:  # noqa: ANN401 -- values of several types
    """Return the request of an engine, whose fields have the names of the command's options."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{name: given[name] for name in names & given.keys()}, **changes})
