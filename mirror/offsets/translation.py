"""Set consumer groups on the target of a mirror to their positions on the source."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.cluster_snapshots import read_cluster_state
from sidetier.mirror.offsets.groups import ClusterGroups, CommittedGroups, SnapshotGroups
from sidetier.mirror.offsets.stored_map import MapStore
from sidetier.mirror.offsets.translate import (
    GroupTranslator,
    MirroredPartition,
    OffsetMapReader,
    TranslatedGroup,
    copied_partitions,
    mirrored_partitions,
    selected_groups,
)
from sidetier.mirror.partition_log import ClusterLog
from sidetier.mirror.topics.rules import MirrorNames, compiled
from sidetier.segments.errors import ConfigurationError
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class TranslateRequest:
    """Which groups are set.

    Attributes:
        name: Name of the mirror.
        groups: Names of consumer groups.
        patterns: Regular expressions for whole names of the source's consumer groups.
        allow_rewind: Also set groups back that are further ahead on the target.
        dry_run: Set none.
    """

    name: str
    groups: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    allow_rewind: bool = False
    dry_run: bool = False


def translate_groups(
    request: TranslateRequest,
    source: Mapping[str, str] | None,
    target: Mapping[str, str],
    archive: ArchiveAccess | None = None,
) -> list[TranslatedGroup]:
    """Set the groups on the target to their positions on the source.

    Args:
        request: The groups.
        source: Properties of the source's Kafka client. None if the source is lost: the groups'
            offsets are those of the newest cluster snapshot in the archive.
        target: Properties of the target's Kafka client.
        archive: The source's archive, which also has the mirror's offset map.

    Raises:
        ConfigurationError: A setting does not fit, or nothing was mirrored under this name.
        SidetierError: A cluster or the archive cannot be read, or the target refuses the offsets.
    """
    names = MirrorNames(request.name)
    patterns = [compiled(text, "--groups") for text in request.patterns]
    if not request.groups and not patterns:
        raise ConfigurationError("--group is missing: name a group, or a pattern with --groups")
    with _opened(source, target, archive) as (source_groups, target_cluster):
        partitions = _partitions(target_cluster, archive, names)
        translator = GroupTranslator(
            source_groups,
            ClusterGroups(target_cluster),
            may_rewind=request.allow_rewind,
            dry_run=request.dry_run,
        )
        matching = selected_groups(source_groups.names(), patterns) if patterns else []
        groups = list(dict.fromkeys([*request.groups, *matching]))
        return list(translator.translate(groups, partitions))


@contextmanager
def _opened(
    source: Mapping[str, str] | None, target: Mapping[str, str], archive: ArchiveAccess | None
) -> Iterator[tuple[CommittedGroups, Cluster]]:
    """Yield the source's groups, and the target."""
    with ExitStack() as stack:
        target_cluster = stack.enter_context(Cluster(ClientSettings.from_properties(target)))
        if source is None:
            yield _snapshot_groups(archive), target_cluster
            return
        source_cluster = stack.enter_context(Cluster(ClientSettings.from_properties(source)))
        yield ClusterGroups(source_cluster), target_cluster


def _snapshot_groups(archive: ArchiveAccess | None) -> CommittedGroups:
    if archive is None:
        raise ConfigurationError(
            "--from-snapshot: no archive is configured; name its configuration with --config"
        )
    offsets = read_cluster_state(archive.default_store, archive.layout).group_offsets
    if offsets is None:
        raise ConfigurationError(
            f"--from-snapshot: the archive of cluster {archive.layout.cluster} has no snapshot of "
            "group offsets (uploader.cluster_snapshots)"
        )
    return SnapshotGroups(offsets)


def _partitions(
    target: Cluster, archive: ArchiveAccess | None, names: MirrorNames
) -> list[MirroredPartition]:
    """Return the mirror's partitions with their offset maps, from the target and the store."""
    stored = {}
    if archive is not None:
        stored = MapStore(archive.default_store, archive.layout, names.name).read_all()
    groups = ClusterGroups(target)
    # First the progress, then the map: the map is then complete at least up to the progress.
    progress = groups.committed(names.group)
    sources = {entry.target: entry.source for entry in stored.values()} | copied_partitions(
        progress
    )
    ids = groups.topic_ids({tp.topic for tp in sources})
    maps = OffsetMapReader(ClusterLog(target), names.offsets_topic).read(ids)
    if maps is None and not stored:
        raise ConfigurationError(
            f"topic {names.offsets_topic} does not exist on the target, and no offset map is "
            f"stored: nothing was mirrored under the name {names.name}, or the topic was deleted. "
            "With a configuration that names the source's archive (--config), the map is read from "
            "there"
        )
    return mirrored_partitions(groups, sources, progress, maps or {}, stored, ids)
