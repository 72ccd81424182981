"""`sidetier consume`: read a topic's records from the store, or from Kafka and the store."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from sidetier.archive.positions import BEGINNING, END, Position, PositionKind, is_above
from sidetier.cli.arguments import (
    MAX_BATCH_BYTES,
    PARTITION,
    bootstrap_option,
    checked_place,
    checked_time,
    checked_topic,
)
from sidetier.cli.consume.request import (
    ANY,
    Filters,
    Formats,
    HeaderFilter,
    RecordFormat,
    Request,
    TextEncoding,
    unescaped,
)
from sidetier.cli.export.options import pairs
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat

if TYPE_CHECKING:
    from sidetier.config.loading import LoadedConfig
    from sidetier.config.model import Config

_MODES: Final = ("TIERED_STORAGE_ONLY", "TIERED_STORAGE_PREFERRED", "KAFKA_PREFERRED", "KAFKA_ONLY")
_OUTPUTS: Final = (RecordFormat.JSON.value, RecordFormat.RAW.value, OutputFormat.TABLE.value)
_FORMATS: Final = ("bytes", "json", "avro", "protobuf")
_EXTRA: Final = ("cramjam", "numpy", "pyarrow")
"""Packages that the extra `consumer` installs."""
Consume = Callable[["Config", Request, OutputFormat], int]


def _bytes(_context: click.Context, _option: click.Parameter, given: str) -> bytes:
    try:
        return unescaped(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _all_bytes(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> tuple[bytes, ...]:
    return tuple(_bytes(context, option, text) for text in given)


def _header(given: str) -> HeaderFilter:
    name, equals, value = given.partition("=")
    return name, value.encode() if equals else ANY


@click.command(name="consume")
@click.argument("topic", callback=checked_topic)
@click.argument("partitions", nargs=-1, type=PARTITION, metavar="[PARTITION]...")
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    callback=checked_place,
    help="First record to read, inclusive.  [default: beginning]",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=checked_time,
    help="The same as --from with a time, such as 2h (before now) or 2026-11-21.",
)
@click.option(
    "--to",
    "end",
    metavar="WHERE",
    callback=checked_place,
    help="Where to stop, exclusive.  [default: end]",
)
@click.option(
    "--limit", type=click.IntRange(1), help="Maximum number of records, over all partitions."
)
@click.option("--follow", is_flag=True, help="Wait for new records at the end, until stopped.")
@click.option(
    "--mode",
    type=click.Choice(_MODES, case_sensitive=False),
    default=_MODES[0],
    show_default=True,
    help="Read the store alone, or the store and Kafka as one log.",
)
@bootstrap_option
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Isolation level: read_committed omits records of aborted and open transactions.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="Action at a gap: end with an error, or report the gap and continue after it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(_OUTPUTS),
    help="JSON lines or raw values; with --count a table or JSON.  [default: json; with --count "
    "table]",
)
@click.option("--count", is_flag=True, help="Count the records instead of writing them.")
@click.option(
    "--encoding",
    type=click.Choice([member.value for member in TextEncoding]),
    default=TextEncoding.UTF_8.value,
    show_default=True,
    help="Encoding of keys, values and header values in JSON.",
)
@click.option(
    "--delimiter",
    default=r"\n",
    show_default=True,
    callback=_bytes,
    help=r"Delimiter after each raw value: text, \n, \t, \0, \xHH.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    callback=_all_bytes,
    help="Only records with this key. Repeatable: with any of these keys.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Only records with this header. Repeatable: with all of these headers.",
)
@click.option(
    "--value-contains",
    "contains",
    multiple=True,
    metavar="TEXT",
    callback=_all_bytes,
    help="Only records whose stored value contains this text. Repeatable: all of these texts.",
)
@click.option(
    "--key-format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="Decode keys: json, or avro or protobuf by the schema registry.",
)
@click.option(
    "--value-format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="Decode values, as --key-format.",
)
@click.option(
    "--schema-registry",
    metavar="URL[,URL]",
    help="URL of the registry with the schemas of keys and values.",
)
@click.option(
    "--schema-registry-option",
    "registry_options",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="Property of Confluent's registry client, such as ssl.ca.location; secrets as env:NAME or "
    "file:/path. Repeatable.",
)
@MAX_BATCH_BYTES
@configuration_options
@click.pass_context
def command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    topic: str,
    partitions: tuple[int, ...],
    *,
    begin: Position | None,
    since: int | None,
    end: Position | None,
    limit: int | None,
    follow: bool,
    mode: str,
    bootstrap: str | None,
    isolation: str,
    on_gap: str,
    output: str | None,
    count: bool,
    encoding: str,
    delimiter: bytes,
    keys: tuple[bytes, ...],
    headers: tuple[str, ...],
    contains: tuple[bytes, ...],
    key_format: str,
    value_format: str,
    schema_registry: str | None,
    registry_options: dict[str, str],
    max_batch_bytes: int,
) -> None:
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
    if since is not None:
        if begin is not None:
            raise click.UsageError("--since is --from with a time: give one of them")
        begin = Position(PositionKind.TIME, since)
    if follow and end is not None:
        raise click.UsageError("--follow has no end: omit --to or --follow")
    if begin is not None and end is not None and is_above(begin, end):
        raise click.UsageError("--from is above --to: no record is between them")
    form, output_format = _output_of(output, count=count)
    request = Request(
        topic=topic,
        partitions=tuple(dict.fromkeys(partitions)),
        begin=begin or BEGINNING,
        end=end or END,
        mode=mode,
        bootstrap=bootstrap,
        isolation=isolation,
        skip_gaps=on_gap == "skip",
        follow=follow,
        limit=limit,
        form=form,
        encoding=TextEncoding(encoding),
        delimiter=delimiter,
        max_batch_bytes=max_batch_bytes,
        filters=Filters(keys, tuple(map(_header, headers)), contains),
        formats=Formats(key_format, value_format, schema_registry, registry_options),
    )
    if request.formats != Formats() and form is not RecordFormat.JSON:
        raise click.UsageError("--key-format and --value-format are for JSON lines")
    loaded = invocation(context).load(needs_log_dirs=False)
    quiet_logs(loaded)
    context.exit(_consume(loaded, request, output_format))


def _output_of(given: str | None, *, count: bool) -> tuple[RecordFormat, OutputFormat]:
    """Return the form of the records, and the output format of a count."""
    if not count:
        if given == OutputFormat.TABLE:
            raise click.UsageError("--output table shows a count: add --count, or use json or raw")
        return RecordFormat(given or RecordFormat.JSON), OutputFormat.JSON
    if given == RecordFormat.RAW:
        raise click.UsageError("--output raw writes values: omit --count, or use table or json")
    return RecordFormat.COUNT, OutputFormat(given or OutputFormat.TABLE)


def _consume(loaded: "LoadedConfig", request: Request, output: OutputFormat) -> int:
    def load() -> Consume:
        from sidetier.cli.consume.session import consume  # noqa: PLC0415 -- `--help` must not load the consumer's libraries

        return consume

    consume = from_extra(load, "sidetier consume", _EXTRA, "consumer")
    return consume(loaded.config, request, output)
