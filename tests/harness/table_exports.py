"""Exports into tables, by drivers that can be killed, and what a consumer read of the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sidetier.sandbox.jars import Distribution
from sidetier.sandbox.spark_jars import HUDI_3_5, ICEBERG_3_5, ICEBERG_4_0, spark_jars
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import BrokerSegment
from tests.harness.made_archive import MadeArchive

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "segments"
LAYOUT = ArchiveLayout("prod-a", 5)
_QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True)
class Environment:
    """A Python with a Spark, and the jar of a format."""

    name: str
    python: Path
    jars: Distribution

    def conf(self, **more: str) -> list[str]:
        """Settings of its session, as the command line takes them."""
        settings = {**_QUICK, "spark.jars": spark_jars(self.jars), **more}
        return [
            text for name, value in settings.items() for text in ("--spark-conf", f"{name}={value}")
        ]


SPARK_35 = ROOT / ".venv-spark35" / "bin" / "python"
HUDI = Environment("Spark 3.5", SPARK_35, HUDI_3_5)
ICEBERG_35 = Environment("Spark 3.5", SPARK_35, ICEBERG_3_5)
ICEBERG_40 = Environment("Spark 4.0", Path(sys.executable), ICEBERG_4_0)


@dataclass
class GrowingArchive:
    """The closed segments of some of the fixtures, stored one after the other."""

    root: Path
    directories: tuple[str, ...]
    segments: dict[str, list[BrokerSegment]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.root / "sidetier.yaml"

    @property
    def url(self) -> str:
        return f"file://{self.root}/store"

    @property
    def topics(self) -> list[str]:
        return [one.rpartition("-")[0] for one in self.directories]

    def create(self) -> "GrowingArchive":
        store = open_plain(StorageEndpoint(self.url))
        for directory in self.directories:
            self.segments[directory] = store_broker_segments(store, LAYOUT, directory)
        store.close()
        (self.root / "logs").mkdir()
        settings = {
            "cluster": {"name": LAYOUT.cluster},
            "log_dirs": [str(self.root / "logs")],
            "storage": {"url": self.url},
        }
        self.config.write_text(yaml.safe_dump(settings))
        return self

    def end_at(self, fraction: float) -> None:
        """Let the watermark of each partition stand at this part of its segments."""
        store = open_plain(StorageEndpoint(self.url))
        for directory, segments in self.segments.items():
            topic, _, partition = directory.rpartition("-")
            last = segments[max(1, round(len(segments) * fraction)) - 1]
            archive = MadeArchive(store, LAYOUT, TopicPartition(topic, int(partition)))
            archive.mark(last.base, last.next_base)
        store.close()


@dataclass(frozen=True)
class Worker:
    """`tests.harness.table_worker`, in a session and a process group of its own."""

    process: "subprocess.Popen[str]"
    log: Path

    @classmethod
    def start(cls, environment: Environment, log: Path) -> "Worker":
        python = str(environment.python)
        with log.open("a") as errors:
            process = subprocess.Popen(
                [python, "-m", "tests.harness.table_worker"],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return cls(process, log)

    def send(self, command: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(command)}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:  # noqa: ANN401 - JSON
        """What it says; None where it has died."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        return None

    def ask(self, command: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        self.send(command)
        found = self.answer()
        assert found is not None, f"the driver has died: {self.told()}"
        return found

    def dies(self, command: Mapping[str, Any]) -> None:
        """It must be killed by itself meanwhile."""
        self.send(command)
        assert self.answer() is None, "the driver has done it, and lives"
        assert self.process.wait(30) == -9, self.told()

    def told(self) -> str:
        return self.log.read_text()[-6000:]

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def consumed(archive: GrowingArchive, next_offsets: Mapping[str, Mapping[str, int]]) -> list[Any]:
    """What a consumer read, committed, of the same partitions below these offsets."""
    return [row for one in sorted(archive.directories) for row in _consumed(one, next_offsets)]


def _consumed(directory: str, next_offsets: Mapping[str, Mapping[str, int]]) -> Iterable[Any]:
    topic, _, partition = directory.rpartition("-")
    text = (FIXTURES / directory / "expected.read_committed.jsonl").read_text()
    until = next_offsets.get(topic, {}).get(partition, 0)
    for row in map(json.loads, text.splitlines()):
        if row["offset"] < until:
            yield {
                "key": row["key"],
                "value": row["value"],
                "topic": topic,
                "partition": int(partition),
                "offset": row["offset"],
                "timestamp": row["timestamp"],
                "timestampType": {"CreateTime": 0, "LogAppendTime": 1}[row["timestamp_type"]],
                "headers": _headers(row["headers"]),
            }


def _headers(given: Iterable[Any]) -> list[dict[str, Any]] | None:
    """Spark's Kafka source shows null where a record has none."""
    return [{"key": key, "value": value} for key, value in given] or None
