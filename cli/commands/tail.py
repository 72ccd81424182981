"""`sidetier tail`: the records that only tail packs have, and their promotion to segments."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import PROMOTED_AT_ONCE, pattern
from sidetier.cli.invocation import configuration_parameters
from sidetier.cli.options import CommandOptions, option, options
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.archive.tail.survey import TailSurvey
    from sidetier.cli.tail import PromotionPlan, PromotionResult, StatusResult

_CONNECTIONS: Final = 32
_TOPICS: Final[Any] = option(
    "-t",
    "--topic",
    parse=pattern,
    metavar="PATTERN",
    help="Only topics whose whole name matches this regular expression; repeatable.  [default: "
    "all topics]",
)
_PARTITIONS: Final[Any] = option(
    "-p",
    "--partition",
    metavar="TOPIC-N",
    help="Only this partition, such as orders-3; repeatable.",
)


@click.group(name="tail", params=[*configuration_parameters()])
def command() -> None:
    """Show the records that only tail packs have, and promote them to segments.

    With uploader.tail.interval, sidecars store the committed records of active segments every few
    seconds, in packs of many partitions. They protect these records until their segment is
    archived. Retention, trim, gc, can-i-lose and "archived up to" take no account of packs.
    """


@options
class StatusOptions(CommandOptions):
    """Options of `sidetier tail status`."""

    topics: tuple[str, ...] = _TOPICS
    partitions: tuple[str, ...] = _PARTITIONS


@kernel.command("status", parent=command, short_help="Show brokers, packs and what is safe.")
def status_command(options: StatusOptions) -> "StatusResult":
    """Show the packs of each broker, and for each partition what is archived and what is safe.

    LIVE is the share of the packs' bytes that a tail still needs; cleaning removes the rest. SAFE
    UP TO is the end of what archive and packs have without a gap. AGE is the age of the newest
    safe record of a partition, by its timestamp.

    No broker is asked. Requests on S3: one for each pack, and two for each partition.

    \b
    Example:
      sidetier tail status --topic 'orders.*' --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem; 3 a pack cannot be read, or records in packs are behind a gap or of a
    leader that a later one has discarded.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load(needs_log_dirs=False).config
    from sidetier.cli.stores import open_every_store  # noqa: PLC0415 -- `--help` must not load the stores
    from sidetier.cli.tail import StatusResult  # noqa: PLC0415 -- as above
    from sidetier.uploader.clock import SYSTEM_CLOCK  # noqa: PLC0415 -- as above

    with open_every_store(config, connections=_CONNECTIONS) as archive:
        found = _survey(archive, options.topics, options.partitions)
    return StatusResult(config.cluster.name, found, SYSTEM_CLOCK.wall())


@options
class PromoteOptions(CommandOptions):
    """Options of `sidetier tail promote`."""

    topics: tuple[str, ...] = _TOPICS
    partitions: tuple[str, ...] = _PARTITIONS
    dry_run: bool = option("--dry-run", help="Show what would be promoted, and write nothing.")
    work_dir: Path | None = option(
        "--work-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="Directory for the segments while they are made: up to 8 GiB, or twice the largest "
        "tail.  [default: the system's directory for temporary files]",
    )
    accept_unread: bool = option(
        "--accept-unread",
        help="Also promote partitions whose newest records may have been discarded in an unclean "
        "election: only a pack that cannot be read would show it.",
    )
    parallel: int = option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=PROMOTED_AT_ONCE,
        help="Partitions that are stored at the same time.",
    )


@kernel.command("promote", parent=command, short_help="Store tails as ordinary segments.")
def promote_command(options: PromoteOptions) -> "PromotionPlan | PromotionResult":
    """Store the tails of partitions as ordinary segments of the archive.

    Afterwards every reader finds these records in the archive, and hydrate and restore bring them
    back. Use it after the loss of a cluster. It is safe while the cluster lives: offset.wm moves
    only if no sidecar has moved it meanwhile, and the sidecars continue behind the new segments.
    After an interruption, run the command again.

    A tail ends at the first gap. Records that a later leader does not have are left out. If a pack
    cannot be read, partitions whose leader has stored no pack since are left out.

    \b
    Example:
      sidetier tail promote --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 everything is promoted; 1 the store does not answer; 2 a setting or an argument is
    wrong; 3 a partition could not be promoted, a pack cannot be read, or records in packs are
    behind a gap.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = options.call.load(needs_log_dirs=False).config
    from sidetier.cli.stores import open_archive, reporting_waits  # noqa: PLC0415 -- `--help` must not load the stores
    from sidetier.cli.tail import PromotionPlan, PromotionResult, promote_tails  # noqa: PLC0415 -- as above
    from sidetier.uploader.clock import SYSTEM_CLOCK  # noqa: PLC0415 -- as above

    with (
        reporting_waits() as calls,
        open_archive(config, connections=_CONNECTIONS, calls=calls) as archive,
    ):
        archive.require_directories()
        found = _survey(
            archive, options.topics, options.partitions, accept_unread=options.accept_unread
        )
        if options.dry_run:
            return PromotionPlan(found, SYSTEM_CLOCK.wall())
        done = promote_tails(
            config,
            archive,
            found.partitions,
            options.work_dir,
            options.parallel,
            accept_unread=options.accept_unread,
        )
    return PromotionResult(found, done, SYSTEM_CLOCK.wall())


def _survey(
    archive: "ArchiveAccess",
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    *,
    accept_unread: bool = False,
) -> "TailSurvey":
    """Read the selected tails. A named partition without a tail may have all records archived.

    Raises:
        ConfigurationError: A named partition has neither a tail nor an archive.
    """
    from sidetier.archive.tail.survey import read_partitions, survey  # noqa: PLC0415 -- `--help` must not load it
    from sidetier.cli.output import say  # noqa: PLC0415 -- as above
    from sidetier.config.types import matches_any  # noqa: PLC0415 -- as above

    patterns = topics or (".*",)
    found = survey(
        archive,
        selects=lambda topic: matches_any(patterns, topic),
        named=partitions,
        accept_unread=accept_unread,
    )
    known = {str(tail.tp) for tail in found.partitions}
    missing = sorted(set(partitions) - known)
    places = {tp: () for name in missing if (tp := _partition_of(name)) is not None}
    archived = [
        tail
        for tail in read_partitions(archive, places)
        if tail.watermark is not None or tail.problem is not None
    ]
    for tail in archived:
        say(f"{tail.tp}: no tail pack has records of it; archived up to {tail.archived_up_to}")
    if missing := sorted(set(missing) - {str(tail.tp) for tail in archived}):
        unread = [f"; {problem}" for problem in found.problems.values()]
        raise ConfigurationError(
            f"no tail pack has records of {', '.join(missing)}, and nothing of it is archived"
            + "".join(unread)
        )
    tails = sorted((*found.partitions, *archived), key=lambda tail: tail.tp)
    return replace(found, partitions=tuple(tails))


def _partition_of(name: str) -> TopicPartition | None:
    """Return the partition of a name such as orders-3."""
    topic, _, number = name.rpartition("-")
    if not topic or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number))
