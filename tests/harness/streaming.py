"""Kafka Streams, Kafka Connect and Flink, which read from an endpoint and write to brokers."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from devtools.sandbox.kafka_clients import FILE_CONNECTORS, FLINK, MIRROR_MAKER, STREAMS
from sidetier.brokers.jars import Distribution, class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka import JVM_FLAGS, logging_flags, write_properties
from sidetier.brokers.ports import HOST, free_port
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.ci import STALL_SECONDS

_STREAMS_APPLICATION = Path(__file__).with_name("java") / "StreamsApplication.java"
_FLINK_APPLICATION = Path(__file__).with_name("java") / "FlinkApplication.java"
_HTTP_SECONDS = 60.0
_NOT_YET = frozenset({404, 409, 500, 503})
"""HTTP status while a worker starts, and during a rebalance."""

Settings = Mapping[str, str]


def java_process(
    name: str,
    root: Path,
    jars: Sequence[Distribution],
    arguments: Sequence[str | Path],
    *classes: Path,
) -> ManagedProcess:
    """Return a Java program that is not started, with all its files in a directory."""
    folders = [*map(str, classes), *(class_path(jars_of(each)) for each in jars)]
    is_log4j2 = any(jars_of(each).glob("log4j-core-*.jar") for each in jars)
    flags = [*JVM_FLAGS, *logging_flags(root, log4j2=is_log4j2), f"-Djava.io.tmpdir={root}"]
    line = [find_java().program, *flags, "-cp", ":".join(folders), *arguments]
    return ManagedProcess(Command(name, line, root / "log", directory=root))


def streams_applications(root: Path, version: str, *applications: Settings) -> ManagedProcess:
    """Return a process with applications of Kafka Streams, whose state is in `root`."""
    root.mkdir(exist_ok=True)
    files = [root / f"{each['application.id']}.properties" for each in applications]
    for file, settings in zip(files, applications, strict=True):
        write_properties(file, {"state.dir": str(root / "state"), **settings})
    program = f"Kafka Streams {version}"
    return java_process(program, root, [STREAMS[version]], [_STREAMS_APPLICATION, *files])


def flink_job(root: Path, source: Settings, target: str, name: str) -> ManagedProcess:
    """Return a process with a job, which continues at its newest checkpoint in `root`, if any.

    Args:
        root: Directory of the checkpoints and the log.
        source: Properties of the source.
        target: The address to write to.
        name: The group, and the topic to write to.
    """
    classes, checkpoints = root / "classes", root / "checkpoints"
    if not classes.is_dir():
        classes.mkdir(parents=True)
        # Flink loads classes by name: those of a program that Java compiles itself are not found.
        compiler = (find_java().program, "-m", "jdk.compiler/com.sun.tools.javac.Main")
        jars = ":".join(map(str, jars_of(FLINK).glob("*.jar")))  # only `java` knows `*`
        options = ("-d", classes, "-cp", jars, _FLINK_APPLICATION)
        subprocess.run([*map(str, (*compiler, *options))], check=True)
    properties = root / "source.properties"
    write_properties(properties, source)
    arguments = ["FlinkApplication", str(properties), target, name, name, str(checkpoints)]
    found = checkpoints.glob("*/chk-*/_metadata")
    newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is not None:
        arguments.append(str(newest.parent))
    return java_process("Flink", root, [FLINK], arguments, classes)


class ConnectWorker:
    """A worker of Kafka Connect in distributed mode, alone in its group.

    Args:
        root: Directory of the configuration and the log.
        bootstrap: The brokers, which keep the worker's topics.
        settings: Further settings of the worker.
    """

    def __init__(self, root: Path, bootstrap: str, settings: Settings) -> None:
        root.mkdir(exist_ok=True)
        self._url = f"http://{HOST}:{free_port()}"
        config = root / "worker.properties"
        write_properties(config, {**self._settings(bootstrap), **settings})
        program = ("org.apache.kafka.connect.cli.ConnectDistributed", config)
        jars = (MIRROR_MAKER, FILE_CONNECTORS)
        self.process = java_process("Kafka Connect", root, jars, program)

    def _settings(self, bootstrap: str) -> dict[str, str]:
        kept = {name: f"connect-{name}" for name in ("offset", "config", "status")}
        return {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "listeners": self._url,
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{name}.storage.topic": topic for name, topic in kept.items()},
            **{f"{name}.storage.replication.factor": "1" for name in kept},
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "300",
            # For a worker that was killed and comes back.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
        }

    def configure(self, connector: str, config: Settings) -> None:
        """Create a connector, as soon as the worker answers."""
        url = f"{self._url}/connectors/{connector}/config"
        body = json.dumps(dict(config)).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(url, body, headers, method="PUT")  # noqa: S310 - of this machine
        self.process.wait_until(lambda: self._accepts(request), 90 + STALL_SECONDS)

    def _accepts(self, request: Request) -> bool:
        try:
            with urlopen(request, timeout=_HTTP_SECONDS) as answer:  # noqa: S310
                return bool(answer.status < 300)
        except HTTPError as error:
            if error.code not in _NOT_YET:
                raise AssertionError(error.read().decode()) from error
            return False
        except URLError:
            return False
