"""The decoder that the options select."""

from sidetier.pipeline.export.values.avro_values import AvroDecoder
from sidetier.pipeline.export.values.decoder import (
    BytesDecoder,
    StringDecoder,
    ValueDecoder,
)
from sidetier.pipeline.export.values.framing import Framing, WriterSchema
from sidetier.pipeline.export.values.json_values import JsonDecoder
from sidetier.pipeline.export.values.options import SchemaCompatibility, ValueFormat, ValueOptions
from sidetier.pipeline.export.values.protobuf_values import ProtobufDecoder
from sidetier.pipeline.export.values.registry import (
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)


def registry_of(
    options: ValueOptions, config: RegistryConfig | None = None
) -> SchemaRegistry | None:
    """Return the registry with the schemas of values; None if the options have none.

    `config` is the present connection. It takes precedence over the URL in the options.

    Raises:
        ConfigurationError: a setting is wrong, or the client is not installed.
    """
    if options.registry is None:
        return None
    kind = SchemaKind(options.format.value.upper())
    return SchemaRegistry(config or RegistryConfig(url=options.registry), kind)


def newest(options: ValueOptions, config: RegistryConfig | None = None) -> ValueOptions:
    """Return the options with the present schema of their subject, if rows follow schema changes.

    Raises the errors of `SchemaRegistry.latest`.
    """
    if options.subject is None or options.compatibility is SchemaCompatibility.FORWARD:
        return options
    registry = registry_of(options, config)
    if registry is None:
        return options
    latest = registry.latest(options.subject)
    return options.model_copy(update={"schema_text": latest.text, "schema_id": latest.id})


def decoder_of(
    options: ValueOptions,
    registry: SchemaRegistry | None = None,
    schema_text: str | None = None,
) -> ValueDecoder:
    """Return the decoder. `schema_text` replaces the rows' schema of the options.

    Raises:
        ConfigurationError: a schema cannot be used.
    """
    text = schema_text or options.schema_text or ""
    if registry is None:
        registry = registry_of(options)
    if options.format is ValueFormat.STRING:
        return StringDecoder()
    if options.format is ValueFormat.JSON:
        framing = None if registry is None else Framing("JSON", registry.by_id)
        return JsonDecoder(text, framing)
    if options.format is ValueFormat.AVRO:
        return AvroDecoder(text, _writers(options, registry, text))
    if options.format is ValueFormat.PROTOBUF and registry is not None:
        return ProtobufDecoder(text, Framing("Protobuf", registry.by_id), options.message)
    return BytesDecoder()


def _writers(options: ValueOptions, registry: SchemaRegistry | None, reader: str) -> WriterSchema:
    if options.writers:
        return dict(options.writers).get
    if registry is not None:
        return registry.by_id
    return lambda _number: reader
