"""A standalone Spark cluster: a master, and workers on separate hosts from Spark's view.

Spark never starts a speculative attempt on a host that runs or ran the task. So
`local-cluster[...]`, whose workers share a host, has no speculative attempts, and neither has
`local[...]`. Here one worker uses 127.0.0.1, one 127.0.0.2 and so on, with one core each.
"""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from devtools.sandbox.spark import SPARK_4, Version
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.spark import START_SECONDS, SparkDriver, environment_of, spark_driver

TWO_HOSTS = (HOST, "127.0.0.2")
THREE_HOSTS = (*TWO_HOSTS, "127.0.0.3")
"""A killed attempt and its successor may occupy two hosts, so the speculative attempt needs a
third.
"""
EXECUTOR_MEMORY = "512m"
_DEPLOY = "org.apache.spark.deploy"

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "500ms",
    # otherwise a task must have reported its speed
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.task.duration.threshold": "4s",  # for a stage with only one task
}


@contextmanager
def spark_cluster(
    version: Version, directory: Path, hosts: Sequence[str] = TWO_HOSTS
) -> Iterator[dict[str, str]]:
    """Run a cluster, and yield the session settings to run on it and to log its task events."""
    events = directory / "events"
    events.mkdir(parents=True)
    master = f"spark://{HOST}:{free_port()}"
    with ExitStack() as stack:
        processes = [_master(version, directory, master)]
        processes += [_worker(version, directory, master, host) for host in hosts]
        for process in processes:
            stack.callback(process.kill)
            process.start()
        port = int(master.rpartition(":")[2])
        processes[0].wait_until(lambda: is_listening(port), START_SECONDS)
        for process in processes[1:]:
            process.wait_until(partial(_is_registered, process), START_SECONDS)
        yield {
            "spark.master": master,
            "spark.executor.cores": "1",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": version.jvm_flags,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }


@contextmanager
def speculating(directory: Path) -> Iterator[tuple[SparkDriver, Mapping[str, str]]]:
    """Yield a driver on a cluster that speculates, even while a killed attempt is repeated."""
    with spark_cluster(SPARK_4, directory, THREE_HOSTS) as at:
        settings = at | SPECULATION
        with spark_driver(SPARK_4, directory / "driver", settings) as driver:
            yield driver, settings


def speculative_attempts(settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return Spark's event of each finished speculative attempt, killed ones included."""
    [log] = Path(settings["spark.eventLog.dir"].removeprefix("file://")).iterdir()
    lines = log.read_text().splitlines()
    ended = [json.loads(line) for line in lines if '"SparkListenerTaskEnd"' in line]
    return [task_end for task_end in ended if task_end["Task Info"]["Speculative"]]


def _is_registered(worker: ManagedProcess) -> bool:
    return "Successfully registered with master" in worker.command.log.read_text(errors="replace")


def _master(version: Version, directory: Path, url: str) -> ManagedProcess:
    port = url.rpartition(":")[2]
    return _daemon(version, directory, HOST, "master.Master", "--port", port)


def _worker(version: Version, directory: Path, master: str, host: str) -> ManagedProcess:
    work = ("--work-dir", str(directory / f"work-{host}"))
    size = ("--cores", "1", "--memory", EXECUTOR_MEMORY)
    return _daemon(version, directory, host, "worker.Worker", *work, *size, master)


def _daemon(
    version: Version, directory: Path, host: str, name: str, *arguments: str
) -> ManagedProcess:
    line = [str(version.python.parent / "spark-class"), f"{_DEPLOY}.{name}"]
    line += ["--host", host, "--webui-port", "0", *arguments]
    environment = environment_of(version) | {
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": version.jvm_flags,
    }
    log = directory / f"{name}-{host}.log"
    return ManagedProcess(Command(f"{name} at {host}", line, log, environment, directory))


def kill_executors(settings: Mapping[str, str]) -> int:
    """Kill the executors that run Python tasks with SIGKILL, and return their number.

    The workers start new ones. An executor that has run no Python task stays: if Spark started an
    attempt on it just before its death, attempts would have ended on every host, and Spark starts
    no speculative attempt on such a host.
    """
    directory = Path(settings["spark.eventLog.dir"].removeprefix("file://")).parent
    executors, parents = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if not (process / "cwd").resolve().is_relative_to(directory):
                continue
            line = (process / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in line:
                executors.add(int(process.name))
            elif b"pyspark.daemon" in line:
                # `pid (name) state parent`, and the name may have spaces
                parents.add(int((process / "stat").read_text().rpartition(")")[2].split()[1]))
    busy = executors & parents
    for number in busy:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return len(busy)


def executor_logs(settings: Mapping[str, str]) -> str:
    """Return the output of executors and their Python workers."""
    directory = Path(settings["spark.eventLog.dir"].removeprefix("file://")).parent
    logs = directory.glob("work-*/app-*/*/stderr")
    return "".join(log.read_text(errors="replace") for log in sorted(logs))
