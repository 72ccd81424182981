"""Consumers of five client libraries that read the same topics side by side, each in a process.

The arguments of each program are BOOTSTRAP, PREFIX, TOPIC[,TOPIC...], and for each of its consumers
NAME:ISOLATION:MODE:REFRESH. MODE `assign` reads partition 0 of each topic from offset 0 on, without
a group, and a reset is an error. MODE `classic` or `consumer` is a member of the group PREFIX+NAME,
by this protocol, that begins at the earliest offset. REFRESH is the interval of Metadata requests
in milliseconds, 0 for the library's own. `pause` and `resume` on standard input apply to all
consumers of the program, the end of the input stops them. The output has lines for the consumers,
with tabs between the words:

    @ NAME record TOPIC OFFSET VALUE    the part of the value before the first |
    @ NAME assigned                     a member of a group has got its partitions
    @ NAME paused
    @ NAME resumed
    @ NAME failed MESSAGE               an error that an application gets
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.brokers.kafka import KAFKA_3_9, KAFKA_4_3, java_command
from tests.harness import python_log_reader
from tests.harness.ci import STALL_SECONDS
from tests.harness.waiting import wait_until

_JAVA_READER = Path(__file__).with_name("java") / "LogReader.java"
STOP_SECONDS = 60.0 + STALL_SECONDS
REFRESH_MS = 1000
ASSIGNED = "assign"

Row = tuple[int, str]
"""Offset of a record, and the start of its value."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one consumer.

    Attributes:
        isolation: `isolation.level`.
        mode: As for the programs.
        refresh_ms: As for the programs.
    """

    isolation: str
    mode: str
    refresh_ms: int = 0


@dataclass(slots=True)
class Consumed:
    """What one consumer has reported.

    Attributes:
        name: Name of the library and number of the consumer.
        settings: Its settings.
        rows: Records by topic, in the order in which the application got them.
        restarts: Numbers of records by topic whenever a member of a group has got its partitions.
        is_paused: Whether it has confirmed the last pause.
        failures: Errors that an application would get.
    """

    name: str
    settings: Settings
    rows: dict[str, list[Row]]
    restarts: list[dict[str, int]] = field(default_factory=list)
    is_paused: bool = False
    failures: list[str] = field(default_factory=list)

    def note(self, words: Sequence[str]) -> None:
        """Take what a line reports."""
        match words:
            case ["record", topic, offset, value]:
                self.rows[topic].append((int(offset), value))
            case ["assigned"]:
                self.restarts.append({topic: len(rows) for topic, rows in self.rows.items()})
            case ["paused" | "resumed" as state]:
                self.is_paused = state == "paused"
            case _:
                self.failures.append(" ".join(words))

    def last(self, topic: str) -> int:
        """Return the offset of the last record; -1 before the first one."""
        rows = self.rows[topic]
        return rows[-1][0] if rows else -1


class _Program:
    """A running program, and the thread that reads its output."""

    def __init__(
        self, line: Sequence[object], consumers: Mapping[str, Consumed], log: Path
    ) -> None:
        self._consumers, self.log = consumers, log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                list(map(str, line)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.log.with_suffix(".out").open("w") as others:
            for line in self.process.stdout:
                words = line.rstrip("\n").split("\t")
                if words[0] == "@":
                    self._consumers[words[1]].note(words[2:])
                else:  # such as log messages of Java
                    others.write(line)

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """End it, and wait until all of its output is read."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            assert self.process.wait(STOP_SECONDS) == 0, self.log.read_text()[-3000:]
        finally:
            self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(STOP_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True, slots=True)
class LogReaders:
    """All consumers."""

    consumers: Sequence[Consumed]
    programs: Mapping[str, _Program]

    def wait(self, condition: Callable[[Consumed], bool], seconds: float, what: str) -> None:
        """Wait until a condition holds for all consumers; no application may get an error."""

        def holds() -> bool:
            self.check()
            return all(map(condition, self.consumers))

        try:
            wait_until(holds, seconds, what, every=0.05)
        except AssertionError as error:
            missing = [each.name for each in self.consumers if not condition(each)]
            raise AssertionError(f"{error}: {missing}") from None

    def check(self) -> None:
        """Raise AssertionError if an application got an error, or a program has ended."""
        failures = {each.name: each.failures for each in self.consumers if each.failures}
        assert not failures, failures
        for name, program in self.programs.items():
            assert program.process.poll() is None, (name, program.log.read_text()[-3000:])

    def pause(self) -> None:
        """Pause all consumers, and wait until they are."""
        for program in self.programs.values():
            program.send("pause")
        self.wait(lambda each: each.is_paused, 30, "all consumers to pause")

    def resume(self) -> None:
        """Resume all consumers."""
        for program in self.programs.values():
            program.send("resume")

    def stop(self) -> None:
        """Stop all consumers; all their output is taken then."""
        self.check()
        for program in self.programs.values():
            program.stop()


@contextmanager
def log_readers(
    servers: str,
    prefix: str,
    topics: Sequence[str],
    consumers: Mapping[str, Sequence[Settings]],
    franz_go: Path,
    directory: Path,
) -> Iterator[LogReaders]:
    """Run the consumers, by library, until the block ends."""
    lines: dict[str, list[object]] = {
        f"java-{version}": [*java_command(version, directory / f"java-{version}"), _JAVA_READER]
        for version in (KAFKA_4_3, KAFKA_3_9)
    }
    lines["franz-go"] = [franz_go, "log"]
    for library in python_log_reader.LIBRARIES:
        lines[library] = [sys.executable, "-P", python_log_reader.__file__, library]
    readers = LogReaders([], programs := {})
    try:
        for library, settings in consumers.items():
            own = {
                f"{library}-{number}": Consumed(
                    f"{library}-{number}", each, {topic: [] for topic in topics}
                )
                for number, each in enumerate(settings)
            }
            words = [
                f"{name}:{each.settings.isolation}:{each.settings.mode}:{each.settings.refresh_ms}"
                for name, each in own.items()
            ]
            line = [*lines[library], servers, prefix, ",".join(topics), *words]
            programs[library] = _Program(line, own, directory / f"{library}.log")
            readers = LogReaders([*readers.consumers, *own.values()], programs)
        yield readers
    finally:
        for program in programs.values():
            program.end()
