"""`sidetier scram-credential`: derive a user's entry for the users file from a password."""

import sys
from typing import Final

import click

from sidetier.cli import kernel
from sidetier.cli.options import argument, option, options

_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MIN_ITERATIONS: Final = 4096
_MAX_ITERATIONS: Final = 100_000


def read_password() -> str:
    """Ask for the password on a terminal, or read the first line of standard input.

    Raises:
        UsageError: It is empty.
    """
    if sys.stdin.isatty():
        # To standard error: the output may be redirected into a file.
        password = str(
            click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        )
    else:
        password = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not password:
        raise click.UsageError("the password is empty: type it, or pass it on standard input")
    return password


@options
class ScramOptions:
    """Options of `sidetier scram-credential`."""

    user: str = argument()
    mechanisms: tuple[str, ...] = option(
        "--mechanism",
        type=click.Choice(_MECHANISMS),
        default=("SCRAM-SHA-512",),
        help="Mechanism with which the user can log in, besides PLAIN. May be given twice.",
    )
    iterations: int = option(
        "--iterations",
        type=click.IntRange(_MIN_ITERATIONS, _MAX_ITERATIONS),
        default=_MIN_ITERATIONS,
        help="Iterations of the derivation. More of them slow down attempts to find the password "
        "from the file, and each login. Use the same number for all users.",
    )


@kernel.command("scram-credential")
def command(options: ScramOptions) -> None:
    """Derive a user's entry for `sidetier serve --users` from a password, and print it as YAML.

    The password is read from a prompt, or from the first line of standard input, and is not part of
    the entry. The users file begins with the line `users:`, and each entry follows below it.

    \b
    Example:
      sidetier scram-credential alice >> users.yaml
    """  # noqa: D301 -- \b is click's marker and must be one character
    import yaml  # noqa: PLC0415 -- `--help` must not load the libraries

    from sidetier.endpoint.users import derive, entry_of  # noqa: PLC0415

    password = read_password()
    credentials = {
        mechanism: derive(mechanism, password, options.iterations)
        for mechanism in sorted(set(options.mechanisms))
    }
    entry = {options.user: {**entry_of(credentials), "topics": [], "groups": []}}
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=1000)
    click.echo("# An entry below `users:`. Add names to topics and groups; `orders-*` is a prefix.")
    click.echo("".join(f"  {line}\n" for line in text.splitlines()), nl=False)
