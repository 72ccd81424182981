"""Which schema the rows of a partition have while its producers change theirs.

The terms and rules are those of `schema.compatibility` of Confluent's sink connectors
(`StorageSchemaCompatibility`). Each decision follows from the current schema, which the state of an
export keeps, and the id of a record's schema: a run that is repeated decides the same.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.errors import NewerSchemaError
from sidetier.pipeline.export.files.options import SchemaCompatibility, ValueOptions
from sidetier.pipeline.export.files.values.choosing import decoder_of
from sidetier.pipeline.export.files.values.decoder import DecodedValues, Misfit, ValueDecoder
from sidetier.pipeline.export.files.values.framing import NO_SCHEMA, schema_ids
from sidetier.pipeline.export.files.values.references import UnusableSchemaError
from sidetier.pipeline.export.files.values.registry import SchemaRegistry
from sidetier.segments.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows from `first` up to, not including, `until`, which one decoder reads."""

    first: int
    until: int
    schema: int | None
    """The id of the schema that they have; None where it is the one of the options."""


class SchemaTracker:
    """Follows the schemas of the records of one partition, in order of offsets."""

    def __init__(
        self, options: ValueOptions, registry: SchemaRegistry | None, current: int | None
    ) -> None:
        """`current` is the id of the schema that the rows before have; None where there are none
        of any schema.
        """
        self._options = options
        self._registry = registry
        self.current = current
        self._refused: dict[int, str] = {}
        self._decoders: dict[int | None, ValueDecoder] = {}

    @property
    def evolves(self) -> bool:
        """Whether schemas of records become those of rows; else all rows have one schema."""
        return self._registry is not None and self._options.subject is not None

    def stretches(self, values: pa.Array) -> list[Stretch]:
        """The rows of a batch, each part with the schema that its rows have; `current` moves."""
        count = len(values)
        if not self.evolves:
            return [Stretch(0, count, None)]
        found, first = [], 0
        ids = schema_ids(values)
        for row in _changes(ids):
            if (number := self._next(int(ids[row]))) != self.current:
                if row > first:
                    found.append(Stretch(first, row, self.current))
                    first = row
                self.current = number
        return [*found, Stretch(first, count, self.current)]

    def decode(self, values: pa.Array, decoder: ValueDecoder) -> DecodedValues:
        """Decode the values of a stretch, by the decoder of its schema.

        Raises:
            ConfigurationError: no column can hold values of its schema; the registry refuses us.
            StoreUnavailableError: the registry does not answer.
        """
        decoded = decoder.decode(values)
        refused = self._misfits(values)
        if not refused:
            return decoded
        misfits = {one.row: one for one in (*decoded.misfits, *refused)}
        return replace(decoded, misfits=tuple(misfits[row] for row in sorted(misfits)))

    def decoder(self, schema: int | None) -> ValueDecoder:
        """What reads values into rows of a schema; raises as `decode`."""
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
        """The schema that rows have from a record on whose schema is this."""
        if number in {NO_SCHEMA, self.current} or not self._is_usable(number):
            return self.current
        how = self._options.compatibility
        if self.current is None or how is SchemaCompatibility.NONE:
            return number
        now, other = self._version(self.current), self._version(number)
        if now is None or other is None:
            return self.current
        is_next = other < now if how is SchemaCompatibility.FORWARD else other > now
        return number if is_next else self.current

    def _is_usable(self, number: int) -> bool:
        if number in self._refused:
            return False
        try:
            text = None if self._registry is None else self._registry.by_id(number)
        except UnusableSchemaError:
            return False  # the decoder says why
        return text is not None

    def _version(self, number: int) -> int | None:
        """None where it has none, which is remembered against its records."""
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
    """Sees to it that rows of one schema leave out no field that a newer schema has added."""

    def __init__(self, options: ValueOptions, registry: SchemaRegistry | None) -> None:
        self._options = options
        self._registry = registry
        self._known: set[int] = {NO_SCHEMA}

    def require(self, values: pa.Array) -> None:
        """Check the schemas of some records.

        Raises:
            NewerSchemaError: one is newer than that of the rows.
            StoreUnavailableError, ConfigurationError: as `SchemaRegistry.version`.
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


def _changes(ids: Any) -> list[int]:  # noqa: ANN401 -- of numpy
    """The rows whose schema is not that of the row before."""
    if not len(ids):
        return []
    return [0, *(int(row) + 1 for row in np.flatnonzero(ids[1:] != ids[:-1]))]
