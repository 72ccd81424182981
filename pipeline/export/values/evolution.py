"""The schema of a partition's rows while producers change theirs.

Terms and rules as `schema.compatibility` of Confluent's sink connectors
(`StorageSchemaCompatibility`). A decision depends only on the current schema, which the export's
state keeps, and on the schema id of a record. So a repeated run makes the same decisions.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.errors import NewerSchemaError
from sidetier.pipeline.export.values.decoder import DecodedValues, Misfit, ValueDecoder
from sidetier.pipeline.export.values.decoder_factory import decoder_of
from sidetier.pipeline.export.values.framing import NO_SCHEMA, schema_ids
from sidetier.pipeline.export.values.options import SchemaCompatibility, ValueOptions
from sidetier.pipeline.export.values.references import UnusableSchemaError
from sidetier.pipeline.export.values.registry import SchemaRegistry
from sidetier.segments.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows from `first` (inclusive) to `until` (exclusive) that one decoder reads."""

    first: int
    until: int
    schema: int | None
    """Schema id of the rows; None for the schema of the options."""


class SchemaTracker:
    """Follows the schemas of one partition's records, in order of offsets."""

    def __init__(
        self, options: ValueOptions, registry: SchemaRegistry | None, current: int | None
    ) -> None:
        """`current` is the schema id of the rows before; None without such rows."""
        self._options = options
        self._registry = registry
        self.current = current
        self._refused: dict[int, str] = {}
        self._decoders: dict[int | None, ValueDecoder] = {}

    @property
    def evolves(self) -> bool:
        """Whether rows follow the schemas of records. Otherwise all rows have one schema."""
        return self._registry is not None and self._options.subject is not None

    def stretches(self, values: pa.Array) -> list[Stretch]:
        """Divide a batch into parts whose rows have one schema; `current` is updated."""
        count = len(values)
        if not self.evolves:
            return [Stretch(0, count, None)]
        parts, first = [], 0
        ids = schema_ids(values)
        for row in _changes(ids):
            if (number := self._next(int(ids[row]))) != self.current:
                if row > first:
                    parts.append(Stretch(first, row, self.current))
                    first = row
                self.current = number
        return [*parts, Stretch(first, count, self.current)]

    def decode(self, values: pa.Array, decoder: ValueDecoder) -> DecodedValues:
        """Decode the values of a stretch with the decoder of its schema.

        Raises:
            ConfigurationError: no column can hold values of the schema, or the registry refuses the
                request.
            StoreUnavailableError: the registry does not answer.
        """
        decoded = decoder.decode(values)
        refused = self._misfits(values)
        if not refused:
            return decoded
        misfits = {misfit.row: misfit for misfit in (*decoded.misfits, *refused)}
        return replace(decoded, misfits=tuple(misfits[row] for row in sorted(misfits)))

    def decoder(self, schema: int | None) -> ValueDecoder:
        """Return the decoder into rows of a schema. Raises the errors of `decode`."""
        if schema == self._options.schema_id:
            schema = None
        if schema not in self._decoders:
            text = None
            if schema is not None and self._registry is not None:
                text = self._registry.by_id(schema)
                if text is None:
                    raise ConfigurationError(
                        f"the registry has no schema {schema}, which the rows before have"
                    )
            self._decoders[schema] = decoder_of(self._options, self._registry, text)
        return self._decoders[schema]

    def _next(self, number: int) -> int | None:
        """Return the schema of rows from a record on whose schema is `number`."""
        if number in {NO_SCHEMA, self.current} or not self._is_usable(number):
            return self.current
        compatibility = self._options.compatibility
        if self.current is None or compatibility is SchemaCompatibility.NONE:
            return number
        current_version, new_version = self._version(self.current), self._version(number)
        if current_version is None or new_version is None:
            return self.current
        is_next = (
            new_version < current_version
            if compatibility is SchemaCompatibility.FORWARD
            else new_version > current_version
        )
        return number if is_next else self.current

    def _is_usable(self, number: int) -> bool:
        if number in self._refused:
            return False
        try:
            text = None if self._registry is None else self._registry.by_id(number)
        except UnusableSchemaError:
            return False  # the decoder reports the reason
        return text is not None

    def _version(self, number: int) -> int | None:
        """Return the version of a schema; None if it has none. Then its records are misfits."""
        subject = str(self._options.subject)
        version = None if self._registry is None else self._registry.version(number, subject)
        if version is None and number != self.current:
            self._refused[number] = (
                f"value has the schema {number}, which has no version in the subject {subject}: "
                f"--schema-compatibility {self._options.compatibility} cannot tell whether it is "
                "newer"
            )
        return version

    def _misfits(self, values: pa.Array) -> list[Misfit]:
        if not self._refused:
            return []
        ids = schema_ids(values)
        return [
            Misfit(int(row), self._refused[int(ids[row])])
            for row in np.flatnonzero(np.isin(ids, list(self._refused)))
        ]


class SchemaGuard:
    """Prevents rows of one schema from dropping fields that a newer schema has added."""

    def __init__(self, options: ValueOptions, registry: SchemaRegistry | None) -> None:
        self._options = options
        self._registry = registry
        self._known: set[int] = {NO_SCHEMA}

    def require(self, values: pa.Array) -> None:
        """Check the schemas of some records.

        Raises:
            NewerSchemaError: a schema is newer than the rows' schema.
            StoreUnavailableError, ConfigurationError: see `SchemaRegistry.version`.
        """
        options, registry = self._options, self._registry
        if registry is None or options.subject is None or options.schema_id is None:
            return
        if options.compatibility is SchemaCompatibility.FORWARD:
            return
        for number in sorted(set(schema_ids(values).tolist()) - self._known):
            subject = options.subject
            now = registry.version(options.schema_id, subject)
            version = registry.version(number, subject)
            if version is not None and now is not None and version > now:
                raise NewerSchemaError(
                    f"records have version {version} of the schema in subject {subject} (id "
                    f"{number}), and rows have version {now} (id {options.schema_id}): run again, "
                    "and rows have the newest version; or give --value-schema, or "
                    "--schema-compatibility forward, to leave newer fields out"
                )
            self._known.add(number)


def _changes(ids: Any) -> list[int]:  # noqa: ANN401 -- an array of numpy
    """Return the rows whose schema differs from the row before."""
    if not len(ids):
        return []
    return [0, *(int(row) + 1 for row in np.flatnonzero(ids[1:] != ids[:-1]))]
