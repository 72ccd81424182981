"""Find the stored partitions of a cluster, without a listing of their objects.

With N entropy bits a cluster's keys are below up to 2**N prefixes. Each prefix is listed
separately, so that objects of other clusters are not listed. If N is too high for that, the
existing prefixes are listed first.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import (
    DirectoryState,
    parse_partition_directory,
    partition_count,
)
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

_MOST_LISTED_BITS: Final = 8


def cluster_prefixes(store: RemoteStorage, layout: ArchiveLayout) -> Iterable[str]:
    """Return the key prefixes of a cluster's partitions, up to its name: `01011/prod-a/`."""
    if layout.bits <= 0:
        return [f"{layout.cluster}/"]
    if layout.bits <= _MOST_LISTED_BITS:
        all_bits = (f"{number:0{layout.bits}b}" for number in range(2**layout.bits))
        return (f"{bits}/{layout.cluster}/" for bits in all_bits)
    return (f"{bits}/{layout.cluster}/" for bits in _existing_bits(store, layout.bits))


def stored_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[TopicPartition]:
    """Yield the partitions below one of `cluster_prefixes`; only those of `topic` if it is given.

    The contents of their directories are not listed.
    """
    # The prefix `t-` also lists the topic `t-x`; the comparison of the names below decides.
    wanted = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    for directory in store.list_directories(wanted):
        name = directory.removeprefix(cluster_prefix).removesuffix("/")
        tp = live_partition(name, layout, cluster_prefix)
        if tp is not None and topic in {None, tp.topic}:
            yield tp


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
