"""The programs of docs/serve-clients.md read an archived topic through a Kafka endpoint."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.sandbox.kafka_tools import console_consumer
from sidetier.brokers.kafka import KAFKA_4_3, java_command
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.storage.local import LocalStorage
from tests.harness.made_archive import MadeArchive, access_to
from tests.harness.markdown import blocks, commands, text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PAGE = text_of(Path("docs/serve-clients.md"))
RECORDS = 60
_SECONDS = 120


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint with `orders`, one partition with the offsets 0 to 59."""
    store = LocalStorage(tmp_path_factory.mktemp("store"))
    MadeArchive(store).segments(0, 20, 40, RECORDS)
    with serving(access_to(store), EndpointSettings(("127.0.0.1", 0))) as endpoint:
        yield f"127.0.0.1:{endpoint.address[1]}"


def program(language: str, beginning: str, bootstrap: str) -> str:
    """The only program of the page that begins like this, for another address."""
    texts = [block.text for block in blocks(PAGE, language) if block.text.startswith(beginning)]
    assert len(texts) == 1
    assert texts[0].count("archive.example:9092") == 1
    return texts[0].replace("archive.example:9092", bootstrap)


def output_of(line: list[str]) -> str:
    done = subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("beginning", ["from confluent_kafka", "from kafka ", "import asyncio"])
def test_python_program_reads_every_record(beginning: str, bootstrap: str) -> None:
    text = program("python", beginning, bootstrap)
    assert output_of([sys.executable, "-c", text]).split() == [str(RECORDS)]


def test_java_program_reads_every_record(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "ReadArchive.java"
    file.write_text(program("java", "import java.time", bootstrap), encoding="utf-8")
    lines = output_of([*java_command(KAFKA_4_3, tmp_path), str(file)]).splitlines()
    assert lines[-1] == str(RECORDS)


def test_console_consumer_reads_every_record(bootstrap: str) -> None:
    (words,) = commands(PAGE, "kafka-console-consumer.sh")
    options = [bootstrap if word == "archive.example:9092" else word for word in words]
    shown = ["--formatter-property=print.offset=true", "--formatter-property=print.value=false"]
    bound = [f"--max-messages={RECORDS}"]
    out = output_of([*console_consumer(), *options, *shown, *bound])
    assert out.split() == [f"Offset:{offset}" for offset in range(RECORDS)]
