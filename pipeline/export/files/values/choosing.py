"""The decoder that options ask for."""

from sidetier.pipeline.export.files.options import SchemaCompatibility, ValueFormat, ValueOptions
from sidetier.pipeline.export.files.values.avro_values import AvroDecoder
from sidetier.pipeline.export.files.values.decoder import (
    BytesDecoder,
    StringDecoder,
    ValueDecoder,
)
from sidetier.pipeline.export.files.values.framing import Framing, WriterSchema
from sidetier.pipeline.export.files.values.json_values import JsonDecoder
from sidetier.pipeline.export.files.values.protobuf_values import ProtobufDecoder
from sidetier.pipeline.export.files.values.registry import (
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)


def registry_of(
    options: ValueOptions, config: RegistryConfig | None = None
) -> SchemaRegistry | None:
    """The registry with the schemas of values, None where none is asked; `config` says how it is
    reached today, whatever the URL was when the options were made.

    Raises:
        ConfigurationError: a setting is wrong, or the client is not installed.
    """
    if options.registry is None:
        return None
    kind = SchemaKind(options.format.value.upper())
    return SchemaRegistry(config or RegistryConfig(url=options.registry), kind)


def newest(options: ValueOptions, config: RegistryConfig | None = None) -> ValueOptions:
    """The options with the schema that their subject has now, where rows follow its changes; raises
    as `SchemaRegistry.latest`.
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
    """`schema_text` is what rows are to fit in place of the options' own.

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
