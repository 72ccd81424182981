"""The two environments with Spark, and the JVM flags of sessions in them."""

import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from devtools.sandbox.class_data import archive_classes, class_data_flags
from devtools.sandbox.spark_jars import KAFKA_3_5, KAFKA_4_0
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.jars import Distribution
from sidetier.brokers.java import find_java_for_spark

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of Spark: the Python of its environment, and its Kafka source."""

    name: str
    python: Path
    kafka: Distribution

    def __str__(self) -> str:
        return self.name

    @property
    def jvm_flags(self) -> str:
        """JVM flags for a short life: compile once, and quickly, and map archived classes."""
        return " ".join((*_FLAGS, *class_data_flags(self._program, find_java_for_spark())))

    def archive_classes(self) -> Path:
        """Write the archive of a session's classes unless there is one; return its folder.

        Raises:
            JavaMissingError: No complete Java was found.
            LocalServerError: The session failed; the message ends with its output.
        """
        java = find_java_for_spark()

        def run(flag: str) -> None:
            environment = {
                "JAVA_HOME": str(java.home),
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
            }
            completed = subprocess.run(
                [
                    self.python,
                    "-m",
                    "devtools.sandbox.spark_session",
                    " ".join((*_FLAGS, flag)),
                ],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **environment},
            )
            if completed.returncode != 0:
                raise LocalServerError(f"the session of Spark {self} failed:\n{completed.stderr}")

        return archive_classes(self._program, java, run)

    @property
    def _program(self) -> str:
        # The JVM accepts an archive for the class path only that it was written with.
        environment = zlib.crc32(str(self.python).encode())
        return f"spark-{self.name}-{environment:08x}"


SPARK_4 = Version("4.0.0", Path(sys.executable), KAFKA_4_0)
SPARK_35 = Version("3.5.3", ROOT / ".venv-spark35" / "bin" / "python", KAFKA_3_5)
