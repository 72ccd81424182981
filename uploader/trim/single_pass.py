"""One pass of local retention on request: `sidetier trim`.

A kill leaves what the steps of `Trimmer` leave; the next pass reads everything again.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.config.model import Config
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import UNKNOWN_EPOCH, BrokerId, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.trim.archive_check import LedPartition
from sidetier.uploader.trim.decision import EXPECTED_HINDRANCES, Held, Hindrance, Trim
from sidetier.uploader.trim.groups_behind import GroupBehind
from sidetier.uploader.trim.trimmer import AT_ONCE, CHECK_THREADS, Survey, Trimmer
from sidetier.uploader.watching.disk import find_partitions, topic_id_in


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """What a pass trims.

    Attributes:
        topics: Names of topics; empty for all topics of `retention.local.topics`.
        dry_run: Delete nothing.
    """

    topics: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class TrimReport:
    """The result of a pass.

    Attributes:
        broker_id: This host's broker.
        dry_run: Whether nothing was deleted.
        led: Number of partitions with local retention that the broker leads.
        trims: The partitions with records beyond local retention.
        groups_behind: The consumer groups that are behind the new log starts, by group and
            partition.
        notes: Log dirs that could not be read, and why groups may be missing.
        members: The members that these groups had before the deletion; without groups whose members
            cannot be read.
    """

    broker_id: BrokerId
    dry_run: bool
    led: int
    trims: tuple[Trim, ...]
    groups_behind: tuple[GroupBehind, ...]
    notes: tuple[str, ...]
    members: Mapping[str, tuple[GroupMember, ...]] = field(default_factory=dict)

    @property
    def is_held(self) -> bool:
        """Whether records stay for a reason that an operator should know."""
        return any(
            trim.held and trim.held.hindrance not in EXPECTED_HINDRANCES for trim in self.trims
        )


@dataclass(frozen=True, slots=True)
class ArchiveAt:
    """A store, and the layout of its keys."""

    store: RemoteStorage
    layout: ArchiveLayout


def led_partition(tp: TopicPartition, directory: str, place: ArchiveAt) -> LedPartition:
    """Read what a pass needs to know of a partition that this host's broker leads.

    Raises:
        StorageError: The store does not answer.
    """
    held: Held | None = None
    mark = None
    try:
        mark = StoredPartition(place.store, place.layout, tp).watermark()
    except MalformedObjectError as error:
        held = Held(Hindrance.ARCHIVE_UNKNOWN, str(error))
    epoch = latest_epoch(directory)
    if epoch == UNKNOWN_EPOCH:
        held = Held(
            Hindrance.LEADERSHIP_UNCONFIRMED,
            f"{directory} has no leader-epoch-checkpoint with the broker's leader epoch",
        )
    return LedPartition(
        tp,
        directory,
        epoch,
        topic_id_in(directory),
        etag=None if mark is None else mark.etag,
        archived_to=None if mark is None else mark.watermark.next_offset,
        held=held,
        watermark=None if mark is None else mark.watermark,
    )


def check_request(config: Config, request: TrimRequest) -> None:
    """Raise ConfigurationError if a requested topic has no local retention."""
    local = config.retention.local
    if not local.enabled:
        raise ConfigurationError("retention.local.topics is not set: no topic has local retention")
    unknown = [topic for topic in request.topics if not local.selects(topic)]
    if unknown:
        raise ConfigurationError(
            f"--topic {unknown[0]}: retention.local.topics does not match this topic"
        )


def trim(
    config: Config,
    request: TrimRequest,
    broker_id: BrokerId,
    leaders: Mapping[TopicPartition, int | None],
    archive: ArchiveAccess,
    new_trimmer: Callable[[Callable[[str], ArchiveAt]], Trimmer],
) -> TrimReport:
    """Delete archived records at the start of the logs that this host's broker leads.

    Args:
        config: Its log dirs, topics and local retention.
        request: What is trimmed.
        broker_id: This host's broker.
        leaders: The leader of each partition of the cluster.
        archive: The archive, whose keys and cluster were checked.
        new_trimmer: Builds the trimmer over the places of topics.

    Raises:
        SidetierError: The broker or the store does not answer.
    """
    topics, local = request.topics, config.retention.local

    def wanted(topic: str) -> bool:
        named = not topics or topic in topics
        return named and config.topics.selects(topic) and local.selects(topic)

    found = find_partitions(map(str, config.log_dirs), wanted)
    places = cache(lambda topic: ArchiveAt(archive.store(topic), archive.layout))
    directories = [
        (tp, path) for tp, path in sorted(found.directories.items()) if leaders.get(tp) == broker_id
    ]
    with ThreadPoolExecutor(CHECK_THREADS, "trim") as helpers:
        led = list(
            helpers.map(lambda at: led_partition(at[0], at[1], places(at[0].topic)), directories)
        )
    trims, survey = _make_pass(new_trimmer(places), led, dry_run=request.dry_run)
    ends = {trim.topic_partition: trim.end for trim in trims}
    behind = [
        entry._replace(log_start=ends[entry.topic_partition])
        for entry in sorted(survey.groups_behind)
        if entry.committed < ends[entry.topic_partition]
    ]
    notes = (*found.problems, *survey.groups_problems)
    return TrimReport(
        broker_id, request.dry_run, len(led), tuple(trims), tuple(behind), notes, survey.members
    )


def _make_pass(
    trimmer: Trimmer, led: Sequence[LedPartition], *, dry_run: bool
) -> tuple[list[Trim], Survey]:
    by_partition = {partition.topic_partition: partition for partition in led}
    survey = trimmer.survey(led)
    trims = [trim for trim in survey.trims if not trim.size]
    wanted = [(by_partition[t.topic_partition], t) for t in survey.trims if t.size]
    # The broker deletes the records of some partitions while the archives of the next are verified.
    with ThreadPoolExecutor(1, "trim-delete") as deleting:
        deletions: list[Future[list[Trim]]] = []
        for start in range(0, len(wanted), AT_ONCE):
            verified = trimmer.verify(wanted[start : start + AT_ONCE])
            if dry_run:
                trims += [trim for _, trim in verified]
                continue
            if deletions:
                deletions[-1].result()  # no verified trim waits behind other deletions
            deletions.append(deleting.submit(trimmer.delete, verified))
        for deletion in deletions:
            trims += deletion.result()
    return sorted(trims, key=lambda trim: trim.topic_partition), survey
