"""Records that only a real broker has, when an export of files asks for them."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from sidetier.cli.export.tail import broker_ends
from sidetier.config.cluster import BrokerConfig
from sidetier.sandbox.kafka import KraftCluster
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import MadeArchive
from tests.harness.topics import create_topic

pytestmark = pytest.mark.integration


def test_an_export_waits_for_what_the_broker_alone_has(
    kraft43: KraftCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=2)
    plain = Producer({"bootstrap.servers": servers})
    for _ in range(5):
        plain.produce(topic, b"v", partition=1)
    assert plain.flush(20) == 0
    writer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=1)
    assert writer.flush(20) == 0
    broker = BrokerConfig(bootstrap_servers=servers)
    assert broker_ends(broker, None, topic, "read_committed") == {0: 0, 1: 5}
    assert broker_ends(broker, None, topic, "read_uncommitted") == {0: 0, 1: 6}
    assert broker_ends(broker, None, f"{topic}-none", "read_committed") == {}

    cli = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store, ArchiveLayout("prod-a", 3), TopicPartition(topic, 1))
    archive.segments(0, 3)
    wait = ("--tail", "wait", "--tail-timeout", "0s", "--bootstrap", servers)
    line = ("export", "files", topic, "--into", f"file://{tmp_path}/lake", *wait)
    assert cli.run(*line) == 3, cli.err
    assert f"{topic}-1: offsets 3 to 4 are still on the broker alone" in cli.err
    assert cli.lines()[-1].startswith("3 records exported")
    archive.segments(3, 5)
    assert cli.run(*line) == 0, cli.err
    store.close()
    writer.abort_transaction(20)


def test_a_broker_that_does_not_answer() -> None:
    with pytest.raises(LeadershipUnavailableError, match="tells no offsets of orders"):
        broker_ends(BrokerConfig(), "127.0.0.1:1", "orders", "read_committed")
