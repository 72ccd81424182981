"""Kafka's own Java clients.

The consumer validates leader epochs, and the producer uses transactions v2 (KIP-890). librdkafka
does neither.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidetier.brokers.kafka import KAFKA_4_3, java_command
from tests.harness.ci import STALL_SECONDS

_GROUP_READER = Path(__file__).with_name("java") / "GroupReader.java"
_PARTITION_READER = Path(__file__).with_name("java") / "PartitionReader.java"
_GROUP_SUBSCRIBER = Path(__file__).with_name("java") / "GroupSubscriber.java"
_TRANSACTION_WRITER = Path(__file__).with_name("java") / "TransactionWriter.java"


@dataclass(frozen=True, slots=True)
class GroupRead:
    """What a group received, and its committed offset and leader epoch by partition.

    Attributes:
        offsets: The offsets of the records, by partition.
        committed: Committed offset and leader epoch, by partition.
        timestamps: The timestamps of the records, by partition and offset.
        times: The first offset of each timestamp that it has searched, by partition.
    """

    offsets: dict[int, list[int]]
    committed: dict[int, tuple[int, int]]
    timestamps: dict[int, dict[int, int]]
    times: dict[int, dict[int, int]]

    @property
    def records(self) -> int:
        """Number of records that the group received."""
        return sum(map(len, self.offsets.values()))


def read_with_java(
    servers: str, group: str, topic: str, records: int, directory: Path, seconds: int = 60
) -> GroupRead:
    """Read from the group's committed offsets until it has received enough records, and commit.

    Returns after `seconds` with fewer records. A group without a commit starts at the beginning.
    """
    seconds += int(STALL_SECONDS)
    arguments = [_GROUP_READER, servers, group, topic, records, seconds]
    line = [*java_command(KAFKA_4_3, directory), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    offsets: dict[int, list[int]] = {}
    committed: dict[int, tuple[int, int]] = {}
    timestamps: dict[int, dict[int, int]] = {}
    times: dict[int, dict[int, int]] = {}
    for kind, *words in map(str.split, filter(None, done.stdout.splitlines())):
        if kind not in {"record", "committed", "time"}:
            continue
        partition, first, second = map(int, words)
        if kind == "record":
            offsets.setdefault(partition, []).append(first)
            timestamps.setdefault(partition, {})[first] = second
        elif kind == "committed":
            committed[partition] = (first, second)
        else:
            times.setdefault(partition, {})[first] = second
    return GroupRead(offsets, committed, timestamps, times)


def read_partition_with_java(
    properties: Mapping[str, str], topic: str, partition: int, directory: Path
) -> tuple[list[int], str | None]:
    """Read a partition without a group; return the offsets, and the error that ended it, if any."""
    file = directory / "consumer.properties"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    arguments = [_PARTITION_READER, file, topic, partition]
    line = [*java_command(KAFKA_4_3, directory), *map(str, arguments)]
    seconds = 120 + STALL_SECONDS
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    offsets = [int(each.split()[1]) for each in lines if each.startswith("record ")]
    failures = [each.removeprefix("failed ") for each in lines if each.startswith("failed ")]
    return offsets, failures[0] if failures else None


def write_transactions_with_java(
    servers: str, topic: str, transactions: int, sizes: Sequence[int], directory: Path
) -> None:
    """Commit transactions, each with a record of `sizes[n]` bytes in partition `n`.

    The value of each record begins with the transaction's number.
    """
    arguments = [_TRANSACTION_WRITER, servers, f"{topic}-writer", topic, transactions, *sizes]
    line = [*java_command(KAFKA_4_3, directory), *map(str, arguments)]
    seconds = 180 + STALL_SECONDS
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def subscribe_with_java(  # noqa: PLR0913 - the fields of one read
    servers: str,
    group: str,
    topic: str,
    records: int,
    directory: Path,
    *,
    protocol: str = "classic",
    seconds: int = 60,
) -> dict[int, list[int]]:
    """Read as the only member of a group until it has received enough records, and commit.

    Returns the offsets by partition, after `seconds` fewer than `records` in total.
    """
    seconds += int(STALL_SECONDS)
    arguments = [_GROUP_SUBSCRIBER, servers, group, topic, records, seconds, protocol]
    line = [*java_command(KAFKA_4_3, directory), *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    offsets: dict[int, list[int]] = {}
    for words in map(str.split, done.stdout.splitlines()):
        if words[:1] == ["record"]:
            offsets.setdefault(int(words[1]), []).append(int(words[2]))
    return offsets
