"""`sidetier locate`: print the location of a partition on the store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import PARTITION, topic_name
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Result, Table
from sidetier.config.problems import reason_of
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import MAX_BITS, ArchiveLayout
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.config.model import Config

_DEFAULT_BITS: Final = 5
"""Default of `storage.prefix_entropy_bits`."""


@dataclass(frozen=True, slots=True)
class Location(Result):
    """Location of a partition. `uri` ends in a slash; `prefix` is relative to the store's root."""

    topic: str
    partition: int
    uri: str
    storage_url: str
    prefix: str
    cluster: str
    bits: int

    def as_json(self) -> object:
        """Return all fields."""
        return asdict(self)

    def as_tables(self) -> Sequence[Table]:
        """Return the URI alone, so that a shell can use it."""
        return (Table((), footer=self.uri),)


@options
class LocateOptions(CommandOptions):
    """Options of `sidetier locate`."""

    topic: str = argument(parse=topic_name)
    partition: int = argument(type=PARTITION)
    cluster: str | None = option(
        "--cluster", metavar="NAME", help="Name of the cluster on the store."
    )
    prefix: str | None = option(
        "--prefix", metavar="URL", help="Root of the archive, such as s3://bucket/prefix."
    )
    bits: int | None = option(
        "--bits",
        type=click.IntRange(-1, MAX_BITS),
        help=f"Entropy bits in front of the cluster's name.  [default: {_DEFAULT_BITS}]",
    )


@kernel.command("locate")
def command(options: LocateOptions) -> Location:
    """Print the URI of a partition on the store.

    Uses the configuration, or --cluster and --prefix without a configuration. The command computes
    the URI and sends no request: the partition need not exist on the store.

    \b
    Example:
      sidetier locate orders 3 --cluster prod-a --prefix s3://bucket/archive

    Exit codes: 0 the URI is printed; 2 a setting or an argument is wrong.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config, cluster, prefix = None, options.cluster, options.prefix
    if cluster is None or prefix is None:
        config = _configured(options.call)
        cluster = cluster or config.cluster.name
        prefix = prefix or config.storage.target(options.topic).url
    layout = ArchiveLayout(cluster, _bits(options.bits, config))
    return locate(TopicPartition(options.topic, options.partition), layout, _checked(prefix))


def locate(tp: TopicPartition, layout: ArchiveLayout, url: str) -> Location:
    """Return the location of a partition below a storage URL without a trailing slash."""
    prefix = layout.partition_prefix(tp)
    return Location(
        topic=tp.topic,
        partition=tp.partition,
        uri=f"{url}/{prefix}",
        storage_url=url,
        prefix=prefix,
        cluster=layout.cluster,
        bits=max(layout.bits, 0),
    )


def _configured(call: Invocation) -> "Config":
    try:
        return call.load(needs_log_dirs=False).config
    except ConfigurationError as error:
        hint = "without a configuration, locate needs --cluster and --prefix"
        raise ConfigurationError(f"{error}\n{hint}") from None


def _bits(given: int | None, config: "Config | None") -> int:
    if given is not None:
        return given
    return _DEFAULT_BITS if config is None else config.storage.prefix_entropy_bits


def _checked(url: str) -> str:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 -- `--help` must not load pydantic

    from sidetier.config.storage_urls import StorageUrl  # noqa: PLC0415

    try:
        checked: str = TypeAdapter(StorageUrl).validate_python(url)
    except ValidationError as error:
        reason = reason_of(error.errors()[0])
        raise click.BadParameter(f"{url!r} {reason}", param_hint="--prefix") from None
    return checked
