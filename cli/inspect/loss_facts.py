"""Gather the facts of `can-i-lose`: one map of the cluster, one answer about each partition."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.objects.quarantine import read_pending_plan
from sidetier.cli.archive_listing import NO_WATERMARK, ArchiveEnd, read_archive_end
from sidetier.cli.inspect.cluster import Cluster, ClusterMap, LogOffsets, Settings
from sidetier.cli.inspect.local import read_log
from sidetier.cli.inspect.loss import Broker, Held, Pin, risks_of
from sidetier.cli.inspect.sidecar import NoSidecarError, ask_partitions, bearer_token_of, url_of
from sidetier.cli.stores import EveryStore, layout_of, open_every_store, with_short_timeouts
from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, check_machine
from sidetier.leadership.cluster import topic_config
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
    """The broker in question, and the URL of its sidecar if that is not on this host."""

    config: Config
    broker_id: int
    sidecar_url: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Facts about every partition on the broker, and notes for the output."""

    broker: Broker
    held: tuple[Held, ...]
    notes: tuple[str, ...] = ()


def gather(asked: Asked, cluster: Cluster) -> Findings:
    """Ask cluster, store and sidecar.

    Raises:
        ConfigurationError: There is no such broker, or the sidecar belongs to another one.
        LeadershipUnavailableError: No broker answers.
    """
    cluster_map = cluster.map()
    partitions = cluster_map.with_replica_on(asked.broker_id)
    _check_broker(asked.broker_id, cluster_map, partitions)
    held = [Held(tp, cluster_map.partitions[tp]) for tp in partitions]
    held = _with_exclusions(held, asked.config, cluster)
    # The archive first: a high watermark that is read later is not below the archive end.
    held = _with_archives(held, asked.config)
    held = _with_bounds(held, cluster, cluster_map)
    held, note = _with_sidecar(held, asked)
    broker = Broker(asked.broker_id, frozenset(cluster_map.brokers))
    held = _with_local_logs(held, asked, broker)
    notes = [f"broker {asked.broker_id} is not up now"] * (
        asked.broker_id not in cluster_map.brokers
    )
    return Findings(broker, tuple(held), (*notes, *note))


def _check_broker(broker_id: int, told: ClusterMap, partitions: Iterable[TopicPartition]) -> None:
    if broker_id not in told.brokers and not list(partitions):
        known = ", ".join(map(str, sorted(told.brokers)))
        raise ConfigurationError(
            f"there is no broker {broker_id}: brokers {known} are up, and no partition has a "
            "replica on another of that id"
        )


def _with_exclusions(held: list[Held], config: Config, cluster: Cluster) -> list[Held]:
    topics = sorted({partition.topic_partition.topic for partition in held})
    settings: Mapping[str, Settings] = {}
    with suppress(LeadershipError):  # perhaps not authorized; then names alone decide
        settings = cluster.topic_settings(topics)
    reasons = {topic: _exclusion(topic, config, settings.get(topic)) for topic in topics}
    return [
        replace(partition, not_archived=reasons[partition.topic_partition.topic])
        for partition in held
    ]


def _exclusion(topic: str, config: Config, settings: Settings | None) -> str | None:
    """Return the reason in a few words: `doctor` and the sidecar's log say what to do."""
    if not config.topics.selects(topic):
        return "left out by `topics`"
    topic_settings, refuse = topic_config(settings or {}), config.topics.compacted == "refuse"
    if refusal_of(topic, topic_settings, refuse_compacted=refuse) is None:
        return None
    return "tiered by the broker itself" if topic_settings.native_tiering else "compacted"


def _with_archives(held: list[Held], config: Config) -> list[Held]:
    try:
        with open_every_store(with_short_timeouts(config)) as stores:
            return _read_archives(held, config, stores)
    except ConfigurationError as error:  # such as a missing directory
        return [_unread(partition, str(error)) for partition in held]


def _read_archives(held: list[Held], config: Config, stores: EveryStore) -> list[Held]:
    """Read the `offset.wm` of each partition whose store answers."""
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
            archive_end = read_archive_end(store, layout, one.topic_partition)
            return _as_read(one, archive_end, store)
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
    """Return the archive end after a pending move; None if nothing stays.

    `offset.wm` may still have its end from before the quarantine, above what is being moved. A
    retired archive belongs to an earlier topic of this name: nothing of it stays.
    """
    plan = read_pending_plan(store, pending)
    if plan.whole or found.next_offset is None:
        return None
    return min(found.next_offset, plan.moved_to[1])


def _with_bounds(held: list[Held], cluster: Cluster, told: ClusterMap) -> list[Held]:
    """Add log offsets of the partitions whose leader is up; the others cannot be asked."""
    led = [
        partition.topic_partition for partition in held if partition.replicas.leader in told.brokers
    ]
    bounds = cluster.bounds(led) if led else {}
    return [replace(partition, bounds=_bounds(partition, bounds)) for partition in held]


def _bounds(one: Held, bounds: Mapping[TopicPartition, LogOffsets]) -> LogOffsets:
    return bounds.get(one.topic_partition) or LogOffsets(problem="nobody leads the partition")


def _with_sidecar(held: list[Held], asked: Asked) -> tuple[list[Held], tuple[str, ...]]:
    """Add the pins of the broker's sidecar; return a note if it does not report them."""
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
    return [
        replace(partition, pins=tuple(pins.get(partition.topic_partition, ())))
        for partition in held
    ], ()


def _local_sidecar(asked: Asked) -> str | None:
    if not _is_local(asked) or asked.config.http.port == 0:
        return None
    return url_of(asked.config.http)


def _is_local(asked: Asked) -> bool:
    """Return whether the broker is the one of this host's log dirs."""
    identity = check_machine(asked.config, LocalMachine()).identity
    return identity is not None and identity.broker_id == asked.broker_id


def _pins(told: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, list[Pin]]:
    pins_by_partition: dict[TopicPartition, list[Pin]] = {}
    for entry in told:
        end = entry["end_offset"]
        pin = Pin(
            Offset(entry["start_offset"]), None if end is None else Offset(end), entry["size_bytes"]
        )
        pins_by_partition.setdefault(TopicPartition(entry["topic"], entry["partition"]), []).append(
            pin
        )
    return pins_by_partition


def _with_local_logs(held: list[Held], asked: Asked, broker: Broker) -> list[Held]:
    """Add the local logs, for sizes, if the broker is on this host.

    Only for partitions at risk, because this reads segment headers.
    """
    if not _is_local(asked):
        return held
    directories = find_partitions(map(str, asked.config.log_dirs), lambda _: True).directories
    return [
        _with_local(partition, directories) if risks_of(partition, broker) else partition
        for partition in held
    ]


def _with_local(one: Held, directories: Mapping[TopicPartition, str]) -> Held:
    directory = directories.get(one.topic_partition)
    log = None if directory is None else read_log(directory, one.topic_partition)
    return replace(one, local=log)
