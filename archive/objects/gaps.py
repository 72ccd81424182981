"""The gaps that sidecars have recorded: what brokers had deleted before it was stored."""

from collections.abc import Iterable
from os.path import commonprefix

from sidetier.segments.keys import ArchiveLayout, parse_gap_key
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import RemoteStorage

Gaps = list[tuple[Offset, Offset]]
"""Start and end of each."""


def recorded_gaps(
    store: RemoteStorage, layout: ArchiveLayout, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Gaps]:
    """Those of some partitions, best of one topic: one listing of what their keys have in common.

    Raises:
        StorageError: as the port says.
    """
    found: dict[TopicPartition, Gaps] = {tp: [] for tp in tps}
    by_prefix = {layout.gap_prefix(tp): gaps for tp, gaps in found.items()}
    shared = commonprefix(list(by_prefix))  # noqa: RUF071  a listing goes by characters, too
    for row in store.list_objects(shared):
        prefix = row.key[: row.key.rindex("/") + 1]
        gap = parse_gap_key(row.key, prefix)
        if gap is not None and prefix in by_prefix:
            by_prefix[prefix].append(gap)
    return found
