"""`offset.wm`: how far the archive of a partition reaches without a gap.

Line 1 is the base offset of the last segment of the contiguous prefix, 20 digits, and all that the
peer writes and reads. Line 2 is JSON with what the peer does not know.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from sidetier.segments.epoch_history import EpochHistory, checksum_below
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, BrokerId, LeaderEpoch, Offset

WATERMARK_VERSION: Final = 1
UNKNOWN_BROKER: Final = BrokerId(-1)

_LINES = re.compile(rb"([0-9]{20})(?:\r?\n(?:(\{[^\n]*\})\n?)?)?")
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything below `next_offset` is stored, but for recorded gaps.

    `pending` is where a part of the archive is being moved to, or all of it (a prefix of keys, with
    the plan): that is finished before anything else is done. Only meanwhile may `next_offset` equal
    `base_offset`: then nothing is stored.

    `start_offset` is where the archive begins: a sidecar that came too late may have left a segment
    below it, which is no part of the archive.

    `epoch_history` is the checksum of the stored lineage below `next_offset`, as the writer knew it
    (`segments.lineage.checksum_below`), or None: one who lost the race for this watermark may have
    written another lineage beside it.

    Where the peer wrote the watermark, only `base_offset` is known: `next_offset`, `topic_id`,
    `nonce`, `start_offset` and `epoch_history` are None, the epoch and the broker are -1. The nonce
    makes each write another object, or a conditional write would fence nothing.
    """

    base_offset: BaseOffset
    next_offset: Offset | None
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    broker_id: BrokerId = UNKNOWN_BROKER
    topic_id: str | None = None
    version: int = WATERMARK_VERSION
    nonce: str | None = None
    pending: str | None = None
    start_offset: Offset | None = None
    epoch_history: str | None = None


def is_noted(watermark: Watermark, epoch_history: EpochHistory) -> bool:
    """It is the lineage with which the watermark was written, as far as that tells."""
    if watermark.epoch_history is None or watermark.next_offset is None:
        return True
    return checksum_below(epoch_history, watermark.next_offset) == watermark.epoch_history


def encode_watermark(watermark: Watermark) -> bytes:
    """The object's bytes."""
    fields = asdict(watermark)
    del fields["base_offset"]
    fields["lineage"] = fields.pop("epoch_history")  # the stored name, since version 1
    for name in ("pending", "lineage"):
        if fields[name] is None:
            del fields[name]
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
        return _from_fields(base, json.loads(match[2]))
    except (ValueError, RecursionError) as error:
        raise _malformed(key, data, f"line 2: {error}") from None


def _from_fields(base: BaseOffset, fields: dict[str, Any]) -> Watermark:
    version = fields.get("version")
    if version != WATERMARK_VERSION:
        raise ValueError(f"version {version!r} is not known here")
    following = None
    pending = _text(fields, "pending")
    if fields.get("next_offset") is not None:
        following = Offset(_number(fields, "next_offset"))
        if following < base or (int(following) == base and pending is None):
            raise ValueError(f"next_offset {following} does not lie above the base offset")
    return Watermark(
        base,
        following,
        LeaderEpoch(_number(fields, "leader_epoch")),
        BrokerId(_number(fields, "broker_id")),
        _text(fields, "topic_id"),
        WATERMARK_VERSION,
        _text(fields, "nonce"),
        pending,
        None if fields.get("start_offset") is None else Offset(_number(fields, "start_offset")),
        _text(fields, "lineage"),
    )


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected a number")  # noqa: TRY004  bad data
    return value


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, expected a string or null")
    return value


def _malformed(key: str, data: bytes, reason: str) -> MalformedObjectError:
    return MalformedObjectError(f"{key}: not a watermark: {reason}; it begins {data[:60]!r}")
