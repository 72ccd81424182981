"""Frame of every command: options in, a result or an exit code out."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sidetier.cli import exits
from sidetier.cli.options import filled, parameters
from sidetier.cli.output import OutputFormat, Result, emit

Options = TypeVar("Options")
Made = TypeVar("Made", bound=click.Command)
Outcome = Result | int | None


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
