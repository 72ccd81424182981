"""Messages of Kafka's own client in the columns that stored records have."""

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
    """The client cannot hand out the headers of a message; it must not be asked again."""


_CHECKED: Final = methodcaller("headers")
"""As `message.headers()`, where the interpreter looks whether the client has left an exception.
Where a call is specialised it does not, and what was returned besides has empty places: whoever
touches them ends the process.
"""
_CREATE_TIME: Final = 1
"""librdkafka counts the types of timestamps from here; 0 is none."""


def records_of(
    messages: "Sequence[Message]", columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Messages of one partition, none of them an error, as these columns of `RECORD_SCHEMA`.

    What the client does not tell is -1: `producer_id` and `producer_epoch`.

    Raises:
        UnreadableHeadersError: a header's key is no UTF-8 text.
        ValueError: a column that is not known, or comes twice.
    """
    schema = schema_of(columns)
    arrays = [
        pa.array([_VALUES[one.name](message) for message in messages], type=one.type)
        for one in schema
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
    except (SystemError, UnicodeDecodeError):
        raise UnreadableHeadersError(
            f"{message.topic()}-{message.partition()} offset {message.offset()}: a header's key is "
            "no UTF-8 text, which Kafka's client for Python does not hand out"
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
