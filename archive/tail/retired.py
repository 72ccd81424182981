"""What the retired archives of a partition have of one topic id.

The plan in the folder of a retired archive has the topic id, and `offset.wm` as it was. A plan
alone is an intent: a retirement copies all objects, the segments before the gap records, and then
removes `offset.wm`. So the folder is whole if `offset.wm` was gone before it is read; that its last
segment is there alone does not show it.
"""

from contextlib import suppress

from sidetier.archive.folders import layout_of_folders
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.quarantine import PLAN_NAME, read_plan
from sidetier.archive.objects.watermark import decode_watermark
from sidetier.archive.tail.merge import ArchivedPart, below_start
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage


def retired_parts(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, topic_id: str
) -> list[ArchivedPart]:
    """Read what each retired archive of a topic id has. One listing; four requests for each. Call
    it only after `offset.wm` was seen to be gone, or to be of another topic id.

    Raises:
        MalformedObjectError: An object of a retired archive does not parse.
    """
    root = layout.retired_prefix(tp)
    found = []
    for prefix in store.list_directories(root):
        # `<topic id>/`, `<topic id>.2/`, ...
        name = prefix.removeprefix(root).removesuffix("/")
        plan = read_plan(store, prefix) if name.partition(".")[0] == topic_id else None
        if plan is None or plan.watermark is None:
            continue
        mark = decode_watermark(plan.watermark.encode(), prefix + PLAN_NAME)
        if mark.topic_id != topic_id or mark.next_offset is None:
            continue
        folder = StoredPartition(store, layout_of_folders(layout, {tp: prefix}), tp)
        with suppress(ObjectNotFoundError):
            store.head_object(folder.layout.object_key(tp, mark.base_offset, FileKind.LOG))
            gaps = (*below_start(mark.start_offset), *folder.gaps())
            epochs = folder.epochs().epoch_history
            found.append(ArchivedPart(mark.next_offset, epochs, topic_id, gaps))
    return found
