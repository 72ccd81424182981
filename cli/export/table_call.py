"""Common part of the commands that export to tables."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import invocation

if TYPE_CHECKING:
    from sidetier.config.model import Config

_EXTRAS: Final = {"pyspark", "py4j", "pandas", "cramjam", "numpy", "pyarrow"}

Run = Callable[["Config", dict[str, Any]], int]


def call(context: click.Context, given: dict[str, Any], load: Callable[[], Run], extra: str) -> int:
    """Load the configuration and the exporter, and export; return the exit code.

    Raises:
        ConfigurationError: A package of the extra is not installed.
    """
    if given["follow"] and (given["once"] or given["ending_offsets"]):
        raise click.UsageError("--follow has no end: leave --once and --ending-offsets away")
    loaded = invocation(context).load()
    quiet_logs(loaded)
    return from_extra(load, "this export", _EXTRAS, extra)(loaded.config, given)
