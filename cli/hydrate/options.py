"""Options of the steps of `sidetier hydrate`."""

from pathlib import Path
from typing import Any, Final

import click

from sidetier.cli.arguments import BOOTSTRAP, EXISTING_FILE, SIZE, TIME, topic_name
from sidetier.cli.options import CommandOptions, argument, option, options

_PLAN: Final[Any] = argument(metavar="PLAN")
_DRY_RUN: Final[Any] = option("--dry-run", help="Show what would be done; change nothing.")


@options
class PlanOptions(CommandOptions):
    """Options of `sidetier hydrate plan`."""

    plan_file: Path = _PLAN
    topics: tuple[str, ...] = option(
        "-t",
        "--topic",
        parse=topic_name,
        help="Topic to restore; repeatable.  [default: every archived topic but Kafka's internal "
        "ones]",
    )
    until: int | None = option(
        "--until",
        type=TIME,
        help="Restore up to the first record of this time, such as 2026-11-22T10:00:00Z (UTC "
        "without a zone) or 2h (before now).",
    )
    until_offsets: Path | None = option(
        "--until-offsets",
        type=EXISTING_FILE,
        help="Restore up to these offsets (exclusive). One line each: topic, partition, offset.",
    )
    transaction_consistent: bool = option(
        "--transaction-consistent",
        help="Lower the ends of partitions until no transaction is committed in one partition and "
        "cut off in another. Transactions of version 2 (Kafka 4) only; the others are reported.",
    )
    with_tail: bool | None = option(
        "--tail/--no-tail",
        default=None,
        help="First promote the tail packs of these topics, as `sidetier tail promote` does.  "
        "[default: yes; if a pack is younger than 10 minutes, the cluster may be alive, and one of "
        "the two is required]",
    )
    work_dir: Path | None = option(
        "--work-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="Directory for the segments of promoted tails, as for `sidetier tail promote`.",
    )
    dry_run: bool = option(
        "--dry-run", help="Show the plan, and what tail packs add; write nothing."
    )


@options
class PrepareOptions(CommandOptions):
    """Options of `sidetier hydrate prepare`."""

    plan_file: Path = _PLAN
    dry_run: bool = _DRY_RUN
    bootstrap: str | None = BOOTSTRAP


@options
class PlaceOptions(CommandOptions):
    """Options of `sidetier hydrate place`."""

    plan_file: Path = _PLAN
    log_dirs: tuple[Path, ...] = option(
        "--log-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Log dir of the stopped broker; repeatable.  [default: log_dirs]",
    )
    parallel: int = option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=4,
        help="Partitions that are placed at the same time.",
    )
    max_rate: int | None = option(
        "--max-rate",
        type=SIZE,
        help="Maximum bytes read per second, such as 200MiB.",
    )
    dry_run: bool = _DRY_RUN


@options
class ReplicateOptions(CommandOptions):
    """Options of `sidetier hydrate replicate`."""

    plan_file: Path = _PLAN
    replication_factor: int | None = option(
        "--replication-factor",
        type=click.IntRange(1, 32767),
        help="Replicas of every topic.  [default: as in the snapshot of the lost cluster; 1 "
        "without a snapshot]",
    )
    dry_run: bool = _DRY_RUN
    bootstrap: str | None = BOOTSTRAP


@options
class VerifyOptions(CommandOptions):
    """Options of `sidetier hydrate verify`."""

    plan_file: Path = _PLAN
    produced: tuple[str, ...] = option(
        "--produce",
        parse=topic_name,
        help="Also produce one record to each partition of this topic; repeatable.",
    )
    parallel: int = option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=4,
        help="Partitions that are compared at the same time.",
    )
    bootstrap: str | None = BOOTSTRAP


@options
class FinishOptions(CommandOptions):
    """Options of `sidetier hydrate finish`."""

    plan_file: Path = _PLAN
    with_cluster: bool | None = option(
        "--cluster/--no-cluster",
        default=None,
        help="Also restore group offsets, ACLs, quotas and the brokers' dynamic configuration from "
        "the snapshots of the lost cluster.  [default: yes, unless the plan has only named topics]",
    )
    dry_run: bool = _DRY_RUN
    bootstrap: str | None = BOOTSTRAP
