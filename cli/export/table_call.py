"""What the commands of exports into tables have in common."""

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
    """Load the configuration and what exports, and export; the exit code.

    Raises:
        ConfigurationError: a package is missing, of those that the extra brings.
    """
    if given["follow"] and (given["once"] or given["ending_offsets"]):
        raise click.UsageError("--follow has no end: leave --once and --ending-offsets away")
    loaded = invocation(context).load()
    quiet_logs(loaded)
    return from_extra(load, "this export", _EXTRAS, extra)(loaded.config, given)
