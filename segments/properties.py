"""The identity of brokers and topics, from files in a broker's log dirs."""

import re
from dataclasses import dataclass
from typing import Literal

from sidetier.segments.errors import SegmentError, UnsupportedFormatError
from sidetier.segments.offsets import BrokerId

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """`meta.properties`: the broker and the cluster that a log dir belongs to.

    Version 0 is written with ZooKeeper (`broker.id`), version 1 with KRaft (`node.id`, KIP-631).
    `cluster_id` is Kafka's own id; None if an old broker has not written it.
    """

    broker_id: BrokerId
    version: int
    cluster_id: str | None
    mode: Literal["zookeeper", "kraft"]


def parse_meta_properties(text: str, path: str) -> MetaProperties:
    """Parse `meta.properties`; `path` is for errors.

    Raises:
        UnsupportedFormatError: Another version than 0 or 1.
        SegmentError: There is no version, or no broker id.
    """
    values = _java_properties(text)
    version = _number(values, "version", path)
    if version not in {0, 1}:
        raise UnsupportedFormatError(f"{path}: version {version}, expected 0 or 1")
    id_key = "node.id" if version else "broker.id"
    return MetaProperties(
        BrokerId(_number(values, id_key, path)),
        version,
        values.get("cluster.id") or None,
        "kraft" if version else "zookeeper",
    )


def parse_partition_metadata(text: str, path: str) -> str:
    """Return the topic id in a `partition.metadata` file: 22 characters, as Kafka prints it.

    Raises:
        UnsupportedFormatError: Another version than 0.
        SegmentError: There is no version, or no topic id.
    """
    values = _java_properties(text)
    version = _number(values, "version", path)
    if version != 0:
        raise UnsupportedFormatError(f"{path}: version {version}, expected 0")
    topic_id = values.get("topic_id", "")
    if not _TOPIC_ID.fullmatch(topic_id):
        raise SegmentError(f"{path}: topic_id is {topic_id[:40]!r}, expected 22 characters")
    return topic_id


def _java_properties(text: str) -> dict[str, str]:
    """Parse lines of key and value, split at the first `=` or `:`; `#` and `!` begin a comment."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and line.lstrip()[0] not in "#!":
            # Java's `Properties.store` escapes these characters
            # with a backslash, in keys and in values.
            key, _, value = re.sub(r"(?<!\\)[=:]", "\0", line, count=1).partition("\0")
            values[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    return values


def _number(values: dict[str, str], key: str, path: str) -> int:
    value = values.get(key, "")
    if not re.fullmatch(r"[0-9]{1,10}", value):
        raise SegmentError(f"{path}: {key} is {value[:40]!r}, expected a number")
    return int(value)
