"""Frame of every command: options in, a result or an exit code out."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import click

from sidetier.cli import exits
from sidetier.cli.options import filled, parameters
from sidetier.cli.output import OutputFormat, Result, emit

Options = TypeVar("Options")
Made = TypeVar("Made", bound=click.Command)
Outcome = Result | int | None


class LazyGroup(click.Group):
    """Group that imports a command when it is called, not when it is listed.

    Attributes:
        summaries: Help text of each command, in the order of the list.
        modules: Begin of the names of their modules, each of which has a `command`. The rest is the
            command's name, with `_` for `-`.
    """

    summaries: ClassVar[Mapping[str, str]]
    modules: ClassVar[str]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- signature required by click
        """Return the commands in the order of the list."""
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- signature required by click
        """Import the command."""
        if cmd_name not in self.summaries:
            return None
        module = importlib.import_module(f"{self.modules}{cmd_name.replace('-', '_')}")
        command = module.command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.command is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- signature required by click
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


def command(
    name: str,
    *,
    parent: click.Group | None = None,
    **attributes: Any,  # noqa: ANN401 -- click's
) -> Callable[[Callable[[Options], Outcome]], click.Command]:
    """Make a function with one parameter, an options class, a command of this name.

    A result that the function returns is written in the format of `options.output`, and its exit
    code ends the command. The docstring is the help. `attributes` go to `click.Command`.
    """

    def decorate(function: Callable[[Options], Outcome]) -> click.Command:
        made = _made(click.Command, name, function, **attributes)
        if parent is not None:
            parent.add_command(made)
        return made

    return decorate


def group(name: str) -> Callable[[Callable[[Options], Outcome]], click.Group]:
    """Make a function a command, as `command` does, that also has subcommands."""
    return lambda function: _made(click.Group, name, function, invoke_without_command=True)


def _made(
    cls: Callable[..., Made],
    name: str,
    function: Callable[[Options], Outcome],
    **attributes: Any,  # noqa: ANN401 -- click's
) -> Made:
    kind = next(iter(function.__annotations__.values()))

    def callback(**_given: object) -> int:
        context = click.get_current_context()
        if context.invoked_subcommand is not None:
            return exits.OK
        given = filled(kind, context)
        return finish(function(given), getattr(given, "output", OutputFormat.TABLE))

    return cls(
        name, callback=callback, params=[*parameters(kind)], help=function.__doc__, **attributes
    )


def finish(outcome: Outcome, output: OutputFormat) -> int:
    """Write a result; return the exit code."""
    if outcome is None or isinstance(outcome, int):
        return outcome or exits.OK
    emit(outcome, output)
    return outcome.exit_code
