"""Which partitions of a cluster are stored, without listing what each of them holds.

A store is asked by listings in the order of keys. With N entropy bits a cluster lies under up to
2**N prefixes: each is listed by itself, so that other clusters' objects are not read through. Where
N is too high for that, the prefixes that exist are looked for, at a request for each.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

_MOST_LISTED_BITS: Final = 8
_BEHIND_SLASH: Final = "0"
"""The character that follows `/`: a key with it in place of a slash sorts behind a directory."""


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

    A request for each: what lies in a partition's directory is jumped over.
    """
    wanted = cluster_prefix if topic is None else f"{cluster_prefix}{topic}-"
    for directory in _directories(store, cluster_prefix, wanted):
        tp = live_partition(directory, layout, cluster_prefix)
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


def _directories(store: RemoteStorage, base: str, wanted: str) -> Iterator[str]:
    """The directories just below `base` whose keys begin with `wanted`."""
    after = ""
    while (row := next(iter(store.list_objects(wanted, start_after=after)), None)) is not None:
        directory, slash, _ = row.key.removeprefix(base).partition("/")
        if slash:
            yield directory
        after = f"{base}{directory}{_BEHIND_SLASH}" if slash else row.key


def _existing_bits(store: RemoteStorage, length: int) -> Iterator[str]:
    """The first components of keys that are so many bits."""
    for first in _directories(store, "", ""):
        if len(first) == length and set(first) <= {"0", "1"}:
            yield first
