"""Archives that were moved away, each in a folder of its own: quarantined segments, retired topics.

A folder has the objects that the partition's prefix had, and below `gaps/` the records of gaps, but
no `offset.wm`. Who reads one says which watermark holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """One folder.

    Attributes:
        prefix: What the keys of its objects begin with; ends in a slash.
        watermark: What can be read of it.
    """

    prefix: str
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class FolderLayout(ArchiveLayout):
    """The layout of a cluster, but with some partitions in other folders.

    `folders` has the prefix of each of these partitions; it ends in a slash.
    """

    folders: Mapping[TopicPartition, str]

    def partition_prefix(self, tp: TopicPartition) -> str:
        """What the keys of all objects of a partition begin with; ends in a slash."""
        return self.folders.get(tp) or ArchiveLayout.partition_prefix(self, tp)

    def gap_prefix(self, tp: TopicPartition) -> str:
        """What the keys of a partition's gap records begin with; ends in a slash."""
        if tp in self.folders:
            return f"{self.folders[tp]}gaps/"
        return ArchiveLayout.gap_prefix(self, tp)


def layout_of_folders(layout: ArchiveLayout, folders: Mapping[TopicPartition, str]) -> FolderLayout:
    """The layout for partitions whose objects have these prefixes."""
    return FolderLayout(layout.cluster, layout.bits, folders)


def access_to_folders(
    archive: ArchiveAccess, folders: Mapping[TopicPartition, ArchiveFolder]
) -> ArchiveAccess:
    """The same archive, in which these partitions are what their folders hold."""
    prefixes = {tp: folder.prefix for tp, folder in folders.items()}
    return replace(
        archive,
        layout=layout_of_folders(archive.layout, prefixes),
        watermarks={tp: folder.watermark for tp, folder in folders.items()},
    )
