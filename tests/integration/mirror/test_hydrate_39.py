"""`sidetier hydrate` on Kafka 3.9: with ZooKeeper, and in `make test-long` with KRaft, too.

Other tests hydrate Kafka 4.3, which has KRaft.
"""

import os
from pathlib import Path

import pytest
import yaml

from sidetier.brokers.kafka import KAFKA_3_9
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.clusters import KraftFactory, ZookeeperFactory
from tests.harness.encryption import encrypting, encryption
from tests.harness.hydrating import HydrateCommands
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.topics import leader_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LAYOUT = ArchiveLayout("lost", 3)
REPLICATED = {"offsets.topic.replication.factor": 2}
MODES = ("kraft", "zookeeper") if os.environ.get("HYDRATE_39_KRAFT") else ("zookeeper",)
PATIENT = REPLICATED | {"zookeeper.session.timeout.ms": 30_000}
"""A long ZooKeeper session, for a loaded machine."""


def archived(directory: Path) -> HydrateCommands:
    """An archive of two topics: an encrypted one with aborted and open transactions from a real
    broker, and one with records of 1970 whose first segment begins below the log start, and whose
    second one is encrypted.
    """
    url = f"file://{directory}/store"
    store = open_plain(StorageEndpoint(url))
    encrypted = encrypting(store)
    store_broker_segments(encrypted, LAYOUT, "tx-0")
    orders = MadeArchive(store, LAYOUT)
    orders.segment(0, batches(0, 20))
    MadeArchive(encrypted, LAYOUT).segment(20, batches(20, 40))
    orders.mark(20, 40, start_offset=7)
    (directory / "old-cluster.yaml").write_text(
        yaml.safe_dump(
            {
                "cluster": {"name": LAYOUT.cluster},
                "log_dirs": [str(directory / "kafka")],
                "storage": {
                    "url": url,
                    "prefix_entropy_bits": LAYOUT.bits,
                    "encryption": encryption(directory, None, topics=()),
                },
            }
        )
    )
    return HydrateCommands(directory, {"PATH": ""})


@pytest.mark.parametrize("mode", MODES)
def test_topics_are_restored_on_kafka_39(
    mode: str, kraft_cluster: KraftFactory, zookeeper_cluster: ZookeeperFactory, tmp_path: Path
) -> None:
    commands = archived(tmp_path)
    new = (
        kraft_cluster(KAFKA_3_9, brokers=2, controllers=1, properties=REPLICATED)
        if mode == "kraft"
        else zookeeper_cluster(KAFKA_3_9, brokers=2, properties=PATIENT)
    )
    servers = ("--bootstrap-server", new.bootstrap_servers)
    planned = commands.run("hydrate", "plan", "plan.json")["partitions"]
    commands.run("hydrate", "prepare", "plan.json", *servers)
    new.stop()
    for broker in new.broker_ids:
        placed = commands.run(
            *("hydrate", "place", "plan.json", "--log-dir", str(new.log_dirs(broker)[0]))
        )
        assert all(item["problem"] is None for item in placed["partitions"])
    new.start()
    done = commands.run("hydrate", "replicate", "plan.json", *servers, "--replication-factor", "2")
    assert {name: len(brokers) for name, brokers in done["replicas"].items()} == {
        "orders-0": 2,
        "tx-0": 2,
    }
    assert {item["partition"] for item in done["aborted_transactions"]} == {"tx-0"}
    verified = commands.run("hydrate", "verify", "plan.json", *servers, "--produce", "orders")
    records = {item["partition"]: item["records"] for item in verified["partitions"]}
    assert records["orders-0"] == planned[0]["end"] - planned[0]["start"] == 33

    finished = commands.run("hydrate", "finish", "plan.json", *servers)
    assert finished["refused_configs"] == {}

    leader = leader_of(new.bootstrap_servers, "tx", 0)
    assert leader is not None
    new.kill_broker(leader)  # another replica leads then and has copied the records
    commands.run("hydrate", "verify", "plan.json", *servers, "--produce", "tx")
