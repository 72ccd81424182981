"""Arguments that `sidetier mirror` refuses before it connects to a broker."""

import re
from pathlib import Path

import pytest

from tests.harness.command_line import CommandLine

SOMEWHERE = (
    "--source",
    "bootstrap.servers=127.0.0.1:1",
    "--target",
    "bootstrap.servers=127.0.0.1:1",
)
NAMED = ("--name", "dr", "--topic", "orders", *SOMEWHERE)
ON_SPARK = (*NAMED, "--engine", "spark")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--topic", "orders", *SOMEWHERE), "--name is missing"),
        (("--name", "dr", *SOMEWHERE), "--topic is missing"),
        ((*NAMED, "--master", "local[1]"), "--master is for --engine spark"),
        (ON_SPARK, "add --until-caught-up"),
        ((*ON_SPARK, "--until-caught-up", "--on-gap", "skip"), "--on-gap skip is for"),
        ((*ON_SPARK, "--until-caught-up", "--metrics-port", "9404"), "--metrics-port is for"),
        (
            (*ON_SPARK, "--until-caught-up", "--delivery", "at-least-once"),
            "--delivery at-least-once is for --engine local",
        ),
    ],
)
def test_invalid_arguments_are_refused(cli: CommandLine, line: tuple[str, ...], said: str) -> None:
    assert cli.run("mirror", *line) == 2
    assert said in re.sub(r"\s+", " ", cli.err)


@pytest.mark.parametrize("cluster", ["source", "target"])
def test_secret_in_a_file_is_not_sent_to_executors(
    cli: CommandLine, tmp_path: Path, cluster: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=me\nsasl.password=hunter2\n")
    line = (*ON_SPARK, "--until-caught-up", f"--{cluster}-config", str(file))
    assert cli.run("mirror", *line) == 2
    said = re.sub(r"\s+", " ", cli.err)
    assert f"give --{cluster} sasl.password=env:NAME or sasl.password=file:/path" in said
    assert "hunter2" not in said
