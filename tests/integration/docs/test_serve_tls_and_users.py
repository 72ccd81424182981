"""The commands of docs/serve.md for TLS and users on one machine."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.local import LocalStorage
from tests.harness.made_archive import MadeArchive
from tests.harness.markdown import blocks, text_of
from tests.harness.served_archive import Served, serving
from tests.harness.sidecar import PROGRAM
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TITLE = "### TLS and users on one machine\n"
SECTION = text_of(Path("docs/serve.md")).partition(TITLE)[2].partition("\n### ")[0]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The endpoint of the page, over the topics `orders` and `clicks`."""
    root = tmp_path_factory.mktemp("secure")
    for topic in ("orders", "clicks"):
        archive = MadeArchive(
            LocalStorage(root / "store"), ArchiveLayout("test", 5), TopicPartition(topic, 0)
        )
        archive.segments(0, 20, 40)
    *preparations, serve = (block.text for block in blocks(SECTION, "sh"))
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    for text in preparations:
        subprocess.run(["sh", "-ec", text], cwd=root, env=environment, check=True, timeout=60)
    words = shlex.split(serve.replace("\\\n", " "))
    options = words[words.index("--tls-certificate") :]
    in_root = [word if word.startswith("--") else str(root / word) for word in options]
    with serving(root, "--insecure", *in_root) as running:
        yield running


def properties(endpoint: Served, **changes: str) -> dict[str, Any]:
    (block,) = blocks(SECTION, "properties")
    given = dict(line.split("=", 1) for line in block.text.splitlines())
    given |= {
        "bootstrap.servers": endpoint.bootstrap,
        "ssl.ca.location": str(endpoint.root / given["ssl.ca.location"]),
    }
    return given | changes


def test_the_user_reads_the_topic(endpoint: Served) -> None:
    messages = endpoint.read("orders", settings=properties(endpoint))
    assert [message.offset() for message in messages] == [*range(40)]


def test_the_log_names_the_reason_of_a_failed_login(endpoint: Served) -> None:
    """The client has the errors that the page lists, and no records."""
    errors: list[KafkaError] = []
    settings = properties(endpoint, **{"sasl.password": "wrong"})
    consumer = endpoint.consumer(**settings, error_cb=errors.append)
    try:
        wait_until(lambda: consumer.poll(0.1) is None and bool(errors), 60, "an error")
    finally:
        consumer.close()
    reported = {KafkaError._AUTHENTICATION, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    assert {error.code() for error in errors} <= reported
    assert "endpoint.login_failed" in endpoint.log()
    (row,) = [line for line in endpoint.log().splitlines() if "login_failed" in line][:1]
    assert "alice" in row
