"""Java's consumer, Kafka's tools and franz-go read all fixtures through the endpoint."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from devtools.sandbox.go import GoBuilder
from devtools.sandbox.kafka_clients import franz_go_reader
from devtools.sandbox.kafka_tools import KAFKA_TOOLS
from sidetier.brokers.jars import class_path, jars_of
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import JARS, JVM_FLAGS, KAFKA_4_3
from sidetier.segments.offsets import TopicPartition
from tests.harness import broker_segments
from tests.harness.ci import STALL_SECONDS
from tests.harness.record_lines import rows_of
from tests.harness.served_archive import Served, expected_rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DIRECTORIES = broker_segments.directories()
READER = Path(__file__).parents[2] / "harness" / "java" / "FixtureReader.java"
ISOLATION = pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
LIMITS = pytest.mark.parametrize("most", [1 << 20, 1], ids=["large", "one_batch"])


def _output(line: Iterable[object]) -> str:
    done = subprocess.run(
        list(map(str, line)),
        capture_output=True,
        text=True,
        check=False,
        timeout=200 + STALL_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def _place(directory: Path) -> TopicPartition:
    topic, _, partition = directory.name.rpartition("-")
    return TopicPartition(topic, int(partition))


def _arguments(served: Served, isolation: str, most: int) -> list[str]:
    words = [served.bootstrap, isolation, str(most)]
    for directory in DIRECTORIES:
        tp = _place(directory)
        rows = expected_rows(directory, isolation, served.end(*tp, isolation))
        words.append(f"{tp.topic}:{tp.partition}:{len(rows)}")
    return words


def _check(served: Served, isolation: str, output: str) -> None:
    rows = rows_of(output)
    for directory in DIRECTORIES:
        tp = _place(directory)
        end = served.end(*tp, isolation)
        assert rows.pop(tp) == expected_rows(directory, isolation, end) != [], directory.name
    assert not rows


@pytest.fixture
def java_line(java: Java, tmp_path: Path) -> list[object]:
    """The start of a command line of Java, with Kafka's tools, and without log messages."""
    config = tmp_path / "log4j2.properties"
    config.write_text("rootLogger.level=OFF\n")
    jars = f"{class_path(jars_of(JARS[KAFKA_4_3]))}:{class_path(jars_of(KAFKA_TOOLS))}"
    return [java.program, *JVM_FLAGS, f"-Dlog4j2.configurationFile={config}", "-cp", jars]


@ISOLATION
@LIMITS
def test_java_consumer(
    served_fixtures: Served, java_line: list[object], isolation: str, most: int
) -> None:
    arguments = _arguments(served_fixtures, isolation, most)
    _check(served_fixtures, isolation, _output([*java_line, READER, *arguments]))


@ISOLATION
@LIMITS
def test_franz_go(served_fixtures: Served, isolation: str, most: int) -> None:
    with GoBuilder() as builder:
        program = franz_go_reader(builder)
    arguments = _arguments(served_fixtures, isolation, most)
    _check(served_fixtures, isolation, _output([program, *arguments]))


class Tools:
    """Kafka's command-line tools, each in a JVM of its own."""

    def __init__(self, java_line: list[object], bootstrap: str) -> None:
        self._java = java_line
        self._bootstrap = bootstrap

    def run(self, main_class: str, *arguments: str) -> list[str]:
        """Return the lines that a tool prints."""
        server = ("--bootstrap-server", self._bootstrap)
        return _output([*self._java, main_class, *arguments, *server]).splitlines()


@pytest.fixture
def tools(served_fixtures: Served, java_line: list[object]) -> Tools:
    return Tools(java_line, served_fixtures.bootstrap)


def test_console_consumer(tools: Tools) -> None:
    directory = broker_segments.ROOT / "comp-snappy-0"
    rows = expected_rows(directory, "read_uncommitted", broker_segments.end_of_closed(directory))
    lines = tools.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--topic", "comp-snappy", "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(rows)), "--timeout-ms", "60000"),
        *("--formatter-property", "print.timestamp=true"),
        *("--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.value=false"),
    )
    assert lines == [f"CreateTime:{row['timestamp']}\tOffset:{row['offset']}" for row in rows]


@pytest.mark.parametrize("time", ["-1", "-2", "-3"])
def test_get_offsets(tools: Tools, time: str) -> None:
    lines = tools.run("org.apache.kafka.tools.GetOffsetShell", "--time", time)
    offsets = dict(line.rsplit(":", 1) for line in lines)
    assert set(offsets) == {f"{tp.topic}:{tp.partition}" for tp in map(_place, DIRECTORIES)}
    for directory in DIRECTORIES:
        tp, end = _place(directory), broker_segments.end_of_closed(directory)
        rows = expected_rows(directory, "read_uncommitted", end)
        largest = max(row["timestamp"] for row in rows)
        first = next(row["offset"] for row in rows if row["timestamp"] == largest)
        answer = {"-1": end, "-2": 0, "-3": first}[time]
        if (time, tp.topic) != ("-3", "tx"):  # there it is a marker, with its wall-clock time
            assert offsets[f"{tp.topic}:{tp.partition}"] == str(answer), tp


def test_admin_tools(tools: Tools) -> None:
    names = {_place(directory).topic for directory in DIRECTORIES}
    topics = "org.apache.kafka.tools.TopicCommand"
    assert set(tools.run(topics, "--list")) == names
    described = "\n".join(tools.run(topics, "--describe", "--topic", "tx"))
    assert re.search(r"Topic: tx\s.*PartitionCount: 1\s+ReplicationFactor: 1", described)
    assert re.search(r"Partition: 0\s+Leader: 0\s+Replicas: 0\s+Isr: 0", described)
    configs = ("--describe", "--entity-type", "topics", "--entity-name", "tx")
    (settings,) = tools.run("kafka.admin.ConfigCommand", *configs)
    assert settings.startswith("Dynamic configs for topic tx are")
    assert tools.run("org.apache.kafka.tools.ClusterTool", "cluster-id") == ["Cluster ID: test"]
    versions = "\n".join(tools.run("org.apache.kafka.tools.BrokerApiVersionsCommand"))
    assert re.search(r"Fetch\(1\): 4 to 17 \[usable: 17\]", versions)
    assert re.search(r"DescribeTopicPartitions\(75\): UNSUPPORTED", versions)
