"""The driver of a copy in Spark tasks, from the session to the verdict."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sidetier.config.secrets import is_secret_property
from sidetier.config.types import References
from sidetier.mirror.copy.engine import Counts, PartitionLag, summed
from sidetier.mirror.copy.run import CopyReport, CopyRequest
from sidetier.mirror.copy.source import OnGap
from sidetier.mirror.spark_copy import PartitionTask, SparkCopy, TaskOutcome, unfinished
from sidetier.segments.errors import (
    BrokerError,
    ConfigurationError,
    MirrorError,
    SidetierError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import committed_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS: Final = 1.0
_STABLE_SECONDS: Final = 10.0
_MAX_SHOWN: Final = 20
_CAUSE: Final = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a running copy has left.

    Attributes:
        partitions: Number of partitions that are not complete.
        of_partitions: Number of all partitions with a task.
        offsets: Number of offsets, including markers and aborted records.
    """

    partitions: int
    of_partitions: int
    offsets: int


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs copies in Spark tasks, one for each partition, instead of in this process.

    Attributes:
        session: Opens the Spark session. Raises ConfigurationError.
        on_remaining: Called every second with what is left; costs a request to the target. None to
            not ask.
    """

    session: Callable[[str], AbstractContextManager["SparkSession"]]
    on_remaining: Callable[[Remaining], None] | None = None


def check_spark_request(
    request: CopyRequest, clients: Mapping[str, References], *, has_registry: bool
) -> None:
    """Refuse what a copy in Spark tasks cannot do.

    Args:
        request: What is copied.
        clients: Client properties of the clusters, by the option that names them.
        has_registry: Whether metrics are wanted.

    Raises:
        ConfigurationError: The text names the option and the remedy.
    """
    if request.on_gap is OnGap.SKIP:
        raise ConfigurationError(
            "--on-gap skip is for --engine local: an attempt of a task that is killed could not "
            "report its gaps. Copy with --engine spark first; it ends at the gap and names it. The "
            "same command with --engine local --on-gap skip continues from that gap"
        )
    if has_registry:
        raise ConfigurationError(
            "--metrics-port is for --engine local: the records pass through Spark's executors"
        )
    for cluster, properties in clients.items():
        for name, value in sorted(properties.items()):
            if is_secret_property(name) and isinstance(value, str):
                raise ConfigurationError(
                    f"--{cluster}-config has the secret {name}, which --engine spark does not "
                    f"send to executors: give --{cluster} {name}=env:NAME or {name}=file:/path, "
                    "which exists on the driver and on each executor"
                )


def copy_on_spark(
    engine: SparkEngine,
    copy: SparkCopy,
    target: Cluster,
    stop: threading.Event,
    *,
    planned: Sequence[PartitionTask],
    check: Callable[[], None] = lambda: None,
) -> CopyReport:
    """Run the tasks until all have ended, or `stop` is set.

    Args:
        engine: Spark.
        copy: The tasks. Those that run at the same time share its bandwidth limit.
        target: Client of the target, to read the progress.
        stop: Cancels the tasks when it is set.
        planned: The whole copy. A complete partition has no task, but its progress disappears if
            its topic is deleted on the target while the tasks run.
        check: Called every second; the tasks are cancelled as soon as it raises a SidetierError.

    Raises:
        ConfigurationError: Spark is not installed or does not start.
        MirrorError: Partitions are incomplete on the target; the text names them and the cause.
    """
    started = time.monotonic()
    if not copy.tasks:
        return CopyReport(Counts(), 0.0)

    def watch() -> None:
        check()
        if engine.on_remaining is not None:
            with suppress(BrokerError):  # the tasks find out whether the target is lost
                engine.on_remaining(_remaining(copy, _progress(copy, target)))

    with engine.session(f"sidetier {copy.names.kind} {copy.names.name}") as spark:
        capped = _capped(copy, spark.sparkContext.defaultParallelism)
        outcomes, failure = _run_job(spark, capped, stop, watch)
    with_task = set(copy.tasks)
    all_tasks = (*copy.tasks, *(task for task in planned if task not in with_task))
    progress = _final_progress(copy, all_tasks, target)
    missing = unfinished(all_tasks, progress, outcomes)
    if missing and not stop.is_set():
        raise MirrorError(verdict(missing, failure))
    counts = summed(outcome.counts for outcome in outcomes.values())
    for task in copy.tasks:
        reached = progress.get(task.copy.target, task.start)
        counts.lags[task.copy.source] = PartitionLag(reached, task.end)
    return CopyReport(counts, time.monotonic() - started)


def _capped(copy: SparkCopy, slots: int) -> SparkCopy:
    """Return the copy with an equal share of the bandwidth for each task that runs at once."""
    rate = copy.limits.bytes_per_second
    if rate is None:
        return copy
    share = max(rate // min(len(copy.tasks), slots), 1)
    return replace(copy, limits=replace(copy.limits, bytes_per_second=share))


def _run_job(
    spark: "SparkSession",
    copy: SparkCopy,
    stop: threading.Event,
    watch: Callable[[], None],
) -> tuple[dict[int, TaskOutcome], BaseException | None]:
    """Return the outcomes, and the error that ended the job, if any."""
    outcomes: dict[int, TaskOutcome] = {}
    failures: list[BaseException] = []
    ended = threading.Event()
    group = copy.names.group

    def run() -> None:
        try:
            # A job group belongs to the thread that sets it. With interruptOnCancel, Spark kills
            # the Python worker of a cancelled task.
            spark.sparkContext.setJobGroup(group, f"sidetier: {group}", interruptOnCancel=True)
            outcomes.update(copy.run(spark))
        except BaseException as error:  # noqa: BLE001 -- the verdict names it
            failures.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="spark-copy")
    thread.start()
    try:
        while not (ended.wait(_LOOK_SECONDS) or stop.is_set()):
            watch()
    except SidetierError as error:
        failures.append(error)
    finally:
        # Repeated, because a job that starts after the call is not cancelled by it.
        while not ended.wait(_LOOK_SECONDS):
            spark.sparkContext.cancelJobGroup(group)
        thread.join()
    return outcomes, failures[0] if failures else None


def _progress(copy: SparkCopy, target: Cluster) -> dict[TopicPartition, Offset]:
    tps = [task.copy.target for task in copy.tasks]
    offsets = committed_offsets(target, copy.names.group, tps, require_stable=False)
    return {tp: committed.offset for tp, committed in offsets.items()}


def _final_progress(
    copy: SparkCopy, every: Sequence[PartitionTask], target: Cluster
) -> dict[TopicPartition, Offset]:
    """Return the progress after the job has ended.

    Right after a commit the group still has the offsets before it; a request for stable offsets
    waits for the commit. The transaction of a killed task stays open for longer, and its progress
    does not count.
    """
    tps, group = [task.copy.target for task in every], copy.names.group
    try:
        offsets = committed_offsets(target, group, tps, timeout=_STABLE_SECONDS)
    except BrokerError:
        offsets = committed_offsets(target, group, tps, require_stable=False)
    return {tp: committed.offset for tp, committed in offsets.items()}


def _remaining(copy: SparkCopy, progress: Mapping[TopicPartition, Offset]) -> Remaining:
    left = [max(task.end - progress.get(task.copy.target, task.start), 0) for task in copy.tasks]
    return Remaining(sum(1 for count in left if count), len(left), sum(left))


def verdict(missing: list[str], failure: BaseException | None) -> str:
    """Return the message about partitions that are incomplete.

    Args:
        missing: One line for each.
        failure: The error that ended the job, if any.
    """
    lines = [f"{len(missing)} partitions are incomplete; the same command continues the copy"]
    lines += missing[:_MAX_SHOWN]
    if len(missing) > _MAX_SHOWN:
        lines.append(f"and {len(missing) - _MAX_SHOWN} more")
    if failure is not None:
        lines.append(f"the job has failed: {_cause(failure)}")
    return "\n".join(lines)


def _cause(failure: BaseException) -> str:
    """Return the last error in Spark's text, which begins with the trace of Spark's own calls."""
    if isinstance(failure, SidetierError):
        return str(failure)
    causes = _CAUSE.findall(str(failure))
    lines = str(failure).strip().splitlines()
    return causes[-1] if causes else (lines[0] if lines else "it does not say why")
