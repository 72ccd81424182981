"""Find the stored partitions of a cluster, and select some of them, without a listing of objects.

With N entropy bits a cluster's keys are below up to 2**N prefixes. Each prefix is listed
separately, so that objects of other clusters are not listed. If N is too high for that, the
existing prefixes are listed first.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from sidetier.archive.objects.layout import check_stored_note
from sidetier.config.problems import first_of, suggestion
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import (
    DirectoryState,
    is_legal_topic,
    parse_partition_directory,
    partition_count,
)
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess

_Listing = tuple[RemoteStorage, str, str | None]
ForEach = Callable[
    [Callable[[_Listing], list[TopicPartition]], Iterable[_Listing]], Iterable[list[TopicPartition]]
]
"""`map`, or the `map` of an executor."""

_MAX_LISTED_BITS: Final = 8


def cluster_prefixes(store: RemoteStorage, layout: ArchiveLayout) -> Iterable[str]:
    """Return the key prefixes of a cluster's partitions, up to its name: `01011/prod-a/`."""
    if layout.bits <= 0:
        return [f"{layout.cluster}/"]
    if layout.bits <= _MAX_LISTED_BITS:
        all_bits = (f"{number:0{layout.bits}b}" for number in range(2**layout.bits))
        return (f"{bits}/{layout.cluster}/" for bits in all_bits)
    return (f"{bits}/{layout.cluster}/" for bits in _existing_bits(store, layout.bits))


def stored_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[TopicPartition]:
    """Yield the partitions below one of `cluster_prefixes`, of `topic` alone if it is given.

    The contents of their directories are not listed.
    """
    # The prefix `t-` also lists the topic `t-x`; the comparison of the names below decides.
    wanted = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    for directory in store.list_directories(wanted):
        name = directory.removeprefix(cluster_prefix).removesuffix("/")
        tp = live_partition(name, layout, cluster_prefix)
        if tp is not None and topic in {None, tp.topic}:
            yield tp


def archived_partitions(
    archive: "ArchiveAccess", topics: Collection[str] = (), for_each: ForEach = map
) -> list[TopicPartition]:
    """List the archived partitions of the cluster, in order. A topic counts only in its own store.

    Args:
        archive: The archive.
        topics: Names of topics; empty for all.
        for_each: Lists the prefixes of the stores, maybe at the same time.

    Raises:
        ConfigurationError: A store has another layout than configured.
        StorageError: The partitions could not be listed.
    """
    layout = archive.layout
    for store in archive.by_endpoint.values():
        check_stored_note(store, layout, None)
    listings = [
        (store, prefix, topic)
        for store in archive.by_endpoint.values()
        for prefix in cluster_prefixes(store, layout)
        for topic in topics or (None,)
    ]

    def listed(listing: _Listing) -> list[TopicPartition]:
        store, prefix, topic = listing
        return [
            tp
            for tp in stored_partitions(store, layout, prefix, topic)
            if archive.store(tp.topic) is store
        ]

    return sorted(chain.from_iterable(for_each(listed, listings)))


def select_partitions(
    archive: "ArchiveAccess", patterns: Collection[str] = (), numbers: Collection[int] = ()
) -> list[TopicPartition]:
    """List the archived partitions that match, in order.

    Args:
        archive: The archive.
        patterns: Regular expressions that match whole topic names; empty for all topics.
        numbers: Partition numbers; empty for all.

    Raises:
        ConfigurationError: A pattern matches no archived topic, no selected topic has one of the
            numbers, the directory of a `file://` store does not exist, or the archive has other
            entropy bits.
        StorageError: The partitions could not be listed.
    """
    archive.require_directories()
    # A pattern that is a plain name is listed alone: its topic's directories, not all of them.
    names = [name for name in patterns if is_legal_topic(name) and "." not in name]
    listed = archived_partitions(archive, names if len(names) == len(patterns) == 1 else ())
    for pattern in patterns:
        if not any(re.fullmatch(pattern, tp.topic) for tp in listed):
            url = archive.provider.default.url
            raise not_archived(archive.default_store, archive.layout, url, pattern)
    chosen = [
        tp
        for tp in listed
        if not patterns or any(re.fullmatch(pattern, tp.topic) for pattern in patterns)
        if not numbers or tp.partition in numbers
    ]
    if numbers and not chosen:
        raise ConfigurationError(
            f"--partition {', '.join(map(str, sorted(numbers)))}: no selected topic has it"
        )
    return chosen


def not_archived(
    store: RemoteStorage, layout: ArchiveLayout, url: str, topic: str, partition: int | None = None
) -> ConfigurationError:
    """Return the error for a named topic or partition that has no archive.

    Lists all partitions of the cluster, to suggest a topic with a similar name.
    """
    stored = {
        tp
        for prefix in cluster_prefixes(store, layout)
        for tp in stored_partitions(store, layout, prefix)
    }
    topics = sorted({tp.topic for tp in stored})
    place = f"in the archive of cluster {layout.cluster} at {url}"
    if partition is not None and topic in topics:
        numbers = sorted(tp.partition for tp in stored if tp.topic == topic)
        return ConfigurationError(
            f"there is no partition {topic}-{partition} {place}; partitions of {topic} there: "
            f"{first_of(numbers)}"
        )
    if not topics:
        return ConfigurationError(f"there is no topic {topic} {place}, which is empty")
    near = suggestion(topic, topics) or f"; topics there: {first_of(topics)}"
    return ConfigurationError(f"there is no topic {topic} {place}{near}")


def live_partition(
    directory: str, layout: ArchiveLayout, cluster_prefix: str
) -> TopicPartition | None:
    """Return the partition whose objects are in this directory.

    Returns:
        None if the directory is not a partition's, or not where this layout puts that partition.
    """
    parsed = parse_partition_directory(directory)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        return None
    tp = parsed.topic_partition
    # A directory under other entropy bits is of another layout, or a copy.
    return tp if layout.partition_prefix(tp) == f"{cluster_prefix}{directory}/" else None


def numbers_by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, in their order."""
    numbers: dict[str, list[int]] = {}
    for tp in tps:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return numbers


def count_partitions(topic: str, numbers: Iterable[int], known: int = 0) -> int:
    """Return how many partitions a copy of a topic needs; see `partition_count`.

    Raises:
        ConfigurationError: A stored number is too high.
    """
    count, too_high = partition_count(numbers, known)
    if too_high:
        raise ConfigurationError(
            f"{topic}-{too_high[0]} is stored, but hardly any partition below it: {topic} would be "
            f"created with {too_high[0] + 1} partitions. If its objects are of no partition, "
            "delete them; else leave the topic out"
        )
    return count


def _existing_bits(store: RemoteStorage, length: int) -> Iterator[str]:
    """Yield the first components of keys that consist of `length` bits."""
    for directory in store.list_directories(""):
        first = directory.removesuffix("/")
        if len(first) == length and set(first) <= {"0", "1"}:
            yield first
