"""Which partitions of a cluster are stored, without listing what each of them holds.

With N entropy bits a cluster lies under up to 2**N prefixes: each is listed by itself, so that
other clusters' objects are not read through. Where N is too high for that, the prefixes that exist
are looked for.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

_MOST_LISTED_BITS: Final = 8


def cluster_prefixes(store: RemoteStorage, layout: ArchiveLayout) -> Iterable[str]:
    """What the keys of a cluster's partitions can begin with, up to its name: `01011/prod-a/`."""
    if layout.bits <= 0:
        return [f"{layout.cluster}/"]
    if layout.bits <= _MOST_LISTED_BITS:
        every = (f"{number:0{layout.bits}b}" for number in range(2**layout.bits))
        return (f"{bits}/{layout.cluster}/" for bits in every)
    return (f"{bits}/{layout.cluster}/" for bits in _existing_bits(store, layout.bits))


def stored_partitions(
    store: RemoteStorage, layout: ArchiveLayout, cluster_prefix: str, topic: str | None = None
) -> Iterator[TopicPartition]:
    """The partitions below one of `cluster_prefixes`, of one topic only where it is given.

    What lies in their directories is not listed.
    """
    wanted = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    for directory in store.list_directories(wanted):
        name = directory.removeprefix(cluster_prefix).removesuffix("/")
        tp = live_partition(name, layout, cluster_prefix)
        if tp is not None and topic in {None, tp.topic}:
            yield tp


def live_partition(
    directory: str, layout: ArchiveLayout, cluster_prefix: str
) -> TopicPartition | None:
    """The partition whose objects lie in this directory; None where it is no partition's, or not
    where this layout has it.
    """
    parsed = parse_partition_directory(directory)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        return None
    tp = parsed.topic_partition
    return tp if layout.partition_prefix(tp) == f"{cluster_prefix}{directory}/" else None


def _existing_bits(store: RemoteStorage, length: int) -> Iterator[str]:
    """The first components of keys that are so many bits."""
    for directory in store.list_directories(""):
        first = directory.removesuffix("/")
        if len(first) == length and set(first) <= {"0", "1"}:
            yield first
