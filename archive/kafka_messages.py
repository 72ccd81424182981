"""Convert messages of Kafka's client to the columns of stored records."""

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidetier.segments.arrow.schema import schema_of
from sidetier.segments.errors import SidetierError

if TYPE_CHECKING:
    from confluent_kafka import Message

UNKNOWN: Final = -1


class UnreadableHeadersError(SidetierError):
    """The client cannot return the headers of a message. Do not read them again."""


_CHECKED: Final = methodcaller("headers")
"""Calls `message.headers()` in a way that the interpreter checks for a pending exception.

A specialised call does not check, and the list that the client returned has empty slots. Any access
to them crashes the process.
"""
_CREATE_TIME: Final = 1
"""librdkafka's number for CreateTime; 0 means that there is no timestamp."""


def records_of(
    messages: "Sequence[Message]", columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Convert messages of one partition to these columns of `RECORD_SCHEMA`. None may be an error.

    `producer_id` and `producer_epoch` are -1: the client does not return them.

    Raises:
        UnreadableHeadersError: A header's key is not UTF-8.
        ValueError: A column is unknown, or occurs twice.
    """
    schema = schema_of(columns)
    arrays = [
        pa.array([_VALUES[field.name](message) for message in messages], type=field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _timestamp(message: "Message") -> int:
    kind, milliseconds = message.timestamp()
    return milliseconds if kind else UNKNOWN


def _timestamp_type(message: "Message") -> int:
    return max(message.timestamp()[0] - _CREATE_TIME, 0)


def _headers(message: "Message") -> list[dict[str, object]]:
    try:
        headers = _CHECKED(message) or []
    # SystemError: the client has set a UnicodeDecodeError, and has returned a list all the same.
    except (SystemError, UnicodeDecodeError):
        raise UnreadableHeadersError(
            f"{message.topic()}-{message.partition()} offset {message.offset()}: a header's key is "
            "not UTF-8 text, which Kafka's client for Python does not hand out"
        ) from None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs]


def _epoch(message: "Message") -> int:
    epoch = message.leader_epoch()
    return UNKNOWN if epoch is None else epoch


_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "offset": lambda message: message.offset(),
    "timestamp": _timestamp,
    "timestamp_type": _timestamp_type,
    "key": lambda message: message.key(),
    "value": lambda message: message.value(),
    "headers": _headers,
    "leader_epoch": _epoch,
    "producer_id": lambda _message: UNKNOWN,
    "producer_epoch": lambda _message: UNKNOWN,
    "is_control": lambda _message: False,
}
