"""Values of records as columns, decoded in Arrow batches."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.errors import MisfitError
from sidetier.pipeline.export.output import open_output
from sidetier.pipeline.export.sinks.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.sinks.tables.row_checks import RowCheck
from sidetier.pipeline.export.sinks.tables.row_counts import Tally
from sidetier.pipeline.export.values.decoder import (
    DecodedValues,
    Misfit,
    ValueDecoder,
    lacking,
    with_fields,
)
from sidetier.pipeline.export.values.decoder_factory import decoder_of, newest, registry_of
from sidetier.pipeline.export.values.evolution import SchemaGuard
from sidetier.pipeline.export.values.options import AS_BYTES, ValueOptions
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.export.values.table_types import table_type, table_values
from sidetier.pipeline.reading import timestamps
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import RemoteStorage

_KEY: Final = "key"
_VALUE: Final = "value"
_TIMESTAMP: Final = "timestamp"


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """How keys and values become columns.

    Attributes:
        options: how values are decoded.
        flat: whether the fields of a value are columns beside the record's. Otherwise the
            value is one column.
        schema: schema of a batch of records, value included.
        letters: receives records whose key or value does not fit; if None, they are an error.
        null_values: whether records without a value are kept.
        keys: how keys are decoded.
        registry: connection to the schema registry.
        checks: how to find rows that the table refuses.
    """

    options: ValueOptions
    flat: bool
    schema: pa.Schema
    letters: DeadLetters | None = None
    null_values: Literal["keep", "skip"] = "keep"
    keys: ValueOptions = AS_BYTES
    registry: RegistryConfig | None = None
    checks: tuple[RowCheck, ...] = ()

    @property
    def follows_registry(self) -> bool:
        """Whether a schema change can add columns."""
        return any(part_options.subject is not None for part_options in (self.options, self.keys))

    def with_newest_schemas(self) -> "ValueColumns":
        """Return a copy with the registry's present schemas. Raises the errors of `newest`."""
        if not self.follows_registry:
            return self
        return replace(
            self,
            options=newest(self.options, self.registry),
            keys=newest(self.keys, self.registry),
        )

    def decoded_schema(self) -> pa.Schema:
        """Return the columns of decoded batches.

        Raises:
            ConfigurationError: a schema cannot be used, or a field has the name of another column.
        """
        (values, _), (keys, _) = self._parts()
        return self._decoded_schema(values, keys)

    def _decoded_schema(self, values: ValueDecoder, keys: ValueDecoder) -> pa.Schema:
        at = self.schema.get_field_index(_KEY)
        schema = self.schema.set(at, pa.field(_KEY, table_type(keys.type, _KEY)))
        return _with_value(schema, table_type(values.type), flat=self.flat)

    def _parts(self) -> tuple[tuple[ValueDecoder, SchemaGuard], tuple[ValueDecoder, SchemaGuard]]:
        """Return decoder and schema guard of values, and of keys."""

        def part(options: ValueOptions) -> tuple[ValueDecoder, SchemaGuard]:
            registry = registry_of(options, self.registry)
            return decoder_of(options, registry), SchemaGuard(options, registry)

        return part(self.options), part(self.keys)

    def __call__(
        self, batches: Iterable[pa.RecordBatch], tally: Tally | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches, and count their records. Runs on executors.

        Timestamps are raw milliseconds, or timestamps as Spark's source returns them.

        Raises:
            RecordCountError: a record became neither a row nor a dead letter, and was not left out.
            MisfitError: a key or value does not fit, and dead letters are not kept.
            NewerSchemaError: a record has a newer schema than the rows.
            StorageError: a dead letter cannot be stored.
        """
        counts = Tally() if tally is None else tally
        return counts.returning(self._decoded(counts.reading(batches), counts))

    def _decoded(
        self, batches: Iterable[pa.RecordBatch], counts: Tally
    ) -> Iterator[pa.RecordBatch]:
        (decoder, guard), (key_decoder, key_guard) = self._parts()
        schema = self._decoded_schema(decoder, key_decoder)
        value_type, key_type = table_type(decoder.type), table_type(key_decoder.type, _KEY)
        with ExitStack() as stack:
            store = stack.enter_context(open_output(self.letters.place)) if self.letters else None
            for batch in batches:
                if self.null_values == "skip":
                    counts.left_out += batch.column(_VALUE).null_count
                    batch = batch.filter(batch.column(_VALUE).is_valid())  # noqa: PLW2901
                guard.require(batch.column(_VALUE))
                key_guard.require(batch.column(_KEY))
                decoded = decoder.decode(batch.column(_VALUE))
                keys = key_decoder.decode(batch.column(_KEY))
                columns_of_value, too_large = table_values(decoded.values, value_type)
                columns_of_key, large_keys = table_values(keys.values, key_type, _KEY)
                more = [*_out_of_range(batch), *too_large, *large_keys]
                more += [Misfit(misfit.row, f"key: {misfit.reason}") for misfit in keys.misfits]
                if self.flat:
                    more += lacking(decoder, batch.column(_VALUE))
                named = _columns(batch, decoded.values, keys.values, flat=self.flat)
                for check in self.checks:
                    more += check.misfits(named)
                if more:
                    misfits = {misfit.row: misfit for misfit in (*decoded.misfits, *more)}
                    ordered = tuple(misfits[row] for row in sorted(misfits))
                    decoded = replace(decoded, misfits=ordered)
                rows = self._fitting(batch, decoded, store)
                counts.dead += len(decoded.misfits)
                values, key_values = columns_of_value, columns_of_key
                if rows is not None:
                    batch = batch.take(rows)  # noqa: PLW2901
                    values, key_values = values.take(rows), key_values.take(rows)
                if batch.num_rows:
                    timed = _timed(batch)
                    yield _replaced(timed, values, key_values, schema, flat=self.flat)

    def _fitting(
        self, batch: pa.RecordBatch, decoded: DecodedValues, store: RemoteStorage | None
    ) -> pa.Array | None:
        """Return the rows of records that fit; None for all rows. Store the others as dead
        letters.
        """
        if not decoded.misfits:
            return None
        if self.letters is None or store is None:
            raise _misfit(batch, decoded.misfits[0])
        self.letters.put(store, batch, decoded.misfits)
        misfits = [misfit.row for misfit in decoded.misfits]
        return pa.array(np.setdiff1d(np.arange(batch.num_rows), misfits))


def _out_of_range(batch: pa.RecordBatch) -> Iterator[Misfit]:
    """Yield misfits for raw timestamps that no column can hold."""
    column = batch.column(_TIMESTAMP)
    if pa.types.is_integer(column.type):
        for row in timestamps.out_of_range(column).tolist():
            yield Misfit(row, timestamps.reason(column[row].as_py()))


def _timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert raw milliseconds to a column of timestamps."""
    index = batch.schema.get_field_index(_TIMESTAMP)
    column = batch.column(index)
    if not pa.types.is_integer(column.type):
        return batch
    return batch.set_column(index, _TIMESTAMP, timestamps.as_timestamps(column))


def _with_value(schema: pa.Schema, kind: pa.DataType, *, flat: bool) -> pa.Schema:
    index = schema.get_field_index(_VALUE)
    if not flat:
        return schema.set(index, pa.field(_VALUE, kind))
    if not pa.types.is_struct(kind):
        raise ConfigurationError(
            f"values of the type {kind} have no fields to be columns: omit --flat"
        )
    return with_fields(schema, kind)


def _replaced(
    batch: pa.RecordBatch, values: pa.Array, keys: pa.Array, schema: pa.Schema, *, flat: bool
) -> pa.RecordBatch:
    columns = _columns(batch, values, keys, flat=flat)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _columns(
    batch: pa.RecordBatch, values: pa.Array, keys: pa.Array, *, flat: bool
) -> dict[str, pa.Array]:
    """Return the columns of a batch by name, with decoded keys and values."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | {_KEY: keys}
    if not flat:
        return {**columns, _VALUE: values}
    del columns[_VALUE]
    names = [values.type.field(number).name for number in range(values.type.num_fields)]
    return columns | dict(zip(names, values.flatten(), strict=True))


def _misfit(batch: pa.RecordBatch, misfit: Misfit) -> MisfitError:
    row = batch.slice(misfit.row, 1).select(["topic", "partition", "offset"]).to_pylist()[0]
    tp = TopicPartition(row["topic"], row["partition"])
    return MisfitError(tp, Offset(row["offset"]), misfit.reason)
