"""The decoder that options ask for."""

from sidetier.pipeline.export.files.options import ValueFormat, ValueOptions
from sidetier.pipeline.export.files.values.avro_values import AvroDecoder, WriterSchema
from sidetier.pipeline.export.files.values.decoder import (
    BytesDecoder,
    StringDecoder,
    ValueDecoder,
)
from sidetier.pipeline.export.files.values.json_values import JsonDecoder
from sidetier.pipeline.export.files.values.registry import SchemaRegistry


def decoder_of(options: ValueOptions) -> ValueDecoder:
    """Raises ConfigurationError for a schema that cannot be used."""
    text = options.schema_text or ""
    if options.format is ValueFormat.STRING:
        return StringDecoder()
    if options.format is ValueFormat.JSON:
        return JsonDecoder(text)
    if options.format is ValueFormat.AVRO:
        return AvroDecoder(text, _writers(options, text))
    return BytesDecoder()


def _writers(options: ValueOptions, reader: str) -> WriterSchema:
    if options.writers:
        return dict(options.writers).get
    if options.registry is not None:
        return SchemaRegistry(options.registry).by_id
    return lambda _number: reader
