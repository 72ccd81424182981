"""Dead letters of tables: one object for each record that does not fit, named by its offset.

Tasks store them before the commit that leaves the records out. The name contains only topic,
partition and offset, so a repeated task or run, also with other bounds, stores the same object.
After a kill in between, the object of a record exists that the next run stores again.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.values.decoder import Misfit
from sidetier.pipeline.spark.report import MergedByKey
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_Names = dict[str, None]
# As in the names of segments: the keys of a partition sort by offset.
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The store of dead letters, without secrets: it is sent to executors."""

    place: StorageConfig
    told: "Accumulator[_Names]"

    @classmethod
    def at(cls, place: StorageConfig, spark: "SparkSession") -> "DeadLetters":
        """Create it, with a counter on the driver of this session."""
        nothing: _Names = {}
        return cls(place, spark.sparkContext.accumulator(nothing, MergedByKey()))

    @property
    def count(self) -> int:
        """Number of records that were stored as dead letters. Available on the driver."""
        return len(self.told.value)

    def put(self, store: RemoteStorage, batch: pa.RecordBatch, misfits: Sequence[Misfit]) -> None:
        """Store these records of a batch as dead letters.

        Raises:
            StorageError: see `RemoteStorage.put_object`.
        """
        chosen = batch.take(pa.array([dead.row for dead in misfits], pa.int64()))
        for row, misfit in zip(_rows(chosen), misfits, strict=True):
            key = f"{row['topic']}/{row['partition']}/{row['offset']:0{_DIGITS}d}.json"
            text = json.dumps({**row, "reason": misfit.reason}, default=_plain)
            store.put_object(key, BytesBody(text.encode()))
            self.told.add({key: None})


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    index = batch.schema.get_field_index("timestamp")
    plain = batch.set_column(
        index, "timestamp", batch.column(index).cast(pa.timestamp("ms", "UTC"))
    )
    milliseconds = plain.column(index).cast(pa.int64())
    yield from plain.set_column(index, "timestamp", milliseconds).to_pylist()


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
