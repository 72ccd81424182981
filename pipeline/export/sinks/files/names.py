"""File names: `topic+partition+start offset`, as in Confluent's sink connectors."""

import re
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import InvalidRequestError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.checks import check_key

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Directory name that Hive and Spark read as null."""
STATE_DIRECTORY: Final = "_sidetier"
"""Directory of the state below a topic's directory. Table readers skip names that begin
with `_`.
"""
_NAME: Final = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]+~?)\+(?P<partition>\d{1,10})\+(?P<offset>\d{10,19})"
    r"\.(?P<extension>[a-z0-9.]+)"
)
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(0x20)}
"""Characters that Hive escapes in partition values."""
_LONGEST_DIRECTORY: Final = 600
"""Longest path of a record's directory below the output's URL, in bytes.

A key has at most 1,024 bytes, and a file's own name up to 255. This leaves 169 bytes for the path
in the URL, and more if topic names are short.
"""
_LONGEST_COMPONENT: Final = 255
"""Longest name of a file or directory, in bytes: the limit of most file systems and of HDFS."""
_CUT: Final = "~"
"""Ends a topic that was shortened. No topic has this character."""


@dataclass(frozen=True, slots=True)
class FileName:
    """The parts of one file's name."""

    tp: TopicPartition
    start: Offset
    extension: str

    def __str__(self) -> str:
        """The file's name on the store. The offset has at least 10 digits.

        A long topic is shortened: the directory has its whole name.
        """
        topic, rest = self.tp.topic, self._rest()
        if len(topic) + len(rest) > _LONGEST_COMPONENT:
            topic = topic[: _LONGEST_COMPONENT - len(rest) - len(_CUT)] + _CUT
        return topic + rest

    def is_name(self, name: str) -> bool:
        """Whether the file has or had this name: earlier versions have never shortened topics."""
        return name in {str(self), self.tp.topic + self._rest()}

    def _rest(self) -> str:
        return f"+{self.tp.partition}+{self.start:010d}.{self.extension}"


def parse_file_name(name: str, topic: str) -> FileName | None:
    """Parse a file name; return None if an export of the topic would not have written exactly this
    name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    tp = TopicPartition(topic, int(match["partition"]))
    parsed = FileName(tp, Offset(int(match["offset"])), match["extension"])
    return parsed if parsed.is_name(name) else None


def topic_prefix(topics_dir: str, topic: str) -> str:
    """Return the common prefix of the keys of a topic's files."""
    return f"{topics_dir}/{topic}/"


def file_key(directory: str, encoded: str, name: FileName) -> str:
    """Return the key of a file. `encoded` is its encoded partition."""
    return f"{topic_prefix(directory, name.tp.topic)}{encoded}/{name}"


def why_no_directory(directory: str, topic: str, encoded: str) -> str | None:
    """Return why some store cannot hold a file in this encoded partition; None if every
    store can.
    """
    return why_no_path(f"{topic_prefix(directory, topic)}{encoded}")


def why_no_path(path: str) -> str | None:
    """Return why some store cannot hold a file in this directory; None if every store can."""
    size = len(path.encode())
    if size > _LONGEST_DIRECTORY:
        return f"the path of its directory has {size} bytes; the limit is {_LONGEST_DIRECTORY}"
    longest = max(len(part.encode()) for part in path.split("/"))
    if longest > _LONGEST_COMPONENT:
        return f"a name in its directory has {longest} bytes; the limit is {_LONGEST_COMPONENT}"
    try:
        check_key(path)
    except InvalidRequestError as error:
        return f"its directory cannot be stored: {error}"
    return None


def escaped(value: str) -> str:
    """Escape a value for use in a path, as Hive does. An empty value becomes Hive's null."""
    if not value:
        return NULL_PARTITION
    text = "".join(
        f"%{ord(character):02X}" if character in _ESCAPED else character for character in value
    )
    return {".": "%2E", "..": "%2E%2E"}.get(text, text)
