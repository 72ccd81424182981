"""The help of every command, compared with `help.txt`. `UPDATE_GOLDEN=1` rewrites the file."""

import os
from collections.abc import Iterator
from pathlib import Path

import click

from sidetier.cli.main import sidetier

GOLDEN = Path(__file__).with_name("help.txt")
COLUMNS = 100


def helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings = {"terminal_width": COLUMNS, **command.context_settings}
    context = click.Context(command, parent, info_name=name, **settings)
    yield f"$ {context.command_path} --help\n{command.get_help(context)}\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from helps(found, inner, context)


def test_every_help_is_as_before() -> None:
    shown = "\n".join(helps(sidetier, "sidetier", None))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(shown, encoding="utf-8")
    assert shown == GOLDEN.read_text(encoding="utf-8"), (
        "the help differs: read the difference, then run this test with UPDATE_GOLDEN=1"
    )
