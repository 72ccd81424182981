"""Folders of quarantined and retired archives: list them, and open the one to restore."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.folders import ArchiveFolder, access_to_folders, layout_of_folders
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.quarantine import PLAN_NAME, MoveKind, read_plan
from sidetier.archive.objects.segment import segment_files
from sidetier.archive.objects.watermark import Watermark, decode_watermark
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, parse_partition_directory
from sidetier.segments.offsets import Offset, TopicPartition

_TAKEN_OVER: Final = "peer/"
"""Subfolder into which the takeover from Pinterest's uploader has moved segments that are not part
of the log.
"""
_MAX_SHOWN: Final = 20


class FolderKind(StrEnum):
    """Why an archive was moved to a folder."""

    QUARANTINE = "quarantine"
    RETIRED = "retired"

    @property
    def option(self) -> str:
        """Command line option that reads such folders."""
        return f"--from-{self}"

    def prefix(self, layout: ArchiveLayout, tp: TopicPartition) -> str:
        """Return the key prefix of a partition's folders; it ends in a slash."""
        if self is FolderKind.QUARANTINE:
            return layout.quarantine_prefix(tp)
        return layout.retired_prefix(tp)


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """The folders that a command line names.

    Attributes:
        kind: Kind of the folders.
        name: Name below the partition's prefix; empty if each partition has only one folder.
    """

    kind: FolderKind
    name: str = ""


def partitions_with_folders(archive: ArchiveAccess, kind: FolderKind) -> list[TopicPartition]:
    """Return the partitions that have folders of this kind, sorted.

    Raises:
        StorageError: See the storage port.
    """
    example_prefix = kind.prefix(archive.layout, TopicPartition("t", 0))
    root = example_prefix.removesuffix("t-0/")
    partitions = set()
    for endpoint in archive.provider.endpoints:
        store = archive.stores.at(endpoint)
        for directory in store.list_directories(root):
            parsed = parse_partition_directory(directory.removeprefix(root).removesuffix("/"))
            if parsed is not None and archive.store(parsed.topic_partition.topic) is store:
                partitions.add(parsed.topic_partition)
    return sorted(partitions)


def folder_archive(
    archive: ArchiveAccess, choice: FolderChoice, wanted: Callable[[TopicPartition], bool]
) -> tuple[ArchiveAccess, Mapping[TopicPartition, ArchiveFolder]]:
    """Return the archive with the wanted partitions as their folders hold them, and these folders.

    Raises:
        ConfigurationError: No folder has this name, or there are several and none was named; the
            text lists them.
        ArchiveError: A folder's plan cannot be parsed.
        StorageError: See the storage port.
    """
    folders_by_partition = {
        tp: _folders(archive, choice.kind, tp)
        for tp in partitions_with_folders(archive, choice.kind)
        if wanted(tp)
    }
    chosen = {tp: _chosen(names, choice.name) for tp, names in folders_by_partition.items()}
    several = [tp for tp, prefix in chosen.items() if prefix is None and not choice.name]
    if not any(chosen.values()) or any(folders_by_partition[tp] for tp in several):
        raise ConfigurationError(_listed(folders_by_partition, choice))
    folders = {
        tp: _folder(archive, choice.kind, tp, prefix)
        for tp, prefix in chosen.items()
        if prefix is not None
    }
    return access_to_folders(archive, folders), folders


def _folders(archive: ArchiveAccess, kind: FolderKind, tp: TopicPartition) -> dict[str, str]:
    """Return the prefix of each folder that has a segment, by the folder's name."""
    store, root = archive.store(tp.topic), kind.prefix(archive.layout, tp)
    prefixes = store.list_directories(root)
    if root + _TAKEN_OVER in prefixes:
        prefixes.remove(root + _TAKEN_OVER)
        prefixes += store.list_directories(root + _TAKEN_OVER)
    return {
        prefix.removeprefix(root).removesuffix("/"): prefix
        for prefix in prefixes
        if any(
            FileKind.LOG in files.files
            for files in segment_files(store.list_objects(prefix), prefix)
        )
    }


def _chosen(names: Mapping[str, str], name: str) -> str | None:
    if name:
        return names.get(name)
    return next(iter(names.values())) if len(names) == 1 else None


def _listed(every: Mapping[TopicPartition, Mapping[str, str]], choice: FolderChoice) -> str:
    lines = [f"  {tp}  {name}" for tp, names in sorted(every.items()) for name in names]
    option = choice.kind.option
    if not lines:
        return f"{option}: no segment of these topics and partitions is in a folder of that kind"
    problem = (
        f"{option} {choice.name}: there is no such folder; there are"
        if choice.name
        else f"{option}: name one of these folders, {option} NAME"
    )
    more = [f"  and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return "\n".join([problem, *lines[:_MAX_SHOWN], *more])


def _folder(
    archive: ArchiveAccess, kind: FolderKind, tp: TopicPartition, prefix: str
) -> ArchiveFolder:
    store = archive.store(tp.topic)
    _refuse_unfinished(archive.partition(tp), prefix)
    plan = read_plan(store, prefix)
    if kind is FolderKind.RETIRED and plan is not None and plan.watermark is not None:
        watermark = decode_watermark(plan.watermark.encode(), prefix + PLAN_NAME)
        if watermark.next_offset is not None:
            return ArchiveFolder(prefix, replace(watermark, pending=None))
    folder = StoredPartition(store, layout_of_folders(archive.layout, {tp: prefix}), tp)
    [last] = deque((log.base_offset for log in folder.logs()), maxlen=1)
    end = folder.next_offset_of(last)
    start = None
    if plan is not None and plan.kind is MoveKind.QUARANTINE:
        # The first segment may begin below this offset: the archive has kept that part of it.
        start = Offset(plan.next_offset)
    return ArchiveFolder(prefix, Watermark(last, end, start_offset=start))


def _refuse_unfinished(stored: StoredPartition, prefix: str) -> None:
    mark = stored.watermark()
    if mark is not None and mark.watermark.pending == prefix:
        raise ConfigurationError(
            f"{prefix}: objects are still being moved there, by a sidecar or by `sidetier retire`; "
            "restore it when that is done"
        )
