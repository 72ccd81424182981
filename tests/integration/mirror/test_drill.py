"""`sidetier drill` with real brokers: a valid archive, and one with a damaged segment."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.objects.drill_record import decode_drill
from sidetier.cli.main import run
from tests.harness.archive_objects import file_store
from tests.harness.encryption import count_logs, encryption
from tests.harness.local_segments import small_segments
from tests.harness.sidecar import beside, merged
from tests.harness.stored_tails import store_tails
from tests.harness.topics import admin_of, create_topic, delete_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]


def transactional(bootstrap: str, topic: str, name: str, ends: list[str]) -> None:
    """Produce transactions of 40 records each that are committed, aborted or left open."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic} {name}", "log_level": 0}
    )
    producer.init_transactions(60)
    for end in ends:
        producer.begin_transaction()
        for number in range(40):
            value = f"{name} {end} {number} ".encode() * 25
            producer.produce(topic, value, b"key", partition=0, headers=[("n", b"1")])
        assert producer.flush(30) == 0
        if end == "commit":
            producer.commit_transaction(60)
        elif end == "abort":
            producer.abort_transaction(60)


def fill(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, partitions=2, configs=small_segments(retention_ms=-1))
    transactional(bootstrap, topic, "one", ["commit", "abort"] * 2)
    transactional(bootstrap, topic, "left", ["open"])
    transactional(bootstrap, topic, "two", ["abort", "commit", "commit"])
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for number in range(300):
        plain.produce(topic, f"{number} ".encode() * 80, partition=1, timestamp=10**12 - number)
        if number % 20 == 0:
            assert plain.flush(30) == 0  # many small batches
    assert plain.flush(30) == 0


@dataclass(frozen=True)
class Archived:
    """An archive that a test may damage: its topic, root directory and configuration file."""

    topic: str
    root: Path
    config: Path

    def command(self, *words: str) -> list[str]:
        return ["--config", str(self.config), *words, "--output", "json"]


@pytest.fixture(scope="module")
def stored(kraft43: KraftCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic and the root directory of its archive's store. Partition 1 is encrypted."""
    topic, directory = "drilled", tmp_path_factory.mktemp("drill")
    fill(kraft43.bootstrap_servers, topic)
    config = directory / "sidetier.yaml"
    store = file_store(directory / "store")
    settings = beside(kraft43, store, topics=[topic])
    encrypted = {"storage": {"encryption": encryption(directory)}}
    for partition, chosen in ((0, settings), (1, merged(settings, encrypted))):
        config.write_text(yaml.safe_dump(chosen))
        assert (
            run(["--config", str(config), "backfill", "--partition", f"{topic}-{partition}"]) == 0
        )
    assert min(count_logs(store.objects)) > 1
    # The active segments are in tail packs. Those of the encrypted topic are encrypted.
    both = merged(settings, encrypted)
    store_tails(directory / "sidecar", both, store, kraft43.bootstrap_servers, topic, 2)
    return topic, directory / "store"


@pytest.fixture
def archived(kraft43: KraftCluster, stored: tuple[str, Path], tmp_path: Path) -> Archived:
    topic, original = stored
    root = Path(shutil.copytree(original, tmp_path / "store"))
    config = tmp_path / "sidetier.yaml"
    encrypted = {"storage": {"encryption": encryption(tmp_path)}}
    settings = merged(beside(kraft43, file_store(root), topics=[topic]), encrypted)
    config.write_text(yaml.safe_dump(settings))
    return Archived(topic, root, config)


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


def test_sample_is_restored_and_a_damaged_segment_is_named(
    archived: Archived, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, root = archived.topic, archived.root

    def sidetier(*words: str) -> tuple[int, Any]:
        code = run(archived.command(*words))
        out, err = capsys.readouterr()
        assert out, err
        return code, json.loads(out)

    def recorded() -> tuple[bool, int | None, int]:
        file = root / "_sidetier" / "test" / "drill.json"
        found = decode_drill(file.read_bytes(), str(file))
        return found.succeeded, found.last_successful_ms, found.finished_ms

    everything = ("drill", "--topic", topic, "--segments", "100", "--directory", str(tmp_path))

    def archive() -> dict[Path, bytes]:
        found = (path for path in root.rglob("*") if path.is_file() and path.name != "drill.json")
        return {path: path.read_bytes() for path in found if ".sidetier" not in path.parts}

    before = archive()
    code, told = sidetier(*everything, "--with-tail")
    assert code == 0, told
    assert archive() == before
    zero, one = told["partitions"]
    assert [zero["partition"], one["partition"]] == [0, 1]
    assert min(len(zero["segments"]), len(one["segments"])) > 2
    assert min(zero["tail_offsets"], one["tail_offsets"]) > 0
    assert [zero["live"], one["live"]] == [f"[0, {part['end']}) equal" for part in (zero, one)]
    assert one["records"] == one["end"] == 300
    succeeded, last_success, finished = recorded()
    assert (succeeded, last_success) == (True, finished)

    damaged = one["segments"][1]
    damage(root / damaged)
    code, told = sidetier(*everything, "--partition", "1")
    assert code == 3, told
    (broken,) = told["partitions"]
    (problem,) = broken["problems"]
    assert damaged in problem
    assert recorded()[:2] == (False, last_success)
    assert not list(tmp_path.glob("sidetier-drill-*"))


def drill_topics(servers: str) -> set[str]:
    listed = admin_of(servers).list_topics(timeout=30).topics
    return {name for name in listed if name.startswith("sidetier-drill-")}


def test_given_cluster_gets_the_sample_and_is_cleaned_up(
    archived: Archived, kraft39: KraftCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = kraft39.bootstrap_servers
    drill = ("drill", "--topic", archived.topic, "--segments", "100", "--bootstrap-server", servers)

    # Killed while its topics exist.
    killed = subprocess.Popen(
        [sys.executable, "-m", "sidetier.cli", *archived.command(*drill)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(
        lambda: len(drill_topics(servers)) == 2 or killed.poll() is not None,
        120,
        "the topics of a drill",
    )
    killed.kill()
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    left_over = drill_topics(servers)
    assert len(left_over) == 2

    # A topic with a drill's name, but written by another program.
    foreign = "sidetier-drill-20200101T000000Z-00000000-topic-0"
    create_topic(servers, foreign)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    producer.produce(foreign, b"not of a drill")
    assert producer.flush(30) == 0
    try:
        code = run(archived.command(*drill))
        told, errors = capsys.readouterr()
        assert code == 0, told + errors
        assert f"topic {foreign} has the name of a drill's topic" in errors
        assert drill_topics(servers) == {foreign} | left_over  # too young

        zero, one = json.loads(told)["partitions"]
        assert zero["live"] == f"[0, {zero['end']}) equal"
        assert 0 < zero["records"] < zero["end"], "of committed transactions"
        assert one["records"] == one["end"]
        key = archived.root / "_sidetier" / "test" / "drill.json"
        assert decode_drill(key.read_bytes(), str(key)).succeeded

        damage(archived.root / one["segments"][1])
        code = run(archived.command(*drill, "--left-over-age", "0s"))
        told, errors = capsys.readouterr()
        assert code == 3, told + errors
        zero, one = json.loads(told)["partitions"]
        assert (zero["problems"], len(one["problems"])) == ([], 1)
        [problem] = one["problems"]
        assert problem.startswith(f"{archived.topic}-1: cannot be restored: ")
        assert "of the segment cannot be decrypted" in problem
        assert drill_topics(servers) == {foreign}
    finally:
        delete_topic(servers, foreign)


def test_archived_cluster_is_refused_as_the_given_one(
    archived: Archived, kraft43: KraftCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = kraft43.bootstrap_servers
    assert run(archived.command("drill", "--bootstrap-server", servers)) == 2
    assert "its sidecars would archive the drill's topics" in capsys.readouterr().err
    assert not drill_topics(servers)
