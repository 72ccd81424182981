"""Options for the decoding of keys and values."""

from enum import StrEnum
from typing import Final, Self

from pydantic import model_validator

from sidetier.config.types import Part


class ValueFormat(StrEnum):
    """Form as which a record's value is decoded."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class SchemaCompatibility(StrEnum):
    """How rows follow schema changes: `schema.compatibility` of Confluent's sink connectors.

    As there, FULL does the same as BACKWARD.
    """

    NONE = "none"
    """Each row has the schema of its record."""
    BACKWARD = "backward"
    """Rows have the newest schema so far. Records with older schemas are decoded into it."""
    FORWARD = "forward"
    """Rows have the oldest schema so far. Records with newer schemas are decoded into it."""
    FULL = "full"


class ValueOptions(Part):
    """How values are decoded.

    Avro schemas of the Confluent wire format come from `writers`, by schema id; if there are none,
    from the `registry`. Without both, `schema_text` counts as the writer's schema of every Avro
    value. JSON has the wire format if a registry is set. Protobuf always has it.

    Attributes:
        schema_text: schema of the rows: a JSON Schema, an Avro schema (JSON), or a base64 set of
            Protobuf descriptors.
        writers: Avro schemas of the records, with their ids.
        registry: URL of a schema registry, or several, separated by commas.
        subject: subject of the registry whose versions are the rows' schemas; with it, rows follow
            the schemas of records. None if all rows have the schema `schema_text`.
        schema_id: registry id of `schema_text`, if `subject` is set.
        message: full name of the Protobuf message; None for the first one of its file.
    """

    format: ValueFormat = ValueFormat.BYTES
    schema_text: str | None = None
    writers: tuple[tuple[int, str], ...] = ()
    registry: str | None = None
    subject: str | None = None
    schema_id: int | None = None
    compatibility: SchemaCompatibility = SchemaCompatibility.NONE
    message: str | None = None

    @property
    def has_fields(self) -> bool:
        """Whether values have named fields."""
        return self.format in {ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.has_fields and self.schema_text is None:
            raise ValueError(f"values as {self.format} need a schema")
        if not self.has_fields and (self.schema_text is not None or self.registry is not None):
            raise ValueError(f"values as {self.format} have no schema")
        if self.format is ValueFormat.PROTOBUF and self.registry is None:
            raise ValueError("values as protobuf need a schema registry")
        return self

    @model_validator(mode="after")
    def _protobuf(self) -> Self:
        if self.message is not None and self.format is not ValueFormat.PROTOBUF:
            raise ValueError("a message is named for Protobuf alone")
        return self


AS_BYTES: Final = ValueOptions()
"""Values as bytes, not decoded."""
