"""Start reads on Spark: the session's settings, the process, and its result."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.sandbox.spark_jars import KAFKA_4_0, spark_jars
from sidetier.brokers.java import find_java_for_spark
from sidetier.brokers.processes import Command, ManagedProcess

_TIMEOUT = 1800.0


@dataclass(frozen=True, slots=True)
class SparkRead:
    """One way to read, run once."""

    way: str
    topic: str
    seconds: float
    cpu_seconds: float


def spark_session(slots: int, directory: Path) -> dict[str, Any]:
    """Return master and configuration of a local session with this number of task slots."""
    conf = {
        "spark.jars": spark_jars(KAFKA_4_0),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory / "local"),
    }
    return {"master": f"local[{slots}]", "conf": conf}


def run_spark_reads(
    parameters: Mapping[str, Any], environment: Mapping[str, str], directory: Path
) -> list[SparkRead]:
    """Run `spark_reading.py` as a process of its own kernel session, and return its reads.

    Args:
        parameters: What `spark_reading.py` reads: `topics` (for each topic the end offset of each
            partition), `sinks`, `sinks_of`, `sides`, `servers` (the sides that are Kafka servers),
            `stores` (the sides that are archives), `runs`, `tasks`, `output`, and the session.
        environment: Environment variables with the store's keys.
        directory: Directory of the log and of the result.
    """
    program = Path(__file__).with_name("spark_reading.py")
    output = directory / "reads.json"
    line = [sys.executable, str(program), json.dumps({**parameters, "found": str(output)})]
    log = directory / "spark.log"
    variables = {
        **environment,
        "PYTHONPATH": str(program.parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java_for_spark().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with ManagedProcess(Command("Spark", line, log, variables)) as process:
        process.start()
        if process.wait(_TIMEOUT) != 0:
            raise RuntimeError(f"Spark has failed\n{process.log_tail()}")
    return [SparkRead(**row) for row in json.loads(output.read_text())]
