"""One call of `sidetier consume`, from the configuration to the exit code.

Needs the packages of the extra `consumer`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from sidetier.archive.positions import plan_ranges
from sidetier.cli import exits
from sidetier.cli.consume.formats import Decode, writer_of
from sidetier.cli.consume.reading import Reading, Source, say
from sidetier.cli.consume.request import Formats, RecordFormat, Request
from sidetier.cli.consume.store_source import open_store
from sidetier.cli.extras import from_extra
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.progress import records_shown
from sidetier.config.model import Config
from sidetier.uploader.clock import SYSTEM_CLOCK

STORE_ONLY: Final = "TIERED_STORAGE_ONLY"
_DECODING: Final = ("babel", "fastavro", "google")
"""Packages that the extra `export` installs."""


def consume(config: Config, request: Request, output: OutputFormat) -> int:
    """Write the requested records to standard output, and return the exit code.

    Raises:
        SidetierError: Some or all of the records cannot be read.
        BrokenPipeError: The program that reads the output has closed it.
    """
    with _open(config, request) as source:
        reading = Reading(
            source,
            request,
            plan_ranges(
                source,
                request.topic,
                request.begin,
                request.end,
                int(SYSTEM_CLOCK.wall() * 1000),
                partitions=request.partitions,
                follow=request.follow,
                on_note=say,
            ),
            writer_of(request, sys.stdout.buffer, *_decoders(request)),
        )
        code = exits.OK
        # On a terminal the records themselves show the progress; a bar would break their lines.
        wanted = request.form is RecordFormat.COUNT or not sys.stdout.isatty()
        try:
            with records_shown(reading.total, wanted=wanted) as update:
                reading.run(update)
        except KeyboardInterrupt:
            if not request.follow:
                raise
            code = exits.INTERRUPTED
        sys.stdout.flush()
        if request.form is RecordFormat.COUNT:
            emit(reading.result(request.topic), output)
        return exits.FINDINGS if reading.has_gaps and code == exits.OK else code


def _decoders(request: Request) -> tuple[Decode | None, Decode | None]:
    formats = request.formats
    if formats == Formats():
        return None, None

    def load() -> Callable[..., tuple[Decode | None, Decode | None]]:
        from sidetier.cli.consume.decoding import decoders  # noqa: PLC0415 -- needs the extra `export`

        return decoders

    return from_extra(load, "--key-format and --value-format", _DECODING, "export")(formats, say)


def _open(config: Config, request: Request) -> AbstractContextManager[Source]:
    if request.mode == STORE_ONLY:
        return open_store(config, request)
    from sidetier.cli.consume.tiered_source import open_tiered  # noqa: PLC0415 -- needs librdkafka

    return open_tiered(config, request)
