"""Ask all sources about one record in parallel; a source that fails is only noted."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from sidetier.cli.inspect.archive import ArchivedOffset, ArchivedPartition
from sidetier.cli.inspect.cluster import (
    Cluster,
    LogOffsets,
    ReplicaSet,
    Settings,
    number,
    open_cluster,
)
from sidetier.cli.inspect.local import LocalLog, local_log
from sidetier.cli.inspect.sidecar import ask_partitions, bearer_token_of, url_of
from sidetier.cli.stores import layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.leadership.cluster import topic_config
from sidetier.segments.errors import LeadershipError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.gates.topic_rules import refusal_of

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SidecarView:
    """A sidecar's answer about one partition, from `/api/partitions`.

    Attributes:
        row: None if the broker does not lead the partition, and none of its segments is at risk.
        pins: Open files of the partition.
    """

    broker_id: int | None = None
    row: Fields | None = None
    pins: tuple[Fields, ...] = ()

    @property
    def segments(self) -> tuple[Fields, ...]:
        """Oldest closed segments that are not stored."""
        return () if self.row is None else tuple(self.row.get("segments", ()))

    def segment_of(self, offset: int) -> Fields | None:
        """Return the unstored segment that holds the offset; None if the answer does not
        list it.
        """
        return next(
            (segment for segment in self.segments if _holds(segment, "base_offset", offset)), None
        )

    def pin_of(self, offset: int) -> Fields | None:
        """Return the pin that holds the offset; None without one."""
        return next((pin for pin in self.pins if _holds(pin, "start_offset", offset)), None)


def _holds(one: Fields, start: str, offset: int) -> bool:
    end = one.get("next_offset" if start == "base_offset" else "end_offset")
    return bool(one[start] <= offset and (end is None or offset < end))


@dataclass(frozen=True, slots=True)
class RollRules:
    """Limits at which the broker closes a segment of the topic, in bytes and in ms."""

    segment_bytes: int | None = None
    segment_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about one offset of one partition at `now_ms` (ms since 1970).

    Attributes:
        broker_id: This host's broker.
        excluded: Why the topic is not archived at all.
        known_to_cluster: False if the cluster has answered and has no such partition.
        problems: By source, why it could not be asked.
    """

    topic_partition: TopicPartition
    offset: Offset
    now_ms: int
    broker_id: int | None = None
    excluded: str | None = None
    local: LocalLog | None = None
    sidecar: SidecarView | None = None
    archive: ArchivedOffset | None = None
    replicas: ReplicaSet | None = None
    known_to_cluster: bool | None = None
    bounds: LogOffsets = field(default_factory=LogOffsets)
    roll: RollRules = field(default_factory=RollRules)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def leads_here(self) -> bool:
        """Whether this host's broker leads the partition, as far as is known."""
        if self.replicas is None:
            row = self.sidecar.row if self.sidecar is not None else None
            return row is not None and row.get("role", "leader") == "leader"
        return self.replicas.leader is not None and self.replicas.leader == self.broker_id

    @property
    def archived_to(self) -> Offset | None:
        """Archive end offset."""
        return None if self.archive is None else self.archive.watermark.next_offset


_SIDECAR_SECONDS: Final = 5.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """The record, and the addresses to ask; for None the configuration's address is used."""

    config: Config
    topic_partition: TopicPartition
    offset: Offset
    sidecar_url: str | None = None
    bootstrap_servers: str | None = None


@dataclass(frozen=True, slots=True)
class _ClusterSays:
    replicas: ReplicaSet | None
    bounds: LogOffsets
    settings: Settings | None


def gather(question: Question) -> Facts:
    """Return all facts that are available now."""
    with ThreadPoolExecutor(len(_SOURCES), thread_name_prefix="explain") as pool:
        futures = {name: pool.submit(ask, question) for name, ask in _SOURCES.items()}
    problems = {name: str(why) for name, future in futures.items() if (why := _failure(future))}
    sidecar = _answer(futures["sidecar"], SidecarView)
    facts = Facts(
        question.topic_partition,
        question.offset,
        int(SYSTEM_CLOCK.wall() * 1000),
        broker_id=_broker_id(question.config, sidecar),
        local=_answer(futures["disk"], LocalLog),
        sidecar=sidecar,
        archive=_answer(futures["archive"], ArchivedOffset),
        excluded=_excluded(question, None),
        problems=problems,
    )
    cluster_answer = _answer(futures["cluster"], _ClusterSays)
    return facts if cluster_answer is None else _with_cluster(facts, cluster_answer, question)


def _broker_id(config: Config, sidecar: SidecarView | None) -> int | None:
    """Return the broker of this host's log dirs, or else the broker of the asked sidecar."""
    identity = check_machine(config, LocalMachine()).identity
    if identity is not None:
        return identity.broker_id
    return None if sidecar is None else sidecar.broker_id


def _failure(asked: "Future[object]") -> BaseException | None:
    """Return why a source has failed; raise an error that is a bug."""
    error = asked.exception()
    if error is not None and not isinstance(error, SidetierError | OSError):
        raise error
    return error


def _answer(asked: "Future[object]", kind: type[T]) -> T | None:
    if asked.exception() is not None:
        return None
    answer = asked.result()
    return answer if isinstance(answer, kind) else None


def _with_cluster(facts: Facts, said: _ClusterSays, question: Question) -> Facts:
    problems = dict(facts.problems)
    if said.bounds.problem is not None:
        problems["cluster"] = said.bounds.problem
    settings = said.settings or {}
    return replace(
        facts,
        replicas=said.replicas,
        known_to_cluster=said.replicas is not None,
        bounds=said.bounds,
        roll=roll_rules(settings),
        excluded=_excluded(question, said.settings),
        problems=problems,
    )


def roll_rules(settings: Settings) -> RollRules:
    """Return when segments close, by a topic's settings."""
    size = number(settings, "internal.segment.bytes") or number(settings, "segment.bytes")
    return RollRules(size, number(settings, "segment.ms"))


def _excluded(question: Question, settings: Settings | None) -> str | None:
    topic, topics = question.topic_partition.topic, question.config.topics
    if not topics.selects(topic):
        return f"topic {topic} is left out by the settings below `topics`"
    if settings is None:
        return None
    refuse = topics.compacted == "refuse"
    return refusal_of(topic, topic_config(settings), refuse_compacted=refuse)


def _disk(question: Question) -> LocalLog | None:
    log_dirs = question.config.log_dirs
    if not any(path.is_dir() for path in log_dirs):
        raise NotADirectoryError(f"{', '.join(map(str, log_dirs))}: not on this host")
    return local_log(map(str, log_dirs), question.topic_partition)


def _sidecar(question: Question) -> SidecarView:
    tp = question.topic_partition
    url = question.sidecar_url or url_of(question.config.http)
    token = bearer_token_of(question.config.http)
    answer = ask_partitions(url, tp.topic, _SIDECAR_SECONDS, token)
    row = next((r for r in answer["partitions"] if r["partition"] == tp.partition), None)
    pins = tuple(pin for pin in answer.get("pins", ()) if pin["partition"] == tp.partition)
    return SidecarView(answer.get("broker_id"), row, pins)


def _archive(question: Question) -> ArchivedOffset:
    config, tp = with_short_timeouts(question.config), question.topic_partition
    with open_every_store(config) as stores:
        url = config.storage.target(tp.topic).url
        place = ArchivedPartition(stores.of_topic(tp.topic), layout_of(config), tp, url)
        return place.about(question.offset)


def _cluster(question: Question) -> _ClusterSays:
    cluster, tp = (
        open_cluster(question.config, question.bootstrap_servers),
        question.topic_partition,
    )
    if cluster is None:
        raise LeadershipError("broker.bootstrap_servers is not set")
    cluster_map = cluster.map()
    replicas = cluster_map.partitions.get(tp)
    if replicas is None:
        return _ClusterSays(None, LogOffsets(problem=f"there is no partition {tp}"), None)
    bounds = LogOffsets() if replicas.leader is None else cluster.bounds([tp])[tp]
    return _ClusterSays(replicas, bounds, _settings(cluster, tp.topic))


def _settings(cluster: Cluster, topic: str) -> Settings | None:
    try:
        return cluster.topic_settings([topic]).get(topic)
    except LeadershipError:
        return None  # perhaps not authorized: the other facts still help


_SOURCES: Final[Mapping[str, Callable[[Question], object]]] = {
    "disk": _disk,
    "sidecar": _sidecar,
    "archive": _archive,
    "cluster": _cluster,
}
