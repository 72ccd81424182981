"""`sidetier mirror translate-offsets`: set consumer groups on the target as on the source."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import Invocation, configuration_options, invocation
from sidetier.cli.mirror.options import (
    LIBRARIES,
    client_properties,
    source_options,
    target_options,
)
from sidetier.cli.output import OutputFormat, output_option
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.mirror.offsets.groups import CommittedGroups
    from sidetier.mirror.offsets.translate import MirroredPartition
    from sidetier.mirror.topics.rules import MirrorNames
    from sidetier.wire.cluster import Cluster


@click.command(name="translate-offsets")
@click.option("--name", required=True, metavar="NAME", help="Name of the mirror.")
@click.option(
    "--group", "groups", metavar="GROUP", multiple=True, help="Consumer group; repeatable."
)
@click.option(
    "--groups",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of the source's consumer groups; repeatable.",
)
@source_options
@target_options
@click.option(
    "--from-snapshot",
    is_flag=True,
    help="Take the groups' offsets from the newest cluster snapshot in the archive: the source is "
    "lost.",
)
@click.option(
    "--allow-rewind",
    is_flag=True,
    help="Set a group back that is further on the target, so that it reads records again.",
)
@click.option("--dry-run", is_flag=True, help="Show the offsets, and set none.")
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
    """Set consumer groups on the target to their positions on the source.

    A group that has members on the target is left alone. A group that is ahead of the mirror is set
    to the end of what was copied, and reads again what is copied later. If the target's topic with
    the offset map is lost, the command reads the map from the archive of the configuration.

    \b
    Example:
      sidetier mirror translate-offsets --name dr --group billing \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092
      sidetier mirror translate-offsets --name dr --groups '.*' --from-snapshot \\
        --config source.yaml --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong; 3 done, but some groups read records
    again, are further ahead on the target, or have members there.
    """  # noqa: D301 -- \b is click's mark, and must be one character
    call = invocation(context)
    context.exit(from_extra(lambda: _translate(call, given, output), "mirror", LIBRARIES, "mirror"))


def _translate(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    from sidetier.cli.mirror.session import TranslateResult  # noqa: PLC0415 -- `--help` needs none
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.mirror.offsets.groups import ClusterGroups  # noqa: PLC0415
    from sidetier.mirror.offsets.translate import GroupTranslator, selected_groups  # noqa: PLC0415
    from sidetier.mirror.topics.rules import MirrorNames, compiled  # noqa: PLC0415

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
) -> "Iterator[tuple[CommittedGroups, Cluster, ArchiveAccess | None]]":
    """Yield the source's groups, the target, and the source's archive if one is configured."""
    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.mirror.offsets.groups import ClusterGroups  # noqa: PLC0415
    from sidetier.wire.cluster import Cluster  # noqa: PLC0415
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    target_settings = ClientSettings.from_properties(client_properties("target", given))
    config = call.load().config if call.is_configured() else None
    with ExitStack() as stack:
        archive = None if config is None else stack.enter_context(open_archive(config))
        target_cluster = stack.enter_context(Cluster(target_settings))
        if given["from_snapshot"]:
            yield _snapshot_groups(archive), target_cluster, archive
            return
        source_settings = ClientSettings.from_properties(client_properties("source", given, config))
        source_cluster = stack.enter_context(Cluster(source_settings))
        yield ClusterGroups(source_cluster), target_cluster, archive


def _snapshot_groups(archive: "ArchiveAccess | None") -> "CommittedGroups":
    from sidetier.archive.objects.cluster_snapshots import read_cluster_state  # noqa: PLC0415
    from sidetier.mirror.offsets.groups import SnapshotGroups  # noqa: PLC0415

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
    target: "Cluster", archive: "ArchiveAccess | None", names: "MirrorNames"
) -> "list[MirroredPartition]":
    """Return the mirror's partitions with their offset maps, from the target and the store."""
    from sidetier.mirror.offsets.groups import ClusterGroups  # noqa: PLC0415
    from sidetier.mirror.offsets.stored_map import MapStore  # noqa: PLC0415
    from sidetier.mirror.offsets.translate import (  # noqa: PLC0415
        OffsetMapReader,
        copied_partitions,
        mirrored_partitions,
    )
    from sidetier.mirror.partition_log import ClusterLog  # noqa: PLC0415

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
