"""Parses a command line of `sidetier` with the real parser, without running it."""

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
