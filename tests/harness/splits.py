"""Plans of handmade archives, and splits read as tasks read them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Assigned, ReadRequest
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage, Request
from sidetier.storage.port import RemoteStorage
from tests.harness.made_archive import LAYOUT, TP, access_to


def reads(store: FakeStorage, suffix: str = "") -> list[Request]:
    """Return the requests for byte ranges of keys with this suffix."""
    return [one for one in store.requests if one.operation == "stream" and one.key.endswith(suffix)]


def plan_of(
    store: RemoteStorage,
    *tps: TopicPartition,
    layout: ArchiveLayout = LAYOUT,
    with_tail: bool = False,
    **request: Any,  # noqa: ANN401  fields of ReadRequest
) -> Plan:
    """Plan a read of these partitions, or of the handmade archive's."""
    with Planner(access_to(store, layout), threads=2, with_tail=with_tail) as planner:
        return planner.plan(ReadRequest(Assigned(tps or (TP,)), **request))


@dataclass(slots=True)
class Told:
    """The batches that a task returned, and the ranges that it reported as missing."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def offsets(self) -> list[int]:
        return [at for batch in self.batches for at in batch.column("offset").to_pylist()]


def read_splits(
    store: RemoteStorage,
    splits: Iterable[Split],
    *,
    layout: ArchiveLayout = LAYOUT,
    **how: Any,  # noqa: ANN401  fields of ReadOptions
) -> Told:
    """Read the splits one after the other."""
    result = Told()
    for split in splits:
        options = ReadOptions(**how)
        result.batches += read_split(
            access_to(store, layout), split, options, result.missing.append
        )
    return result
