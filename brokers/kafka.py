"""Kafka servers on this machine: configuration, command line, and the broker of a drill."""

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.jars import Artifact, Distribution, class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import Command, ManagedProcess

Properties = Mapping[str, object]
"""Kafka's settings. `{directory}` in a value is replaced by the server's own directory."""

KAFKA_2_8: Final = "2.8.2"
KAFKA_3_3: Final = "3.3.2"
KAFKA_3_6: Final = "3.6.2"
KAFKA_3_9: Final = "3.9.2"
KAFKA_4_0: Final = "4.0.1"
KAFKA_4_3: Final = "4.3.1"


def _jars(version: str) -> Distribution:
    """Return the jars of a version, with a logger that writes to standard output."""
    log4j2 = Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
    logger = log4j2 if version >= "4" else Artifact("org.slf4j", "slf4j-reload4j", "1.7.36")
    # Up to 3.9 it depends on ZooKeeper, too: 3.5.9 with 2.8, 3.8.4 with 3.9.
    return Distribution(
        f"kafka-{version}", (Artifact("org.apache.kafka", "kafka_2.13", version), logger)
    )


JARS: Final[Mapping[str, Distribution]] = {
    version: _jars(version)
    for version in (KAFKA_2_8, KAFKA_3_3, KAFKA_3_6, KAFKA_3_9, KAFKA_4_0, KAFKA_4_3)
}
"""Jars of each Kafka version."""

LISTENERS: Final = frozenset(
    {"listeners", "advertised.listeners", "listener.security.protocol.map"}
)
"""Settings that hold a list with one entry per listener."""

START_TIMEOUT_SECONDS: Final = 240.0
_METADATA_TIMEOUT_SECONDS: Final = 5.0

# Many servers share a small machine in tests, and a drill runs beside a real broker: little memory,
# and no second compiler, whose work pays off after minutes only.
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


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """A broker, a controller, or both. `port` is the client port, 0 for a controller."""

    id: int
    port: int
    version: str
    directory: Path
    properties: dict[str, str]
    process: ManagedProcess

    @property
    def config(self) -> Path:
        """The node's properties file."""
        return self.directory / "server.properties"

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        """The node's log directories, in configured order."""
        return tuple(Path(name) for name in self.properties["log.dirs"].split(","))

    @property
    def metadata_log_dir(self) -> Path:
        """Log directory that holds `__cluster_metadata-0`."""
        return Path(self.properties.get("metadata.log.dir", self.log_dirs[0]))

    def format(self, cluster_id: str) -> None:
        """Format the log directories for KRaft; do nothing if they are formatted.

        Raises:
            LocalServerError: Kafka refuses the configuration; the message has its output.
        """
        if (self.metadata_log_dir / "meta.properties").exists():
            return
        command = [*java_command(self.version, self.directory), "kafka.tools.StorageTool"]
        command += ["format", "-t", cluster_id, "-c", str(self.config)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode != 0:
            output = f"{completed.stdout}{completed.stderr}".strip()
            raise LocalServerError(f"{self.process.name} could not be formatted:\n{output}")

    def wait_until_it_sees(self, broker_ids: set[int]) -> None:
        """Wait until this broker answers and knows these brokers as alive.

        Raises:
            ServerDiedError: It ended; the message has the tail of its log.
            ServerTimeoutError: It did not answer in time.
        """
        self.process.wait_until(lambda: self._sees(broker_ids), START_TIMEOUT_SECONDS)

    def _sees(self, broker_ids: set[int]) -> bool:
        # librdkafka logs an error for each refused connection, so the port is tried first.
        if not is_listening(self.port):
            return False
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{self.port}", "log_level": 0})
        try:
            metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_SECONDS)
        except KafkaException:
            return False
        return broker_ids <= metadata.brokers.keys()


class TemporaryBroker:
    """One broker that is its own controller, with all its files below `directory`.

    Entering the context starts it. Leaving the context kills it; its files stay.
    """

    def __init__(self, directory: Path) -> None:
        self._node = kraft_node(KAFKA_4_3, directory.absolute(), 1, free_port(), {1: free_port()})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._node.process.kill()

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker, in the form of `bootstrap.servers`."""
        return f"{HOST}:{self._node.port}"

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        """Log directories of the broker."""
        return self._node.log_dirs

    def start(self) -> None:
        """Start the broker, and return once it answers; kill it on failure.

        Raises:
            JavaMissingError: No Java was found.
            FetchError: Kafka's jars are not in the cache, and could not be fetched.
            LocalServerError: Kafka ended, or did not answer in time; the message has its output.
        """
        try:
            self._node.format(random_cluster_id())
            self._node.process.start()
            self._node.wait_until_it_sees({self._node.id})
        except BaseException:
            self._node.process.kill()
            raise

    def stop(self) -> None:
        """Stop the broker as an operator would, so that its log directories are cleanly closed."""
        self._node.process.stop()


def kraft_node(  # noqa: PLR0913, PLR0917 - two of the parameters have a default
    version: str,
    directory: Path,
    node_id: int,
    client_port: int,
    controller_ports: Mapping[int, int],
    properties: Properties = MappingProxyType({}),
    jvm_flags: Sequence[str] = JVM_FLAGS,
) -> KafkaNode:
    """Create a node of a KRaft cluster that is not started, and write its properties file.

    Args:
        version: Kafka version, one of `JARS`.
        directory: Directory of the node's files.
        node_id: Id of the node.
        client_port: Port for clients and other brokers; 0 for a node that is only a controller.
        controller_ports: Port of each controller by node id; this node is one if its id is here.
        properties: Kafka's settings, which override the defaults. Listeners in them are added to
            the node's own.
        jvm_flags: Flags for the JVM.
    """
    settings = listeners(client_port) if client_port else {"listeners": ""}
    roles = ["broker"] * bool(client_port)
    if node_id in controller_ports:
        roles.append("controller")
        addresses = [str(settings["listeners"]), f"CONTROLLER://{HOST}:{controller_ports[node_id]}"]
        settings["listeners"] = ",".join(filter(None, addresses))
    settings |= {
        "process.roles": ",".join(roles),
        "node.id": node_id,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": ",".join(
            f"{voter}@{HOST}:{port}" for voter, port in controller_ports.items()
        ),
    }
    merged = {
        **BROKER_DEFAULTS,
        **KRAFT_DEFAULTS,
        **settings,
        "log.dirs": "{directory}/data-1",
        **properties,
        **{key: f"{settings[key]},{properties[key]}" for key in LISTENERS & properties.keys()},
    }
    rendered = render(merged, directory)
    return make_node(version, node_id, client_port, directory, rendered, jvm_flags)


def make_node(
    version: str,
    node_id: int,
    port: int,
    directory: Path,
    properties: dict[str, str],
    jvm_flags: Sequence[str] = JVM_FLAGS,
) -> KafkaNode:
    """Create a node that is not started, and write its properties file."""
    arguments = java_command(version, directory, jvm_flags)
    node = KafkaNode(
        node_id,
        port,
        version,
        directory,
        properties,
        ManagedProcess(
            Command(
                f"Kafka {version} node {node_id}",
                [*arguments, "kafka.Kafka", directory / "server.properties"],
                directory / "server.log",
            )
        ),
    )
    write_properties(node.config, properties)
    return node


def java_command(version: str, directory: Path, jvm_flags: Sequence[str] = JVM_FLAGS) -> list[str]:
    """Return the command line of a Java program of this Kafka version, up to its main class."""
    java = find_java()
    jars = jars_of(JARS[version])
    flags = logging_flags(directory, log4j2=version >= "4")
    return [str(java.program), *jvm_flags, *flags, "-cp", class_path(jars)]


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


def listeners(port: int) -> dict[str, object]:
    """Return a broker's listener for clients and other brokers."""
    address = f"PLAINTEXT://{HOST}:{port}"
    return {"listeners": address, "advertised.listeners": address}


def random_cluster_id() -> str:
    """Return 22 characters of URL-safe base 64, like Kafka's own cluster ids.

    The id never begins with `-`, as with Kafka's `Uuid.randomUuid`: on a command line it would be
    read as an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
