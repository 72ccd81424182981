"""Configuration files of sandbox servers: little memory, short intervals, logs at INFO."""

from collections.abc import Mapping
from pathlib import Path

from sidetier.brokers.ports import HOST

Properties = Mapping[str, object]
"""Kafka's settings. `{directory}` in a value is replaced by the server's own directory."""

LISTENERS = frozenset({"listeners", "advertised.listeners", "listener.security.protocol.map"})
"""Settings that hold a list with one entry per listener."""

JVM_FLAGS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)

BROKER_DEFAULTS: Properties = {
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "true",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    # Run retention, compaction and high watermark checkpoints every second, not every few minutes.
    "log.initial.task.delay.ms": 500,
    "log.retention.check.interval.ms": 1000,
    "log.cleaner.backoff.ms": 1000,
    "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
    "num.network.threads": 2,
    "num.io.threads": 4,
}
KRAFT_DEFAULTS: Properties = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 6000,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
ZOOKEEPER_MODE_DEFAULTS: Properties = {
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 30_000,
}

_LOG4J = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""
_LOG4J2 = """\
rootLogger.level=INFO
rootLogger.appenderRef.stdout.ref=STDOUT
appender.stdout.type=Console
appender.stdout.name=STDOUT
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=%d{ISO8601} %p %m (%c)%n
"""


def render(properties: Properties, directory: Path) -> dict[str, str]:
    """Return every value as text, with `{directory}` replaced."""
    return {
        key: str(value).replace("{directory}", str(directory)) for key, value in properties.items()
    }


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def logging_flags(directory: Path, *, log4j2: bool) -> list[str]:
    """Write a logging configuration for standard output, and return the JVM flags that name it."""
    directory.mkdir(parents=True, exist_ok=True)
    if log4j2:
        path = directory / "log4j2.properties"
        path.write_text(_LOG4J2)
        return [f"-Dlog4j2.configurationFile={path}"]
    path = directory / "log4j.properties"
    path.write_text(_LOG4J)
    return [f"-Dlog4j.configuration=file:{path}"]


def zookeeper_properties(directory: Path, port: int) -> dict[str, str]:
    """Return the settings of one server. Ticks of 500 ms allow session timeouts from 1 s."""
    return {
        "dataDir": str(directory / "data"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "tickTime": "500",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }


def listeners(port: int) -> dict[str, object]:
    """Return a broker's listener for clients and other brokers."""
    address = f"PLAINTEXT://{HOST}:{port}"
    return {"listeners": address, "advertised.listeners": address}
