"""`sidetier mirror translate-offsets`: set consumer groups on the target as on the source.

Needs the packages of the extra `mirror`.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.cluster_snapshots import read_cluster_state
from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.options import client_properties
from sidetier.cli.mirror.view import TranslateResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.stores import open_archive
from sidetier.mirror.offsets.groups import ClusterGroups, CommittedGroups, SnapshotGroups
from sidetier.mirror.offsets.stored_map import MapStore
from sidetier.mirror.offsets.translate import (
    GroupTranslator,
    MirroredPartition,
    OffsetMapReader,
    copied_partitions,
    mirrored_partitions,
    selected_groups,
)
from sidetier.mirror.partition_log import ClusterLog
from sidetier.mirror.topics.rules import MirrorNames, compiled
from sidetier.segments.errors import ConfigurationError
from sidetier.wire.cluster import Cluster
from sidetier.wire.settings import ClientSettings


def translate(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Set the groups on the target to their positions on the source; return the exit code.

    Raises:
        ConfigurationError: A setting does not fit, or nothing was mirrored under this name.
        SidetierError: A cluster or the archive cannot be read, or the target refuses the offsets.
    """
    names = MirrorNames(given["name"])
    patterns = [compiled(text, "--groups") for text in given["patterns"]]
    if not given["groups"] and not patterns:
        raise ConfigurationError("--group is missing: name a group, or a pattern with --groups")
    with _opened(call, given) as (source, target, archive):
        partitions = _partitions(target, archive, names)
        translator = GroupTranslator(
            source,
            ClusterGroups(target),
            may_rewind=given["allow_rewind"],
            dry_run=given["dry_run"],
        )
        matching = selected_groups(source.names(), patterns) if patterns else []
        groups = list(dict.fromkeys([*given["groups"], *matching]))
        result = TranslateResult(translator.translate(groups, partitions), given["dry_run"])
    emit(result, output)
    return result.exit_code


@contextmanager
def _opened(
    call: Invocation, given: Mapping[str, Any]
) -> Iterator[tuple[CommittedGroups, Cluster, ArchiveAccess | None]]:
    """Yield the source's groups, the target, and the source's archive if one is configured."""
    target_settings = ClientSettings.from_properties(client_properties("target", given))
    config = call.load(needs_log_dirs=False).config if call.is_configured() else None
    with ExitStack() as stack:
        archive = None if config is None else stack.enter_context(open_archive(config))
        target_cluster = stack.enter_context(Cluster(target_settings))
        if given["from_snapshot"]:
            yield _snapshot_groups(archive), target_cluster, archive
            return
        source_settings = ClientSettings.from_properties(client_properties("source", given, config))
        source_cluster = stack.enter_context(Cluster(source_settings))
        yield ClusterGroups(source_cluster), target_cluster, archive


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
