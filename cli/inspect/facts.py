"""Facts about partitions, records and this host's broker, gathered from every source.

The sources are this host's disk (`local_log`, `host`), the sidecar (`sidecar`), the stores
(`archive`, `store`) and the brokers (`cluster`). `explain`, `can-i-lose` and `doctor` gather their
facts here, and then decide with the pure functions of the modules `explain`, `loss` and `doctor`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.contents import ArchiveEnd
from sidetier.archive.inventory.stored_partition import NO_WATERMARK
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.quarantine import read_pending_plan
from sidetier.cli.inspect.archive import ArchivedOffset, ArchivedPartition
from sidetier.cli.inspect.consumer_groups import GroupFacts, gather_groups
from sidetier.cli.inspect.encryption import KeyFacts, key_facts, stored_facts
from sidetier.cli.inspect.host import HostFacts, host_facts
from sidetier.cli.inspect.local_log import LocalLog, LocalSegment, local_log, read_log
from sidetier.cli.inspect.local_retention import PartitionRetention, gather_retention
from sidetier.cli.inspect.sidecar import (
    NoSidecarError,
    SidecarPartition,
    SidecarState,
    ask_sidecar,
    bearer_token_of,
    url_of,
    with_conditions,
)
from sidetier.cli.inspect.store import StoreFacts, store_facts
from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.config.uploader import EarlyLimits
from sidetier.leadership.cluster import topic_config
from sidetier.leadership.cluster_map import (
    Cluster,
    ClusterMap,
    LogOffsets,
    ReplicaSet,
    Settings,
    number,
    open_cluster,
)
from sidetier.segments.errors import (
    ArchiveError,
    ConfigurationError,
    LeadershipError,
    SidetierError,
    StorageError,
)
from sidetier.segments.listing import read_listing
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.status import PartitionStatus, PinnedRange, Role
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.gates.topic_rules import refusal_of
from sidetier.uploader.trim.decision import topic_hindrance
from sidetier.uploader.watching.disk import (
    find_partitions,
    list_names,
    old_format_of,
    topic_id_in,
)

_AT_ONCE: Final = 16
"""Maximum number of concurrent requests to the stores."""
_SIDECAR_SECONDS: Final = 5.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a topic is never archived: in a few words, and in a sentence that names the settings."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Facts about one partition.

    Attributes:
        replicas: None if the cluster has not answered, or has no such partition.
        exclusion: Why the partition is never archived.
        local: The log on this host's disk; None if it is not there, or was not read.
        sidecar: None if no sidecar has answered.
        archived_up_to: Archive end offset (exclusive); None if nothing is archived, or if it is not
            known because of `archive_problem`.
        archived_from: First archived offset; None if nothing is archived, or if it is not known.
        archive_moving_to: Prefix to which the archive, or its end, is being moved.
            `archived_up_to` is then the end of the part that stays.
    """

    topic_partition: TopicPartition
    replicas: ReplicaSet | None = None
    log_offsets: LogOffsets = field(default_factory=LogOffsets)
    exclusion: Exclusion | None = None
    local: LocalLog | None = None
    sidecar: SidecarPartition | None = None
    archived_up_to: Offset | None = None
    archived_from: Offset | None = None
    archive_problem: str | None = None
    archive_moving_to: str | None = None


def exclusion_of(topic: str, config: Config, settings: Settings | None) -> Exclusion | None:
    """Return why a topic is never archived; None if it is, or if the settings would decide.

    Args:
        topic: Name of the topic.
        config: The sidecar's configuration.
        settings: The topic's configuration; None if the brokers have not returned it.
    """
    if not config.topics.selects(topic):
        text = f"topic {topic} is left out by the settings below `topics`"
        return Exclusion("left out by `topics`", text)
    topic_settings = topic_config(settings or {})
    text_or_none = refusal_of(
        topic, topic_settings, refuse_compacted=config.topics.compacted == "refuse"
    )
    if text_or_none is None:
        return None
    reason = "tiered by the broker itself" if topic_settings.native_tiering else "compacted"
    return Exclusion(reason, text_or_none)


def _local_identity(config: Config) -> MetaProperties | None:
    """Return the broker and cluster of this host's log dirs; None if no log dir has them."""
    return check_machine(config, LocalMachine()).identity


# One record, for `explain`.


@dataclass(frozen=True, slots=True)
class RollRules:
    """Limits at which the broker closes a segment of the topic, in bytes and in ms."""

    segment_bytes: int | None = None
    segment_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts(PartitionFacts):
    """Facts about one offset of a partition at `now_ms` (ms since 1970).

    Attributes:
        broker_id: This host's broker.
        archive: What the store has about the offset; None if it does not answer.
        known_to_cluster: False if the cluster has answered and has no such partition.
        early: The limits of the topic; None if it is not archived early.
        local_retention: None if the topic has none, or the partition no replica on this host.
        problems: By source, why it does not answer.
    """

    offset: Offset
    now_ms: int
    broker_id: int | None = None
    archive: ArchivedOffset | None = None
    known_to_cluster: bool | None = None
    roll: RollRules = field(default_factory=RollRules)
    early: EarlyLimits | None = None
    local_retention: PartitionRetention | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_start(self) -> Offset | None:
        """The log start offset, as far as it is known. The disk may still have records below it."""
        local = self.local
        known = (
            self.log_offsets.start,
            None if local is None else local.start,
            None if local is None else local.deleted_below,
        )
        return max((start for start in known if start is not None), default=None)

    @property
    def row(self) -> PartitionStatus | None:
        """The partition in the sidecar's status."""
        return None if self.sidecar is None else self.sidecar.status

    @property
    def on_disk(self) -> LocalSegment | None:
        """The segment on this host's disk that has the record."""
        return None if self.local is None else self.local.holder(self.offset)

    @property
    def pin(self) -> PinnedRange | None:
        """The sidecar's pin that has the record."""
        return None if self.sidecar is None else self.sidecar.pin_of(self.offset)

    @property
    def leads_here(self) -> bool:
        """Whether this host's broker leads the partition, as far as is known."""
        if self.replicas is None:
            return self.row is not None and self.row.role is Role.LEADER
        return self.replicas.leader is not None and self.replicas.leader == self.broker_id


@dataclass(frozen=True, slots=True)
class RecordQuestion:
    """A record, and the addresses to ask; for None the configuration's address is used."""

    config: Config
    topic_partition: TopicPartition
    offset: Offset
    sidecar_url: str | None = None
    bootstrap_servers: str | None = None


@dataclass(frozen=True, slots=True)
class _ClusterAnswer:
    cluster_id: str | None
    replicas: ReplicaSet | None
    log_offsets: LogOffsets
    settings: Settings | None
    topic_id: str | None = None


def gather_record(question: RecordQuestion) -> RecordFacts:
    """Ask all sources about one record in parallel. `problems` has each source that fails."""
    config, tp = question.config, question.topic_partition
    # Each source has its own timeout: in parallel, the slowest one limits the wait, not their sum.
    with ThreadPoolExecutor(5, thread_name_prefix="explain") as pool:
        disk = pool.submit(_log_on_disk, question)
        sidecar = pool.submit(_sidecar_partition, question)
        archive = pool.submit(_archived_offset, question)
        cluster = pool.submit(_cluster_answer, question)
        retention = pool.submit(gather_retention, config, tp)
    asked: dict[str, Future[Any]] = {
        "disk": disk,
        "sidecar": sidecar,
        "archive": archive,
        "cluster": cluster,
        "local retention": retention,
    }
    problems = {name: str(why) for name, future in asked.items() if (why := _failure(future))}
    archived, says, brokers = _answer(archive), _answer(sidecar), _answer(cluster)
    identity = _local_identity(config)
    broker_id = None if says is None else says.broker_id
    if archived is not None and brokers is not None:
        of_archive = archived.kafka_cluster_id
        if None not in {of_archive, brokers.cluster_id} and of_archive != brokers.cluster_id:
            problems["cluster"] = (
                f"the brokers belong to the Kafka cluster {brokers.cluster_id}, and the archive to "
                f"{of_archive}"
            )
            brokers = None
    if archived is not None and brokers is not None:
        other = _other_topic(archived.watermark, brokers.topic_id)
        if other is not None:
            problems["archive"], archived = other, None
    # The Metadata request has succeeded, but the partition's leader did not return its offsets.
    if brokers is not None and brokers.log_offsets.problem is not None:
        problems["cluster"] = brokers.log_offsets.problem
    settings = None if brokers is None else brokers.settings
    return RecordFacts(
        tp,
        offset=question.offset,
        now_ms=int(SYSTEM_CLOCK.wall() * 1000),
        broker_id=broker_id if identity is None else identity.broker_id,
        local=_answer(disk),
        sidecar=says,
        archive=archived,
        archived_up_to=None if archived is None else archived.watermark.next_offset,
        exclusion=exclusion_of(tp.topic, config, settings),
        replicas=None if brokers is None else brokers.replicas,
        known_to_cluster=None if brokers is None else brokers.replicas is not None,
        log_offsets=LogOffsets() if brokers is None else brokers.log_offsets,
        roll=roll_rules(settings or {}),
        early=_early_limits(tp.topic, config, settings),
        local_retention=_answer(retention),
        problems=problems,
    )


def _failure(asked: Future[Any]) -> BaseException | None:
    """Return why a source has failed; raise an error that is a bug."""
    error = asked.exception()
    if error is not None and not isinstance(error, SidetierError | OSError):
        raise error
    return error


def _answer(asked: Future[T]) -> T | None:
    return None if asked.exception() is not None else asked.result()


def _early_limits(topic: str, config: Config, settings: Settings | None) -> EarlyLimits | None:
    is_compacted = topic_config(settings or {}).compacted
    return None if is_compacted else config.uploader.early.limits(topic)


def roll_rules(settings: Settings) -> RollRules:
    """Return when segments close, by a topic's settings."""
    # `internal.segment.bytes` exists since Kafka 4.0, for segments below 1 MiB.
    size = number(settings, "internal.segment.bytes") or number(settings, "segment.bytes")
    return RollRules(size, number(settings, "segment.ms"))


def _log_on_disk(question: RecordQuestion) -> LocalLog | None:
    log_dirs = question.config.log_dirs
    if not any(path.is_dir() for path in log_dirs):
        raise NotADirectoryError(f"{', '.join(map(str, log_dirs))}: not on this host")
    return local_log(map(str, log_dirs), question.topic_partition)


def _sidecar_partition(question: RecordQuestion) -> SidecarPartition:
    tp, http = question.topic_partition, question.config.http
    url = question.sidecar_url or url_of(http)
    return ask_sidecar(url, tp.topic, _SIDECAR_SECONDS, bearer_token_of(http)).partition(tp)


def _archived_offset(question: RecordQuestion) -> ArchivedOffset:
    tp = question.topic_partition
    with open_every_store(question.config.with_short_timeouts()) as stores:
        return ArchivedPartition(stores.partition(tp), stores.url(tp.topic)).about(question.offset)


def _cluster_answer(question: RecordQuestion) -> _ClusterAnswer:
    tp = question.topic_partition
    cluster = open_cluster(question.config, question.bootstrap_servers)
    if cluster is None:
        raise LeadershipError("broker.bootstrap_servers is not set")
    found = cluster.map()
    replicas = found.partitions.get(tp)
    if replicas is None:
        absent = LogOffsets(problem=f"there is no partition {tp}")
        return _ClusterAnswer(found.cluster_id, None, absent, None)
    log_offsets = LogOffsets() if replicas.leader is None else cluster.log_offsets([tp])[tp]
    settings = _if_allowed(cluster.topic_settings, [tp.topic]).get(tp.topic)
    topic_id = _if_allowed(cluster.topic_ids, [tp.topic]).get(tp.topic)
    return _ClusterAnswer(found.cluster_id, replicas, log_offsets, settings, topic_id)


def _if_allowed(
    ask: Callable[[Iterable[str]], Mapping[str, T]], topics: Iterable[str]
) -> Mapping[str, T]:
    """Ask the brokers about topics; empty if they refuse, because other answers still help."""
    with suppress(LeadershipError):  # DescribeConfigs or Describe may not be authorized
        return ask(topics)
    return {}


def _other_topic(end: ArchiveEnd, topic_id: str | None) -> str | None:
    """Return why an archive belongs to another topic than the brokers have; None if not known."""
    archived_id = None if end.watermark is None else end.watermark.topic_id
    if None in {archived_id, topic_id} or archived_id == topic_id:
        return None
    return (
        f"the archive is of topic id {archived_id}, and the brokers have {topic_id}: the topic was "
        "deleted and created again, and nothing of it is archived until `sidetier retire` has "
        "moved the old archive"
    )


# Every partition of one broker, for `can-i-lose`.


@dataclass(frozen=True, slots=True)
class BrokerQuestion:
    """A broker, and the URL of its sidecar if that is not on this host."""

    config: Config
    broker_id: int
    sidecar_url: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """Every partition with a replica on a broker.

    Attributes:
        up: Ids of the brokers that are up.
        notes: Notes for the output, such as a sidecar that does not answer.
    """

    broker_id: int
    up: frozenset[int]
    partitions: tuple[PartitionFacts, ...]
    notes: tuple[str, ...] = ()


def gather_broker(question: BrokerQuestion, cluster: Cluster) -> BrokerFacts:
    """Ask cluster, stores and sidecar about every partition on a broker.

    Raises:
        ConfigurationError: The broker does not exist, or the sidecar belongs to another one.
        LeadershipUnavailableError: No broker answers.
    """
    broker_id, config = question.broker_id, question.config
    cluster_map = cluster.map()
    tps = cluster_map.with_replica_on(broker_id)
    _check_broker(broker_id, cluster_map, tps)
    topics = sorted({tp.topic for tp in tps})
    settings = _if_allowed(cluster.topic_settings, topics)
    exclusions = {topic: exclusion_of(topic, config, settings.get(topic)) for topic in topics}
    partitions = [
        PartitionFacts(tp, cluster_map.partitions[tp], exclusion=exclusions[tp.topic]) for tp in tps
    ]
    # The archive first: a high watermark that is read later is not below the archive end.
    partitions = _with_archives(
        partitions, config, cluster_map.cluster_id, _if_allowed(cluster.topic_ids, topics)
    )
    partitions = _with_log_offsets(partitions, cluster, cluster_map)
    partitions, note = _with_sidecar(partitions, question)
    is_up = broker_id in cluster_map.brokers
    down = () if is_up else (f"broker {broker_id} is not up now",)
    return BrokerFacts(broker_id, frozenset(cluster_map.brokers), tuple(partitions), (*down, *note))


def with_local_logs(
    facts: BrokerFacts, config: Config, wanted: Collection[TopicPartition]
) -> BrokerFacts:
    """Add the local logs of the wanted partitions, if the broker is the one of this host.

    Reading them opens the active segments, so ask only for partitions whose sizes are shown.
    """
    if not wanted or not _is_local(config, facts.broker_id):
        return facts
    directories = find_partitions(map(str, config.log_dirs), lambda _: True).directories
    partitions = tuple(
        replace(partition, local=read_log(directories[tp], tp))
        if (tp := partition.topic_partition) in wanted and tp in directories
        else partition
        for partition in facts.partitions
    )
    return replace(facts, partitions=partitions)


def _check_broker(broker_id: int, known: ClusterMap, tps: Collection[TopicPartition]) -> None:
    if broker_id not in known.brokers and not tps:
        up = ", ".join(map(str, sorted(known.brokers)))
        raise ConfigurationError(
            f"there is no broker {broker_id}: brokers {up} are up, and no partition has a replica "
            f"on a broker {broker_id}"
        )


def _with_archives(
    partitions: list[PartitionFacts],
    config: Config,
    cluster_id: str | None,
    topic_ids: Mapping[str, str],
) -> list[PartitionFacts]:
    try:
        with open_every_store(config.with_short_timeouts()) as stores:
            return _read_archives(partitions, stores, cluster_id, topic_ids)
    except ConfigurationError as error:  # such as a missing directory
        return [_unread(partition, str(error)) for partition in partitions]


def _read_archives(
    partitions: list[PartitionFacts],
    stores: ArchiveAccess,
    cluster_id: str | None,
    topic_ids: Mapping[str, str],
) -> list[PartitionFacts]:
    """Read the `offset.wm` of each partition whose store answers, if it is of these brokers and
    topics.
    """
    layout = stores.layout
    # Check each store once: an unreachable store would cost a timeout for each of its partitions.
    problems: dict[int, str | None] = {}
    for store in stores.by_endpoint.values():
        try:
            note = read_note(store, layout)
            if note is not None:
                check_note(note, layout, cluster_id)
            problems[id(store)] = None
        except SidetierError as error:
            problems[id(store)] = str(error)

    def read(partition: PartitionFacts) -> PartitionFacts:
        tp = partition.topic_partition
        store = stores.store(tp.topic)
        problem = problems[id(store)]
        if problem is not None:
            return _unread(partition, problem)
        if partition.exclusion is not None:
            return partition
        try:
            end = stores.partition(tp).end()
            other = _other_topic(end, topic_ids.get(tp.topic))
            known = _with_archive_end(partition, end, store)
            return known if other is None else _unread(partition, other)
        except (ArchiveError, StorageError) as error:
            return _unread(partition, str(error))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="watermark") as pool:
        return list(pool.map(read, partitions))


def _unread(partition: PartitionFacts, problem: str) -> PartitionFacts:
    """Note the problem, unless the partition is never archived: then it does not matter."""
    return (
        partition
        if partition.exclusion is not None
        else replace(partition, archive_problem=problem)
    )


def _with_archive_end(
    partition: PartitionFacts, end: ArchiveEnd, store: RemoteStorage
) -> PartitionFacts:
    problem = None if end.problem == NO_WATERMARK else end.problem
    mark = end.watermark
    start = None if mark is None else mark.start_offset
    pending = None if mark is None else mark.pending
    if pending is None:
        return replace(
            partition,
            archived_up_to=end.next_offset,
            archived_from=start,
            archive_problem=problem,
        )
    staying = _staying_end(store, end, pending)
    return replace(
        partition,
        archived_up_to=staying,
        archived_from=None if staying is None else start,
        archive_moving_to=pending,
    )


def _staying_end(store: RemoteStorage, end: ArchiveEnd, pending: str) -> Offset | None:
    """Return the archive end after a pending move; None if nothing stays.

    `offset.wm` may still have the end from before the quarantine. Nothing of a retired archive
    stays: it belongs to an earlier topic of this name.
    """
    plan = read_pending_plan(store, pending)
    if plan.whole or end.next_offset is None:
        return None
    return min(end.next_offset, plan.moved_to[1])


def _with_log_offsets(
    partitions: list[PartitionFacts], cluster: Cluster, cluster_map: ClusterMap
) -> list[PartitionFacts]:
    """Add log offsets of the partitions whose leader is up; the others cannot be asked."""
    led = [
        partition.topic_partition
        for partition in partitions
        if partition.replicas is not None and partition.replicas.leader in cluster_map.brokers
    ]
    offsets = cluster.log_offsets(led) if led else {}
    unknown = LogOffsets(problem="the partition has no leader")
    return [
        replace(partition, log_offsets=offsets.get(partition.topic_partition, unknown))
        for partition in partitions
    ]


def _with_sidecar(
    partitions: list[PartitionFacts], question: BrokerQuestion
) -> tuple[list[PartitionFacts], tuple[str, ...]]:
    """Add the answers of the broker's sidecar; return a note if it does not answer."""
    config, broker_id = question.config, question.broker_id
    url = question.sidecar_url
    # With port 0 the system has chosen the port, so only --sidecar can name it.
    if url is None and config.http.port != 0 and _is_local(config, broker_id):
        url = url_of(config.http)
    if url is None:
        note = f"broker {broker_id}'s sidecar was not asked: give its address by --sidecar"
        return partitions, (note,)
    try:
        state = ask_sidecar(url, bearer_token=bearer_token_of(config.http))
    except NoSidecarError as error:
        return partitions, (str(error),)
    # Pins of another broker's sidecar would count as pins of this broker, and hide a loss.
    other = state.status.broker_id
    if other != broker_id:
        raise ConfigurationError(
            f"--sidecar {url} is the sidecar of broker {other}, not of broker {broker_id}"
        )
    answers, nothing = state.by_partition(), SidecarPartition(broker_id)
    return [
        replace(partition, sidecar=answers.get(partition.topic_partition, nothing))
        for partition in partitions
    ], ()


def _is_local(config: Config, broker_id: int) -> bool:
    """Return whether the broker is the one of this host's log dirs."""
    identity = _local_identity(config)
    return identity is not None and identity.broker_id == broker_id


# This host's broker, its topics, stores and sidecar, for `doctor`.


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A selected topic with partitions in the log dirs.

    Attributes:
        replicas: Smallest replica count of its partitions.
        operations: What the sidecar's principal may do with a topic that has local retention; None
            if the brokers do not report it.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    replicas: int | None = None
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Facts about this host's broker and its surroundings.

    Attributes:
        topics_known: Whether the brokers have returned the topics' configurations.
        cluster_topics: Names of all topics of the cluster; None if the brokers have not answered.
        broker_settings: Configuration of this host's broker.
        partitions: Selected partitions in the log dirs.
        without_topic_id: Those with local retention whose log has no topic id.
        old_formats: Number of segments in the log dirs that begin with message format v0 or v1.
        groups: Consumer groups that are behind; None if the brokers have not answered.
        keys: The keys of `storage.encryption`.
        other_fingerprints: Why keys are not those that the other sidecars have.
        undecryptable: Stored segments that these keys do not decrypt: their keys, and why.
        within_segments: Led partitions whose archive ends within a segment of the log; None if that
            was not asked for.
        problems: By source, why it does not answer.
    """

    config: Config
    host: HostFacts = field(default_factory=HostFacts)
    topics: tuple[TopicFacts, ...] = ()
    topics_known: bool = False
    cluster_topics: frozenset[str] | None = None
    broker_settings: Settings = field(default_factory=dict)
    stores: tuple[StoreFacts, ...] = ()
    sidecar: SidecarState | None = None
    partitions: tuple[TopicPartition, ...] = ()
    without_topic_id: tuple[TopicPartition, ...] = ()
    old_formats: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: GroupFacts | None = None
    keys: tuple[KeyFacts, ...] = ()
    other_fingerprints: tuple[str, ...] = ()
    undecryptable: tuple[str, ...] = ()
    within_segments: tuple[TopicPartition, ...] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)


def gather_host(
    config: Config,
    sidecar_url: str | None = None,
    *,
    try_conditions: bool = False,
    back_to_pinterest: bool = False,
) -> DoctorFacts:
    """Read this host, and ask stores, brokers and sidecar. `problems` has the sources that failed.

    Args:
        config: The sidecar's configuration.
        sidecar_url: Address of the sidecar; None for the configured one.
        try_conditions: See `store_facts`.
        back_to_pinterest: Whether to read each archive's end, for `within_segments`.

    Raises:
        SidetierError: An archive's end cannot be read.
    """
    machine = check_machine(config, LocalMachine())
    on_disk = find_partitions(map(str, config.log_dirs), config.topics.selects)
    log_dir_problems = [problem.message for problem in (*machine.problems, *machine.warnings)]
    log_dir_problems += on_disk.refused.values()
    problems: dict[str, str] = {}
    stores: list[StoreFacts] = []
    try:
        # Without keys, which have a check of their own.
        cluster_id = None if machine.identity is None else machine.identity.cluster_id
        plain = config.with_storage(encryption=None)
        stores.extend(store_facts(plain, cluster_id, try_conditions=try_conditions))
    except SidetierError as error:  # such as a missing directory or driver
        problems["store"] = str(error)
        stores.append(StoreFacts(config.storage.url, error=str(error)))
    keys = tuple(key_facts(config))
    others: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    if not any(key.error for key in keys):
        # A store that does not answer has a finding.
        with suppress(SidetierError):
            others, stored = stored_facts(config, on_disk.directories)
    facts = DoctorFacts(
        config,
        host_facts(config, machine.identity, log_dir_problems),
        stores=tuple(stores),
        partitions=tuple(sorted(on_disk.directories)),
        without_topic_id=tuple(
            tp
            for tp, directory in sorted(on_disk.directories.items())
            if config.retention.local.selects(tp.topic) and topic_id_in(directory) is None
        ),
        old_formats={
            tp: count
            for tp, directory in sorted(on_disk.directories.items())
            if (count := sum(old_format_of(str(log)) is not None for log in _logs_in(directory)))
        },
        keys=keys,
        other_fingerprints=others,
        undecryptable=stored,
    )
    facts, led = _with_cluster(facts, machine.identity, on_disk.directories, problems)
    if back_to_pinterest:
        facts = replace(facts, within_segments=_within_segments(config, led))
    sidecar = None
    try:
        url, token = sidecar_url or url_of(config.http), bearer_token_of(config.http)
        sidecar = with_conditions(ask_sidecar(url, bearer_token=token), token)
    except SidetierError as error:
        problems["sidecar"] = str(error)
    return replace(facts, sidecar=sidecar, problems=problems)


def _logs_in(directory: str) -> list[Path]:
    try:
        return sorted(Path(directory).glob("*.log"))
    except OSError:  # the log dir has a finding
        return []


def _with_cluster(
    facts: DoctorFacts,
    identity: MetaProperties | None,
    directories: Mapping[TopicPartition, str],
    problems: dict[str, str],
) -> tuple[DoctorFacts, Mapping[TopicPartition, str]]:
    """Add what the brokers answer. Also return the directories of the led partitions; of all where
    the brokers do not answer.
    """
    try:
        cluster = open_cluster(facts.config)
        if cluster is None:
            return facts, directories
        cluster_map = cluster.map()
        facts = replace(facts, cluster_topics=frozenset(tp.topic for tp in cluster_map.partitions))
        names = sorted({tp.topic for tp in facts.partitions})
        settings = cluster.topic_settings(names)
        broker = {} if identity is None else cluster.broker_settings(identity.broker_id)
        local = facts.config.retention.local
        operations = cluster.allowed_operations([name for name in names if local.selects(name)])
    except SidetierError as error:
        problems["cluster"] = str(error)
        return facts, directories
    topics = tuple(
        TopicFacts(name, settings[name], _fewest_replicas(name, cluster_map), operations.get(name))
        for name in names
        if name in settings
    )
    if names and not topics:
        problems["cluster"] = "the broker does not return their configuration (DescribeConfigs)"
    broker_id = None if identity is None else identity.broker_id
    led = {
        tp: directory
        for tp, directory in directories.items()
        if (known := cluster_map.partitions.get(tp)) is not None and known.leader == broker_id
    }
    trimmed = {
        topic.name
        for topic in topics
        if local.selects(topic.name)
        and topic_hindrance(topic.name, topic_config(topic.settings)) is None
    }
    facts = replace(
        facts,
        topics=topics,
        topics_known=bool(topics) or not names,
        broker_settings=broker,
        groups=gather_groups(facts.config, led, trimmed, cluster),
    )
    return facts, led


def _within_segments(
    config: Config, directories: Mapping[TopicPartition, str]
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose archive ends within a segment of the log, sorted.

    Raises:
        ArchiveError: An archive's end is not known.
    """
    names = sorted(directories)
    with (
        open_every_store(config.with_short_timeouts()) as stores,
        ThreadPoolExecutor(_AT_ONCE, "doctor") as pool,
    ):
        ends = list(zip(names, pool.map(lambda tp: stores.partition(tp).end(), names), strict=True))
    for tp, end in ends:
        if end.next_offset is None and end.problem != NO_WATERMARK:
            raise ArchiveError(f"where the archive of {tp} ends is not known: {end.problem}")
    return tuple(
        tp
        for tp, end in ends
        if end.next_offset is not None and _is_within(directories[tp], end.next_offset)
    )


def _is_within(directory: str, offset: Offset) -> bool:
    listing = read_listing(list_names(directory))
    closed = (one.base_offset for one in listing.closed if not one.marked_for_deletion)
    active = () if listing.active is None else (listing.active,)
    bases = [Offset(base) for base in (*closed, *active)]
    return bool(bases) and min(bases) < offset and offset not in bases


def _fewest_replicas(topic: str, cluster_map: ClusterMap) -> int | None:
    counts: Iterable[int] = (
        len(replica_set.replicas)
        for tp, replica_set in cluster_map.partitions.items()
        if tp.topic == topic
    )
    return min(counts, default=None)
