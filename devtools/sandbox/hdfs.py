"""A real Hadoop NameNode and DataNodes on their own ports, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from xml.sax.saxutils import escape

from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.jars import Artifact, Distribution, class_path, jars_of
from sidetier.brokers.java import find_java
from sidetier.brokers.ports import HOST, free_port
from sidetier.brokers.processes import (
    STOP_GRACE_SECONDS,
    Command,
    ManagedProcess,
    stop_together,
)

HADOOP_HDFS: Final = Distribution(
    "hadoop-hdfs-3.4.2",
    (
        Artifact("org.apache.hadoop", "hadoop-hdfs", "3.4.2"),  # NameNode and DataNode
        Artifact("org.apache.hadoop", "hadoop-hdfs-client", "3.4.2"),
        Artifact("org.apache.hadoop", "hadoop-common", "3.4.2"),
    ),
)
START_TIMEOUT_SECONDS: Final = 120.0
_FORMAT_TIMEOUT_SECONDS: Final = 120.0
_JVM_FLAGS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
_NAMENODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN: Final = "org.apache.hadoop.hdfs.tools.DFSAdmin"
_LOG4J: Final = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
_REPORTED: Final = "from storage DS-"
"""Text that the NameNode logs for each DataNode that has reported its blocks."""


class HdfsCluster:
    """A NameNode and its DataNodes, with all their files in `directory`.

    Each DataNode has every block. With two DataNodes a small file takes 30 ms to write. With one it
    takes half a second longer, because hdfs-native waits that long if the NameNode does not know
    the only replica yet.

    The user that starts the processes is HDFS's superuser; permissions are checked for every other
    user (HADOOP_USER_NAME). Clients can use `config_dir` as their configuration directory. Stored
    files survive a restart. Leaving the context stops the processes.
    """

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        datanodes: int = 1,
    ) -> None:
        """Choose ports. `properties` are Hadoop's and override the sandbox's."""
        self.directory = directory.absolute()
        self.port = free_port()
        self.url = f"hdfs://{HOST}:{self.port}"
        self.config_dir = self.directory / "conf"
        self._properties = {
            "dfs.namenode.name.dir": str(self.directory / "name"),
            "dfs.namenode.rpc-address": f"{HOST}:{self.port}",
            "dfs.namenode.http-address": _address(),
            "dfs.datanode.hostname": HOST,
            "dfs.replication": str(datanodes),
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # Allow closing a file before the DataNodes have reported its last block.
            "dfs.namenode.file.close.num-committed-allowed": "1",
            **(properties or {}),
        }
        self.namenode = self._process("namenode", _NAMENODE, self.config_dir)
        self.datanodes = [
            self._process(f"datanode{n}", _DATANODE, self.directory / f"conf{n}")
            for n in range(datanodes)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Format a new NameNode directory, start all, and wait until a file can be written.

        On failure, nothing keeps running.

        Raises:
            ServerDiedError: A process ended at start; the message has the tail of its log.
            ServerTimeoutError: They were not ready in time.
        """
        self._configure()
        try:
            if not (self.directory / "name" / "current").is_dir():
                self._format()
            seen = self._seen()
            self.namenode.start()
            for datanode in self.datanodes:
                datanode.start()
            self._wait(seen, len(self.datanodes))
        except BaseException:
            self.kill()
            raise

    def start_namenode(self) -> None:
        """Start the NameNode again, and return once the DataNodes have reported to it."""
        seen = self._seen()
        self.namenode.start()
        self._wait(seen, len(self.datanodes))

    def start_datanode(self, number: int) -> None:
        """Start a DataNode again, and return once it has reported its blocks."""
        seen = self._seen()
        self.datanodes[number].start()
        self._wait(seen, 1)

    def admin(self, *arguments: str) -> None:
        """Run `hdfs dfsadmin`, such as `-setSpaceQuota 1m /directory`.

        Raises:
            LocalServerError: It failed; the message has the tail of its log.
        """
        line = [*_line(_ADMIN, self.config_dir), *arguments]
        command = Command("dfsadmin", line, self.directory / "dfsadmin.log")
        with ManagedProcess(command) as process:
            process.start()
            if process.wait(_FORMAT_TIMEOUT_SECONDS):
                raise LocalServerError(
                    f"dfsadmin {' '.join(arguments)} failed\n{process.log_tail()}"
                )

    def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Stop all processes; the files stay."""
        stop_together([*self.datanodes, self.namenode], grace)

    def kill(self) -> None:
        """Kill all processes."""
        for process in (*self.datanodes, self.namenode):
            process.kill()

    def _wait(self, seen: int, reports: int) -> None:
        self.namenode.wait_until(
            lambda: self._log_from(seen).count(_REPORTED) >= reports, START_TIMEOUT_SECONDS
        )

    def _format(self) -> None:
        command = Command(
            "NameNode -format",
            [*_line(_NAMENODE, self.config_dir), "-format", "-force", "-nonInteractive"],
            self.directory / "format.log",
        )
        with ManagedProcess(command) as formatting:
            formatting.start()
            formatting.wait(_FORMAT_TIMEOUT_SECONDS)

    def _process(self, name: str, main: str, config: Path) -> ManagedProcess:
        log = self.directory / f"{name}.log"
        return ManagedProcess(Command(name, _line(main, config), log))

    def _configure(self) -> None:
        self._write_configuration(self.config_dir, {})
        for number in range(len(self.datanodes)):
            own = {
                "dfs.datanode.data.dir": str(self.directory / f"data{number}"),
                "dfs.datanode.address": _address(),
                "dfs.datanode.http.address": _address(),
                "dfs.datanode.ipc.address": _address(),
            }
            self._write_configuration(self.directory / f"conf{number}", own)

    def _write_configuration(self, directory: Path, properties: Mapping[str, str]) -> None:
        # The servers refuse to start without these directories, which hold their web pages.
        for pages in ("hdfs", "datanode"):
            (directory / "webapps" / pages).mkdir(parents=True, exist_ok=True)
        (directory / "log4j.properties").write_text(_LOG4J)
        (directory / "hdfs-site.xml").write_text(_xml({**self._properties, **properties}))
        (directory / "core-site.xml").write_text(_xml({"fs.defaultFS": self.url}))

    def _seen(self) -> int:
        log = self.namenode.command.log
        return log.stat().st_size if log.exists() else 0

    def _log_from(self, start: int) -> str:
        with self.namenode.command.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")


def _line(main: str, config: Path) -> list[str]:
    jars = class_path(jars_of(HADOOP_HDFS))
    return [str(find_java().program), *_JVM_FLAGS, "-cp", f"{config}:{jars}", main]


def _address() -> str:
    return f"{HOST}:{free_port()}"


def _xml(properties: Mapping[str, str]) -> str:
    rows = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n'
