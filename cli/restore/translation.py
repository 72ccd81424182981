"""A group of the lost cluster goes on in restored topics: `sidetier restore translate-offsets`.

Needs what the extra `mirror` installs.
"""

from collections.abc import Mapping
from typing import Any

from sidetier.archive.cluster_snapshots import read_snapshot, snapshot_times
from sidetier.cli import exits
from sidetier.cli.archive_listing import first_of
from sidetier.cli.mirror.session import TranslateResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.restore.session import target_properties
from sidetier.cli.stores import open_archive, require_directory
from sidetier.config.model import Config
from sidetier.config.problems import suggestion
from sidetier.mirror.topics import MirrorNames
from sidetier.mirror.translate import read_offset_map, translate_offsets
from sidetier.segments.cluster_state import GroupOffsets, SnapshotKind
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, commit_offsets, committed_offsets
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
        committed = group_offsets(archive, given["group"])
    with Cluster(ClientSettings.from_properties(properties)) as target:
        rows = translate_offsets(
            committed,
            committed_offsets(target, names.group),
            read_offset_map(properties, names.offsets_topic),
        )
        offsets = {
            row.target: CommittedOffset(row.target_offset)
            for row in rows
            if row.target_offset is not None
        }
        if offsets and not given["dry_run"]:
            commit_offsets(target, given["group"], offsets)
    emit(TranslateResult(given["group"], rows, dry_run=given["dry_run"]), output)
    return exits.FINDINGS if any(row.repeated for row in rows) else exits.OK


def group_offsets(archive: ArchiveAccess, group: str) -> Mapping[TopicPartition, CommittedOffset]:
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
    groups = content.groups if isinstance(content, GroupOffsets) else {}
    if group not in groups:
        near = suggestion(group, list(groups)) or f"; it has {first_of(sorted(groups)) or 'none'}"
        raise ConfigurationError(f"there is no group {group} in the snapshot {keys[-1]}{near}")
    return {
        TopicPartition(topic, number): CommittedOffset(Offset(committed.offset))
        for topic, partitions in groups[group].items()
        for number, committed in partitions.items()
    }
