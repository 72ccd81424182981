"""The record on the store of offsets that were gone before they were stored."""

import contextlib
import json
from typing import Literal

from sidetier.segments.errors import PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage
from sidetier.uploader.plan import Gap

ArchiveBelow = Literal["verified", "unverified"]


def write_gap_record(  # noqa: PLR0913 - a record has that much to say
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    gap: Gap,
    broker_id: BrokerId,
    leader_epoch: LeaderEpoch,
    *,
    archive_below: ArchiveBelow | None = None,
) -> None:
    """Record it once; a kill after it finds the same gap again, and its record in place.

    `archive_below` is whether what is archived below the gap is known to be of the same history as
    the log behind it, None where nothing is archived below.
    """
    record: dict[str, int | str] = {
        "version": 1,
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": gap.start,
        "end_offset": gap.end,
        "broker_id": broker_id,
        "leader_epoch": leader_epoch,
    }
    if archive_below is not None:
        record["archive_below"] = archive_below
    body = BytesBody(json.dumps(record, sort_keys=True).encode())
    key = layout.gap_key(tp, gap.start, gap.end)
    with contextlib.suppress(PreconditionFailedError):  # recorded by an earlier try
        store.put_object(key, body, condition=IfAbsent())
