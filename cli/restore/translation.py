"""`sidetier restore translate-offsets`: a group of the lost cluster continues in restored topics.

Needs the packages of the extra `mirror`.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from sidetier.archive.access import ArchiveAccess, require_directory
from sidetier.archive.objects.cluster_snapshots import newest_first
from sidetier.cli.consume.reading import say
from sidetier.cli.mirror.view import TranslateResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.restore.session import target_properties
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.problems import first_of, suggestion
from sidetier.mirror.offsets.groups import ClusterGroups, SnapshotGroups
from sidetier.mirror.offsets.translate import (
    GroupTranslator,
    copied_partitions,
    mirrored_partitions,
    read_offset_map,
)
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.cluster_state import GroupOffsets, SnapshotKind
from sidetier.segments.errors import ConfigurationError
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings


def translate(config: Config, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Set a group on the target to its position in the archived cluster; return the exit code.

    Raises:
        ConfigurationError: No snapshot has the group, or there is no such restore.
        SidetierError: The store or the target cannot be read, or the target refuses the offsets.
    """
    names = MirrorNames(given["name"] or config.cluster.name, "restore")
    properties = target_properties(config, given)
    require_directory(config.storage.url)
    with (
        open_archive(config) as archive,
        Cluster(ClientSettings.from_properties(properties)) as target,
    ):
        groups = ClusterGroups(target)
        progress = groups.committed(names.group)
        copied = copied_partitions(progress)
        if not copied:
            raise ConfigurationError(
                f"group {names.group} on the target has no progress: give the restore's --name"
            )
        topics = {source.topic for source in copied.values()}
        taken_ms, offsets = group_offsets(archive, given["group"], topics)
        say(f"offsets of group {given['group']} as of {_time(taken_ms)}")
        ids = groups.topic_ids({tp.topic for tp in copied})
        maps = read_offset_map(target, names.offsets_topic)
        partitions = mirrored_partitions(groups, copied, progress, maps, {}, ids)
        translator = GroupTranslator(
            SnapshotGroups(offsets), groups, may_rewind=True, dry_run=given["dry_run"]
        )
        result = TranslateResult(
            translator.translate([given["group"]], partitions), given["dry_run"]
        )
    emit(result, output)
    return result.exit_code


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


def _time(taken_ms: int) -> str:
    return datetime.fromtimestamp(taken_ms / 1000, UTC).isoformat(timespec="seconds")
