"""Plans of handmade archives, and splits read as tasks read them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Assigned, ReadRequest
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import IfMatch, RemoteStorage
from tests.harness.made_archive import LAYOUT, TP, access_to


@dataclass(slots=True)
class Ranges:
    """The requested byte ranges, by key suffix."""

    asked: list[tuple[str, int, int | None]] = field(default_factory=list)

    def of(self, suffix: str) -> list[tuple[int, int | None]]:
        return [(start, end) for key, start, end in self.asked if key.endswith(suffix)]


class CountingStorage(FakeStorage):
    """A store that records the requested byte ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges()

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        self.ranges.asked.append((key, start, end))
        return super().get_object_input_stream(key, start, end, condition=condition)

    def forget(self) -> None:
        """Forget the requests so far."""
        del self.requests[:]
        self.ranges.asked.clear()


def plan_of(
    store: RemoteStorage,
    *tps: TopicPartition,
    layout: ArchiveLayout = LAYOUT,
    **request: Any,  # noqa: ANN401  fields of ReadRequest
) -> Plan:
    """Plan a read of these partitions, or of the handmade archive's."""
    with Planner(access_to(store, layout), threads=2) as planner:
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
