"""Spark sessions for tests: one process for each version, in its own environment."""

import json
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devtools.sandbox.spark import ROOT, SPARK_4, Version
from devtools.sandbox.spark_jars import spark_jars
from sidetier.brokers.jars import Distribution
from sidetier.brokers.java import find_java_for_spark
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.ci import STALL_SECONDS

START_SECONDS = 120.0 + STALL_SECONDS
CALL_SECONDS = 400.0 + STALL_SECONDS

SETTINGS = {
    "spark.master": "local[2,2]",  # a task may fail once
    "spark.driver.memory": "700m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class SparkCallError(AssertionError):
    """The called function raised an error; `kind` is the name of its class."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class SparkDriver:
    """A session in a separate process. It calls functions in modules of the tests."""

    def __init__(self, version: Version, process: ManagedProcess, lines: Any) -> None:  # noqa: ANN401 -- a file over a socket
        self.version = version
        self.process = process
        self._lines = lines

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:  # noqa: ANN401 -- JSON
        """Call a function of a module with the session; SparkCallError if it raises."""
        name = f"{function.__module__}:{function.__name__}"
        self._lines.write(json.dumps({"call": name, "with": arguments}) + "\n")
        self._lines.flush()
        return self.answer()

    def answer(self) -> Any:  # noqa: ANN401
        line = self._lines.readline()
        if not line:
            raise AssertionError(f"the driver has ended\n{self.process.log_tail(60)}")
        response = json.loads(line)
        if "raised" in response:
            raise SparkCallError(response["raised"], response["kind"])
        return response["returned"]

    def log(self) -> str:
        """Return the output of the driver, its JVM and its workers."""
        return self.process.command.log.read_text(errors="replace")


@contextmanager
def spark_driver(
    version: Version,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *distributions: Distribution,
) -> Iterator[SparkDriver]:
    """Yield a session; no process outlives the block."""
    if not version.python.is_file():
        raise AssertionError(f"{version.python} is missing: `make setup-spark35` makes it")
    session_settings = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": version.jvm_flags,
        "spark.jars": spark_jars(version.kafka, *distributions),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **(settings or {}),
    }
    with _listening() as (listener, address):
        program = [str(version.python), "-m", "tests.harness.spark_driver"]
        arguments = [*program, address, json.dumps(session_settings)]
        environment = environment_of(version)
        log = directory / "driver.log"
        # A killed session leaves Spark's directories in its working directory.
        command = Command(f"Spark {version}", arguments, log, environment, directory)
        process = ManagedProcess(command)
        try:
            process.start()
            listener.settimeout(0.1)
            connections: list[socket.socket] = []
            process.wait_until(lambda: _accepted(listener, connections), START_SECONDS)
            with connections[0] as connection:
                connection.settimeout(CALL_SECONDS)
                with connection.makefile("rw", encoding="utf-8") as lines:
                    driver = SparkDriver(version, process, lines)
                    driver.answer()
                    yield driver
            process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()


def quiet_spark(directory: Path) -> dict[str, str]:
    """Return environment variables that give these settings to a program's own Spark session."""
    settings = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": SPARK_4.jvm_flags,
        "spark.local.dir": str(directory / "local"),
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = shlex.join([*words, "pyspark-shell"])
    return {**environment_of(SPARK_4), "PYSPARK_SUBMIT_ARGS": submit}


def environment_of(version: Version) -> dict[str, str]:
    return {
        "JAVA_HOME": str(find_java_for_spark().home),
        "PYSPARK_PYTHON": str(version.python),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",  # this tree, also if another one is installed
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def _listening() -> Iterator[tuple[socket.socket, str]]:
    """Open a socket outside the test's directory, because the path of a socket must be short."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = f"{folder}/driver"
        listener.bind(address)
        listener.listen(1)
        yield listener, address


def _accepted(listener: socket.socket, connections: list[socket.socket]) -> bool:
    try:
        connections.append(listener.accept()[0])
    except TimeoutError:
        return False
    return True
