"""Parses a command line of `sidetier` with the real parser, without running it."""

from typing import Any

import click

from sidetier.cli.main import sidetier


def parse(words: list[str]) -> click.Context:
    """Parse a command line down to the subcommand; click.UsageError if the parser refuses.

    Returns:
        The subcommand's context, with the values of its options.
    """
    command: click.Command = sidetier
    context = click.Context(sidetier, info_name="sidetier")
    while True:
        context = command.make_context(context.info_name, words, parent=context.parent)
        if not isinstance(command, click.Group):
            return context
        remaining = [*context._protected_args, *context.args]
        if not remaining and command.invoke_without_command:
            return context
        name, subcommand, words = command.resolve_command(context, remaining)
        assert subcommand is not None
        assert name is not None
        command = subcommand
        context = click.Context(subcommand, info_name=name, parent=context)


def options_of(words: list[str]) -> dict[str, Any]:
    """Parse a command line as `parse` does; returns the value of each option by its flag."""
    context = parse(words)
    return {
        max(one.opts, key=len): context.params[one.name]
        for one in context.command.params
        if isinstance(one, click.Option) and one.name in context.params
    }
