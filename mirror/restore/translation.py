"""Let a consumer group of the lost cluster continue in restored topics."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.cluster_snapshots import newest_first
from sidetier.config.problems import first_of, suggestion
from sidetier.mirror.offsets.groups import ClusterGroups, SnapshotGroups
from sidetier.mirror.offsets.translate import (
    GroupTranslator,
    TranslatedGroup,
    copied_partitions,
    mirrored_partitions,
    read_offset_map,
)
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.cluster_state import GroupOffsets, SnapshotKind
from sidetier.segments.errors import ConfigurationError
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class TranslateRestoredRequest:
    """The group that continues in restored topics.

    Attributes:
        group: Consumer group of the lost cluster.
        name: Name of the restore; None for the cluster's name.
        dry_run: Set nothing.
    """

    group: str
    name: str | None = None
    dry_run: bool = False


def translate_restored_group(
    archive: ArchiveAccess,
    request: TranslateRestoredRequest,
    target: Mapping[str, str],
    on_snapshot: Callable[[int], None] = lambda _: None,
) -> list[TranslatedGroup]:
    """Set a group on the target to its position in the archived cluster.

    Args:
        archive: The archive.
        request: The group.
        target: Properties of the target's Kafka client.
        on_snapshot: Called with the time of the group's snapshot, in ms since 1970.

    Raises:
        ConfigurationError: No snapshot has the group, or the restore does not exist.
        SidetierError: The store or the target cannot be read, or the target refuses the offsets.
    """
    archive.require_directories()
    names = MirrorNames(request.name or archive.layout.cluster, "restore")
    with Cluster(ClientSettings.from_properties(target)) as cluster:
        groups = ClusterGroups(cluster)
        progress = groups.committed(names.group)
        copied = copied_partitions(progress)
        if not copied:
            raise ConfigurationError(
                f"group {names.group} on the target has no progress: give the restore's --name"
            )
        topics = {source.topic for source in copied.values()}
        taken_ms, offsets = group_offsets(archive, request.group, topics)
        on_snapshot(taken_ms)
        ids = groups.topic_ids({tp.topic for tp in copied})
        maps = read_offset_map(cluster, names.offsets_topic)
        partitions = mirrored_partitions(groups, copied, progress, maps, {}, ids)
        translator = GroupTranslator(
            SnapshotGroups(offsets), groups, may_rewind=True, dry_run=request.dry_run
        )
        return list(translator.translate([request.group], partitions))


def group_offsets(
    archive: ArchiveAccess, group: str, topics: Collection[str]
) -> tuple[int, GroupOffsets]:
    """Return the offsets that a group had committed in the archived cluster, and their time.

    The newest snapshot that has any of the topics for the group counts: when a topic is deleted,
    Kafka deletes the offsets.

    Returns:
        Time of the snapshot in ms since 1970, and the offsets.

    Raises:
        ConfigurationError: No snapshot has offsets of the group for these topics.
        ArchiveError, StorageError: A snapshot cannot be read.
    """
    store = archive.default_store
    names: set[str] = set()
    snapshot = None
    for snapshot in newest_first(store, archive.layout, SnapshotKind.GROUP_OFFSETS):
        content = snapshot.content
        offsets_by_group = content.groups if isinstance(content, GroupOffsets) else {}
        names |= offsets_by_group.keys()
        if not offsets_by_group.get(group, {}).keys().isdisjoint(topics):
            return snapshot.taken_ms, GroupOffsets({group: offsets_by_group[group]})
    if snapshot is None:
        raise ConfigurationError(
            f"no group offsets of cluster {archive.layout.cluster} are stored: its sidecars took "
            "no cluster snapshots (uploader.cluster_snapshots)"
        )
    near = "" if group in names else suggestion(group, sorted(names))
    raise ConfigurationError(
        f"no snapshot has offsets of group {group} for the restored topics "
        f"({first_of(sorted(topics))}){near}"
    )
