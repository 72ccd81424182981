"""Records whose values do not fit, set aside: an object for each, named by its offset.

They are put before the commit that leaves them out. The name has the offset alone, so a task that
runs again, a run that begins again, with other bounds too, puts the same object. A kill between the
two leaves an object of a record that the next run sets aside again.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from sidetier.archive.access import endpoint_provider
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.files.values.decoder import Misfit
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_storage
from sidetier.storage.port import RemoteStorage

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_Names = dict[str, None]
_DIGITS: Final = 20


class _Union(AccumulatorParam[_Names]):
    """A record counts once, however often it is read."""

    def zero(self, value: _Names) -> _Names:  # noqa: ARG002 - Spark's form
        return {}

    def addInPlace(self, value1: _Names, value2: _Names) -> _Names:  # noqa: N802 - Spark's name
        value1.update(value2)
        return value1


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where they go; it is sent to executors, and has no secret."""

    place: StorageConfig
    told: "Accumulator[_Names]"

    @classmethod
    def at(cls, place: StorageConfig, spark: "SparkSession") -> "DeadLetters":
        """Counted on the driver of this session."""
        nothing: _Names = {}
        return cls(place, spark.sparkContext.accumulator(nothing, _Union()))

    @property
    def count(self) -> int:
        """How many records were set aside; asked on the driver."""
        return len(self.told.value)

    @contextmanager
    def open(self) -> Iterator[RemoteStorage]:
        """The store, closed at the end."""
        store = open_storage(endpoint_provider(self.place).endpoints[0])
        try:
            yield store
        finally:
            store.close()

    def put(self, store: RemoteStorage, batch: pa.RecordBatch, misfits: Sequence[Misfit]) -> None:
        """Set these records of a batch aside; raises StorageError."""
        chosen = batch.take(pa.array([one.row for one in misfits], pa.int64()))
        for row, misfit in zip(_rows(chosen), misfits, strict=True):
            key = f"{row['topic']}/{row['partition']}/{row['offset']:0{_DIGITS}d}.json"
            text = json.dumps({**row, "reason": misfit.reason}, default=_plain)
            store.put_object(key, BytesBody(text.encode()))
            self.told.add({key: None})


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    at = batch.schema.get_field_index("timestamp")
    plain = batch.set_column(at, "timestamp", batch.column(at).cast(pa.timestamp("ms", "UTC")))
    milliseconds = plain.column(at).cast(pa.int64())
    yield from plain.set_column(at, "timestamp", milliseconds).to_pylist()


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
