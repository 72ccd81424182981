"""The names of files: `topic+partition+start offset`, as Confluent's sinks give them."""

import re
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import InvalidRequestError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.checks import check_key

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
_LONGEST_DIRECTORY: Final = 600
"""Bytes of a record's directory below the output's URL. Keys have 1,024 bytes at most, and a file's
own name up to 295: this leaves 129 for the path in the URL, and more where topics' names are short.
"""
_LONGEST_COMPONENT: Final = 255
"""Bytes of each part of a directory: file systems, HDFS too, take no more."""


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


def why_no_directory(directory: str, topic: str, encoded: str) -> str | None:
    """Why no store can hold a file in this encoded partition; None where each can."""
    path = f"{topic_prefix(directory, topic)}{encoded}"
    size = len(path.encode())
    if size > _LONGEST_DIRECTORY:
        return f"the path of its directory has {size} bytes; the limit is {_LONGEST_DIRECTORY}"
    longest = max(len(part.encode()) for part in encoded.split("/"))
    if longest > _LONGEST_COMPONENT:
        return f"a name in its directory has {longest} bytes; the limit is {_LONGEST_COMPONENT}"
    try:
        check_key(path)
    except InvalidRequestError as error:
        return f"its directory cannot be stored: {error}"
    return None


def escaped(value: str) -> str:
    """A value as part of a path, as Hive writes and reads it; empty is null."""
    if not value:
        return NULL_PARTITION
    text = "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in value)
    return {".": "%2E", "..": "%2E%2E"}.get(text, text)
