import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType

import click
import pytest

import sidetier.cli
from sidetier import __version__
from sidetier.cli import main as cli
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError

HEAVY = (
    "boto3",
    "botocore",
    "cramjam",
    "kazoo",
    "numpy",
    "pyarrow",
    "rich",
    "pydantic",
    "confluent_kafka",
)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command `boom` that raises what is put into the list."""
    errors: list[BaseException] = []

    @click.command()
    @click.pass_context
    def command(context: click.Context) -> None:
        if errors:
            raise errors[0]
        context.exit(3)

    module = ModuleType("sidetier.cli.boom_command")
    module.__dict__["command"] = command
    monkeypatch.setitem(sys.modules, "sidetier.cli.boom_command", module)
    monkeypatch.setattr(cli, "COMMANDS", {"boom": "For tests."})
    return errors


def test_help_and_importing_the_entry_load_nothing_heavy() -> None:
    program = (
        "import sys, sidetier.cli.main as m; code = m.run(['--help']); "
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules)); sys.exit(str(heavy or '') or code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


def written_commands() -> list[str]:
    modules = (module.name for module in pkgutil.iter_modules(sidetier.cli.__path__))
    written = (name.removesuffix("_command") for name in modules if name.endswith("_command"))
    return [name.replace("_", "-") for name in written]


@pytest.mark.parametrize("name", written_commands())
def test_every_command_that_is_written_is_listed_and_shows_an_example(name: str) -> None:
    assert name in cli.COMMANDS
    context = click.Context(cli.sidetier)
    command = cli.sidetier.get_command(context, name)
    assert command is not None
    assert command.help
    subcommands = command.commands.values() if isinstance(command, click.Group) else [command]
    for shown in subcommands:
        assert "Example:\n  sidetier " in inspect.cleandoc(shown.help or ""), shown.name


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"sidetier, version {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigurationError("a: wrong\nb: wrong"), 2, "sidetier: a: wrong\nsidetier: b: wrong\n"),
        (StoreUnavailableError("put x: 503"), 1, "sidetier: put x: 503\n"),
        (StoreUnavailableError(), 1, "sidetier: StoreUnavailableError\n"),
        (PermissionError(13, "denied", "/d"), 1, "sidetier: [Errno 13] denied: '/d'\n"),
        (KeyError("k"), 1, "sidetier: unexpected KeyError: 'k' (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "sidetier: interrupted\n"),
        (click.BadParameter("no"), 2, "Error: Invalid value: no\n"),
    ],
)
def test_an_error_is_a_line_and_an_exit_code(
    error: BaseException,
    code: int,
    text: str,
    failing: list[BaseException],
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing.append(error)
    assert cli.run(["boom"]) == code
    caught = capsys.readouterr()
    assert caught.err.endswith(text)
    assert "Traceback" not in caught.err
    assert caught.out == ""


def test_debug_shows_the_traceback(failing: list[BaseException]) -> None:
    failing.append(ConfigurationError("wrong"))
    with pytest.raises(ConfigurationError, match="wrong"):
        cli.run(["--debug", "boom"])


def test_a_command_chooses_its_exit_code(failing: list[BaseException]) -> None:
    assert failing == []
    assert cli.run(["boom"]) == 3


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], []])
def test_wrong_arguments_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    assert "Usage: sidetier" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    program = "import sys; from sidetier.cli.main import run; sys.exit(run(['config', 'schema']))"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert errors == b""
