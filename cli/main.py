"""The `sidetier` command: run a subcommand, and end with a clear message and an exit code."""

import faulthandler
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from sidetier import __version__
from sidetier.cli import exits, signals
from sidetier.cli.invocation import Invocation, configuration_parameters
from sidetier.cli.kernel import LazyGroup
from sidetier.cli.output import say
from sidetier.config.problems import suggestion
from sidetier.segments.errors import ConfigurationError, SidetierError

COMMANDS: Final[Mapping[str, str]] = {
    "run": "Archive the closed segments of this host's broker, until stopped.",
    "backfill": "Archive the closed segments in the log dirs once, and exit.",
    "status": "Show what is on the broker, what is archived, and what is missing.",
    "fleet": "Show the status of the sidecars of all brokers.",
    "ls": "List the partitions and segments on the store.",
    "locate": "Print the URI of a partition on the store.",
    "consume": "Read the records of a topic from the store, or from Kafka and the store.",
    "serve": "Serve the archived topics to Kafka clients, read-only, without any broker.",
    "scram-credential": "Derive a user's entry for `sidetier serve --users` from a password.",
    "mirror": "Copy topics into another cluster, each record exactly once.",
    "restore": "Copy an archive into topics of a running cluster, each record exactly once.",
    "export": "Write archived records to files and tables, each exactly once.",
    "explain": "Show where a record is now, and what its upload waits for.",
    "can-i-lose": "Show which records would be lost with a broker and its disk.",
    "doctor": "Find settings of this broker and host that can lose records.",
    "trim": "Delete archived records at the start of the logs that this host's broker leads.",
    "verify": "Check that the archive is complete and undamaged.",
    "repair": "Rebuild damaged indexes, _metadata and leader epochs from the stored segments.",
    "ack-gap": "Accept a recorded gap, with a reason.",
    "retire": "Move the archive of a deleted or recreated topic to _sidetier/<cluster>/retired/.",
    "gc": "Delete archived segments that are past their retention on the store.",
    "tail": "Show the records that only tail packs have, and promote them to segments.",
    "hydrate": "Restore archived topics on an empty cluster, with the same offsets.",
    "drill": "Restore a sample of the archive on a temporary broker, and compare it.",
    "config": "Check and show the configuration.",
}
"""Help text of each command. `sidetier.cli.commands.<name>.command` (`_` for `-`) is imported on
use.
"""


_GC_THRESHOLD: Final = 50_000
"""Python's default of 700 starts dozens of collections while modules and models are loaded."""


class CommandLine(LazyGroup):
    """The group of all commands."""

    summaries = COMMANDS
    modules = "sidetier.cli.commands."

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a similar command if the given one does not exist."""
        name = args[0]
        if name not in self.summaries and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"no such command: {name}{suggestion(name, self.summaries)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """End quietly if the reader of standard output or error has closed the pipe (`| head`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output_of_closed_pipes()
            ctx.exit(exits.CLOSED_PIPE)


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="sidetier")
def sidetier() -> None:
    """Tiered storage for Apache Kafka, from beside the broker.

    Every command reads /etc/sidetier/sidetier.yaml if it exists and neither --config nor
    SIDETIER_CONFIG names another file.

    \b
    Example:
      sidetier --config /etc/sidetier/sidetier.yaml run

    Exit codes: 0 done; 1 something failed (the store, a broker, a file); 2 a setting or an argument
    is wrong, such as a topic that does not exist, and nothing was changed; 3 done, but something is
    missing, damaged or left out.
    """  # noqa: D301 -- \b is click's marker and must be one character


sidetier.params += configuration_parameters()  # after --version


def run(arguments: Sequence[str] | None = None, command: click.Command = sidetier) -> int:
    """Run one command line and return its exit code. Exceptions pass only with `--debug`."""
    call = Invocation()
    try:
        argument_list = None if arguments is None else list(arguments)
        code = command.main(argument_list, command.name, obj=call, standalone_mode=False)
    except click.exceptions.Abort:
        return _say(["interrupted"], exits.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        return exits.MISCONFIGURED
    except Exception as error:
        if call.debug:
            raise
        return _failure(error)
    return code if isinstance(code, int) else exits.OK


def _failure(error: Exception) -> int:
    if isinstance(error, ConfigurationError):
        return _say(str(error).splitlines(), exits.MISCONFIGURED)
    if isinstance(error, SidetierError | OSError):
        return _say(str(error).splitlines() or [type(error).__name__], exits.FAILED)
    kind = type(error).__name__
    return _say([f"unexpected {kind}: {error} (--debug shows where)"], exits.FAILED)


def _say(lines: Sequence[str], code: int) -> int:
    for line in lines:
        say(line)
    return code


def discard_output_of_closed_pipes() -> None:
    """Discard the output that is still buffered for a closed pipe.

    Python flushes its streams at exit, and would report the closed pipe there.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """Run the command line of this process, and end the process with its exit code."""
    signals.end_at_sigterm(exits.TERMINATED)
    if sys.stderr is not None:
        # Without it, a crash of a C library (librdkafka) leaves no line in the log.
        faulthandler.enable()
    gc.set_threshold(_GC_THRESHOLD)
    try:
        code = run()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was being handled
        code = exits.INTERRUPTED
    except BrokenPipeError:  # the error message could not be written either
        discard_output_of_closed_pipes()
        code = exits.CLOSED_PIPE
    # All cleanup is done: a Ctrl-C while the interpreter exits must not print a traceback.
    signals.end_silently_at_sigint()
    sys.exit(code)
