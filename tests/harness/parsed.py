"""A command line of `sidetier` through its own parser, without running it."""

import click

from sidetier.cli.main import sidetier


def parse(words: list[str]) -> click.Context:
    """As the real parser does, down to the subcommand; click.UsageError where it says no.

    Returns:
        The subcommand's context, with the values of its options.
    """
    command: click.Command = sidetier
    context = click.Context(sidetier, info_name="sidetier")
    while True:
        context = command.make_context(context.info_name, words, parent=context.parent)
        if not isinstance(command, click.Group):
            return context
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return context
        name, found, words = command.resolve_command(context, rest)
        assert found is not None
        assert name is not None
        command = found
        context = click.Context(found, info_name=name, parent=context)
