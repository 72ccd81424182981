"""Steps of `sidetier hydrate` that read records or transactions: plan, replicate, verify, finish.

Needs the packages of the extras `consumer` and `mirror`.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from sidetier.cli import exits
from sidetier.cli.hydrate.placing import CONNECTIONS, cluster_properties, topic_admin
from sidetier.cli.hydrate.view import FinishedResult, PlanResult, ReplicatedResult, VerifiedResult
from sidetier.cli.output import OutputFormat, emit, say
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.times import parse_time
from sidetier.mirror.hydrate import steps
from sidetier.mirror.hydrate.plan import HydratePlan, read_plan, write_plan
from sidetier.mirror.hydrate.survey import Cut
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK


def plan_restore(  # noqa: PLR0913 -- one parameter for each option
    config: Config,
    plan_file: Path,
    topics: Collection[str],
    until: str | None,
    until_offsets: Path | None,
    output: OutputFormat,
    *,
    transaction_consistent: bool,
    dry_run: bool,
) -> int:
    """Plan the restore from the archive alone; return the exit code.

    Raises:
        ConfigurationError: The plan's file exists, an option does not fit, or nothing is archived.
        SidetierError: The archive cannot be read.
    """
    if plan_file.exists() and not dry_run:
        raise ConfigurationError(
            f"{plan_file} exists: a plan is never replaced, because steps may have used it; give "
            "another name, or remove it"
        )
    with open_archive(config, connections=CONNECTIONS) as archive:
        archive.require_directories()
        cut = _cut(until, until_offsets)
        plan = steps.plan_restore(
            archive, steps.PlanRequest(tuple(topics), cut, transaction_consistent)
        )
    if not dry_run:
        write_plan(plan_file, plan)
    emit(PlanResult(plan, None if dry_run else str(plan_file)), output)
    gaps = any(partition.gaps for partition in plan.partitions)
    unproven = transaction_consistent and not plan.has_whole_transactions
    return exits.FINDINGS if gaps or unproven else exits.OK


def replicate_topics(
    config: Config,
    plan_file: Path,
    replication_factor: int | None,
    bootstrap: str | None,
    output: OutputFormat,
    *,
    dry_run: bool,
) -> None:
    """Abort open transactions, and give the placed topics their replicas."""
    plan = _with_factor(read_plan(plan_file), replication_factor)

    def show(missing: int) -> None:
        say(f"{missing} partitions wait for replicas to catch up")

    report = steps.replicate_topics(
        plan,
        topic_admin(config, bootstrap),
        cluster_properties(config, bootstrap),
        dry_run=dry_run,
        # First the plan: `finish` compares the replicas with the factor in it, also if this step is
        # interrupted and repeated without --replication-factor.
        before_change=partial(write_plan, plan_file, plan),
        on_missing=show,
    )
    emit(ReplicatedResult(report), output)


def verify_topics(
    config: Config,
    plan_file: Path,
    produced: Collection[str],
    bootstrap: str | None,
    output: OutputFormat,
    *,
    parallel: int,
) -> int:
    """Compare all restored partitions with the archive; return the exit code."""
    plan = read_plan(plan_file)
    admin = topic_admin(config, bootstrap)
    properties = cluster_properties(config, bootstrap)
    with open_archive(config, connections=CONNECTIONS) as archive:
        report = steps.verify_topics(
            archive, plan, admin, properties, produced=produced, parallel=parallel
        )
    emit(VerifiedResult(report), output)
    return exits.FINDINGS if report.differs else exits.OK


def finish_topics(
    config: Config,
    plan_file: Path,
    bootstrap: str | None,
    output: OutputFormat,
    *,
    with_cluster: bool | None,
    dry_run: bool,
) -> int:
    """Set the topics' real configuration, and restore the cluster's state; return the exit code."""
    plan = read_plan(plan_file)
    admin = topic_admin(config, bootstrap)
    properties = cluster_properties(config, bootstrap)
    with open_archive(config) as archive:
        report = steps.finish_topics(
            archive, plan, admin, properties, with_cluster=with_cluster, dry_run=dry_run
        )
    emit(FinishedResult(report), output)
    return exits.FINDINGS if any(report.refused.values()) else exits.OK


def _cut(until: str | None, until_offsets: Path | None) -> Cut:
    if until is not None and until_offsets is not None:
        raise ConfigurationError("--until and --until-offsets exclude each other")
    return Cut(
        None if until is None else _milliseconds(until),
        None if until_offsets is None else _offsets(until_offsets),
    )


def _milliseconds(text: str) -> int:
    try:
        return parse_time(text, int(SYSTEM_CLOCK.wall() * 1000))
    except ValueError as error:
        raise ConfigurationError(f"--until: {error}") from None


def _offsets(file: Path) -> dict[TopicPartition, Offset]:
    offsets = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        except ValueError:
            raise ConfigurationError(
                f"{file}: line {number}: expected topic, partition and offset, got {line!r}"
            ) from None
    return offsets


def _with_factor(plan: HydratePlan, factor: int | None) -> HydratePlan:
    if factor is None:
        return plan
    topics = {
        name: replace(topic, replication_factor=factor) for name, topic in plan.topics.items()
    }
    return replace(plan, topics=topics)
