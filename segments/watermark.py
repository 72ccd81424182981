"""`offset.wm`: how far the archive of a partition reaches without a hole.

Line 1 is the base offset of the last segment of the contiguous prefix, 20 digits, and all that the
peer writes and reads. Line 2 is JSON with what the peer does not know.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, BrokerId, LeaderEpoch, Offset

WATERMARK_VERSION: Final = 1
UNKNOWN_BROKER: Final = BrokerId(-1)

_LINES = re.compile(rb"([0-9]{20})(?:\r?\n(\{[^\n]*\})?\n?)?")
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything below `next_offset` is stored, but for recorded gaps.

    Where the peer wrote the watermark, only `base_offset` is known: `next_offset`, `topic_id` and
    `nonce` are None, the epoch and the broker are -1. The nonce makes each write another object, or
    a conditional write would fence nothing.
    """

    base_offset: BaseOffset
    next_offset: Offset | None
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    broker_id: BrokerId = UNKNOWN_BROKER
    topic_id: str | None = None
    version: int = WATERMARK_VERSION
    nonce: str | None = None


def encode_watermark(watermark: Watermark) -> bytes:
    """The object's bytes."""
    fields = asdict(watermark)
    del fields["base_offset"]
    return f"{watermark.base_offset:020d}\n{json.dumps(fields, sort_keys=True)}\n".encode()


def decode_watermark(data: bytes, key: str) -> Watermark:
    """The watermark in an object of ours or the peer's; `key` is for errors.

    Raises:
        MalformedObjectError: the bytes are neither form, or of a version that is not known.
    """
    match = _LINES.fullmatch(data)
    if match is None or int(match[1]) > _MAX_OFFSET:
        raise _malformed(key, data, "expected 20 digits, and one line of JSON or none")
    base = BaseOffset(int(match[1]))
    if match[2] is None:
        return Watermark(base, None)
    try:
        fields = json.loads(match[2])
    except ValueError:
        raise _malformed(key, data, "line 2 is no JSON") from None
    if fields.get("version") != WATERMARK_VERSION:
        raise _malformed(key, data, f"version {fields.get('version')!r} is not known here")
    return _from_fields(base, fields, key, data)


def _from_fields(base: BaseOffset, fields: dict[str, Any], key: str, data: bytes) -> Watermark:
    numbers = [fields.get(name) for name in ("next_offset", "leader_epoch", "broker_id")]
    texts = [fields.get(name) for name in ("topic_id", "nonce")]
    following, epoch, broker = numbers
    # `type`, because True is an int to isinstance.
    if type(epoch) is not int or type(broker) is not int or type(following) not in {int, type(None)}:
        raise _malformed(key, data, "next_offset, leader_epoch and broker_id must be numbers")
    if not all(text is None or isinstance(text, str) for text in texts):
        raise _malformed(key, data, "topic_id and nonce must be strings or null")
    if following is not None and following <= base:
        raise _malformed(key, data, "next_offset must lie above the base offset")
    topic_id, nonce = texts
    return Watermark(
        base,
        None if following is None else Offset(following),
        LeaderEpoch(epoch),
        BrokerId(broker),
        topic_id,
        WATERMARK_VERSION,
        nonce,
    )


def _malformed(key: str, data: bytes, reason: str) -> MalformedObjectError:
    return MalformedObjectError(f"{key}: not a watermark: {reason}; it begins {data[:60]!r}")
