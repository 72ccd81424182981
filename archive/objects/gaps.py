"""Recorded gaps: offsets whose records the broker deleted before they could be archived.

Each gap is one object, `_sidetier/<cluster>/gaps/<topic>-<partition>/<start>-<end>.json`. Readers
take the offsets from the key, and need only a listing.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Final, Literal

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import MalformedObjectError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout, parse_gap_key
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, ObjectSummary, PutOptions, RemoteStorage

Gaps = list[OffsetRange]

ArchiveBelow = Literal["verified", "unverified"]


def listed_gaps(
    store: RemoteStorage, prefix: str
) -> Iterator[tuple[str, ObjectSummary, OffsetRange]]:
    """Yield each object below a prefix whose name has the offsets of a gap, with its folder.

    Raises:
        StorageError: As `RemoteStorage` says.
    """
    for row in store.list_objects(prefix):
        folder = row.key[: row.key.rindex("/") + 1]
        gap = parse_gap_key(row.key, folder)
        if gap is not None:
            yield folder, row, gap


def recorded_gaps(
    store: RemoteStorage, layout: ArchiveLayout, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Gaps]:
    """List the gaps of some partitions, in one listing of the prefix that their keys share.

    Pass partitions of one topic: partitions of several topics share only the cluster's prefix, so
    the listing would read the gaps of all topics.
    """
    gaps_by_partition: dict[TopicPartition, Gaps] = {tp: [] for tp in tps}
    by_prefix = {layout.gap_prefix(tp): gaps for tp, gaps in gaps_by_partition.items()}
    shared = commonprefix(list(by_prefix))  # noqa: RUF071 - a store lists by characters, too
    for prefix, _, gap in listed_gaps(store, shared):
        # The prefix that `t-1` and `t-10` share also lists the gaps of `t-11`.
        if prefix in by_prefix:
            by_prefix[prefix].append(gap)
    return gaps_by_partition


@dataclass(frozen=True, slots=True)
class GapRecord:
    """What a gap record has beside its offsets. A field is None if the record does not have it.

    Attributes:
        broker_id: Broker whose sidecar recorded the gap.
        leader_epoch: Leader epoch in which the gap was recorded.
        archive_below: As in `write_gap`.
    """

    broker_id: int | None = None
    leader_epoch: int | None = None
    archive_below: str | None = None


_CODEC: Final = JsonCodec(GapRecord, "the record of a gap")
_FIELDS: Final = JsonCodec(dict[str, Any], "the record of a gap")


def read_gap(store: RemoteStorage, key: str) -> GapRecord:
    """Read a gap record. One request.

    Its fields are None in an object that does not parse or is of an unknown version: the key has
    the offsets, and a refusal would hide the gap.
    """
    try:
        stored = _CODEC.read(store, key)
    except MalformedObjectError:
        stored = None
    return GapRecord() if stored is None else stored.value


def write_gap(  # noqa: PLR0913 - one argument for each field of the record
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: OffsetRange,
    broker_id: BrokerId,
    leader_epoch: LeaderEpoch,
    *,
    archive_below: ArchiveBelow | None = None,
) -> None:
    """Record a gap, unless it is recorded already.

    A kill right after the write leaves the record, and `offset.wm` below the gap. The next start
    finds the same gap and this record.

    Args:
        store: The partition's store.
        layout: How keys are made.
        tp: The partition.
        gap: The missing offsets.
        broker_id: The writer's broker.
        leader_epoch: The writer's leader epoch.
        archive_below: Whether the archive below the gap is known to have the same history as the
            log above it; None if nothing is archived below.
    """
    fields: dict[str, int | str] = {
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": gap.start,
        "end_offset": gap.end,
        "broker_id": broker_id,
        "leader_epoch": leader_epoch,
    }
    if archive_below is not None:
        fields["archive_below"] = archive_below
    _put(store, layout.gap_key(tp, gap.start, gap.end), fields)


def shorten_gap(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, end: Offset
) -> None:
    """Also record the part below `end` of a gap that contains it. The longer record stays."""
    for start, old_end in recorded_gaps(store, layout, [tp])[tp]:
        if start < end < old_end:
            key = layout.gap_key(tp, start, old_end)
            fields: dict[str, Any] = {"start_offset": start}
            # A refusal of an unknown version would hold the partition, and its fields may be wrong
            # for another range.
            with contextlib.suppress(MalformedObjectError):
                fields = _FIELDS.decode(store.get_object(key).data, key)
            fields["end_offset"] = end
            _put(store, layout.gap_key(tp, start, end), fields)


def _put(store: RemoteStorage, key: str, fields: Mapping[str, object]) -> None:
    body = BytesBody(_CODEC.encode(fields))
    # The key has both offsets, so an existing object records the same gap.
    with contextlib.suppress(PreconditionFailedError):  # recorded by an earlier attempt
        store.put_object(key, body, PutOptions(condition=IfAbsent()))
