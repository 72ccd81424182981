"""`sidetier retire`: move the archive of a deleted or recreated topic to `retired/`."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from sidetier.archive.access import require_fencing
from sidetier.archive.inventory.cluster import ListedPartition, list_partitions
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.layout import LayoutNote, check_note, other_cluster, read_note
from sidetier.archive.objects.quarantine import MovePlan
from sidetier.archive.objects.watermark import StoredWatermark
from sidetier.archive.progress import Amount, ProgressCounter
from sidetier.archive.topics import cluster_prefixes, not_archived
from sidetier.cli import exits
from sidetier.cli.arguments import PARTITION, checked_topic, size_text
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, Table, emit, output_option
from sidetier.cli.progress import shown
from sidetier.cli.stores import layout_of, open_every_store
from sidetier.leadership.cluster import as_texts
from sidetier.leadership.topic_identity import TopicIdentity, ask_identity
from sidetier.segments.errors import (
    ArchiveError,
    BrokerError,
    ConfigurationError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import is_there, plan_retirement, retire
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings

if TYPE_CHECKING:
    from sidetier.config.model import Config


_AT_ONCE: Final = 16
_REASON: Final = "by sidetier retire"


@dataclass(frozen=True, slots=True)
class RetiredRow:
    """One partition. `left` says why it was not moved; `problem` says what failed."""

    topic: str
    partition: int
    topic_id: str | None
    segments: int
    size_bytes: int
    target: str | None = None
    left: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RetireResult:
    """Partitions that were moved or, with `dry_run`, would be moved."""

    rows: Sequence[RetiredRow]
    dry_run: bool

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
                row.problem or row.left or f"{verb} {row.target}",
            )
            for row in self.rows
        ]
        columns = ("TOPIC", "PARTITION", "TOPIC ID", "SEGMENTS", "SIZE", "OUTCOME")
        footer = None if rows else "everything named was retired before; nothing is left to move"
        return (Table(columns if rows else (), rows, footer=footer),)


@click.command(name="retire")
@click.argument("topic", callback=checked_topic)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Partition to move; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and write nothing.")
@click.option(
    "--offline", is_flag=True, help="Send no request to a broker, and move everything named."
)
@click.option("--force", is_flag=True, help="Also move the archive of the current topic.")
@configuration_options
@output_option
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    topic: str,
    *,
    partitions: tuple[int, ...],
    dry_run: bool,
    offline: bool,
    force: bool,
    output: OutputFormat,
) -> None:
    """Move the archive of a deleted or recreated topic to _sidetier/<cluster>/retired/.

    A recreated topic has another topic id. Its partitions halt until the archive of the old topic
    is moved; then they start a new archive without a further command. Use it also for a topic that
    was deleted for good, and for partitions that a new topic of the same name does not have.

    The command asks the brokers for the ids of their cluster and of the current topic. Unless
    --force is given, it moves nothing if the brokers belong to another cluster than the archive. It
    moves the archive of the current topic's id, and an archive without an id, only if the topic is
    deleted or --force is given.

    The next call finishes an interrupted move; two concurrent calls do no harm. The store copies
    the objects. The command deletes them once all objects of a partition are copied, so it needs
    permission to delete.

    \b
    Example:
      sidetier retire orders --dry-run --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 every archive was moved; 1 an error; 2 nothing is archived under the given names,
    or the brokers belong to another cluster; 3 at least one archive was not moved.
    """  # noqa: D301 -- \b is click's marker and must be one character
    config = invocation(context).load(needs_log_dirs=False).config
    with ExitStack() as stack:
        settings = None if offline else _client_settings(config)
        store = stack.enter_context(open_every_store(config, connections=_AT_ONCE)).store(topic)
        layout = layout_of(config)
        note = _checked_note(config, store, layout, topic)
        identity = None
        if settings is not None and not force:
            cluster = stack.enter_context(Cluster(settings))
            identity = partial(_identity, cluster, topic, note, layout)
            identity()  # brokers of another cluster are refused before anything is shown
        pool = stack.enter_context(ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="retire"))
        retirement = _Retirement(store, layout, pool, identity)
        stored_partitions = retirement.stored(topic, partitions)
        _check_names(config, retirement, stored_partitions, topic, partitions)
        rows = (
            [retirement.look(stored) for stored in stored_partitions]
            if dry_run
            else retirement.run(stored_partitions)
        )
    emit(RetireResult(rows, dry_run), output)
    context.exit(_code(rows))


def _code(rows: Iterable[RetiredRow]) -> int:
    rows = list(rows)
    if any(row.problem for row in rows):
        return exits.FAILED
    return exits.FINDINGS if any(row.left for row in rows) else exits.OK


def _client_settings(config: "Config") -> ClientSettings:
    if config.broker.bootstrap_servers is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set, so the current topic id is not known; with "
            "--offline no broker is asked, and the whole archive of the topic is moved"
        )
    return ClientSettings.from_properties(as_texts(config.broker.client_properties()))


def _checked_note(
    config: "Config", store: RemoteStorage, layout: ArchiveLayout, topic: str
) -> LayoutNote | None:
    require_fencing(config.storage, store, config.storage.target(topic).url)
    note = read_note(store, layout)
    if note is not None:
        check_note(note, layout, None)
    return note


def _identity(
    cluster: Cluster, topic: str, note: LayoutNote | None, layout: ArchiveLayout
) -> TopicIdentity:
    """Ask the brokers about the topic.

    Raises:
        BrokerError: No broker answers, or it refuses.
        ConfigurationError: They are not known to be the brokers of the archived cluster.
    """
    identity = ask_identity(cluster, topic)
    reason = other_cluster(note, layout, identity.cluster_id)
    if reason is not None:
        raise ConfigurationError(
            f"{reason}. With --force the archive is moved all the same, and with --offline no "
            "broker is asked"
        )
    return identity


def _check_names(
    config: "Config",
    retirement: "_Retirement",
    stored_partitions: Sequence[ListedPartition],
    topic: str,
    partitions: Sequence[int],
) -> None:
    """Refuse a named topic or partition that has no archive.

    An archive that was retired before is accepted, so that the command can be repeated.
    """
    store, layout = retirement.store, retirement.layout
    present = {stored.topic_partition for stored in stored_partitions}
    requested = [TopicPartition(topic, number) for number in partitions]
    checked: list[TopicPartition | None] = [*requested] if requested or present else [None]
    for tp in checked:
        if tp in present or retirement.was_retired(topic, tp):
            continue
        url = config.storage.target(topic).url
        raise not_archived(store, layout, url, topic, tp.partition if tp else None)


@dataclass(frozen=True, slots=True)
class _Retirement:
    store: RemoteStorage
    layout: ArchiveLayout
    pool: ThreadPoolExecutor
    identity: Callable[[], TopicIdentity] | None
    """Asks the brokers about the topic; None to move every archive."""

    def stored(self, topic: str, partitions: Sequence[int]) -> list[ListedPartition]:
        """Return the stored partitions among those requested.

        A partition that is named counts as stored even if only gap records are left of it.
        """
        stored = {
            stored_partition.topic_partition: stored_partition
            for prefix in cluster_prefixes(self.store, self.layout)
            for stored_partition in list_partitions(self.store, self.layout, prefix, topic)
        }
        if not partitions:
            return [stored[tp] for tp in sorted(stored)]
        named = sorted({TopicPartition(topic, number) for number in partitions})
        return [
            stored.get(tp, ListedPartition(tp))
            for tp in named
            if tp in stored or is_there(self.store, self.layout, tp)
        ]

    def was_retired(self, topic: str, tp: TopicPartition | None) -> bool:
        """Return whether an archive of the partition, or of any of the topic's, was retired."""
        if tp is not None:
            prefix = self.layout.retired_prefix(tp)
            return next(iter(self.store.list_objects(prefix)), None) is not None
        root = self.layout.retired_prefix(TopicPartition(topic, 0)).removesuffix("0/")
        names = (
            path.removesuffix("/").rpartition("/")[2] for path in self.store.list_directories(root)
        )
        parsed = map(parse_partition_directory, names)
        return any(
            directory is not None and directory.topic_partition.topic == topic
            for directory in parsed
        )

    def look(self, stored: ListedPartition) -> RetiredRow:
        """Return the row that `run` would produce for the partition."""
        return self._judge(stored)[1]

    def _judge(self, stored: ListedPartition) -> tuple[StoredWatermark | None, RetiredRow]:
        """Return the partition's `offset.wm`, and what the command would do."""
        try:
            mark = StoredPartition(self.store, self.layout, stored.topic_partition).watermark()
            # Asked for each partition: a topic may be created again while others are moved.
            current = None if self.identity is None else self.identity()
        except (ArchiveError, BrokerError) as error:
            return None, self._row(stored, None, problem=str(error))
        reason_to_leave = self._why_not(stored, mark, current)
        if reason_to_leave is not None:
            return mark, self._row(stored, mark, left=reason_to_leave)
        plan = plan_retirement(self.layout, stored.topic_partition, mark, _REASON)
        return mark, self._row(stored, mark, plan)

    def run(self, partitions: Sequence[ListedPartition]) -> list[RetiredRow]:
        """Move the partitions one after the other, copying many objects at the same time."""
        surveyed = [(stored, self.look(stored)) for stored in partitions]
        total = Amount(
            sum(row.segments for _, row in surveyed if row.target),
            sum(row.size_bytes for _, row in surveyed if row.target),
        )
        with shown() as report:
            counter = ProgressCounter(total, report)
            return [self._retired(stored, row, counter) for stored, row in surveyed]

    def _retired(
        self, stored: ListedPartition, row: RetiredRow, counter: ProgressCounter
    ) -> RetiredRow:
        if row.target is None:
            return row

        def moved(row: ObjectSummary) -> None:
            counter.add(row.size, row.key.endswith(FileKind.LOG.value))

        move_context = MoveContext(self.store, self.layout, self.pool.map, moved)
        try:
            # again: earlier moves took time, and a sidecar may have written since
            mark, row = self._judge(stored)
            if row.target is None:
                return row
            plan = retire(move_context, stored.topic_partition, mark, _REASON)
        except SidetierError as error:
            return RetiredRow(**{**asdict(row), "target": None, "problem": str(error)})
        if plan is None:
            return RetiredRow(**{**asdict(row), "target": None, "left": "nothing is archived"})
        return RetiredRow(**{**asdict(row), "target": plan.target})

    def _why_not(
        self, stored: ListedPartition, mark: StoredWatermark | None, current: TopicIdentity | None
    ) -> str | None:
        # A move that was begun is finished in any case.
        is_move_begun = mark is not None and mark.watermark.pending is not None
        if current is None or is_move_begun or not current.has(stored.topic_partition.partition):
            return None
        archived_topic_id = mark.watermark.topic_id if mark else None
        if archived_topic_id is None:
            return (
                "left: it has no topic id, so it may belong to the current topic; --force moves it"
            )
        if current.topic_id is None:
            return "left: the brokers report no topic id (Kafka before 2.8); --force moves it"
        if archived_topic_id == current.topic_id:
            return "left: it belongs to the current topic; --force moves it"
        return None

    def _row(
        self,
        stored: ListedPartition,
        mark: StoredWatermark | None,
        plan: MovePlan | None = None,
        *,
        left: str | None = None,
        problem: str | None = None,
    ) -> RetiredRow:
        tp = stored.topic_partition
        return RetiredRow(
            tp.topic,
            tp.partition,
            mark.watermark.topic_id if mark else None,
            len(stored.bases),
            stored.size,
            plan.target if plan else None,
            left,
            problem,
        )
