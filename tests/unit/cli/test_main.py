import inspect
import os
import pkgutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

import sidetier.cli.commands
from sidetier import __version__
from sidetier.cli import main as cli
from sidetier.cli.invocation import Invocation
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
    """A command `boom` that raises the exceptions in the list."""
    errors: list[BaseException] = []

    @click.command()
    @click.pass_context
    def command(context: click.Context) -> None:
        if errors:
            raise errors[0]
        context.exit(3)

    module = ModuleType("sidetier.cli.commands.boom")
    module.__dict__["command"] = command
    monkeypatch.setitem(sys.modules, "sidetier.cli.commands.boom", module)
    monkeypatch.setattr(cli.CommandLine, "summaries", {"boom": "For tests."})
    return errors


def test_help_and_the_entry_point_import_nothing_heavy() -> None:
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
    names = (module.name for module in pkgutil.iter_modules(sidetier.cli.commands.__path__))
    groups = ("export_", "mirror_")
    return [name.replace("_", "-") for name in names if not name.startswith(groups)]


@pytest.mark.parametrize("name", written_commands())
def test_every_command_is_listed_and_shows_an_example(name: str) -> None:
    assert name in cli.COMMANDS
    context = click.Context(cli.sidetier)
    command = cli.sidetier.get_command(context, name)
    assert command is not None
    assert command.help
    subcommands = command.commands.values() if isinstance(command, click.Group) else [command]
    for shown in subcommands:
        assert "Example:\n  sidetier " in inspect.cleandoc(shown.help or ""), shown.name
        assert "\\b" not in (shown.help or ""), "click's mark for a paragraph must be one character"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_error_is_one_line_and_an_exit_code(
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


def test_command_can_choose_its_exit_code(failing: list[BaseException]) -> None:
    assert failing == []
    assert cli.run(["boom"]) == 3


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], []])
def test_wrong_arguments_exit_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    assert "Usage: sidetier" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["statsu"], "no such command: statsu; did you mean status?"),
        (["status", "--topc", "x"], "Did you mean '--topic'?"),
        (["--set", "uploader.thread=3", "config", "show"], "did you mean uploader.threads?"),
    ],
)
def test_mistyped_name_gets_a_suggestion(
    wrong: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(wrong) == 2
    assert text in capsys.readouterr().err


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A configuration with an empty archive."""
    (tmp_path / "store").mkdir()
    path = tmp_path / "sidetier.yaml"
    storage = {"url": f"file://{tmp_path}/store"}
    given = {"cluster": {"name": "c"}, "log_dirs": [str(tmp_path / "logs")], "storage": storage}
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.mark.parametrize(
    ("line", "closed"),
    [
        *((line, "stdout") for line in ("--help", "config schema", "config show", "ls")),
        *((line, "stderr") for line in ("--nonsense", "config check", "ls nosuch")),
    ],
)
def test_closed_output_pipe_ends_the_command_quietly(
    line: str, closed: str, settings: Path
) -> None:
    """As in `sidetier ... | head` and `sidetier ... 2>&1 | head`."""
    with subprocess.Popen(
        [sys.executable, "-m", "sidetier.cli", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SIDETIER_CONFIG": str(settings)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        gone, kept = process.stdout, process.stderr
        if closed == "stderr":
            gone, kept = kept, gone
        gone.close()
        rest = kept.read()
        code = process.wait(timeout=60)
    for word in ("Traceback", "BrokenPipe", "Exception ignored"):
        assert word not in rest
    assert code in {0, 1, 2, 141}
    if closed == "stdout" and line != "--help":
        assert (code, rest) == (141, "")


MOMENTS = {
    "the command line loads": "click",
    "a command loads": "sidetier.cli.commands.config",
    "a library loads": "pydantic",
    "the configuration loads": "sidetier.config.loading",
    "the result is written": "rich.table",
}


@pytest.mark.parametrize("module", MOMENTS.values(), ids=MOMENTS.keys())
def test_ctrl_c_at_any_moment_prints_no_traceback(module: str, settings: Path) -> None:
    program = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as in the background
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["sidetier", "-c", {str(settings)!r}, "config", "show"]
from sidetier.cli.__main__ import main
main()
"""
    done = interrupted(program)
    assert "Traceback" not in done.stderr
    assert done.returncode in {130, -signal.SIGINT}


def test_ctrl_c_at_interpreter_exit_prints_no_traceback() -> None:
    program = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["sidetier", "--version"]
from sidetier.cli.__main__ import main
main()
"""
    done = interrupted(program)
    assert (done.stderr, done.returncode) == ("", -signal.SIGINT)


def interrupted(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("shell", "word"), [("bash", "1"), ("zsh", "1"), ("fish", "sta")])
def test_shell_completion_completes_commands(shell: str, word: str) -> None:
    asked = {"COMP_WORDS": "sidetier sta", "COMP_CWORD": word}
    done = subprocess.run(
        [sys.executable, "-c", "from sidetier.cli.__main__ import main; main()"],
        env=os.environ | asked | {"_SIDETIER_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "status" in done.stdout
    assert "ls" not in done.stdout.split()
    assert done.stderr == ""


def test_default_configuration_file_is_read_if_it_exists(settings: Path, tmp_path: Path) -> None:
    call = Invocation(default_config=settings)
    assert call.load({}).config.cluster.name == "c"
    assert call.is_configured({})
    other = tmp_path / "other.yaml"
    assert call.config_files({"SIDETIER_CONFIG": str(other)}) == [other]
    call.files.append(tmp_path / "named.yaml")
    assert call.config_files({"SIDETIER_CONFIG": str(other)}) == [tmp_path / "named.yaml"]
    assert not Invocation(default_config=tmp_path / "none.yaml").is_configured({})
