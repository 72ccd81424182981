"""Discovery of stored partitions for a selection."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.topics import cluster_prefixes, stored_partitions
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.planning.archives import Archives
from sidetier.pipeline.planning.request import Assigned, Selection, TopicPattern
from sidetier.pipeline.planning.split import in_words
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


def find_partitions(
    archives: Archives, selection: Selection, pool: ThreadPoolExecutor
) -> tuple[TopicPartition, ...]:
    """Return the stored partitions of a selection, sorted by topic and partition.

    A topic costs a listing request for each possible key prefix (2 to the power of the entropy
    bits), and one more for every 1,000 of its partitions under a prefix.

    Raises:
        NoSuchTopicError: nothing is stored of a named topic or partition.
        WrongPlaceError: nothing is stored here, but an archive exists under other entropy bits.
    """
    if isinstance(selection, Assigned):
        return tuple(sorted(set(_assigned(archives, selection.partitions, pool))))
    if isinstance(selection, TopicPattern):
        return tuple(sorted(set(_matching(archives, selection, pool))))
    names = sorted(set(selection.names))
    by_topic = [_of_topic(archives, name, pool) for name in names]
    for name, tps in zip(names, by_topic, strict=True):
        if not tps:
            archives.settings_check.check(TopicPartition(name, 0))
            raise _no_such_topic(archives.access, name)
    return tuple(sorted(set(chain.from_iterable(by_topic))))


def _of_topic(archives: Archives, topic: str, pool: ThreadPoolExecutor) -> list[TopicPartition]:
    access = archives.access
    store = access.store(topic)

    def below(prefix: str) -> list[TopicPartition]:
        return list(stored_partitions(store, access.layout, prefix, topic))

    prefixes = cluster_prefixes(store, access.layout)
    packed = archives.in_packs(access.provider.endpoint(topic))
    in_packs = [tp for tp in packed if tp.topic == topic]
    return list(chain(in_packs, *pool.map(below, prefixes)))


def _matching(
    archives: Archives, pattern: TopicPattern, pool: ThreadPoolExecutor
) -> Iterator[TopicPartition]:
    access = archives.access
    for endpoint in access.provider.endpoints:
        store = access.stores.at(endpoint)

        def below(prefix: str, store: RemoteStorage = store) -> list[TopicPartition]:
            return list(stored_partitions(store, access.layout, prefix))

        stored = pool.map(below, cluster_prefixes(store, access.layout))
        for partitions in (archives.in_packs(endpoint), *stored):
            # Overrides can give a topic another store. Objects of the topic elsewhere are not
            # part of its archive.
            yield from (
                tp
                for tp in partitions
                if pattern.matches(tp.topic) and access.provider.endpoint(tp.topic) == endpoint
            )


def _assigned(
    archives: Archives, tps: Iterable[TopicPartition], pool: ThreadPoolExecutor
) -> Iterator[TopicPartition]:
    wanted = list(tps)
    snapshots = pool.map(lambda tp: archives.of(tp).snapshot(), wanted)
    for tp, snapshot in zip(wanted, snapshots, strict=True):
        if snapshot.view is None:
            raise NoSuchTopicError(f"{in_words(tp)}: {archives.of(tp).missing()}")
        yield tp


def _no_such_topic(access: ArchiveAccess, topic: str) -> NoSuchTopicError:
    cluster = access.layout.cluster
    return NoSuchTopicError(
        f"topic {topic}: nothing of it is stored for cluster {cluster} at {access.url(topic)}; the "
        "archive begins with the first closed segment. `sidetier ls` lists the stored topics"
    )
