"""Real Kafka clusters on this machine, with KRaft or ZooKeeper, for the demo and the tests."""

import socket
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from devtools.sandbox.class_data import archive_classes, class_data_flags
from sidetier.brokers.errors import LocalServerError, ServerDiedError
from sidetier.brokers.java import find_java
from sidetier.brokers.kafka import (
    BROKER_DEFAULTS,
    JVM_FLAGS,
    KAFKA_3_9,
    KAFKA_4_3,
    START_TIMEOUT_SECONDS,
    KafkaNode,
    Properties,
    java_command,
    kraft_node,
    listeners,
    make_node,
    random_cluster_id,
    render,
    write_properties,
)
from sidetier.brokers.ports import HOST, free_port
from sidetier.brokers.processes import (
    STOP_GRACE_SECONDS,
    Command,
    ManagedProcess,
    stop_together,
)

_TIMEOUT_SECONDS = 2.0
_CHUNK = 65_536
_FIRST_CONTROLLER_ID = 101
_ARCHIVE_SECONDS = 240.0
_NONE: Properties = MappingProxyType({})
_ZOOKEEPER_MODE_DEFAULTS: Properties = {
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 30_000,
}


def four_letter_word(word: str, port: int) -> str:
    """Send a ZooKeeper four-letter command, and return the answer; empty without an answer.

    ZooKeeper answers `ruok` with `imok`. `dump` lists sessions and their ephemeral nodes.
    """
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(_CHUNK), b"")).decode()
    except OSError:
        return ""


class KafkaCluster:
    """Base of the clusters with KRaft and with ZooKeeper. Brokers have the ids 1, 2, 3, ...

    The servers' directories are below `directory`. They stay when the cluster is stopped, so the
    cluster can be started again. Leaving the context kills every process.
    """

    def __init__(self, directory: Path, version: str) -> None:
        self.directory = directory.absolute()
        self.version = version
        self.brokers: dict[int, KafkaNode] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """Ids of all brokers, running or not."""
        return tuple(self.brokers)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, in the form of `bootstrap.servers`."""
        return ",".join(map(self.bootstrap_of, self.brokers))

    def bootstrap_of(self, broker_id: int) -> str:
        """Return one broker's address."""
        return f"{HOST}:{self._node(broker_id).port}"

    def log_dirs(self, broker_id: int) -> tuple[Path, ...]:
        """Return a broker's log directories."""
        return self._node(broker_id).log_dirs

    def metadata_log_dir(self, broker_id: int) -> Path:
        """Return the log directory of a broker that holds `__cluster_metadata-0` (KRaft only)."""
        return self._node(broker_id).metadata_log_dir

    def process_of(self, broker_id: int) -> ManagedProcess:
        """Return a broker's process, for its pid and its log."""
        return self._node(broker_id).process

    def start(self) -> None:
        """Start every server, and return once all brokers answer and know each other.

        On failure, every started server is killed.

        Raises:
            ServerDiedError: A server ended at start; the message has the tail of its log.
            ServerTimeoutError: A broker did not answer in time.
        """
        try:
            self._start_servers()
            for node in self.brokers.values():
                node.wait_until_it_sees(set(self.brokers))
        except BaseException:
            self.kill()
            raise

    def start_broker(self, broker_id: int, *, wait: bool = True) -> None:
        """Start a stopped or killed broker; with `wait`, return once it answers."""
        node = self._node(broker_id)
        self._before_start(node)
        node.process.start()
        if wait:
            node.wait_until_it_sees({broker_id})

    def stop_broker(self, broker_id: int, grace: float = STOP_GRACE_SECONDS) -> None:
        """Send SIGTERM: a controlled shutdown, in which the broker moves its leaderships away."""
        self._node(broker_id).process.stop(grace)

    def kill_broker(self, broker_id: int) -> None:
        """Send SIGKILL: the broker ends at once, without notice to the controller."""
        self._node(broker_id).process.kill()

    def pause_broker(self, broker_id: int) -> None:
        """Send SIGSTOP: the broker keeps its connections and answers no request."""
        self._node(broker_id).process.pause()

    def resume_broker(self, broker_id: int) -> None:
        """Send SIGCONT: the broker continues."""
        self._node(broker_id).process.resume()

    def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Stop every server, brokers first. A server that runs after `grace` seconds is killed."""
        # A controller must answer the controlled shutdown of the brokers, so it ends after them.
        for group in self._groups():
            stop_together(group, grace)

    def kill(self) -> None:
        """Kill every server at once."""
        for group in self._groups():
            for process in group:
                process.kill()

    def _start_servers(self) -> None:
        for node in self.brokers.values():
            self._before_start(node)
            node.process.start()

    def _before_start(self, node: KafkaNode) -> None:
        """Prepare the start of a broker, depending on the kind of cluster."""

    def _groups(self) -> tuple[list[ManagedProcess], ...]:
        """Return all processes, in groups that are stopped one after the other."""
        return ([node.process for node in self.brokers.values()],)

    def _node(self, broker_id: int) -> KafkaNode:
        try:
            return self.brokers[broker_id]
        except KeyError:
            known_ids = ", ".join(map(str, self.brokers))
            raise LocalServerError(f"there is no broker {broker_id}, only {known_ids}") from None


class KraftCluster(KafkaCluster):
    """A cluster with KRaft. Each broker is a controller too, unless `controllers` run separately.

    The ids of brokers begin at `first_id`. `log_dirs` is the number of log directories of each
    broker. `properties` go to every server and override the defaults of `brokers/kafka.py`;
    `{directory}` in a value is replaced by the server's own directory. Listeners in `properties`
    are added to the cluster's own. `jvm_flags` apply to every server.
    """

    def __init__(  # noqa: PLR0913 - all parameters except the directory have a default
        self,
        directory: Path,
        version: str = KAFKA_4_3,
        *,
        brokers: int = 1,
        first_id: int = 1,
        controllers: int = 0,
        log_dirs: int = 1,
        properties: Properties = _NONE,
        jvm_flags: Sequence[str] | None = None,
    ) -> None:
        super().__init__(directory, version)
        self._jvm_flags = _jvm_flags(version) if jvm_flags is None else jvm_flags
        self.cluster_id = random_cluster_id()
        self.controllers: dict[int, KafkaNode] = {}
        broker_ids = range(first_id, first_id + brokers)
        controller_ids = range(_FIRST_CONTROLLER_ID, _FIRST_CONTROLLER_ID + controllers)
        self._controller_ports = {node_id: free_port() for node_id in controller_ids or broker_ids}
        for node_id in broker_ids:
            self.brokers[node_id] = self._make(node_id, free_port(), log_dirs, properties)
        for node_id in controller_ids:
            self.controllers[node_id] = self._make(node_id, 0, 1, properties)

    def _make(
        self, node_id: int, client_port: int, log_dirs: int, properties: Properties
    ) -> KafkaNode:
        role = "broker" if client_port else "controller"
        return kraft_node(
            self.version,
            self.directory / f"{role}-{node_id}",
            node_id,
            client_port,
            self._controller_ports,
            {"log.dirs": _log_dirs(log_dirs), **properties},
            self._jvm_flags,
        )

    def _start_servers(self) -> None:
        for node in self.controllers.values():
            self._before_start(node)
            node.process.start()
        super()._start_servers()

    def _before_start(self, node: KafkaNode) -> None:
        node.format(self.cluster_id)

    def _groups(self) -> tuple[list[ManagedProcess], ...]:
        controllers = [node.process for node in self.controllers.values()]
        return (*super()._groups(), controllers)


_SESSION_EXPIRED: Final = "KeeperException$SessionExpiredException"


class ZookeeperCluster(KafkaCluster):
    """A cluster with one ZooKeeper server; brokers use its tree below `chroot` (`/kafka`).

    `log_dirs` and `properties` are as for `KraftCluster`.
    """

    def __init__(
        self,
        directory: Path,
        version: str = KAFKA_3_9,
        *,
        brokers: int = 1,
        log_dirs: int = 1,
        chroot: str = "",
        properties: Properties = _NONE,
    ) -> None:
        super().__init__(directory, version)
        self._zookeeper_port = free_port()
        self._chroot = chroot
        self.zookeeper = self._make_zookeeper()
        for broker_id in range(1, brokers + 1):
            self.brokers[broker_id] = self._make(broker_id, log_dirs, properties)

    @property
    def zookeeper_connect(self) -> str:
        """ZooKeeper's address with the chroot, in the form of `zookeeper.connect`."""
        return f"{HOST}:{self._zookeeper_port}{self._chroot}"

    def start_zookeeper(self) -> None:
        """Start the ZooKeeper server, and return once it answers."""
        self.zookeeper.start()
        self.zookeeper.wait_until(
            lambda: four_letter_word("ruok", self._zookeeper_port) == "imok",
            START_TIMEOUT_SECONDS,
        )

    def _make_zookeeper(self) -> ManagedProcess:
        directory = self.directory / "zookeeper"
        config = directory / "zoo.cfg"
        write_properties(config, _zookeeper_properties(directory, self._zookeeper_port))
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [*java_command(self.version, directory), main_class, str(config)]
        return ManagedProcess(Command("ZooKeeper", command, directory / "server.log"))

    def _make(self, broker_id: int, log_dirs: int, properties: Properties) -> KafkaNode:
        directory = self.directory / f"broker-{broker_id}"
        port = free_port()
        settings = {
            **BROKER_DEFAULTS,
            **_ZOOKEEPER_MODE_DEFAULTS,
            **listeners(port),
            "broker.id": broker_id,
            "zookeeper.connect": self.zookeeper_connect,
            "log.dirs": _log_dirs(log_dirs),
            **properties,
        }
        rendered = render(settings, directory)
        flags = _jvm_flags(self.version)
        return make_node(self.version, broker_id, port, directory, rendered, flags)

    def _start_servers(self) -> None:
        self.start_zookeeper()
        super()._start_servers()

    def start_broker(self, broker_id: int, *, wait: bool = True) -> None:
        """Start a stopped or killed broker; with `wait`, return once it answers.

        A broker ends if its session expires before it is ready, as on a busy machine. With `wait`,
        it is started again, as a supervisor would.
        """
        while True:
            try:
                return super().start_broker(broker_id, wait=wait)
            except ServerDiedError as error:
                if _SESSION_EXPIRED not in str(error):
                    raise

    def _before_start(self, node: KafkaNode) -> None:
        """Wait until the broker's last session expires: before, it cannot register and ends."""
        registration = f"{self._chroot}/brokers/ids/{node.id}\n"
        self.zookeeper.wait_until(
            lambda: registration not in four_letter_word("dump", self._zookeeper_port),
            START_TIMEOUT_SECONDS,
        )

    def _groups(self) -> tuple[list[ManagedProcess], ...]:
        return (*super()._groups(), [self.zookeeper])


def _log_dirs(number: int) -> str:
    return ",".join(f"{{directory}}/data-{index}" for index in range(1, number + 1))


def _zookeeper_properties(directory: Path, port: int) -> dict[str, str]:
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


def archive_kafka_classes(version: str) -> Path:
    """Write the archive of a broker's classes unless there is one; return its folder.

    Raises:
        LocalServerError: The broker did not start, or has written no archive.
    """

    def run(flag: str) -> None:
        with (
            TemporaryDirectory() as directory,
            KraftCluster(Path(directory), version, jvm_flags=(*JVM_FLAGS, flag)) as cluster,
        ):
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
            admin.create_topics([NewTopic("topic", 1)])["topic"].result()
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
            producer.produce("topic", b"value")
            producer.flush()
            # To write the archive takes longer than a usual stop.
            cluster.brokers[1].process.stop(_ARCHIVE_SECONDS)

    return archive_classes(f"kafka-{version}", find_java(), run)


def _jvm_flags(version: str) -> Sequence[str]:
    return (*JVM_FLAGS, *class_data_flags(f"kafka-{version}", find_java()))
