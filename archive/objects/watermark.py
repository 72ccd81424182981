"""`offset.wm`: the archive end offset of a partition.

Line 1 is the base offset of the last segment of the contiguous prefix, 20 digits. Pinterest's
uploader writes and reads this line only. Line 2 is JSON with the fields of `Watermark`.
"""

import re
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Final

from sidetier.archive.objects.codec import JsonCodec, check_numbers
from sidetier.segments.epoch_history import EpochHistory, checksum_below
from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.offsets import (
    MAX_OFFSET,
    UNKNOWN_EPOCH,
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

WATERMARK_VERSION: Final = 1
UNKNOWN_BROKER: Final = BrokerId(-1)

_LINES = re.compile(rb"([0-9]{20})(?:\r?\n(?:(\{[^\n]*\})\n?)?)?")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The contents of `offset.wm`.

    Every offset from `start_offset` up to `next_offset`, exclusive, is archived, except recorded
    gaps.

    Attributes:
        base_offset: Base offset of the last archived segment.
        next_offset: The archive end offset: one past the last archived offset. None if Pinterest's
            uploader wrote the object: it knows `base_offset` only. Equal to `base_offset` only
            while `pending` is set and nothing is archived.
        leader_epoch: Epoch of the leader whose sidecar wrote it; -1 if it is not known.
        broker_id: Broker whose sidecar wrote it; -1 if it is not known.
        topic_id: Kafka's topic id; None if it is not known.
        version: Version of line 2.
        nonce: Random text that makes each write another object. Without it, two writers of the same
            offsets would produce the same etag, and a conditional write would accept both.
        pending: Key prefix to which segments are being moved (quarantine, retirement), with the
            plan of the move. The move is finished before anything else is done.
        start_offset: First archived offset; None if it is not known. Segments below it, stored by a
            sidecar that came too late, are not part of the archive.
        epoch_history: Checksum of the stored leader epochs below `next_offset`
            (`segments.epoch_history.checksum_below`); None if the writer did not know them. A
            sidecar that lost the race for this write may have stored other epochs beside it.
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


@dataclass(frozen=True, slots=True)
class StoredWatermark:
    """An `offset.wm` as it was read.

    Attributes:
        watermark: Its contents.
        etag: Its etag.
        text: Its text.
        modified_ms: When it was written, in ms since 1970.
    """

    watermark: Watermark
    etag: str
    text: str
    modified_ms: int


class WatermarkConflictError(ArchiveConflictError):
    """Another writer has changed `offset.wm`. `stored` is the object now; None if it was
    deleted.
    """

    def __init__(self, key: str, stored: StoredWatermark | None) -> None:
        change = "deleted" if stored is None else "written by another process"
        super().__init__(f"{key} has been {change} since it was read")
        self.stored = stored


def read_watermark(store: RemoteStorage, key: str) -> StoredWatermark | None:
    """Read the `offset.wm` with this key; None if there is none. One request.

    Raises:
        MalformedObjectError: It does not parse.
    """
    try:
        answer = store.get_object(key)
    except ObjectNotFoundError:
        return None
    watermark = decode_watermark(answer.data, key)
    text = answer.data.decode("ascii", "replace")
    return StoredWatermark(watermark, answer.head.etag, text, answer.head.modified_ms)


def write_watermark(
    store: RemoteStorage, key: str, watermark: Watermark, etag: str | None
) -> tuple[Watermark, str]:
    """Replace the `offset.wm` that has this etag, or create it if `etag` is None.

    The object gets a new nonce. If the store refuses the write and the stored object has this
    nonce, an earlier attempt succeeded and its answer was lost: that counts as success.

    Returns:
        The contents with the nonce, and the new etag.

    Raises:
        WatermarkConflictError: Another writer has changed it.
        MalformedObjectError: Another writer has changed it, and it does not parse.
    """
    ours = replace(watermark, nonce=uuid.uuid4().hex)
    body = BytesBody(encode_watermark(ours))
    try:
        return ours, store.put_object(key, body, PutOptions(condition=unchanged(etag)))
    except PreconditionFailedError:
        stored = read_watermark(store, key)
    if stored is not None and stored.watermark.nonce == ours.nonce:
        return ours, stored.etag
    raise WatermarkConflictError(key, stored)


def only_start_moved(old: Watermark, new: Watermark) -> bool:
    """Return whether `sidetier gc` alone has written `offset.wm` since: it moves the start up."""
    is_same = new == replace(old, start_offset=new.start_offset, nonce=new.nonce)
    return is_same and (new.start_offset or 0) > (old.start_offset or 0)


def is_noted(watermark: Watermark, epoch_history: EpochHistory) -> bool:
    """Return whether `offset.wm` was written with these leader epochs; True if it has no
    checksum.
    """
    if watermark.epoch_history is None or watermark.next_offset is None:
        return True
    return checksum_below(epoch_history, watermark.next_offset) == watermark.epoch_history


def encode_watermark(watermark: Watermark) -> bytes:
    """Encode the object."""
    fields = asdict(watermark)
    del fields["base_offset"]
    fields["lineage"] = fields.pop("epoch_history")  # the stored name, since version 1
    for name in ("pending", "lineage"):
        if fields[name] is None:
            del fields[name]
    return b"%020d\n%b\n" % (watermark.base_offset, _LINE_2.encode(fields))


def decode_watermark(data: bytes, key: str) -> Watermark:
    """Decode an object of Sidetier or of Pinterest's uploader; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes have neither form, or line 2 has an unknown version.
    """
    match = _LINES.fullmatch(data)
    if match is None or int(match[1]) > MAX_OFFSET:
        raise _malformed(key, data, "expected 20 digits, and one line of JSON or none")
    base = BaseOffset(int(match[1]))
    if match[2] is None:
        return Watermark(base, None)
    line = _LINE_2.decode(match[2], key)
    end = line.next_offset
    if end is not None and (end < base or (end == int(base) and line.pending is None)):
        raise _malformed(key, data, f"line 2: next_offset {end} is not above the base offset")
    return Watermark(
        base,
        end,
        line.leader_epoch,
        line.broker_id,
        line.topic_id,
        WATERMARK_VERSION,
        line.nonce,
        line.pending,
        line.start_offset,
        line.lineage,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line2:
    next_offset: Offset | None = None
    leader_epoch: LeaderEpoch
    broker_id: BrokerId
    topic_id: str | None = None
    nonce: str | None = None
    pending: str | None = None
    start_offset: Offset | None = None
    lineage: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers of more than 64 bits."""
        check_numbers(self)


_LINE_2: Final = JsonCodec(_Line2, "a watermark: line 2", WATERMARK_VERSION)


def _malformed(key: str, data: bytes, reason: str) -> MalformedObjectError:
    return MalformedObjectError(f"{key}: not a watermark: {reason}; it begins {data[:60]!r}")
