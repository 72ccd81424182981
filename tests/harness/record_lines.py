"""Records as lines of text, as the Java and Go programs of the tests print them.

Fields are separated by tabs: topic, partition, offset, timestamp, timestamp type, key, value, and
headers as `key:value,...`. Keys, values and those of headers are `=` and base 64, or `-` for null.
"""

import base64
from collections import defaultdict
from typing import Any

from sidetier.segments.offsets import TopicPartition


def rows_of(text: str) -> dict[TopicPartition, list[dict[str, Any]]]:
    """Return the records of each partition in the form of the fixtures."""
    rows: dict[TopicPartition, list[dict[str, Any]]] = defaultdict(list)
    for line in text.splitlines():
        topic, partition, offset, timestamp, kind, key, value, headers = line.split("\t")
        row = {
            "offset": int(offset),
            "timestamp": int(timestamp),
            "timestamp_type": ("CreateTime", "LogAppendTime")[int(kind)],
            "key": _encoded(key),
            "value": _encoded(value),
            "headers": [_header(header) for header in headers.split(",") if header],
        }
        rows[TopicPartition(topic, int(partition))].append(row)
    return rows


def _encoded(field: str) -> str | None:
    return None if field == "-" else field[1:]


def _header(text: str) -> list[str | None]:
    key, _, value = text.partition(":")
    return [base64.b64decode(key[1:]).decode(), _encoded(value)]
