"""Readers of a simulated archive whose segments lose their last batches on the store."""

from collections.abc import Callable

from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import Contents, FakeStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.cut_logs import (
    can_be_cut,
    committed_logs,
    cut_log,
    is_cut_noticed,
    offsets_read,
)
from tests.harness.daemons import LAYOUT

_CUTS = 4


def check_cut_segments(
    store: FakeStorage, tp: TopicPartition, opened: Callable[[RemoteStorage], RemoteStorage]
) -> int:
    """Cut some committed segments, one at a time, in a copy of the store: readers must notice it.

    Args:
        store: The store of all sidecars.
        tp: The partition.
        opened: Returns the store as readers use it.

    Returns:
        The number of cuts that a reader has reported as damage.
    """
    contents = Contents()
    # Not `store.contents()`, which may show decrypted segments without their markers.
    contents.objects.update({row.key: store.get_object(row.key) for row in store.list_objects("")})
    copied = opened(FakeStorage(contents=contents))
    whole = list(offsets_read(copied, LAYOUT, tp))
    keys = committed_logs(copied, LAYOUT, tp)
    noticed = 0
    for key in keys[:: max(1, len(keys) // _CUTS)]:
        if can_be_cut(copied, key):
            stored = contents.objects[key]
            cut_log(copied, key)
            noticed += is_cut_noticed(copied, LAYOUT, tp, key, whole)
            contents.objects[key] = stored
    return noticed
