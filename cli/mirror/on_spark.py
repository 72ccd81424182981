"""`--engine spark` of `mirror` and `restore`: the driver, from the session to the verdict.

Needs the packages of the extras `mirror` and `spark`.
"""

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli.export.spark_session import spark_session
from sidetier.cli.mirror.view import CopyResult
from sidetier.config.secrets import is_secret_property
from sidetier.config.types import References
from sidetier.mirror.copy.engine import Counts, PartitionLag, summed
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

SPARK: Final = "spark"
_LOOK_SECONDS: Final = 1.0
_STABLE_SECONDS: Final = 10.0
_MOST_SHOWN: Final = 20
_CAUSE: Final = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .+$", re.MULTILINE)


def require_engine(given: Mapping[str, Any], clients: Mapping[str, References]) -> None:
    """Refuse options that do not fit the engine.

    Args:
        given: The command's options.
        clients: Client properties of the clusters, by the option that names them.

    Raises:
        ConfigurationError: An option does not fit; the text names it and says what to do.
    """
    if given["engine"] != SPARK:
        if given["master"] is not None:
            raise ConfigurationError("--master is for --engine spark")
        return
    if given["on_gap"] == OnGap.SKIP:
        raise ConfigurationError(
            "--on-gap skip is for --engine local: an attempt of a task that is killed could not "
            "report its gaps. Copy with --engine spark first; it ends at the gap and names it. The "
            "same command with --engine local --on-gap skip continues from that gap"
        )
    if given["metrics_port"] is not None:
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
    copy: SparkCopy,
    master: str,
    target: Cluster,
    stop: threading.Event,
    *,
    planned: Sequence[PartitionTask],
    check: Callable[[], None] = lambda: None,
) -> CopyResult:
    """Run the tasks until all have ended, or a signal sets `stop`.

    Args:
        copy: The tasks. Those that run at the same time share its bandwidth limit.
        master: Spark master.
        target: Client of the target, to read the progress.
        stop: Set by a signal.
        planned: The whole copy. A complete partition has no task, but its progress disappears if
            its topic is deleted on the target while the tasks run.
        check: Called every second; the tasks are cancelled as soon as it raises a SidetierError.

    Raises:
        ConfigurationError: Spark is not installed or does not start.
        MirrorError: Partitions are incomplete on the target; the text names them and the cause.
    """
    started = time.monotonic()
    if not copy.tasks:
        return CopyResult(Counts(), 0.0)
    name = f"sidetier {copy.names.kind} {copy.names.name}"
    with spark_session(master, name, option="--engine spark") as spark:
        # After the session's start, in which PySpark installs its own handler of SIGINT.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        capped = _capped(copy, spark.sparkContext.defaultParallelism)
        outcomes, failure = _run_job(spark, capped, target, stop, check)
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
    return CopyResult(counts, time.monotonic() - started)


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
    target: Cluster,
    stop: threading.Event,
    check: Callable[[], None],
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
        _watch(copy, target, check, lambda: ended.wait(_LOOK_SECONDS) or stop.is_set())
    except SidetierError as error:
        failures.append(error)
    finally:
        # Repeated, because a job that starts after the call is not cancelled by it.
        while not ended.wait(_LOOK_SECONDS):
            spark.sparkContext.cancelJobGroup(group)
        thread.join()
    return outcomes, failures[0] if failures else None


def _watch(
    copy: SparkCopy, target: Cluster, check: Callable[[], None], is_over: Callable[[], bool]
) -> None:
    """Check, and show the progress on a terminal, until the job has ended or must end."""
    is_terminal = sys.stderr.isatty()
    while not is_over():
        check()
        if is_terminal:
            with suppress(BrokerError):  # the tasks find out whether the target is lost
                _show(copy, _progress(copy, target))
    if is_terminal:
        click.echo(err=True)


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


def _show(copy: SparkCopy, progress: Mapping[TopicPartition, Offset]) -> None:
    remaining = [
        max(task.end - progress.get(task.copy.target, task.start), 0) for task in copy.tasks
    ]
    click.echo(
        f"\r{sum(1 for count in remaining if count)} of {len(remaining)} partitions, "
        f"{sum(remaining)} offsets left\x1b[K",
        nl=False,
        err=True,
    )


def verdict(missing: list[str], failure: BaseException | None) -> str:
    """Return the message about partitions that are incomplete.

    Args:
        missing: One line for each.
        failure: The error that ended the job, if any.
    """
    lines = [f"{len(missing)} partitions are incomplete; the same command continues the copy"]
    lines += missing[:_MOST_SHOWN]
    if len(missing) > _MOST_SHOWN:
        lines.append(f"and {len(missing) - _MOST_SHOWN} more")
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
