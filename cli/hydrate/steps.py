"""Steps of `sidetier hydrate` that read records or transactions: plan, replicate, verify, finish.

Needs the packages of the extras `consumer` and `mirror`.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.tail.survey import TailSurvey, survey
from sidetier.cli.arguments import age_text, most_lines
from sidetier.cli.hydrate.options import (
    FinishOptions,
    PlanOptions,
    ReplicateOptions,
    VerifyOptions,
)
from sidetier.cli.hydrate.placing import CONNECTIONS, cluster_properties
from sidetier.cli.hydrate.view import FinishedResult, PlanResult, ReplicatedResult, VerifiedResult
from sidetier.cli.output import say
from sidetier.cli.stores import open_archive
from sidetier.cli.tail import promote_tails
from sidetier.config.model import Config
from sidetier.mirror.hydrate import steps
from sidetier.mirror.hydrate.plan import HydratePlan, read_plan, write_plan
from sidetier.mirror.hydrate.survey import Cut
from sidetier.segments.errors import ArchiveError, ConfigurationError
from sidetier.segments.names import is_internal_topic
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK

_MAY_BE_ALIVE: Final = 600.0
"""Seconds from its newest tail pack on, in which a cluster may be alive."""


def plan_restore(config: Config, options: PlanOptions) -> PlanResult:
    """Plan the restore from the archive alone.

    Raises:
        ConfigurationError: The plan's file exists, an option does not fit, or nothing is archived.
        SidetierError: The archive cannot be read.
    """
    plan_file = options.plan_file
    if plan_file.exists() and not options.dry_run:
        raise ConfigurationError(
            f"{plan_file} exists: a plan is never replaced, because steps may have used it; give "
            "another name, or remove it"
        )
    consistent = options.transaction_consistent
    with open_archive(config, connections=CONNECTIONS) as archive:
        archive.require_directories()
        cut = _cut(options.until, options.until_offsets)
        tails = None if options.with_tail is False else _promoted_tails(config, archive, options)
        plan = steps.plan_restore(archive, steps.PlanRequest(options.topics, cut, consistent))
    if not options.dry_run:
        write_plan(plan_file, plan)
    is_unproven = consistent and not plan.has_whole_transactions
    return PlanResult(plan, None if options.dry_run else str(plan_file), is_unproven, tails)


def _promoted_tails(config: Config, archive: ArchiveAccess, options: PlanOptions) -> TailSurvey:
    """Promote the tails of the wanted topics, and return them as they were before.

    Raises:
        ConfigurationError: The cluster may be alive, and --tail is not given.
        ArchiveError: A tail was not promoted. The plan would silently restore less.
    """

    def wanted(topic: str) -> bool:
        return topic in options.topics if options.topics else not is_internal_topic(topic)

    found = survey(archive, selects=wanted)
    if options.dry_run:
        return found
    if options.with_tail is None:
        _require_lost_cluster(found)
    done = promote_tails(config, archive, found.partitions, options.work_dir)
    failed = [each for each in done if each.problem]
    if failed:
        lines = [f"{each.tail.tp}: {each.problem}" for each in failed]
        raise ArchiveError(
            "\n".join(
                [
                    f"the tails of {len(failed)} partitions are not promoted, or not completely:",
                    *most_lines(lines),
                    "repeat the command; --no-tail plans without the records that are missing",
                ]
            )
        )
    return found


def _require_lost_cluster(found: TailSurvey) -> None:
    """Refuse to write to the archive of a cluster that has just stored a pack: a rehearsal must not
    change it by surprise.
    """
    if not any(tail.has_records for tail in found.partitions):
        return
    age = SYSTEM_CLOCK.wall() - max(broker.newest_ms for broker in found.brokers) / 1000
    if age < _MAY_BE_ALIVE:
        raise ConfigurationError(
            f"the newest tail pack is {age_text(max(age, 0.0))} old, so the cluster may be alive: "
            "--tail promotes the records of packs nevertheless, and writes to its archive; "
            "--no-tail plans without them, and writes nothing to the store"
        )


def replicate_topics(config: Config, options: ReplicateOptions) -> ReplicatedResult:
    """Abort open transactions, and give the placed topics their replicas."""
    plan = _with_factor(read_plan(options.plan_file), options.replication_factor)
    report = steps.replicate_topics(
        plan,
        cluster_properties(config, options.bootstrap),
        dry_run=options.dry_run,
        # First the plan: `finish` compares the replicas with the factor in it, also if this step is
        # interrupted and repeated without --replication-factor.
        before_change=partial(write_plan, options.plan_file, plan),
        on_missing=lambda missing: say(f"{missing} partitions wait for replicas to catch up"),
    )
    return ReplicatedResult(report)


def verify_topics(config: Config, options: VerifyOptions) -> VerifiedResult:
    """Compare all restored partitions with the archive."""
    plan = read_plan(options.plan_file)
    properties = cluster_properties(config, options.bootstrap)
    with open_archive(config, connections=CONNECTIONS) as archive:
        report = steps.verify_topics(
            archive,
            plan,
            properties,
            produced=options.produced,
            parallel=options.parallel,
        )
    return VerifiedResult(report)


def finish_topics(config: Config, options: FinishOptions) -> FinishedResult:
    """Set the topics' real configuration, and restore the cluster's state."""
    plan = read_plan(options.plan_file)
    properties = cluster_properties(config, options.bootstrap)
    with open_archive(config) as archive:
        report = steps.finish_topics(
            archive,
            plan,
            properties,
            with_cluster=options.with_cluster,
            dry_run=options.dry_run,
        )
    return FinishedResult(report)


def _cut(until: int | None, until_offsets: Path | None) -> Cut:
    if until is not None and until_offsets is not None:
        raise ConfigurationError("--until and --until-offsets exclude each other")
    return Cut(until, None if until_offsets is None else _offsets(until_offsets))


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
