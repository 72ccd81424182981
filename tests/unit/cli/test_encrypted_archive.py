"""Commands over an archive that is encrypted in part."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Place

from sidetier.archive.verify.progress_file import ProgressFile
from sidetier.cli.main import run
from sidetier.consumer.tiered_consumer import TieredConsumer
from sidetier.leadership.port import TopicConfig
from sidetier.mirror.hydrate.plan import read_plan
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.encrypted_format import MAGIC, marker_key, parse_marker
from sidetier.storage.local import LocalStorage
from tests.harness.command_line import CommandLine
from tests.harness.daemons import ConfigsByHand
from tests.harness.encryption import FIRST, SECOND, encrypting, encryption, settings
from tests.harness.fake_cluster import FakeCluster
from tests.harness.log_dir import PartitionLog
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_deletion import DeletingBroker

LAYOUT = ArchiveLayout("prod-a", 3)
ORDERS = TopicPartition("orders", 0)


def log_key(base: int) -> str:
    return LAYOUT.object_key(ORDERS, BaseOffset(base), FileKind.LOG)


@pytest.fixture
def half(cli: CommandLine) -> PartitionLog:
    """An archive of orders-0: two plain segments of ten records, then two encrypted ones."""
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    log.closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return log


def consumed(cli: CommandLine, code: int = 0) -> list[int]:
    assert cli.run("consume", "orders", "0") == code, cli.err
    return [json.loads(line)["offset"] for line in cli.lines()]


def encrypted_logs(cli: CommandLine) -> list[str]:
    return sorted(key for key, data in cli.stored().items() if data.startswith(MAGIC))


def test_a_half_encrypted_archive_is_read_as_one_log(cli: CommandLine, half: PartitionLog) -> None:
    assert encrypted_logs(cli) == [log_key(20), log_key(30)]
    assert consumed(cli) == list(range(40))
    rows = cli.json("ls", "orders", "0")["segments"]
    assert {row["base_offset"]: row["size_bytes"] for row in rows} == {
        base: len(half.written[base]) for base in (0, 10, 20, 30)
    }


@pytest.mark.usefixtures("half")
def test_a_consumer_takes_its_keys_from_its_options(cli: CommandLine) -> None:
    options: dict[str, Any] = {
        "tiered.storage.mode": "TIERED_STORAGE_ONLY",
        "tiered.storage.url": f"file://{cli.store}",
        "tiered.storage.cluster.name": "prod-a",
        "tiered.storage.prefix.entropy.bits": 3,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    keys = {"tiered.storage.encryption.keys": f"k1=file:{cli.root / 'k1'}"}
    offsets, error = _read(options | keys)
    assert (offsets, error) == (list(range(40)), None)
    offsets, error = _read(options)
    assert offsets == list(range(20))
    assert error is not None
    assert f"{log_key(20)} is encrypted with the key 'k1', which is not configured" in error


def _read(options: dict[str, Any]) -> tuple[list[int], str | None]:
    """Return the offsets up to the end or to an error, and the error's text."""
    consumer = TieredConsumer(options)
    offsets: list[int] = []
    try:
        consumer.assign([Place("orders", 0, 0)])
        for _ in range(1000):
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                offsets.append(int(message.offset() or 0))
            else:
                is_end = error.code() == KafkaError._PARTITION_EOF
                return offsets, None if is_end else error.str()
        raise AssertionError(f"neither end nor error after {offsets}")
    finally:
        consumer.close()


@pytest.mark.usefixtures("half")
def test_a_missing_and_a_wrong_key_are_named(cli: CommandLine) -> None:
    wrong = encryption(cli.root, k1=SECOND)
    cli.configure({"storage": {"encryption": wrong}})
    assert consumed(cli, 1) == list(range(20))
    assert f"{log_key(20)}: the key 'k1' of storage.encryption.keys is not the key" in cli.err
    cli.configure({"storage": {"encryption": {"keys": {"k1": None}}}})
    cli.configure({"storage": {"encryption": None}})
    assert consumed(cli, 1) == list(range(20))
    assert f"{log_key(20)} is encrypted with the key 'k1', which is not configured" in cli.err
    assert "damaged" not in cli.err


def test_a_rotated_key_reads_old_and_new_segments(cli: CommandLine, half: PartitionLog) -> None:
    before = {key: cli.stored()[key] for key in encrypted_logs(cli)}
    rotated = encryption(cli.root, "k2", k1=FIRST, k2=SECOND)
    cli.configure({"storage": {"encryption": rotated}})
    half.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    assert consumed(cli) == list(range(50))
    stored = cli.stored()
    assert {key: stored[key] for key in before} == before
    assert b"k2" in stored[log_key(40)][:200]


def test_encryption_that_is_turned_off_keeps_the_archive_readable(
    cli: CommandLine, half: PartitionLog
) -> None:
    cli.configure({"storage": {"encryption": encryption(cli.root, topics=())}})
    half.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    assert encrypted_logs(cli) == [log_key(20), log_key(30)]
    assert consumed(cli) == list(range(50))


@pytest.mark.usefixtures("half")
def test_verify_reads_encrypted_segments_and_finds_a_flipped_bit(cli: CommandLine) -> None:
    found = cli.json("verify", "--deep", "--local")
    assert (found["segments"], found["read_segments"], found["findings"]) == (4, 4, [])
    path = cli.store / log_key(30)
    data, times = bytearray(path.read_bytes()), path.stat()
    data[1500] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (finding,) = cli.json("verify", "--deep", code=3)["findings"]
    assert finding["key"] == log_key(30)
    assert "cannot be decrypted" in finding["detail"]


def doctor(cli: CommandLine) -> list[tuple[str, str]]:
    """Return level and text of the findings about encryption. There is no broker to ask."""
    cli.run("doctor", "--sidecar", "http://127.0.0.1:1", "--output", "json")
    rows = json.loads(cli.out)["findings"]
    assert "ok" in {row["level"] for row in rows if row["check"] == "store"}
    return [(row["level"], row["found"]) for row in rows if row["check"] == "encryption"]


@pytest.mark.usefixtures("half")
def test_doctor_checks_each_key_and_names_the_one_that_fails(cli: CommandLine) -> None:
    [(level, found)] = doctor(cli)
    assert (level, "'k1' encrypts new segments" in found) == ("ok", True)
    cli.configure(
        {"storage": {"encryption": encryption(cli.root, "k2", k1=FIRST, k2=SECOND, k3=FIRST)}}
    )
    (cli.root / "k1").unlink()
    (cli.root / "k3").write_text("c2hvcnQ=\n")
    first, third = doctor(cli)
    assert first[0] == third[0] == "problem"
    assert "key 'k1': " in first[1]
    assert f"{cli.root / 'k1'} cannot be read" in first[1]
    assert f"the encryption key in file {cli.root / 'k3'} must be 32 bytes" in third[1]


@pytest.mark.usefixtures("half")
def test_doctor_finds_a_key_that_was_given_the_name_of_another(cli: CommandLine) -> None:
    cli.configure({"storage": {"encryption": encryption(cli.root, k1=SECOND)}})
    (first, fingerprint), (second, stored) = doctor(cli)
    assert first == second == "problem"
    assert "the key 'k1' of this broker has the fingerprint" in fingerprint
    assert "_sidetier/prod-a/keys/k1.json" in fingerprint
    assert f"{log_key(30)}: the key 'k1' of storage.encryption.keys is not the key" in stored


@pytest.mark.usefixtures("half")
def test_an_exchanged_segment_is_named_by_readers_and_verify(cli: CommandLine) -> None:
    (cli.store / log_key(30)).write_bytes((cli.store / log_key(20)).read_bytes())
    text = f"{log_key(30)} is not the object that was stored under this key: it was encrypted as "
    text += "the segment orders-0/00000000000000000020"
    assert consumed(cli, 1) == list(range(30))
    assert text in cli.err
    (finding,) = cli.json("verify", "--deep", code=3)["findings"]
    assert (finding["kind"], finding["key"]) == ("damaged_log", log_key(30))
    assert text in finding["detail"]


def test_plain_segments_of_topics_in_refuse_plain_are_refused(
    cli: CommandLine, half: PartitionLog
) -> None:
    both = {**encryption(cli.root), "refuse_plain": ["orders"]}
    cli.configure({"storage": {"encryption": both}})
    assert consumed(cli, 1) == []
    text = f"{log_key(0)} is not encrypted, and storage.encryption.refuse_plain names its topic"
    assert text in cli.err
    findings = cli.json("verify", "--deep", code=3)["findings"]
    assert [finding["key"] for finding in findings] == [log_key(0), log_key(10)]
    assert text in findings[0]["detail"]

    # A sidecar that does not encrypt the topic stores nothing of it.
    half.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    cli.configure({"storage": {"encryption": {**both, "topics": []}}})
    assert cli.run("backfill") != 0
    assert f"{log_key(40)} is not encrypted" in cli.err + cli.out
    cli.configure({"storage": {"encryption": {**both, "refuse_plain": []}}})
    assert consumed(cli) == list(range(40))


@pytest.mark.parametrize("check", ["light", "heads", "deep"])
@pytest.mark.usefixtures("half")
def test_a_lost_marker_is_found_and_repaired(cli: CommandLine, check: str) -> None:
    base = 30 if check == "light" else 20  # it reads the metadata of the newest segment only
    (marker,) = (key for key in cli.stored() if key.startswith(f"{log_key(base)}.encrypted-"))
    (cli.store / marker).unlink()
    index = log_key(base).replace(".log", ".index")
    (cli.store / index).unlink()
    verify = ["verify", *([] if check == "light" else [f"--{check}"])]
    found = {finding["kind"]: finding for finding in cli.json(*verify, code=3)["findings"]}
    assert sorted(found) == ["missing_index", "missing_marker"]
    finding = found["missing_marker"]
    assert (finding["key"], finding["severity"]) == (marker, "error")
    assert (finding["start_offset"], finding["end_offset"]) == (base, base + 10)
    assert "sidetier repair" in finding["remedy"]
    line = ["repair", *verify[1:]]
    planned = cli.json(*line, "--dry-run", code=3)
    assert [entry["key"] for entry in planned["repairs"]] == [marker, index]
    assert cli.run(*line) == 0, cli.out + cli.err
    assert cli.stored()[marker] == b""
    assert cli.json("verify", "--deep")["findings"] == []
    assert consumed(cli) == list(range(40))


@pytest.mark.usefixtures("half")
def test_a_resumed_verification_looks_for_a_lost_marker_again(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was killed, and the marker was repaired before it was resumed."""
    (marker,) = (key for key in cli.stored() if key.startswith(f"{log_key(20)}.encrypted-"))
    (cli.store / marker).unlink()
    line = ("verify", "--deep", "--resume", str(tmp_path / "verify.state"))
    with monkeypatch.context() as patched:
        patched.setattr(ProgressFile, "remove", ProgressFile.close)
        kinds = [finding["kind"] for finding in cli.json(*line, code=3)["findings"]]
    assert kinds == ["missing_marker"]
    (cli.store / marker).write_bytes(b"")
    assert cli.json(*line)["findings"] == []


@pytest.mark.usefixtures("half")
def test_a_marker_alone_is_no_partition_for_gc(cli: CommandLine) -> None:
    key = LAYOUT.object_key(TopicPartition("gone", 0), BaseOffset(0), FileKind.LOG)
    marker = cli.store / marker_key(key, 5000)
    marker.parent.mkdir(parents=True)
    marker.write_bytes(b"")
    cli.configure({"retention": {"store": [{"topics": ["gone"], "age": "1d"}]}})
    assert cli.json("gc", "--yes")["partitions"] == []
    found = cli.json("gc", "--orphans", "--yes")
    assert [(entry["kind"], entry["deleted"]) for entry in found["orphans"]] == [("marker", False)]
    os.utime(marker, (1e9, 1e9))
    found = cli.json("gc", "--orphans", "--yes")
    assert [(entry["key"], entry["deleted"]) for entry in found["orphans"]] == [
        (marker_key(key, 5000), True)
    ]
    assert not marker.exists()
    assert consumed(cli) == list(range(40))


@pytest.mark.usefixtures("half")
def test_light_verify_needs_no_key(cli: CommandLine) -> None:
    cli.configure({"storage": {"encryption": None}})
    assert cli.json("verify")["findings"] == []


@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.usefixtures("half")
def test_gc_deletes_markers_with_their_segments(cli: CommandLine, *, has_keys: bool) -> None:
    if not has_keys:
        cli.configure({"storage": {"encryption": None}})
    cli.configure({"retention": {"store": [{"topics": ["orders"], "age": "1d"}]}})
    assert len([key for key in cli.stored() if parse_marker(key)]) == 2
    assert cli.run("gc", "--yes") == 0, cli.out + cli.err
    stored = cli.stored()
    logs = [key for key in stored if key.endswith(".log")]
    assert logs == [log_key(30)]
    markers = [parsed for key in stored if (parsed := parse_marker(key)) is not None]
    assert markers == [(log_key(30), len(stored[log_key(30)]))]


def test_a_plan_of_hydrate_covers_encrypted_segments(cli: CommandLine, tmp_path: Path) -> None:
    store = encrypting(LocalStorage(cli.store), settings())
    plain = MadeArchive(store.inner, LAYOUT)
    plain.segment(0, batches(0, 20))
    MadeArchive(store, LAYOUT).segment(20, batches(20, 40))
    plain.mark(20, 40)
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    plan = tmp_path / "plan.json"
    assert cli.run("hydrate", "plan", str(plan)) == 0, cli.err
    assert read_plan(plan) is not None
    (row,) = cli.json("hydrate", "plan", str(tmp_path / "second.json"))["partitions"]
    assert (row["start"], row["end"], row["segments"]) == (0, 40, 2)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"key": "k9"}, "'k9' is not among keys: k1"),
        ({"key": None}, "topics needs key"),
        ({"keys": {"k1": {"file": "/a", "env": "B"}}}, "one of env, file and aws_kms"),
        ({"keys": {"k1": {"env": "B", "region": "x"}}}, "belong to aws_kms"),
        ({"keys": {"a b": {"env": "B"}}}, "storage.encryption.keys"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_impossible_settings_are_refused(
    cli: CommandLine, changed: dict[str, Any], text: str
) -> None:
    cli.configure({"storage": {"encryption": {**encryption(cli.root), **changed}}})
    assert cli.run("backfill") == 2
    assert text in cli.err


@pytest.mark.parametrize("content", ["", "short", "c2hvcnQ=", "A" * 44 + "!"])
def test_a_key_that_is_not_32_bytes_is_refused_and_not_shown(
    cli: CommandLine, content: str
) -> None:
    cli.log_dir.create("orders", 0).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    (cli.root / "k1").write_text(content)
    assert cli.run("backfill") == 2
    assert str(cli.root / "k1") in cli.err
    assert not content or content not in cli.err
    assert cli.stored() == {}


def test_unfenced_stores_are_not_encrypted(cli: CommandLine) -> None:
    cli.configure({"storage": {"fencing": "unfenced_acknowledged"}})
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    assert cli.run("backfill") == 2
    assert "storage.encryption.topics" in cli.err


def test_shown_settings_have_no_key(cli: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    cli.configure({"storage": {"encryption": encryption(cli.root)}})
    assert cli.run("ls") == 2  # writes the file; there is no store yet
    assert run(["--config", str(cli.root / "sidetier.yaml"), "config", "show"]) == 0
    shown = capsys.readouterr().out
    assert "storage.encryption.key" in shown
    assert (cli.root / "k1").read_text().strip() not in shown


@pytest.mark.parametrize("reference", ["", "file:", "env:", "aws_kms"])
def test_a_key_in_the_options_of_a_reader_is_refused_and_not_shown(reference: str) -> None:
    secret = base64.b64encode(FIRST.secret).decode()
    options = {
        "tiered.storage.mode": "TIERED_STORAGE_ONLY",
        "tiered.storage.url": "memory://archive",
        "tiered.storage.cluster.name": "prod-a",
        "tiered.storage.encryption.keys": f"k1={reference}{secret}",
    }
    with pytest.raises(ConfigurationError, match=r"tiered\.storage\.encryption\.keys: ") as caught:
        TieredConsumer(options)
    assert secret[:12] not in str(caught.value)


@pytest.mark.parametrize("command", [("backfill",), ("config", "show"), ("config", "check")])
def test_a_key_in_the_configuration_is_refused_and_not_shown(
    cli: CommandLine, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    secret = base64.b64encode(FIRST.secret).decode()
    cli.configure({"storage": {"encryption": {"keys": {"k1": secret}}}})
    assert cli.run("ls") == 2  # writes the file
    assert run(["--config", str(cli.root / "sidetier.yaml"), *command]) == 2
    shown = "".join(capsys.readouterr())
    assert "storage.encryption.keys.k1 (" in shown
    assert secret[:12] not in shown + cli.out + cli.err


@pytest.mark.usefixtures("half")
def test_trim_refuses_another_key_under_the_right_name(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could read with it what the store alone has after the trim."""
    cluster = FakeCluster()
    cluster.add(ORDERS, 1, high_watermark=40)
    monkeypatch.setattr("sidetier.leadership.cluster_map.KafkaCluster", lambda *_: cluster)
    broker = DeletingBroker([cli.log_dir])
    monkeypatch.setattr("sidetier.uploader.wiring.record_deleter", lambda *_: broker)
    configs = ConfigsByHand({"orders": TopicConfig(only_deleted=True)})
    monkeypatch.setattr("sidetier.uploader.wiring.topic_config_source", lambda _: configs)
    cli.configure({"broker": {"bootstrap_servers": "127.0.0.1:1"}})
    cli.configure({"retention": {"local": {"topics": ["orders"], "bytes": 0}}})
    right = (cli.root / "k1").read_bytes()
    (cli.root / "k1").write_bytes(base64.b64encode(bytes(range(1, 33))))
    assert cli.run("trim") == 2
    assert "the key 'k1' of this broker has the fingerprint" in cli.err
    assert not broker.requests
    (cli.root / "k1").write_bytes(right)
    assert cli.json("trim")["partitions"][0]["log_start_offset"] == 40
    assert broker.requests == [{ORDERS: 40}]
