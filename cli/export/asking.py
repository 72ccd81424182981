"""From the command line's options to a request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sidetier.cli.consume.places import Place as Written
from sidetier.cli.consume.places import PlaceKind, parse_place
from sidetier.cli.export.files_request import FilesRequest
from sidetier.cli.export.kafka_options import kafka_properties
from sidetier.pipeline.export.files.options import FilesOptions, ValueOptions
from sidetier.pipeline.export.files.source import Asked, Place
from sidetier.pipeline.export.files.values.registry import SchemaRegistry
from sidetier.pipeline.planning.limits import Edge
from sidetier.segments.errors import ConfigurationError

_EDGES: Final = {PlaceKind.BEGINNING: Edge.EARLIEST, PlaceKind.END: Edge.LATEST}
_LARGEST_SCHEMA: Final = 1024**2


def request_of(topics: tuple[str, ...], given: Mapping[str, Any]) -> FilesRequest:
    """What was asked for, schemas read.

    Raises:
        ConfigurationError: options contradict one another, or a schema cannot be read.
    """
    if len(topics) > 1 and given["schema_registry"] is not None and given["value_schema"] is None:
        raise ConfigurationError(
            "with --schema-registry each topic has a schema of its own: "
            "export one topic at a time, or give --value-schema"
        )
    begin, end = given["begin"], given["end"]
    asked = None
    if begin is not None or end is not None:
        asked = Asked(_place(begin or "beginning", "--from"), _place(end or "end", "--to"))
    if asked is not None:
        _check_given_range(given)
    if given["whole_files"] and (given["chunk"] or given["chunk_bytes"]):
        raise ConfigurationError(
            "--whole-files: a chunk may hold less than a file: leave --chunk and --chunk-bytes away"
        )
    return FilesRequest(
        topics=tuple(dict.fromkeys(topics)),
        into=given["into"],
        into_config=given["into_config"],
        options=_options(topics[0], given),
        asked=asked,
        follow=given["interval"] if given["follow"] else None,
        tail=given["tail"],
        bootstrap=given["bootstrap"],
        kafka=kafka_properties(given),
        patience=given["tail_timeout"],
        chunk=given["chunk"],
        chunk_bytes=given["chunk_bytes"],
        accept_changes=given["accept_changes"],
        reread=given["on_truncation"] == "reread",
        dry_run=given["dry_run"],
        master=given["master"],
        workers=given["workers"],
        max_batch_bytes=given["max_batch_bytes"],
        abandon_plan=given["abandon_plan"],
        transaction_timeout=given["transaction_timeout"],
    )


def _check_given_range(given: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for options that make no sense with --from or --to."""
    for name in ("chunk", "chunk_bytes"):
        if given[name] is not None:
            option = name.replace("_", "-")
            raise ConfigurationError(f"--{option}: a given range is one commit")
    if given["whole_files"]:
        raise ConfigurationError(
            "--whole-files: a given range is exported once, to its end: leave --from and --to away"
        )
    if given["tail"] == "kafka":
        raise ConfigurationError(
            "--tail kafka: a given range is of what is archived: leave --from and --to away"
        )
    if given["on_truncation"] == "reread":
        raise ConfigurationError(
            "--on-truncation reread: a given range is exported once: give it another directory"
        )


def _place(text: str, option: str) -> Place:
    try:
        written = parse_place(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    if written.kind in _EDGES:
        return Place(edge=_EDGES[written.kind])
    return _within(written, text, option)


def _within(written: Written, text: str, option: str) -> Place:
    if written.kind is PlaceKind.TIME:
        return Place(time_ms=written.number)
    if written.kind is PlaceKind.OFFSET:
        return Place(offset=written.number)
    raise ConfigurationError(
        f"{option} {text}: an end that moves names no range; give an offset or a time"
    )


def _options(topic: str, given: Mapping[str, Any]) -> FilesOptions:
    values: dict[str, Any] = {
        "topics_dir": given["topics_dir"],
        "partitioner": given["partitioner"],
        "partition_fields": list(given["partition_field"]),
        "path_format": given["path_format"],
        "partition_duration_ms": _milliseconds(given["partition_duration"]),
        "timezone": given["timezone"],
        "locale": given["locale"],
        "timestamp_field": given["timestamp_field"],
        "flush_size": given["flush_size"],
        "rotate_interval_ms": _milliseconds(given["rotate_interval"]),
        "max_open_files": given["max_open_files"],
        "whole_files": given["whole_files"],
        "format": given["form"],
        "compression": given["compression"],
        "layout": given["layout"],
        "null_values": given["null_values"],
        "dead_letters": given["dead_letters"],
        "isolation": given["isolation"],
        "fail_on_data_loss": given["on_data_loss"] == "error",
        "value": value_options(topic, given),
    }
    if given["delimiter"] is not None:
        values["delimiter"] = given["delimiter"]
    values["key_delimiter"] = given["key_delimiter"]
    try:
        return FilesOptions.model_validate(values, strict=False)
    except ValidationError as error:
        raise ConfigurationError("\n".join(map(_told, error.errors()))) from None


def _told(error: Any) -> str:  # noqa: ANN401 -- pydantic's
    """One thing that is wrong, by the option's name."""
    name = "-".join(str(step) for step in error["loc"]).replace("_", "-").removesuffix("-ms")
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"--{name}: {text}" if name and name != "value" else text


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def value_options(topic: str, given: Mapping[str, Any]) -> ValueOptions:
    """Schemas are taken into the request, so that every task has the same."""
    registry, schema = given["schema_registry"], given["value_schema"]
    text = None if schema is None else _text(schema)
    if text is None and registry is not None:
        text = SchemaRegistry(registry).latest(f"{topic}-value")
    values = {
        "format": given["value_format"],
        "schema_text": text,
        "writers": _writers(given["writer_schemas"]),
        "registry": registry,
    }
    try:
        return ValueOptions.model_validate(values, strict=False)
    except ValidationError as error:
        lines = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors()]
        raise ConfigurationError("\n".join(f"--value-format: {line}" for line in lines)) from None


def _writers(directory: Path | None) -> tuple[tuple[int, str], ...]:
    if directory is None:
        return ()
    files = [path for path in sorted(directory.glob("*.avsc")) if path.stem.isdigit()]
    if not files:
        raise ConfigurationError(
            f"--writer-schemas {directory}: has no file named by a schema's id, as 17.avsc"
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
