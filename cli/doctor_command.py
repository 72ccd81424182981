"""`sidetier doctor`: find settings of this broker and host that can lose records."""

import click

from sidetier.cli import exits
from sidetier.cli.arguments import sidecar_option
from sidetier.cli.doctor.gather import Scope, gather
from sidetier.cli.doctor.view import DoctorResult
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option


@click.command(name="doctor")
@sidecar_option()
@click.option(
    "--try-conditions",
    is_flag=True,
    help="Test that the store honours conditional writes: overwrite its layout note with itself "
    "under a condition that the store must refuse.",
)
@configuration_options
@output_option
@click.pass_context
def command(
    context: click.Context, *, sidecar: str | None, try_conditions: bool, output: OutputFormat
) -> None:
    """Find settings of this broker and host that can lose records.

    Checks the topics' settings (retention, segment and delete times, compaction, elections), this
    host (open files, inotify, disk, permissions, page cache), the store (reachable, layout, clock)
    and the running sidecar, and names the settings to change. Run it on the broker's host, as the
    sidecar's user. It changes nothing.

    \b
    Example:
      sidetier doctor --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 no problem (there may be recommendations); 3 at least one problem.
    """  # noqa: D301 -- \b is click's marker and must be one character
    scope = Scope(invocation(context).load().config, sidecar, try_conditions)
    result = DoctorResult.of(gather(scope))
    emit(result, output)
    context.exit(exits.FINDINGS if result.has_problems else exits.OK)
