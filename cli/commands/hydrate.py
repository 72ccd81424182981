"""`sidetier hydrate`: restore archived topics on an empty cluster, with the same offsets."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli.arguments import bootstrap_option, checked_topics
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, output_option

if TYPE_CHECKING:
    from sidetier.config.model import Config

_LIBRARIES: Final = ("cramjam", "kio", "numpy", "pyarrow")
_PLAN: Final = click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
_DRY_RUN: Final = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; change nothing."
)


@click.group(name="hydrate")
@configuration_options
def command() -> None:
    """Restore archived topics on an empty cluster, with the same offsets.

    The archived segments are placed into the brokers' log dirs while the brokers are stopped.
    Offsets, timestamps, headers and transactions are then the same as before. Every step reads the
    same plan file and checks the step before it. After an interruption, repeat the step:

    \b
      sidetier hydrate plan plan.json      what is restored, and what is lost
      sidetier hydrate prepare plan.json   create the topics; the new cluster runs
      (stop the brokers cleanly, copy plan.json to each broker's host)
      sidetier hydrate place plan.json     on each host, beside the stopped broker
      (start the brokers)
      sidetier hydrate replicate plan.json abort open transactions, raise the replication factor
      sidetier hydrate verify plan.json    compare everything with the archive
      sidetier hydrate finish plan.json    configuration of the topics, group offsets, ACLs, quotas

    cluster.name is the name of the archived cluster. broker.bootstrap_servers is the new cluster.
    After the last step, start producers, consumers, and the sidecars of the new cluster. These
    sidecars need a cluster.name of their own.
    """  # noqa: D301 -- \b is click's marker and must be one character


@command.command(name="plan", short_help="Plan what is restored, and show what is lost.")
@_PLAN
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    callback=checked_topics,
    help="Topic to restore; repeatable.  [default: every archived topic but Kafka's internal ones]",
)
@click.option(
    "--until",
    metavar="TIME",
    help="Restore up to the first record of this time, such as 2026-11-22T10:00:00Z (UTC "
    "without a zone) or 2h (before now).",
)
@click.option(
    "--until-offsets",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Restore up to these offsets (exclusive). One line each: topic, partition, offset.",
)
@click.option(
    "--transaction-consistent",
    is_flag=True,
    help="Lower the ends of partitions until no transaction is committed in one partition and cut "
    "off in another. Transactions of version 2 (Kafka 4) only; the others are reported.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; write no file.")
@configuration_options
@output_option
@click.pass_context
def plan_command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    plan_file: Path,
    topics: tuple[str, ...],
    until: str | None,
    until_offsets: Path | None,
    transaction_consistent: bool,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Read the archive, and write to the file PLAN what will be placed.

    For each partition the table shows what is restored and what is lost: records after the last
    archived segment were never archived, and recorded gaps are listed.

    \b
    Example:
      sidetier hydrate plan plan.json --until 2026-11-22T10:00:00Z --config old-cluster.yaml

    Exit codes: 0 the plan is written; 2 a setting is wrong, or PLAN exists already; 3 the plan is
    written, but --transaction-consistent cannot guarantee that every transaction is whole, or
    records in gaps are lost.
    """  # noqa: D301 -- \b is click's marker and must be one character
    steps = _steps("plan")
    code: int = steps.plan_restore(
        _loaded(context),
        plan_file,
        topics,
        until,
        until_offsets,
        output,
        transaction_consistent=transaction_consistent,
        dry_run=dry_run,
    )
    context.exit(code)


@command.command(name="prepare", short_help="Create the planned topics on the new cluster.")
@_PLAN
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def prepare_command(
    context: click.Context,
    *,
    plan_file: Path,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Create the planned topics on the new cluster, with one replica and no retention.

    The command writes the topics' ids and the broker of each partition into PLAN. Then stop every
    broker cleanly (SIGTERM), and copy PLAN to each broker's host.

    \b
    Example:
      sidetier hydrate prepare plan.json --bootstrap-server new-1:9092 --config old-cluster.yaml

    Exit codes: 0 all topics exist; 1 the brokers refuse; 2 a topic exists that has records, several
    replicas or another number of partitions.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.placing import prepare_topics  # noqa: PLC0415 -- `--help` must not load Kafka's client

    prepare_topics(_loaded(context), plan_file, bootstrap, output, dry_run=dry_run)


@command.command(name="place", short_help="Place this broker's partitions into its log dirs.")
@_PLAN
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Log dir of the stopped broker; repeatable.  [default: log_dirs]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Partitions that are placed at the same time.",
)
@click.option("--max-rate", metavar="SIZE", help="Maximum bytes read per second, such as 200MiB.")
@_DRY_RUN
@configuration_options
@output_option
@click.pass_context
def place_command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    plan_file: Path,
    log_dirs: tuple[Path, ...],
    parallel: int,
    max_rate: str | None,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Place this broker's partitions into its log dirs. The broker must be stopped.

    Run it on every broker's host, on several hosts at the same time if you like. It holds the
    broker's own lock, so that the broker cannot start meanwhile. It checks every CRC. A partition
    appears in its log dir as a whole. After an interruption the same command continues; it does not
    touch a partition that is already placed. Run it as the broker's user, or as root.

    \b
    Example:
      sidetier hydrate place plan.json --log-dir /var/lib/kafka/data --config old-cluster.yaml

    Exit codes: 0 every partition is placed; 1 a partition could not be placed; 2 a log dir is in
    use, or belongs to another cluster; 130 interrupted.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.placing import place_partitions  # noqa: PLC0415 -- as above

    code = place_partitions(
        _loaded(context),
        plan_file,
        log_dirs,
        output,
        parallel=parallel,
        max_rate=max_rate,
        dry_run=dry_run,
    )
    context.exit(code)


@command.command(name="replicate", short_help="Abort open transactions, and add the replicas.")
@_PLAN
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Replicas of every topic.  [default: as in the snapshot of the lost cluster; 1 without a "
    "snapshot]",
)
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def replicate_command(
    context: click.Context,
    *,
    plan_file: Path,
    replication_factor: int | None,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Abort open transactions and give the placed topics their replicas.

    The brokers must be running again. In this order, the command checks that every partition starts
    and ends where the plan says; aborts the transactions that were open at the end of the archive;
    raises the replication factor and waits until all replicas have caught up; uses up the producer
    ids that replicas remember from archived records. It writes the replication factor into PLAN.

    It needs the permission ClusterAction on the new cluster if that cluster has an authorizer.

    \b
    Example:
      sidetier hydrate replicate plan.json --replication-factor 3 --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers refuse, or a partition has no leader; 2 a partition is not
    placed as planned.
    """  # noqa: D301 -- \b is click's marker and must be one character
    _steps("replicate").replicate_topics(
        _loaded(context), plan_file, replication_factor, bootstrap, output, dry_run=dry_run
    )


@command.command(name="verify", short_help="Compare the restored records with the archive.")
@_PLAN
@click.option(
    "--produce",
    "produced",
    multiple=True,
    callback=checked_topics,
    help="Also produce one record to each partition of this topic; repeatable.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Partitions that are compared at the same time.",
)
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def verify_command(
    context: click.Context,
    *,
    plan_file: Path,
    produced: tuple[str, ...],
    parallel: int,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Read everything that was restored, and compare it with the archive.

    For each partition the command compares the bytes of all batches, the last stable offset and the
    aborted transactions. Where they differ, it consumes every record at both isolation levels, and
    compares the number of records, the first and the last offset, and a checksum over keys, values,
    headers and timestamps. For one partition of each topic it always consumes the last 1,000
    records. It also checks look-ups by time and a commit of the group sidetier-hydrate-verify, and
    with --produce it appends a record.

    \b
    Example:
      sidetier hydrate verify plan.json --config old-cluster.yaml

    Exit codes: 0 everything is equal; 1 the archive or the brokers cannot be read; 3 something
    differs.
    """  # noqa: D301 -- \b is click's marker and must be one character
    code: int = _steps("verify").verify_topics(
        _loaded(context), plan_file, produced, bootstrap, output, parallel=parallel
    )
    context.exit(code)


@command.command(name="finish", short_help="Restore configuration, group offsets, ACLs, quotas.")
@_PLAN
@click.option(
    "--cluster/--no-cluster",
    "with_cluster",
    default=None,
    help="Also restore group offsets, ACLs, quotas and the brokers' dynamic configuration from the "
    "snapshots of the lost cluster.  [default: yes, unless the plan has only named topics]",
)
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def finish_command(
    context: click.Context,
    *,
    plan_file: Path,
    with_cluster: bool | None,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Set the topics' real configuration, and restore group offsets, ACLs and quotas.

    Run it after `sidetier hydrate verify`: afterwards the brokers delete records that are older
    than the topics' retention. The values come from the snapshots of the lost cluster. Without a
    snapshot, retention stays unlimited: set it yourself. The command lists a value that the new
    brokers refuse, and leaves it out. It lists leader.replication.throttled.replicas and
    follower.replication.throttled.replicas and does not restore them, because they name brokers of
    the lost cluster.

    \b
    Example:
      sidetier hydrate finish plan.json --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers do not answer; 2 an earlier step was not completed; 3 done,
    but the brokers refuse part of the topics' configuration.
    """  # noqa: D301 -- \b is click's marker and must be one character
    code: int = _steps("finish").finish_topics(
        _loaded(context),
        plan_file,
        bootstrap,
        output,
        with_cluster=with_cluster,
        dry_run=dry_run,
    )
    context.exit(code)


def _steps(step: str) -> Any:  # noqa: ANN401 -- returns a module
    """Import the steps that need the extras."""
    return from_extra(
        lambda: importlib.import_module("sidetier.cli.hydrate.steps"),
        f"sidetier hydrate {step}",
        _LIBRARIES,
        "consumer,mirror",
    )


def _loaded(context: click.Context) -> "Config":
    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    return loaded.config
