"""Archives that were moved to folders of their own: quarantined segments, retired topics.

A folder has the objects that the partition's prefix had, and the records of gaps below `gaps/`, but
no `offset.wm`. The caller passes the archive end offset of each folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """One folder of moved objects.

    Attributes:
        prefix: Prefix of the keys of its objects. Ends with a slash.
        watermark: The readable range of the folder, in place of an `offset.wm`.
    """

    prefix: str
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class FolderLayout(ArchiveLayout):
    """The key layout of a cluster in which some partitions are in other folders.

    Attributes:
        folders: Key prefix of each of these partitions. Ends with a slash.
    """

    folders: Mapping[TopicPartition, str]

    def partition_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of all objects of a partition. It ends with a slash."""
        return self.folders.get(tp) or ArchiveLayout.partition_prefix(self, tp)

    def gap_prefix(self, tp: TopicPartition) -> str:
        """Return the prefix of the keys of a partition's gap records. It ends with a slash."""
        if tp in self.folders:
            return f"{self.folders[tp]}gaps/"
        return ArchiveLayout.gap_prefix(self, tp)


def layout_of_folders(layout: ArchiveLayout, folders: Mapping[TopicPartition, str]) -> FolderLayout:
    """Return the layout in which these partitions have these key prefixes."""
    return FolderLayout(layout.cluster, layout.bits, folders)


def access_to_folders(
    archive: ArchiveAccess, folders: Mapping[TopicPartition, ArchiveFolder]
) -> ArchiveAccess:
    """Return the archive with these partitions read from their folders."""
    prefixes = {tp: folder.prefix for tp, folder in folders.items()}
    return replace(
        archive,
        layout=layout_of_folders(archive.layout, prefixes),
        watermarks={tp: folder.watermark for tp, folder in folders.items()},
    )
