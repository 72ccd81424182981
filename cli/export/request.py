"""Requests of the export commands, built from the options of the command line."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from sidetier.archive.positions import PositionKind, parse_position
from sidetier.cli.export.kafka_options import java_kafka_properties
from sidetier.cli.export.options import FilesCommandOptions, RecordOptions, TableOptions
from sidetier.config.problems import reason_of
from sidetier.config.secrets import is_secret_property
from sidetier.config.times import is_before_now
from sidetier.config.types import SecretRef
from sidetier.pipeline.export.request import FilesRequest, TableRequest
from sidetier.pipeline.export.run import Terms
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.tables.run import TableTerms
from sidetier.pipeline.export.source import RangeBound, RequestedRange
from sidetier.pipeline.export.values.options import ValueOptions
from sidetier.pipeline.export.values.registry import (
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)
from sidetier.pipeline.planning.offsets_json import parse_numbers
from sidetier.pipeline.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    Edge,
    Limit,
    ReadRequest,
    Topics,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import is_legal_topic

_EDGES: Final = {PositionKind.BEGINNING: Edge.EARLIEST, PositionKind.END: Edge.LATEST}
_LARGEST_SCHEMA: Final = 1024**2


def request_of(options: FilesCommandOptions) -> FilesRequest:
    """Return the request, with the schemas read.

    Topics that are not legal names are regular expressions.

    Raises:
        ConfigurationError: Options contradict one another, or a schema cannot be read.
    """
    topics = tuple(filter(is_legal_topic, options.topics))
    patterns = tuple(dict.fromkeys(text for text in options.topics if text not in topics))
    require_one_subject(topics, options.records, patterns)
    begin, end = options.begin, options.end
    given_range = None
    if begin is not None or end is not None:
        given_range = RequestedRange(
            _bound(begin or "beginning", "--from"), _bound(end or "end", "--to")
        )
    if given_range is not None:
        _check_given_range(options)
    if options.whole_files and (options.chunk or options.chunk_bytes):
        raise ConfigurationError(
            "--whole-files: a chunk may hold less than a file: omit --chunk and --chunk-bytes"
        )
    return FilesRequest(
        **_common(topics, options),
        options=_options(options),
        terms=Terms(**_terms(options)),
        requested=given_range,
        follow=options.interval if options.follow else None,
        accept_changes=options.accept_changes,
        master=options.master,
        workers=options.workers,
        abandon_plan=options.abandon_plan,
        patterns=patterns,
    )


def _common(topics: tuple[str, ...], options: FilesCommandOptions | TableOptions) -> dict[str, Any]:
    """Return the fields of `ExportRequest` that every command fills in the same way."""
    return {
        "topics": tuple(dict.fromkeys(topics)),
        "tail": options.tail.action,
        "registry": registry_config(
            options.records.schema_registry, options.records.registry_options
        ),
        "patience": options.tail.timeout,
        "dry_run": options.dry_run,
        "max_batch_bytes": options.read.max_batch_bytes,
    }


def _terms(options: FilesCommandOptions | TableOptions) -> dict[str, Any]:
    """Return the fields of `Terms`."""
    return {
        "most_offsets": options.chunk,
        "most_bytes": options.chunk_bytes,
        "reread": options.read.on_truncation == "reread",
        "transaction_timeout_ms": round(options.read.transaction_timeout * 1000),
    }


def _check_given_range(options: FilesCommandOptions) -> None:
    """Raise ConfigurationError for options that exclude --from and --to."""
    for flag, size in (("--chunk", options.chunk), ("--chunk-bytes", options.chunk_bytes)):
        if size is not None:
            raise ConfigurationError(f"{flag}: a given range is one commit")
    if options.whole_files:
        raise ConfigurationError(
            "--whole-files: a given range is exported once, to its end: omit --from and --to"
        )
    if options.tail.action == "kafka":
        raise ConfigurationError(
            "--tail kafka: a given range covers only archived records: omit --from and --to"
        )
    if options.read.on_truncation == "reread":
        raise ConfigurationError(
            "--on-truncation reread: a given range is exported once: give it another directory"
        )


def _bound(text: str, option: str) -> RangeBound:
    if is_before_now(text):
        raise ConfigurationError(
            f"{option} {text}: now moves, so this is no fixed range, and an interrupted export "
            "could not be completed; give an offset, a date or a time"
        )
    try:
        place = parse_position(text, now_ms=0)  # nothing is relative to it
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    if place.kind in _EDGES:
        return RangeBound(edge=_EDGES[place.kind])
    if place.kind is PositionKind.TIME:
        return RangeBound(time_ms=place.number)
    if place.kind is PositionKind.OFFSET:
        return RangeBound(offset=place.number)
    raise ConfigurationError(
        f"{option} {text}: the end of the log moves, so this is no fixed range; give an offset "
        "or a time"
    )


def _options(options: FilesCommandOptions) -> FilesOptions:
    topic, records = options.topics[0], options.records
    values: dict[str, Any] = {
        "topics_dir": options.topics_dir,
        "partitioner": options.partitioner,
        "partition_fields": list(options.partition_field),
        "path_format": options.path_format,
        "partition_duration_ms": _milliseconds(options.partition_duration),
        "timezone": options.timezone,
        "locale": options.locale,
        "timestamp_field": options.timestamp_field,
        "flush_size": options.flush_size,
        "rotate_interval_ms": _milliseconds(options.rotate_interval),
        "max_open_files": options.max_open_files,
        "whole_files": options.whole_files,
        "format": options.format,
        "compression": options.compression,
        "layout": "flat" if options.flat else options.layout or "record",
        "null_values": records.null_values,
        "dead_letters": options.dead_letters,
        "isolation": options.read.isolation,
        "fail_on_data_loss": options.read.on_data_loss == "error",
        "value": schema_options("value", topic, records),
        "key": schema_options("key", topic, records),
        "delimiter": options.delimiter,
        "key_delimiter": options.key_delimiter,
    }
    try:
        return FilesOptions.model_validate(values, strict=False)
    except ValidationError as error:
        raise ConfigurationError("\n".join(map(_told, error.errors()))) from None


def _told(error: Any) -> str:  # noqa: ANN401 -- pydantic's type
    """Return one problem, with the name of the option."""
    name = "-".join(str(step) for step in error["loc"]).replace("_", "-").removesuffix("-ms")
    text = reason_of(error)
    return f"--{name}: {text}" if name and name != "value" else text


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def require_one_subject(
    topics: Sequence[str], records: RecordOptions, patterns: Sequence[str] = ()
) -> None:
    """Raise ConfigurationError if several topics would each need a schema of the registry."""
    asks_registry = records.schema_registry is not None and any(
        part.is_framed and part.schema is None for part in (records.value, records.key)
    )
    if asks_registry and (len(set(topics)) > 1 or patterns):
        raise ConfigurationError(
            "with --schema-registry each topic has a schema of its own: "
            "export one topic at a time, or give --value-schema and --key-schema"
        )


def registry_config(url: str | None, given: Mapping[str, str]) -> RegistryConfig | None:
    """Return how to reach the schema registry; None without one. Raises ConfigurationError."""
    options = {name.removeprefix("schema.registry."): text for name, text in given.items()}
    if url is None:
        if options:
            raise ConfigurationError("--schema-registry-option: needs --schema-registry")
        return None
    client = {
        name: SecretRef.of_text(f"--schema-registry-option {name}", text)
        if is_secret_property(name)
        else text
        for name, text in options.items()
    }
    try:
        return RegistryConfig(url=url, client=client)
    except ValidationError as error:
        raise ConfigurationError(f"--schema-registry: {reason_of(error.errors()[0])}") from None


def schema_options(
    part: Literal["value", "key"], topic: str, records: RecordOptions
) -> ValueOptions:
    """Return how to read values or keys (`part`).

    The schemas become part of the request, so that every task has the same ones.
    """
    given = records.value if part == "value" else records.key
    registry = registry_config(records.schema_registry, records.registry_options)
    schema = given.schema
    if not given.is_framed:
        registry = None
        if part == "value" and records.schema_registry and records.key.format == "bytes":
            raise ConfigurationError(
                "--schema-registry: needs values or keys in json, avro or protobuf: give "
                "--value-format or --key-format"
            )
    writers = _writers(records.writer_schemas)
    values: dict[str, Any] = {
        "format": given.format,
        "schema_text": None if schema is None else _text(schema),
        "writers": writers if given.format == "avro" else (),
        "registry": None if registry is None else registry.url,
        "compatibility": records.schema_compatibility,
        "message": given.message,
    }
    if registry is not None and schema is None:
        kind = SchemaKind(given.format.upper())
        subject = given.subject or f"{topic}-{part}"
        latest = SchemaRegistry(registry, kind).latest(subject)
        values |= {"schema_text": latest.text, "subject": subject, "schema_id": latest.id}
    try:
        return ValueOptions.model_validate(values, strict=False)
    except ValidationError as error:
        lines = [f"--{part}-format: {reason_of(problem)}" for problem in error.errors()]
        raise ConfigurationError("\n".join(lines)) from None


def _writers(directory: Path | None) -> tuple[tuple[int, str], ...]:
    if directory is None:
        return ()
    files = [path for path in sorted(directory.glob("*.avsc")) if path.stem.isdigit()]
    if not files:
        raise ConfigurationError(
            f"--writer-schemas {directory}: has no file that is named after a schema's id, such as "
            "17.avsc"
        )
    return tuple((int(path.stem), _text(path)) for path in files)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    if len(text) > _LARGEST_SCHEMA:
        raise ConfigurationError(f"{path}: is larger than any schema, {len(text)} characters")
    return text


_TABLE_EDGES: Final = {edge.value: edge for edge in Edge}


def table_request(
    topics: tuple[str, ...], options: TableOptions, terms: TableTerms, interval: float
) -> TableRequest:
    """Return the request; `terms` and `interval` are the defaults of the table's format.

    Raises:
        ConfigurationError: Options contradict one another, or one is invalid.
    """
    require_one_subject(topics, options.records)
    isolation = IsolationLevel(options.read.isolation)
    starting = _limit(options.starting_offsets or "earliest", "--starting-offsets")
    return TableRequest(
        **_common(topics, options),
        read=ReadRequest(
            Topics(tuple(dict.fromkeys(topics))),
            starting=starting,
            ending=_limit(options.ending_offsets or "latest", "--ending-offsets"),
            starting_option="--starting-offsets",
            ending_option="--ending-offsets",
            isolation=isolation,
            fail_on_data_loss=options.read.on_data_loss == "error",
            include_headers=True,
        ),
        terms=TableTerms(
            isolation=isolation,
            timeout=options.timeout or terms.timeout,
            allow_empty=terms.allow_empty,
            commits_start=_has_latest(starting),
            anew=options.starting_offsets is not None,
            whole_state_every=options.whole_state_every or terms.whole_state_every,
            **_terms(options),
        ),
        values=schema_options("value", topics[0], options.records),
        keys=schema_options("key", topics[0], options.records),
        flat=options.flat,
        null_values=options.records.null_values,
        follow=(options.interval or interval) if options.follow else None,
        kafka=java_kafka_properties(options.tail),
        master=options.master,
        spark_conf=options.spark_conf,
    )


def _has_latest(limit: Limit) -> bool:
    if isinstance(limit, AtOffsets):
        return LATEST_OFFSET in limit.offsets.values()
    return limit is Edge.LATEST


def _limit(text: str, option: str) -> Limit:
    if text in _TABLE_EDGES:
        return _TABLE_EDGES[text]
    offsets = parse_numbers(text, option)
    if min(offsets.values(), default=0) < min(EARLIEST_OFFSET, LATEST_OFFSET):
        raise ConfigurationError(f"{option}: an offset is below {EARLIEST_OFFSET}")
    return AtOffsets(offsets)
