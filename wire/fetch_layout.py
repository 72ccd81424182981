"""The layout of Fetch responses, versions 4 to 17, for the decoder and for the endpoint's encoder.

Source: `FetchResponse.json` of Kafka. kio would copy the records.

Body::

    throttle time i32 | from 7: error code i16, session id i32 | topics, each:
      name string, from 13: topic id uuid | partitions, each:
        index i32, error code i16, high watermark i64, last stable offset i64
        from 5: log start offset i64
        aborted transactions, each: producer id i64, first offset i64
        from 11: preferred read replica i32
        records bytes

From version 12 on, counts and lengths are compact, and tagged fields end each structure. Tag 1 of a
partition is its current leader: broker id i32, leader epoch i32.
"""

import struct
from functools import lru_cache
from typing import Final

from sidetier.segments.varints import encode_unsigned

# The versions of KIP-107 (log start offset), KIP-227 (fetch sessions), KIP-392 (rack and preferred
# read replica), KIP-482 (flexible fields), and KIP-516 (topic ids).
FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_SESSION: Final = 7
FIRST_WITH_REPLICA: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_BY_ID: Final = 13

THROTTLE_TIME = struct.Struct(">i")
SESSION = struct.Struct(">hi")
PARTITION = struct.Struct(">ihqq")
LOG_START = struct.Struct(">q")
ABORTED = struct.Struct(">qq")
REPLICA = struct.Struct(">i")
LEADER = struct.Struct(">ii")
LEADER_TAG: Final = 1
COUNT = struct.Struct(">i")
"""Of an array or of bytes; -1 for null."""
STRING_LENGTH = struct.Struct(">h")
UUID_BYTES: Final = 16

_MANY: Final = 1024
"""Cache size for topic names and batch sizes, which recur in each request."""


def encode_string(text: str | None) -> bytes:
    """Encode a string with a length of two bytes."""
    if text is None:
        return STRING_LENGTH.pack(-1)
    data = text.encode()
    return STRING_LENGTH.pack(len(data)) + data


@lru_cache(_MANY)
def compact_string(text: str | None) -> bytes:
    """Encode a compact string."""
    if text is None:
        return b"\0"
    data = text.encode()
    return compact_count(len(data)) + data


@lru_cache(_MANY)
def compact_count(count: int) -> bytes:
    """Encode the length of a compact array, string or bytes: an unsigned varint of length + 1."""
    return encode_unsigned(count + 1)
