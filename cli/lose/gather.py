"""Everything that `can-i-lose` asks: one map of the cluster, one answer about each partition."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.quarantine import read_pending_plan
from sidetier.cli.archive_listing import NO_WATERMARK, ArchiveEnd, read_archive_end
from sidetier.cli.cluster_facts import Cluster, ClusterMap, LogOffsets, Settings
from sidetier.cli.local_facts import read_log
from sidetier.cli.lose.decide import Broker, Held, Pin, risks_of
from sidetier.cli.sidecar_client import NoSidecarError, ask_partitions, bearer_token_of, url_of
from sidetier.cli.stores import EveryStore, layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.leadership.topic_configs import topic_config
from sidetier.segments.errors import (
    ArchiveError,
    ConfigurationError,
    LeadershipError,
    SidetierError,
    StorageError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.gates.topic_rules import refusal_of
from sidetier.uploader.watching.disk import find_partitions

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """The broker in question, and its sidecar where it is not this host's."""

    config: Config
    broker_id: int
    sidecar_url: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of everything on the broker, and what should be said beside it."""

    broker: Broker
    held: tuple[Held, ...]
    notes: tuple[str, ...] = ()


def gather(asked: Asked, cluster: Cluster) -> Findings:
    """Ask cluster, store and sidecar.

    Raises:
        ConfigurationError: there is no such broker, or the sidecar is that of another one.
        LeadershipUnavailableError: no broker answers.
    """
    told = cluster.map()
    partitions = told.with_replica_on(asked.broker_id)
    _check_broker(asked.broker_id, told, partitions)
    held = [Held(tp, told.partitions[tp]) for tp in partitions]
    held = _with_exclusions(held, asked.config, cluster)
    # The archive first: what is stored lies below the high watermark, if that is read after it.
    held = _with_archives(held, asked.config)
    held = _with_bounds(held, cluster, told)
    held, note = _with_sidecar(held, asked)
    broker = Broker(asked.broker_id, frozenset(told.brokers))
    held = _with_local_logs(held, asked, broker)
    notes = [f"broker {asked.broker_id} is not up now"] * (asked.broker_id not in told.brokers)
    return Findings(broker, tuple(held), (*notes, *note))


def _check_broker(broker_id: int, told: ClusterMap, partitions: Iterable[TopicPartition]) -> None:
    if broker_id not in told.brokers and not list(partitions):
        known = ", ".join(map(str, sorted(told.brokers)))
        raise ConfigurationError(
            f"there is no broker {broker_id}: brokers {known} are up, and no partition has a "
            "replica on another of that id"
        )


def _with_exclusions(held: list[Held], config: Config, cluster: Cluster) -> list[Held]:
    topics = sorted({one.topic_partition.topic for one in held})
    settings: Mapping[str, Settings] = {}
    with suppress(LeadershipError):  # not allowed perhaps; then names alone decide
        settings = cluster.topic_settings(topics)
    reasons = {topic: _exclusion(topic, config, settings.get(topic)) for topic in topics}
    return [replace(one, not_archived=reasons[one.topic_partition.topic]) for one in held]


def _exclusion(topic: str, config: Config, settings: Settings | None) -> str | None:
    """In a word: `doctor` and the sidecar's log say what to do."""
    if not config.topics.selects(topic):
        return "left out by `topics`"
    told, refuse = topic_config(settings or {}), config.topics.compacted == "refuse"
    if refusal_of(topic, told, refuse_compacted=refuse) is None:
        return None
    return "tiered by the broker itself" if told.native_tiering else "compacted"


def _with_archives(held: list[Held], config: Config) -> list[Held]:
    try:
        with open_every_store(with_short_timeouts(config)) as stores:
            return _read_archives(held, config, stores)
    except ConfigurationError as error:  # such as a directory that is not there
        return [_unread(one, str(error)) for one in held]


def _read_archives(held: list[Held], config: Config, stores: EveryStore) -> list[Held]:
    """A watermark each, once a store has answered at all."""
    layout = layout_of(config)
    problems: dict[int, str | None] = {}
    for store in stores.by_endpoint.values():
        try:
            note = read_note(store, layout)
            if note is not None:
                check_note(note, layout, None)
            problems[id(store)] = None
        except SidetierError as error:
            problems[id(store)] = str(error)

    def read(one: Held) -> Held:
        store = stores.of_topic(one.topic_partition.topic)
        problem = problems[id(store)]
        if problem is not None or one.not_archived is not None:
            return one if problem is None else _unread(one, problem)
        try:
            found = read_archive_end(store, layout, one.topic_partition)
            return _as_read(one, found, store)
        except (ArchiveError, StorageError) as error:
            return _unread(one, str(error))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="watermark") as pool:
        return list(pool.map(read, held))


def _unread(one: Held, problem: str) -> Held:
    return one if one.not_archived is not None else replace(one, archive_problem=problem)


def _as_read(one: Held, found: ArchiveEnd, store: RemoteStorage) -> Held:
    problem = None if found.problem == NO_WATERMARK else found.problem
    pending = found.watermark.pending if found.watermark is not None else None
    if pending is None:
        return replace(one, next_offset=found.next_offset, archive_problem=problem)
    return replace(one, next_offset=_what_stays(store, found, pending), moving=pending)


def _what_stays(store: RemoteStorage, found: ArchiveEnd, pending: str) -> Offset | None:
    """The watermark may stand still where it stood, above what is being set aside; and what is
    retired is of another topic of this name.
    """
    plan = read_pending_plan(store, pending)
    if plan.whole or found.next_offset is None:
        return None
    return min(found.next_offset, plan.moved_to[1])


def _with_bounds(held: list[Held], cluster: Cluster, told: ClusterMap) -> list[Held]:
    """Of partitions whose leader is up; the others have nobody to ask."""
    led = [one.topic_partition for one in held if one.replicas.leader in told.brokers]
    bounds = cluster.bounds(led) if led else {}
    return [replace(one, bounds=_bounds(one, bounds)) for one in held]


def _bounds(one: Held, bounds: Mapping[TopicPartition, LogOffsets]) -> LogOffsets:
    return bounds.get(one.topic_partition) or LogOffsets(problem="nobody leads the partition")


def _with_sidecar(held: list[Held], asked: Asked) -> tuple[list[Held], tuple[str, ...]]:
    """With what the broker's sidecar holds open, or a note that it has not told."""
    url, broker_id = asked.sidecar_url or _local_sidecar(asked), asked.broker_id
    if url is None:
        return held, (f"broker {broker_id}'s sidecar was not asked: --sidecar says where it is",)
    try:
        answer = ask_partitions(url, bearer_token=bearer_token_of(asked.config.http))
    except NoSidecarError as error:
        return held, (str(error),)
    if answer.get("broker_id") != asked.broker_id:
        raise ConfigurationError(
            f"--sidecar {url} is the one of broker {answer.get('broker_id')}, not of broker "
            f"{asked.broker_id}"
        )
    pins = _pins(answer.get("pins", ()))
    return [replace(one, pins=tuple(pins.get(one.topic_partition, ()))) for one in held], ()


def _local_sidecar(asked: Asked) -> str | None:
    if not _is_local(asked) or asked.config.http.port == 0:
        return None
    return url_of(asked.config.http)


def _is_local(asked: Asked) -> bool:
    """The broker is the one of this host's log dirs."""
    identity = check_machine(asked.config, LocalMachine()).identity
    return identity is not None and identity.broker_id == asked.broker_id


def _pins(told: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, list[Pin]]:
    found: dict[TopicPartition, list[Pin]] = {}
    for one in told:
        end = one["end_offset"]
        pin = Pin(
            Offset(one["start_offset"]), None if end is None else Offset(end), one["size_bytes"]
        )
        found.setdefault(TopicPartition(one["topic"], one["partition"]), []).append(pin)
    return found


def _with_local_logs(held: list[Held], asked: Asked, broker: Broker) -> list[Held]:
    """Sizes, on the broker's own host; only where something is at risk, as headers are read."""
    if not _is_local(asked):
        return held
    directories = find_partitions(map(str, asked.config.log_dirs), lambda _: True).directories
    return [_with_local(one, directories) if risks_of(one, broker) else one for one in held]


def _with_local(one: Held, directories: Mapping[TopicPartition, str]) -> Held:
    directory = directories.get(one.topic_partition)
    log = None if directory is None else read_log(directory, one.topic_partition)
    return replace(one, local=log)
