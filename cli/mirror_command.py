"""`sidetier mirror`: a cluster's topics into another cluster, each record once."""

import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import Invocation, configuration_options, invocation
from sidetier.cli.mirror.options import (
    LIBRARIES,
    ClusterOption,
    copy_options,
    require_bootstrap,
    source_options,
    target_options,
    topic_rules,
)
from sidetier.cli.output import OutputFormat, output_option
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from sidetier.mirror.archive_source import ArchiveSource
    from sidetier.mirror.engine import Copy
    from sidetier.segments.offsets import Offset, TopicPartition
    from sidetier.wire.cluster import Cluster


@click.group(name="mirror", invoke_without_command=True)
@click.option("--name", metavar="NAME", help="Name of the mirror; its progress is kept under it.")
@source_options
@target_options
@copy_options
@click.option(
    "--delivery",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="Records and progress in one transaction; or progress after the records, so that a "
    "failure copies some records twice.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="Where partitions begin that were never copied by this mirror.",
)
@click.option("--no-archive", is_flag=True, help="Read the brokers alone.")
@click.option(
    "--until-caught-up", is_flag=True, help="End at what the source has committed at the start."
)
@click.option(
    "--worker",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of this process among --workers, from 0.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many processes share the partitions. Stop all of them before changing it.",
)
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
    r"""Copy topics into another cluster, each record exactly once.

    The archive of the configuration, if there is one, is read where the source's brokers have
    deleted what was not copied yet. Keys, values, headers, timestamps and partitions are kept;
    offsets are translated by `sidetier mirror translate-offsets`.

    \b
    Example:
      sidetier mirror --name dr --topic 'orders.*' \
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting or a topic is wrong, and nothing was copied; 3
    done, with gaps.
    """
    if context.invoked_subcommand is not None:
        return
    call = invocation(context)
    context.exit(from_extra(lambda: _mirror(call, given, output), "mirror", LIBRARIES, "mirror"))


def _mirror(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    from sidetier.cli.mirror.session import run_engine  # noqa: PLC0415 -- `--help` needs no Kafka
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.mirror.engine import Engine, Limits  # noqa: PLC0415
    from sidetier.mirror.source import KafkaSource, OnGap  # noqa: PLC0415
    from sidetier.mirror.target import KafkaTarget  # noqa: PLC0415

    with _opened(call, given) as mirror:
        if given["dry_run"]:
            return _show_plan(mirror, output)
        copies = mirror.catalog.copies()
        until = mirror.ends(copies) if given["until_caught_up"] else None
        source = KafkaSource(
            mirror.source_client, mirror.archive, until=until, on_gap=OnGap(given["on_gap"])
        )
        exactly_once = given["delivery"] == "exactly-once"
        transactional_id = mirror.names.transactional_id(given["worker"], given["workers"])
        target = KafkaTarget(
            mirror.target, mirror.names.group, transactional_id if exactly_once else None
        )
        engine = Engine(
            source,
            target,
            mirror.catalog.copies if until is None else lambda: copies,
            mirror.first_offsets,
            offsets_topic=mirror.names.offsets_topic,
            limits=Limits(
                transaction_bytes=given["transaction_bytes"],
                transaction_seconds=given["transaction_interval"],
                bytes_per_second=given["max_rate"],
            ),
            refresh_seconds=None if until is not None else 30.0,
            stop=mirror.stop,
        )
        try:
            result = run_engine(engine, mirror.stop, metrics_port=given["metrics_port"])
            emit(result, output)
            return result.exit_code
        finally:
            source.close()


@dataclass(frozen=True, slots=True)
class _Mirror:
    """What is open while a mirror runs."""

    names: Any
    catalog: Any
    source: "Cluster"
    target: "Cluster"
    source_client: Any
    archive: "ArchiveSource | None"
    begin: str
    stop: threading.Event

    def first_offsets(
        self, partitions: "Collection[TopicPartition]"
    ) -> "Mapping[TopicPartition, Offset]":
        """Where partitions without progress begin."""
        from sidetier.segments.isolation import IsolationLevel  # noqa: PLC0415
        from sidetier.wire.requests import EARLIEST, LATEST, list_offsets  # noqa: PLC0415

        at = EARLIEST if self.begin == "beginning" else LATEST
        listed = list_offsets(
            self.source, dict.fromkeys(partitions, at), isolation=IsolationLevel.READ_COMMITTED
        )
        found = {tp: one.offset for tp, one in listed.items()}
        if self.archive is None or at == LATEST:
            return found
        for tp in partitions:
            view = self.archive.view(tp)
            if view is not None and view.start < view.end:
                found[tp] = min(found[tp], view.start)
        return found

    def ends(self, copies: "Mapping[TopicPartition, Copy]") -> "dict[TopicPartition, Offset]":
        """Where what is committed ends now."""
        from sidetier.segments.isolation import IsolationLevel  # noqa: PLC0415
        from sidetier.wire.requests import LATEST, list_offsets  # noqa: PLC0415

        listed = list_offsets(
            self.source, dict.fromkeys(copies, LATEST), isolation=IsolationLevel.READ_COMMITTED
        )
        return {tp: one.offset for tp, one in listed.items()}


@contextmanager
def _opened(call: Invocation, given: Mapping[str, Any]) -> Iterator[_Mirror]:
    from contextlib import ExitStack  # noqa: PLC0415

    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.mirror.archive_source import ArchiveSource  # noqa: PLC0415
    from sidetier.mirror.catalog import BrokerTopics, Catalog, CatalogOptions  # noqa: PLC0415
    from sidetier.telemetry.logs import configure_logs  # noqa: PLC0415
    from sidetier.wire.cluster import Cluster  # noqa: PLC0415
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    names, rules = _named(given)
    if given["worker"] >= given["workers"]:
        raise ConfigurationError(
            f"--worker {given['worker']}: with --workers {given['workers']} the workers are 0 to "
            f"{given['workers'] - 1}"
        )
    source = ClusterOption("source", given["source_properties"], given["source_config"])
    target = ClusterOption("target", given["target_properties"], given["target_config"])
    source_properties, config = source.properties(), None
    configure_logs("console" if sys.stderr.isatty() else "json")
    if call.is_configured():
        loaded = call.load()
        configure_logs(loaded.config.log.format, loaded.config.log.level)
        config = loaded.config
        if "bootstrap.servers" not in source_properties:
            source_properties = {
                **{key: str(value) for key, value in config.broker.client_properties().items()},
                **source_properties,
            }
    source_settings = ClientSettings.from_properties(require_bootstrap(source_properties, "source"))
    target_settings = ClientSettings.from_properties(
        require_bootstrap(target.properties(), "target")
    )
    stop = threading.Event()
    with ExitStack() as stack:
        archive = None
        if config is not None and not given["no_archive"]:
            archive = ArchiveSource(stack.enter_context(open_archive(config, stop=stop)))
        source_cluster = stack.enter_context(Cluster(source_settings, stop=stop))
        target_cluster = stack.enter_context(Cluster(target_settings))
        catalog = Catalog(
            BrokerTopics(source_cluster),
            target_cluster,
            rules,
            names,
            CatalogOptions(
                replication_factor=given["replication_factor"] or -1,
                accept_log_append_time=given["accept_log_append_time"],
                worker=given["worker"],
                workers=given["workers"],
            ),
        )
        yield _Mirror(
            names,
            catalog,
            source_cluster,
            target_cluster,
            lambda: Cluster(source_settings, stop=stop),
            archive,
            given["begin"],
            stop,
        )


def _named(given: Mapping[str, Any]) -> tuple[Any, Any]:
    from sidetier.mirror.topics import MirrorNames  # noqa: PLC0415

    if given["name"] is None:
        raise ConfigurationError("--name is missing: the mirror's progress is kept under it")
    rules = topic_rules(given["topics"], given["exclude"], given["rename"])
    return MirrorNames(given["name"]), rules


def _show_plan(mirror: _Mirror, output: OutputFormat) -> int:
    from sidetier.cli.mirror.session import PlanResult  # noqa: PLC0415
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.segments.offsets import TopicPartition  # noqa: PLC0415
    from sidetier.wire.requests import committed_offsets  # noqa: PLC0415

    planned = mirror.catalog.plan()
    done = committed_offsets(mirror.target, mirror.names.group)
    left: dict[str, int] = {}
    for one in planned:
        sources = [TopicPartition(one.source, number) for number in range(one.partitions)]
        first, ends = mirror.first_offsets(sources), mirror.ends(dict.fromkeys(sources, None))  # type: ignore[arg-type]
        left[one.source] = sum(
            max(ends[tp] - _start(done, TopicPartition(one.target, tp.partition), first[tp]), 0)
            for tp in sources
        )
    result = PlanResult(planned, left)
    emit(result, output)
    return result.exit_code


def _start(done: Mapping[Any, Any], target: "TopicPartition", first: int) -> int:
    return done[target].offset if target in done else first


@command.command(name="translate-offsets")
@click.option("--name", required=True, metavar="NAME", help="Name of the mirror.")
@click.option("--group", required=True, metavar="GROUP", help="Consumer group of the source.")
@source_options
@target_options
@click.option("--dry-run", is_flag=True, help="Show the offsets, and set none.")
@output_option
@configuration_options
@click.pass_context
def translate_offsets(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click's values
    r"""Set a group on the target to where it is on the source.

    The group must have no members on the target. Where the group is ahead of the mirror, it is set
    to the end of what was copied, and reads again what is copied later.

    \b
    Example:
      sidetier mirror translate-offsets --name dr --group billing \
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting is wrong; 3 done, and the group reads some records
    again.
    """
    invocation(context)
    context.exit(from_extra(lambda: _translate(given, output), "mirror", LIBRARIES, "mirror"))


def _translate(given: Mapping[str, Any], output: OutputFormat) -> int:
    from sidetier.cli import exits  # noqa: PLC0415 -- `--help` needs no Kafka
    from sidetier.cli.mirror.session import TranslateResult  # noqa: PLC0415
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.mirror.topics import MirrorNames  # noqa: PLC0415
    from sidetier.mirror.translate import read_offset_map  # noqa: PLC0415
    from sidetier.mirror.translate import translate_offsets as translated  # noqa: PLC0415
    from sidetier.wire.cluster import Cluster  # noqa: PLC0415
    from sidetier.wire.requests import (  # noqa: PLC0415
        CommittedOffset,
        commit_offsets,
        committed_offsets,
    )
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    names = MirrorNames(given["name"])
    source = ClusterOption("source", given["source_properties"], given["source_config"])
    target = ClusterOption("target", given["target_properties"], given["target_config"])
    target_properties = require_bootstrap(target.properties(), "target")
    source_settings = ClientSettings.from_properties(
        require_bootstrap(source.properties(), "source")
    )
    with (
        Cluster(source_settings) as source_cluster,
        Cluster(ClientSettings.from_properties(target_properties)) as target_cluster,
    ):
        found = translated(
            committed_offsets(source_cluster, given["group"]),
            committed_offsets(target_cluster, names.group),
            read_offset_map(target_properties, names.offsets_topic),
        )
        offsets = {
            one.target: CommittedOffset(one.target_offset)
            for one in found
            if one.target_offset is not None
        }
        if offsets and not given["dry_run"]:
            commit_offsets(target_cluster, given["group"], offsets)
    emit(TranslateResult(given["group"], found, dry_run=given["dry_run"]), output)
    return exits.FINDINGS if any(one.repeated for one in found) else exits.OK
