"""Truncated records, recreated topics and moved replicas: afterwards the archive equals the
cluster's log, record by record, and the former content is kept in quarantine.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from devtools.sandbox.kafka import KafkaCluster
from sidetier.brokers.processes import Command, ManagedProcess
from tests.harness.archive_check import ArchiveReader, ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, Objects, file_store, s3_store
from tests.harness.clusters import KraftFactory, ZookeeperFactory
from tests.harness.consumed import consume_all
from tests.harness.exported_files import rows_of
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import PROGRAM, Sidecar, beside
from tests.harness.stored_log import Record, read_records
from tests.harness.topics import create_topic, delete_topic, leader_of, reassign
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(params=["kraft", "zookeeper"])
def two_brokers(
    request: pytest.FixtureRequest, kraft_cluster: KraftFactory, zookeeper_cluster: ZookeeperFactory
) -> Iterator[KafkaCluster]:
    """Two brokers that can be killed, whose elections do not depend on them."""
    if request.param == "kraft":
        yield kraft_cluster(brokers=2, controllers=1)
    else:
        yield zookeeper_cluster(brokers=2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def directory_of(cluster: KafkaCluster, broker_id: int, topic: str, partition: int = 0) -> Path:
    return cluster.log_dirs(broker_id)[0] / f"{topic}-{partition}"


def wait_for_leader(cluster: KafkaCluster, asked: int, topic: str, broker_id: int) -> None:
    wait_until(
        lambda: leader_of(cluster.bootstrap_of(asked), topic, 0) == broker_id,
        60,
        f"broker {broker_id} to lead {topic}",
    )


def archived(objects: Objects, topic: str) -> dict[int, Record]:
    """The records of partition 0 below its watermark."""
    reader = ArchiveReader(objects)
    return reader.records(reader.views()[topic, 0])


def set_aside(objects: Objects, folder: str, topic: str) -> dict[int, Record]:
    """The quarantined records of partition 0."""
    prefix = f"_sidetier/test/{folder}/{topic}-0/"
    return {
        offset: record
        for key in objects.listing()
        if key.startswith(prefix) and key.endswith(".log")
        for offset, record in read_records(objects.read(key) or b"", key)
    }


def test_archive_follows_an_unclean_election_and_keeps_the_old_history(
    two_brokers: KafkaCluster,
    topic: str,
    tmp_path: Path,
    s3_bucket: S3Bucket,
    stack: ExitStack,
) -> None:
    """The follower is down while the leader, alone in sync, commits and archives; then the leader
    dies, and the follower is elected with its own records. An export that has read truncated
    records reports that, and rereads them if requested; so does a continuous export.
    """
    cluster, (old, new) = two_brokers, two_brokers.broker_ids
    store = s3_store(s3_bucket)
    create_topic(
        cluster.bootstrap_servers,
        topic,
        assignment=[[old, new]],
        configs=small_segments(
            cluster.version, min_insync_replicas=1, unclean_leader_election_enable="true"
        ),
    )
    wait_for_leader(cluster, old, topic, old)
    shared, lost, later = Ledger(), Ledger(seed=12), Ledger(seed=13)
    shared.produce(cluster.bootstrap_of(old), topic, 110, settings={"acks": "all"})
    cluster.stop_broker(new)
    first = beside(cluster, store, broker_id=old, topics=[topic])
    with Sidecar(tmp_path / "old", first, store) as sidecar:
        lost.produce(cluster.bootstrap_of(old), topic, 200, settings={"acks": 1})
        end = closed_end(directory_of(cluster, old, topic))
        assert end > 200
        wait_until_stored(store.objects, topic, 0, end, 60)
        assert sidecar.stop() == 0
    thrown_away = archived(store.objects, topic)
    lake, reread = tmp_path / "lake", ("--on-truncation", "reread")
    assert export(tmp_path / "old", store, topic, lake) == (0, "")
    assert exported(lake, topic) == [(offset, thrown_away[offset].value) for offset in thrown_away]
    old_log = export_all(tmp_path / "old", store, topic, lake, cluster.bootstrap_of(old))
    follower = stack.enter_context(following(tmp_path / "old", store, topic, tmp_path / "always"))
    follower.wait_for(thrown_away)
    cluster.kill_broker(old)
    cluster.start_broker(new)
    wait_for_leader(cluster, new, topic, new)
    later.produce(cluster.bootstrap_of(new), topic, 300, settings={"acks": 1})
    second = beside(cluster, store, broker_id=new, topics=[topic])
    with Sidecar(tmp_path / "new", second, store) as sidecar:
        quarantined = sidecar.wait_for_event("archive.quarantined", topic=topic, partition=0)
        assert 100 <= quarantined["divergence_offset"] <= 110
        end = closed_end(directory_of(cluster, new, topic))
        with ArchiveWatch(store.objects):
            wait_until_stored(store.objects, topic, 0, end, 60)
        assert sidecar.metric("sidetier_quarantines_total") == 1
        assert sidecar.seen("gap.recorded") == []
        assert sidecar.stop() == 0
    follower.wait_for(archived(store.objects, topic))
    follower.has_begun_anew()
    code, said = export(tmp_path / "new", store, topic, lake)
    assert code == 1, said
    divergence_offset, last = quarantined["divergence_offset"], max(old_log)
    assert last > max(thrown_away)
    assert (
        f"topic {topic}, partition 0, offsets [{divergence_offset}, {last + 1}) (leader epoch "
        in said
    )
    servers = cluster.bootstrap_of(new)
    truth = export_all(tmp_path / "new", store, topic, lake, servers, *reread)
    assert compare(store.objects, {(topic, 0): truth}) >= 350
    aside = set_aside(store.objects, "quarantine", topic)
    gone = {o: r for o, r in thrown_away.items() if truth.get(o) != r}
    assert len(gone) >= 90
    assert aside.items() >= gone.items()


def export(
    directory: Path, store: ArchiveStore, topic: str, lake: Path, *more: str
) -> tuple[int, str]:
    """Run `sidetier export files` with the settings of the sidecar in this directory."""
    line = export_line(directory, topic, lake)
    done = subprocess.run(
        [*line, *more], check=False, env={**store.environment}, stderr=subprocess.PIPE, text=True
    )
    return done.returncode, done.stderr


def export_line(directory: Path, topic: str, lake: Path) -> list[str]:
    lake.mkdir(exist_ok=True)
    command = [str(PROGRAM), "--config", str(directory / "sidetier.yaml"), "export", "files", topic]
    return [*command, "--into", lake.as_uri(), "--flush-size", "30"]


@dataclass(frozen=True)
class Following:
    """A continuous export and its output."""

    process: ManagedProcess
    topic: str
    lake: Path
    log: Path

    def wait_for(self, records: dict[int, Record]) -> None:
        """Wait until its files contain exactly these records."""
        wanted = [(offset, records[offset].value) for offset in sorted(records)]

        def is_there() -> bool:
            assert self.process.running, self.said()
            with suppress(FileNotFoundError):  # it was replaced after the listing
                return exported(self.lake, self.topic) == wanted
            return False

        wait_until(is_there, 60, "the export to have what is archived")

    def said(self) -> str:
        return self.log.read_text()

    def has_begun_anew(self) -> None:
        """Assert that it has reread records and ends on request."""
        assert "; tried again" in self.said()
        assert "to be exported again: " in self.said()
        self.process.terminate()
        assert self.process.wait(60) == 0, self.said()


@contextmanager
def following(directory: Path, store: ArchiveStore, topic: str, lake: Path) -> Iterator[Following]:
    """Run `sidetier export files --follow`, which rereads truncated records."""
    more = ["--follow", "--interval", "1s", "--chunk", "50", "--on-truncation", "reread"]
    log = directory / "following.log"
    line = [*export_line(directory, topic, lake), *more]
    process = ManagedProcess(Command("export", line, log, dict(store.environment)))
    process.start()
    try:
        yield Following(process, topic, lake, log)
    finally:
        process.kill()


def export_all(
    directory: Path, store: ArchiveStore, topic: str, lake: Path, servers: str, *more: str
) -> dict[int, Record]:
    """Export with `--tail kafka`: the files then contain exactly the whole log."""
    code, said = export(
        directory, store, topic, lake, "--tail", "kafka", "--bootstrap", servers, *more
    )
    assert code == 0, said
    log = consume_all(servers, topic)
    assert exported(lake, topic) == [(offset, log[offset].value) for offset in sorted(log)]
    return log


def exported(lake: Path, topic: str) -> list[tuple[int, bytes | None]]:
    """Every record in all files below a directory, by offset."""
    files = (lake / "topics" / topic).rglob(f"{topic}+*")
    rows = [row for path in files for row in rows_of(path.name, path.read_bytes())]
    return sorted((row["offset"], row["value"]) for row in rows)


def retire(directory: Path, store: ArchiveStore, *line: str) -> int:
    """Run `sidetier retire` with the settings of the sidecar in this directory."""
    command = [str(PROGRAM), "--config", str(directory / "sidetier.yaml"), "retire", *line]
    return subprocess.run(command, check=False, env={**store.environment}).returncode


def created(cluster: KafkaCluster, topic: str) -> bool:
    """Return whether the topic was created. With ZooKeeper a name stays "marked for deletion" for a
    while.
    """
    try:
        create_topic(cluster.bootstrap_servers, topic, configs=small_segments(cluster.version))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


@pytest.mark.parametrize("kind", ["kraft43", "zk39"])
def test_recreated_topic_is_archived_once_the_old_archive_is_retired(
    request: pytest.FixtureRequest, kind: str, topic: str, tmp_path: Path
) -> None:
    cluster: KafkaCluster = request.getfixturevalue(kind)
    bootstrap, store = cluster.bootstrap_servers, file_store(tmp_path / "store")
    old, new = Ledger(), Ledger(seed=12)
    create_topic(bootstrap, topic, partitions=2, configs=small_segments(cluster.version))
    directory = tmp_path / "sidecar"
    settings = beside(cluster, store, topics=[topic])
    with Sidecar(directory, settings) as sidecar:
        old.produce(bootstrap, topic, 150, partitions=(0, 1))
        for partition in (0, 1):
            end = closed_end(directory_of(cluster, 1, topic, partition))
            wait_until_stored(store.objects, topic, partition, end)
        reader = ArchiveReader(store.objects)
        before = reader.records(reader.views()[topic, 0])
        assert retire(directory, store, topic) == 3, "it belongs to the topic as it is"
        delete_topic(bootstrap, topic)
        wait_until(lambda: sidecar.partitions(topic) == [], 60, "the deleted topic to go")
        wait_until(lambda: created(cluster, topic), 60, "the deletion to be complete")
        new.produce(bootstrap, topic, 100)
        wait_until(
            lambda: (
                "belongs to topic id" in str((sidecar.partition(topic) or {}).get("last_error"))
            ),
            30,
            "the halt",
        )
        row = sidecar.partition(topic)
        assert row is not None
        assert row["state"] == "halted"
        assert retire(directory, store, topic, "--dry-run") == 0
        assert retire(directory, store, topic) == 0
        end = closed_end(directory_of(cluster, 1, topic))
        wait_until_stored(store.objects, topic, 0, end, 90)
        assert sidecar.stop() == 0
    compare(store.objects, new.records)
    assert set_aside(store.objects, "retired", topic) == before
    views = ArchiveReader(store.objects).views()
    assert (topic, 1) not in views, "the new topic has no partition 1: its archive went, too"


def test_partition_reassigned_away_and_back_has_one_archive(
    two_brokers: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    cluster, (first, second) = two_brokers, two_brokers.broker_ids
    bootstrap, store, ledger = cluster.bootstrap_servers, file_store(tmp_path / "store"), Ledger()
    create_topic(bootstrap, topic, assignment=[[first]], configs=small_segments(cluster.version))
    one = beside(cluster, store, broker_id=first, topics=[topic])
    other = beside(cluster, store, broker_id=second, topics=[topic])
    with (
        Sidecar(tmp_path / "first", one) as here,
        Sidecar(tmp_path / "second", other) as there,
        ArchiveWatch(store.objects),
    ):
        for owner in (first, second, first):
            reassign(bootstrap, topic, 0, [owner])
            wait_for_leader(cluster, owner, topic, owner)
            ledger.produce(bootstrap, topic, 100, settings={"acks": "all"})
            end = closed_end(directory_of(cluster, owner, topic))
            wait_until_stored(store.objects, topic, 0, end, 60)
        for sidecar in (here, there):
            for event in ("archive.diverged", "archive.divergence_suspected", "gap.recorded"):
                assert sidecar.seen(event) == []
            assert sidecar.stop() == 0
    assert compare(store.objects, ledger.records) >= 250
