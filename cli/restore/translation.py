"""A group of the lost cluster goes on in restored topics: `sidetier restore translate-offsets`.

Needs what the extra `mirror` installs.
"""

from collections.abc import Mapping
from typing import Any

from sidetier.archive.cluster_snapshots import read_snapshot, snapshot_times
from sidetier.cli.archive_listing import first_of
from sidetier.cli.mirror.session import TranslateResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.restore.session import target_properties
from sidetier.cli.stores import open_archive, require_directory
from sidetier.config.model import Config
from sidetier.config.problems import suggestion
from sidetier.mirror.groups import ClusterGroups, SnapshotGroups
from sidetier.mirror.topics import MirrorNames
from sidetier.mirror.translate import (
    GroupTranslator,
    copied_partitions,
    mirrored_partitions,
    read_offset_map,
)
from sidetier.segments.cluster_state import GroupOffsets, SnapshotKind
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings


def translate(config: Config, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Set a group on the target to where it was in the archived cluster; the exit code.

    Raises:
        ConfigurationError: no snapshot has the group.
        SidetierError: the store or the target cannot be read, or the target refuses the offsets.
    """
    names = MirrorNames(given["name"] or config.cluster.name, "restore")
    properties = target_properties(config, given)
    require_directory(config.storage.url)
    with open_archive(config) as archive:
        source = SnapshotGroups(group_offsets(archive, given["group"]))
    with Cluster(ClientSettings.from_properties(properties)) as target:
        groups = ClusterGroups(target)
        progress = groups.committed(names.group)
        maps = read_offset_map(target, names.offsets_topic)
        partitions = mirrored_partitions(groups, copied_partitions(progress), progress, maps, {})
        translator = GroupTranslator(source, groups, may_rewind=True, dry_run=given["dry_run"])
        result = TranslateResult(
            translator.translate([given["group"]], partitions), given["dry_run"]
        )
    emit(result, output)
    return result.exit_code


def group_offsets(archive: ArchiveAccess, group: str) -> GroupOffsets:
    """What a group had committed in the archived cluster, by the newest snapshot.

    Raises:
        ConfigurationError: there is no snapshot, or it does not have the group.
        ArchiveError, StorageError: the snapshot cannot be read.
    """
    store = archive.stores.at(archive.provider.default)
    keys = list(snapshot_times(store, archive.layout, SnapshotKind.GROUP_OFFSETS))
    if not keys:
        raise ConfigurationError(
            f"no group offsets of cluster {archive.layout.cluster} are stored: its sidecars took "
            "no cluster snapshots (uploader.cluster_snapshots)"
        )
    content = read_snapshot(store, keys[-1]).content
    offsets = content if isinstance(content, GroupOffsets) else GroupOffsets({})
    if group not in offsets.groups:
        known = sorted(offsets.groups)
        near = suggestion(group, known) or f"; it has {first_of(known) or 'none'}"
        raise ConfigurationError(f"there is no group {group} in the snapshot {keys[-1]}{near}")
    return offsets
