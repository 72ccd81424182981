"""One server of a Kafka cluster: its files and its process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidetier.brokers.jars import KAFKA_3_9, KAFKA_4_3, class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka_config import JVM_FLAGS, logging_flags, write_properties
from sidetier.brokers.ports import HOST, is_listening
from sidetier.brokers.processes import Command, ManagedProcess

_DISTRIBUTIONS = {"3.9.2": KAFKA_3_9, "4.3.1": KAFKA_4_3}
_METADATA_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """A broker, a controller, or both. `port` is the client port, 0 for a controller."""

    id: int
    port: int
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

    def sees(self, broker_ids: set[int]) -> bool:
        """Return whether this broker answers and knows these brokers as alive."""
        if not is_listening(self.port):
            return False
        admin = AdminClient({"bootstrap.servers": f"{HOST}:{self.port}", "log_level": 0})
        try:
            metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_SECONDS)
        except KafkaException:
            return False
        return broker_ids <= metadata.brokers.keys()


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
    jars = jars_of(_DISTRIBUTIONS[version])
    flags = logging_flags(directory, log4j2=version >= "4")
    return [str(java.program), *jvm_flags, *flags, "-cp", class_path(jars)]
