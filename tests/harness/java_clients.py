"""Kafka's own consumer, on Java: it validates leader epochs, which librdkafka does not."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from sidetier.sandbox.kafka import KAFKA_4_3
from sidetier.sandbox.kafka_node import java_command
from tests.harness.ci import STALL_SECONDS

_GROUP_READER = Path(__file__).with_name("java") / "GroupReader.java"


@dataclass(frozen=True, slots=True)
class GroupRead:
    """What a group was given, and what it has committed: by partition offset and leader epoch."""

    offsets: dict[int, list[int]]
    committed: dict[int, tuple[int, int]]

    @property
    def records(self) -> int:
        """How many records the group was given."""
        return sum(map(len, self.offsets.values()))


def read_with_java(
    servers: str, group: str, topic: str, records: int, directory: Path, seconds: int = 60
) -> GroupRead:
    """Read on where the group has committed, until it was given so many records, and commit.

    Returns after `seconds` with fewer. A group without a commit begins at the beginning.
    """
    seconds += int(STALL_SECONDS)
    arguments = [_GROUP_READER, servers, group, topic, records, seconds]
    line = [*java_command(KAFKA_4_3, directory), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    offsets: dict[int, list[int]] = {}
    committed: dict[int, tuple[int, int]] = {}
    for words in map(str.split, done.stdout.splitlines()):
        if words[:1] == ["record"]:
            offsets.setdefault(int(words[1]), []).append(int(words[2]))
        elif words[:1] == ["committed"]:
            committed[int(words[1])] = (int(words[2]), int(words[3]))
    return GroupRead(offsets, committed)
