"""The stored record of the last restore drill: `_sidetier/<cluster>/drill.json`.

`sidetier drill` writes it, and every sidecar exports the time of the last successful drill from it.
A drill is often a CronJob whose pod has ended before Prometheus scrapes it, while the sidecars
stay.
"""

from dataclasses import asdict, dataclass, replace
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import (
    ArchiveConflictError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

DRILL_VERSION: Final = 1
_TRIES: Final = 5
_MAX_PROBLEMS: Final = 20


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """The outcome of one drill, and the time of the last successful one.

    Attributes:
        finished_ms: When the drill ended, in milliseconds since 1970.
        succeeded: Whether everything was restored and was equal.
        seed: Seed of the random sample. The same seed gives the same sample while the archive does
            not change.
        partitions: Number of partitions in the sample.
        records: Number of records that were restored and compared.
        bytes: Bytes of the sample's segments.
        problems: The first differences; at most 20 are stored.
        last_successful_ms: When the last successful drill ended; None if none has succeeded yet.
    """

    finished_ms: int
    succeeded: bool
    seed: int
    partitions: int
    records: int
    bytes: int
    problems: tuple[str, ...] = ()
    last_successful_ms: int | None = None


_CODEC: Final = JsonCodec(DrillRecord, "the record of a drill", DRILL_VERSION)


def encode_drill(record: DrillRecord) -> bytes:
    """Encode the object."""
    return _CODEC.encode(asdict(record)) + b"\n"


def decode_drill(data: bytes, key: str) -> DrillRecord:
    """Decode the record in an object; `key` is for errors.

    Raises:
        MalformedObjectError: The bytes are not a record, or a record of an unknown version.
    """
    return _CODEC.decode(data, key)


def read_drill(store: RemoteStorage, layout: ArchiveLayout) -> DrillRecord | None:
    """Read the record of the last drill; None if there was none.

    Raises:
        MalformedObjectError: It does not parse.
    """
    stored = _CODEC.read(store, layout.drill_key())
    return None if stored is None else stored.value


def record_drill(store: RemoteStorage, layout: ArchiveLayout, record: DrillRecord) -> DrillRecord:
    """Store the outcome of a drill, on the default store of the archive.

    The write is conditional: of two drills that end at the same time, neither hides the other's
    success. A kill before the write leaves the record of the drill before.

    Returns:
        The record that is stored now.

    Raises:
        ArchiveConflictError: Other drills have replaced the record at each attempt.
        MalformedObjectError: The stored record does not parse.
    """
    key = layout.drill_key()
    for _ in range(_TRIES):
        stored = _CODEC.read(store, key)
        merged = merged_drill(None if stored is None else stored.value, record)
        if stored is not None and stored.value == merged:
            return merged
        condition = unchanged(None if stored is None else stored.etag)
        try:
            store.put_object(key, BytesBody(encode_drill(merged)), PutOptions(condition=condition))
        except PreconditionFailedError:
            continue  # another drill wrote it, or this one did and the answer was lost
        return merged
    raise ArchiveConflictError(f"{key}: other drills have replaced it {_TRIES} times; run it again")


def merged_drill(before: DrillRecord | None, record: DrillRecord) -> DrillRecord:
    """Return the record to store after a drill: the later record, with the last success of both."""
    record = replace(record, problems=record.problems[:_MAX_PROBLEMS])
    ends = [] if before is None else [before.last_successful_ms]
    ends.append(record.finished_ms if record.succeeded else None)
    # A failed drill must not hide the last success, which the sidecars export.
    latest = max((end for end in ends if end is not None), default=None)
    newest = record if before is None or record.finished_ms >= before.finished_ms else before
    return replace(newest, last_successful_ms=latest)
