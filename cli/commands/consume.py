"""`sidetier consume`: read a topic's records from the store, or from Kafka and the store."""

from collections.abc import Mapping
from typing import Final, Literal

import click

from sidetier.archive.positions import BEGINNING, END, Position, PositionKind, is_above
from sidetier.cli import kernel
from sidetier.cli.arguments import (
    BATCH_BYTES,
    BOOTSTRAP,
    PARTITION,
    REGISTRY_OPTIONS,
    SCHEMA_REGISTRY,
    TIME,
    WHERE,
    topic_name,
)
from sidetier.cli.consume.request import (
    Formats,
    RecordFormat,
    RecordOutput,
    TextEncoding,
    unescaped,
)
from sidetier.cli.extras import RECORD_PACKAGES, needs_extra, quiet_config
from sidetier.cli.invocation import Invocation
from sidetier.cli.options import CONFIGURATION, argument, option, options
from sidetier.cli.output import OutputFormat
from sidetier.consumer.sources import Mode
from sidetier.consumer.topic_reading.request import (
    ANY,
    COLUMNS,
    Filters,
    HeaderFilter,
    TopicReadRequest,
)

_MODES: Final = ("TIERED_STORAGE_ONLY", "TIERED_STORAGE_PREFERRED", "KAFKA_PREFERRED", "KAFKA_ONLY")
_OUTPUTS: Final = (RecordFormat.JSON.value, RecordFormat.RAW.value, OutputFormat.TABLE.value)
_COLUMNS: Final = {
    RecordFormat.COUNT: (),
    RecordFormat.RAW: ("value",),
    RecordFormat.JSON: COLUMNS,
}


def _header(text: str) -> HeaderFilter:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else ANY


@options
class ConsumeOptions:
    """Options of `sidetier consume`."""

    topic: str = argument(parse=topic_name)
    partitions: tuple[int, ...] = argument(type=PARTITION, metavar="[PARTITION]...")
    begin: Position | None = option(
        "--from",
        type=WHERE,
        help="First record to read, inclusive.  [default: beginning]",
    )
    since: int | None = option(
        "--since",
        type=TIME,
        help="The same as --from with a time, such as 2h (before now) or 2026-11-21.",
    )
    end: Position | None = option(
        "--to", type=WHERE, help="Where to stop, exclusive.  [default: end]"
    )
    limit: int | None = option(
        "--limit", type=click.IntRange(1), help="Maximum number of records, over all partitions."
    )
    follow: bool = option("--follow", help="Wait for new records at the end, until stopped.")
    mode: str = option(
        "--mode",
        type=click.Choice(_MODES, case_sensitive=False),
        default=_MODES[0],
        help="Read the store alone, or the store and Kafka as one log.",
    )
    with_tail: bool = option(
        "--with-tail",
        help="Also read the records of active segments that tail packs have; see `sidetier tail`.",
    )
    bootstrap: str | None = BOOTSTRAP
    isolation: Literal["read_committed", "read_uncommitted"] = option(
        "--isolation",
        default="read_committed",
        help="Isolation level: read_committed omits records of aborted and open transactions.",
    )
    on_gap: Literal["error", "skip"] = option(
        "--on-gap",
        default="error",
        help="Action at a gap: end with an error, or report the gap and continue after it.",
    )
    output: str | None = option(
        "-o",
        "--output",
        type=click.Choice(_OUTPUTS),
        help="JSON lines or raw values; with --count a table or JSON.  [default: json; with "
        "--count table]",
    )
    count: bool = option("--count", help="Count the records instead of writing them.")
    encoding: TextEncoding = option(
        "--encoding",
        default=TextEncoding.UTF_8,
        help="Encoding of keys, values and header values in JSON.",
    )
    delimiter: bytes = option(
        "--delimiter",
        default=r"\n",
        parse=unescaped,
        help=r"Delimiter after each raw value: text, \n, \t, \0, \xHH.",
    )
    keys: tuple[bytes, ...] = option(
        "--key",
        parse=unescaped,
        help="Only records with this key. Repeatable: with any of these keys.",
    )
    headers: tuple[HeaderFilter, ...] = option(
        "--header",
        metavar="NAME[=VALUE]",
        parse=_header,
        help="Only records with this header. Repeatable: with all of these headers.",
    )
    contains: tuple[bytes, ...] = option(
        "--value-contains",
        metavar="TEXT",
        parse=unescaped,
        help="Only records whose stored value contains this text. Repeatable: all of these texts.",
    )
    key_format: Literal["bytes", "json", "avro", "protobuf"] = option(
        "--key-format",
        default="bytes",
        help="Decode keys: json, or avro or protobuf by the schema registry.",
    )
    value_format: Literal["bytes", "json", "avro", "protobuf"] = option(
        "--value-format", default="bytes", help="Decode values, as --key-format."
    )
    schema_registry: str | None = SCHEMA_REGISTRY
    registry_options: Mapping[str, str] = REGISTRY_OPTIONS
    max_batch_bytes: int = BATCH_BYTES
    call: Invocation = CONFIGURATION


@kernel.command("consume")
def command(options: ConsumeOptions) -> int:
    """Read the records of a topic: of the named partitions, or of all partitions.

    Reads the store alone, without any broker. With another --mode it reads Kafka and the store as
    one log, or Kafka alone. WHERE is an offset (1234), a number of records before the end (-100), a
    date or time (2026-11-21, 2026-11-21T08:00:00Z; UTC without a zone), a time before now (2h), ms
    since 1970 (@1700000000000), beginning or end. The records of each partition are in order; those
    of several partitions are interleaved.

    Each JSON line has topic, partition, offset, timestamp (ms), key, value and headers. Keys and
    values in UTF-8 are strings; other bytes are {"base64": "..."}. --key-format and --value-format
    decode them, each with the schema that it names; what cannot be decoded is shown as bytes, and
    the first case is reported. Filters compare stored bytes: \\xHH is a byte, as in --delimiter.

    \b
    Example:
      sidetier consume orders 3 --from 1234567 --limit 10 --config /etc/sidetier/sidetier.yaml
      sidetier consume orders --from 2026-11-21T08:00:00Z --to 2026-11-21T09:00:00Z | jq .value
      sidetier consume orders --since 2h --key customer-17 --value-contains '"state":"lost"'

    Exit codes: 0 every record was written; 3 offsets are missing, and every other record was
    written; 1 reading failed; 2 a setting or an argument is wrong.
    """  # noqa: D301 -- \b is click's marker and must be one character
    begin, end = options.begin, options.end
    if options.since is not None:
        if begin is not None:
            raise click.UsageError("--since is --from with a time: give one of them")
        begin = Position(PositionKind.TIME, options.since)
    if options.follow and end is not None:
        raise click.UsageError("--follow has no end: omit --to or --follow")
    if begin is not None and end is not None and is_above(begin, end):
        raise click.UsageError("--from is above --to: no record is between them")
    if options.with_tail and options.mode != _MODES[0]:
        raise click.UsageError(f"--with-tail is only for --mode {_MODES[0]}")
    form, output_format = _output_of(options.output, count=options.count)
    request = TopicReadRequest(
        topic=options.topic,
        partitions=tuple(dict.fromkeys(options.partitions)),
        begin=begin or BEGINNING,
        end=end or END,
        mode=Mode(options.mode),
        bootstrap=options.bootstrap,
        isolation=options.isolation,
        with_tail=options.with_tail,
        skip_gaps=options.on_gap == "skip",
        follow=options.follow,
        limit=options.limit,
        columns=_COLUMNS[form],
        max_batch_bytes=options.max_batch_bytes,
        filters=Filters(options.keys, options.headers, options.contains),
    )
    formats = Formats(
        options.key_format, options.value_format, options.schema_registry, options.registry_options
    )
    written = RecordOutput(form, options.encoding, options.delimiter, formats)
    if formats != Formats() and form is not RecordFormat.JSON:
        raise click.UsageError("--key-format and --value-format are for JSON lines")
    config = quiet_config(options.call)
    with needs_extra("sidetier consume", RECORD_PACKAGES, "consumer"):
        from sidetier.cli.consume.session import consume  # noqa: PLC0415 -- `--help` must not load the consumer's libraries
    return consume(config, request, written, output_format)


def _output_of(given: str | None, *, count: bool) -> tuple[RecordFormat, OutputFormat]:
    """Return the form of the records, and the output format of a count."""
    if not count:
        if given == OutputFormat.TABLE:
            raise click.UsageError("--output table shows a count: add --count, or use json or raw")
        return RecordFormat(given or RecordFormat.JSON), OutputFormat.JSON
    if given == RecordFormat.RAW:
        raise click.UsageError("--output raw writes values: omit --count, or use table or json")
    return RecordFormat.COUNT, OutputFormat(given or OutputFormat.TABLE)
