"""The names of files: `topic+partition+start offset`, as Confluent's sinks give them."""

import re
from dataclasses import dataclass
from typing import Final

from sidetier.segments.offsets import Offset, TopicPartition

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark read back as null."""
STATE_DIRECTORY: Final = "_sidetier"
"""Below a topic's directory; readers of tables leave out what begins with `_`."""
_NAME: Final = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>\d{1,10})\+(?P<offset>\d{10,19})"
    r"\.(?P<extension>[a-z0-9.]+)"
)
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(0x20)}
"""What Hive escapes in the values of partitions."""


@dataclass(frozen=True, slots=True)
class FileName:
    """One file's name, taken apart."""

    tp: TopicPartition
    start: Offset
    extension: str

    def __str__(self) -> str:
        """As it stands on the store."""
        return f"{self.tp.topic}+{self.tp.partition}+{self.start:010d}.{self.extension}"


def parse_file_name(name: str) -> FileName | None:
    """A name of ours; None for any other."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    tp = TopicPartition(found["topic"], int(found["partition"]))
    parsed = FileName(tp, Offset(int(found["offset"])), found["extension"])
    return parsed if str(parsed) == name else None


def topic_prefix(topics_dir: str, topic: str) -> str:
    """What the keys of a topic's files begin with."""
    return f"{topics_dir}/{topic}/"


def file_key(directory: str, encoded: str, name: FileName) -> str:
    """Where a file lies; `encoded` is its encoded partition."""
    return f"{topic_prefix(directory, name.tp.topic)}{encoded}/{name}"


def escaped(value: str) -> str:
    """A value as part of a path, as Hive writes and reads it; empty is null."""
    if not value:
        return NULL_PARTITION
    text = "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in value)
    return {".": "%2E", "..": "%2E%2E"}.get(text, text)
