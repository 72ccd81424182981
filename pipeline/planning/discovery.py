"""Which of the partitions that are asked for are stored."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.topics import cluster_prefixes, stored_partitions
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.planning.archives import Archives
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.selection import Assigned, Selection, TopicPattern
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


def find_partitions(
    archives: Archives, selection: Selection, helpers: ThreadPoolExecutor
) -> tuple[TopicPartition, ...]:
    """The stored partitions, by topic and partition.

    A topic costs a request for each prefix of keys that there can be (2 to the power of the entropy
    bits), and for every 1,000 of its partitions there.

    Raises:
        NoSuchTopicError: nothing is stored of a topic, or a partition, that was named.
        WrongPlaceError: nothing is stored here, but something is under other entropy bits.
        StorageError: as the port says.
    """
    if isinstance(selection, Assigned):
        return tuple(sorted(set(_assigned(archives, selection.partitions, helpers))))
    if isinstance(selection, TopicPattern):
        return tuple(sorted(_matching(archives.access, selection, helpers)))
    names = sorted(set(selection.names))
    found = [_of_topic(archives.access, name, helpers) for name in names]
    for name, tps in zip(names, found, strict=True):
        if not tps:
            archives.elsewhere.check(TopicPartition(name, 0))
            raise _nothing(archives.access, name)
    return tuple(sorted(set(chain.from_iterable(found))))


def _of_topic(
    access: ArchiveAccess, topic: str, helpers: ThreadPoolExecutor
) -> list[TopicPartition]:
    store = access.store(topic)

    def below(prefix: str) -> list[TopicPartition]:
        return list(stored_partitions(store, access.layout, prefix, topic))

    prefixes = cluster_prefixes(store, access.layout)
    return list(chain.from_iterable(helpers.map(below, prefixes)))


def _matching(
    access: ArchiveAccess, pattern: TopicPattern, helpers: ThreadPoolExecutor
) -> Iterator[TopicPartition]:
    for endpoint in access.provider.endpoints:
        store = access.stores.at(endpoint)

        def below(prefix: str, store: RemoteStorage = store) -> list[TopicPartition]:
            return list(stored_partitions(store, access.layout, prefix))

        for found in helpers.map(below, cluster_prefixes(store, access.layout)):
            # What lies in a store that is not the topic's own is no part of the archive.
            yield from (
                tp
                for tp in found
                if pattern.matches(tp.topic) and access.provider.endpoint(tp.topic) == endpoint
            )


def _assigned(
    archives: Archives, tps: Iterable[TopicPartition], helpers: ThreadPoolExecutor
) -> Iterator[TopicPartition]:
    wanted = list(tps)
    looks = helpers.map(lambda tp: archives.of(tp).look(), wanted)
    for tp, look in zip(wanted, looks, strict=True):
        if look.view is None:
            raise NoSuchTopicError(f"{in_words(tp)}: {archives.of(tp).missing()}")
        yield tp


def _nothing(access: ArchiveAccess, topic: str) -> NoSuchTopicError:
    cluster = access.layout.cluster
    return NoSuchTopicError(
        f"topic {topic}: nothing of it is stored for cluster {cluster} at {access.url(topic)}; it "
        "is there once its first segment is. `sidetier ls` shows what is stored"
    )
