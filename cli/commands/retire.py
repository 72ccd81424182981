"""`sidetier retire`: move the archive of a deleted or recreated topic to `retired/`."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidetier.cli import exits, kernel
from sidetier.cli.arguments import PARTITION, PROMOTED_AT_ONCE, size_text, topic_name
from sidetier.cli.extras import quiet_logs
from sidetier.cli.options import CommandOptions, argument, option, options
from sidetier.cli.output import Table
from sidetier.cli.progress import shown
from sidetier.cli.stores import open_every_store
from sidetier.leadership.cluster import as_texts
from sidetier.segments.errors import ConfigurationError
from sidetier.uploader.retire import (
    CONNECTIONS,
    Promotion,
    RetiredPartition,
    RetireRequest,
    retire_archive,
)
from sidetier.wire.settings import ClientSettings

if TYPE_CHECKING:
    from sidetier.config.model import Config


@dataclass(frozen=True, slots=True)
class RetireResult:
    """Partitions that were moved or, with `dry_run`, would be moved."""

    rows: Sequence[RetiredPartition]
    dry_run: bool

    @property
    def exit_code(self) -> int:
        """FAILED for a problem, else FINDINGS if an archive was not moved."""
        if any(row.problem for row in self.rows):
            return exits.FAILED
        return exits.FINDINGS if any(row.left for row in self.rows) else exits.OK

    def as_json(self) -> object:
        """Return all fields."""
        return {"dry_run": self.dry_run, "partitions": [asdict(row) for row in self.rows]}

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        verb = "would move to" if self.dry_run else "moved to"
        rows = [
            (
                row.topic,
                row.partition,
                row.topic_id,
                row.segments,
                size_text(row.size_bytes),
                row.problem or row.left or f"{verb} {row.target}{_with_tail(row)}",
            )
            for row in self.rows
        ]
        columns = ("TOPIC", "PARTITION", "TOPIC ID", "SEGMENTS", "SIZE", "OUTCOME")
        footer = None if rows else "everything named was retired before; nothing is left to move"
        return (Table(columns if rows else (), rows, footer=footer),)


def _with_tail(row: RetiredPartition) -> str:
    return f", with {row.promoted_offsets} offsets from tail packs" if row.promoted_offsets else ""


@options
class RetireOptions(CommandOptions):
    """Options of `sidetier retire`."""

    topic: str = argument(parse=topic_name)
    partitions: tuple[int, ...] = option(
        "-p", "--partition", type=PARTITION, help="Partition to move; repeatable."
    )
    dry_run: bool = option("--dry-run", help="Show what would be moved, and write nothing.")
    offline: bool = option(
        "--offline", help="Send no request to a broker, and move everything named."
    )
    force: bool = option(
        "--force", help="Also move the archive of the current topic. Implies --without-tail."
    )
    without_tail: bool = option(
        "--without-tail",
        help="Promote no tail: records that only tail packs have stay in the packs.",
    )


@kernel.command("retire")
def command(options: RetireOptions) -> RetireResult:
    """Move the archive of a deleted or recreated topic to _sidetier/<cluster>/retired/.

    A recreated topic has another topic id. Its partitions halt until the archive of the old topic
    is moved; then they start a new archive without a further command. Use it also for a topic that
    was deleted for good, and for partitions that a new topic of the same name does not have.

    The command asks the brokers for the ids of their cluster and of the current topic. Unless
    --force is given, it moves nothing if the brokers belong to another cluster than the archive. It
    moves the archive of the current topic's id, and an archive without an id, only if the topic is
    deleted or --force is given.

    Records that only tail packs have are promoted first, as by `sidetier tail promote`. An archive
    stays if some cannot be promoted.

    The next call finishes an interrupted move; two concurrent calls do no harm. The store copies
    the objects. The command deletes them once all objects of a partition are copied, so it needs
    permission to delete.

    \b
    Example:
      sidetier retire orders --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 every archive was moved; 1 an error; 2 nothing is archived under the given names,
    or the brokers belong to another cluster; 3 at least one archive was not moved.
    """  # noqa: D301 -- \b is click's marker and must be one character
    loaded = options.call.load(needs_log_dirs=False)
    config = loaded.config
    quiet_logs(loaded)
    request = RetireRequest(
        options.topic, options.partitions, dry_run=options.dry_run, force=options.force
    )
    brokers = None if options.offline else _client_settings(config)
    with (
        open_every_store(config, connections=CONNECTIONS) as archive,
        shown() as on_progress,
    ):
        promotion = None
        if not (options.force or options.without_tail):
            from sidetier.uploader.wiring import promotion_places  # noqa: PLC0415 -- `--help` must not load the adapters

            directory = Path(tempfile.gettempdir())
            promotion = Promotion(promotion_places(config, archive), directory, PROMOTED_AT_ONCE)
        rows = retire_archive(archive, config.storage, request, brokers, on_progress, promotion)
    return RetireResult(rows, options.dry_run)


def _client_settings(config: "Config") -> ClientSettings:
    if config.broker.bootstrap_servers is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set, so the current topic id is not known; with "
            "--offline no broker is asked, and the whole archive of the topic is moved"
        )
    return ClientSettings.from_properties(as_texts(config.broker.client_properties()))
