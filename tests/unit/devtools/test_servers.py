"""Server settings the sandbox computes before it starts any server."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KafkaCluster, KraftCluster, ZookeeperCluster
from sidetier.brokers.errors import LocalServerError
from sidetier.brokers.java import Java
from sidetier.brokers.kafka import KAFKA_3_9, random_cluster_id, render


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(version: str, directory: Path, jvm_flags: Sequence[str] = ()) -> list[str]:
        return ["java", *jvm_flags, version, str(directory)]

    monkeypatch.setattr("devtools.sandbox.kafka.java_command", command)
    monkeypatch.setattr("devtools.sandbox.kafka.find_java", lambda: Java(Path("java"), 17))
    monkeypatch.setattr("sidetier.brokers.kafka.java_command", command)


def settings_of(cluster: KafkaCluster, node: str) -> dict[str, str]:
    lines = (cluster.directory / node / "server.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_own_directory_is_inserted() -> None:
    rendered = render({"metadata.log.dir": "{directory}/metadata", "num": 3}, Path("/x/broker-1"))
    assert rendered == {"metadata.log.dir": "/x/broker-1/metadata", "num": "3"}


def test_combined_nodes_are_brokers_and_voters(tmp_path: Path) -> None:
    cluster = KraftCluster(tmp_path, brokers=3)
    settings = settings_of(cluster, "broker-2")
    assert settings["process.roles"] == "broker,controller"
    assert [voter.split("@")[0] for voter in settings["controller.quorum.voters"].split(",")] == [
        *("1", "2", "3")
    ]
    assert settings["listeners"].startswith(f"PLAINTEXT://{cluster.bootstrap_of(2)},CONTROLLER://")


def test_every_server_gets_the_given_jvm_flags(tmp_path: Path) -> None:
    cluster = KraftCluster(tmp_path, brokers=2, jvm_flags=["-Xmx1g"])
    for broker in cluster.broker_ids:
        assert "-Xmx1g" in cluster.process_of(broker).command.arguments


def test_split_roles_have_separate_controllers(tmp_path: Path) -> None:
    cluster = KraftCluster(tmp_path, brokers=2, controllers=1)
    broker, controller = settings_of(cluster, "broker-1"), settings_of(cluster, "controller-101")
    assert broker["process.roles"] == "broker"
    assert "CONTROLLER://" not in broker["listeners"]
    assert controller["process.roles"] == "controller"
    assert controller["listeners"].startswith("CONTROLLER://")
    assert "advertised.listeners" not in controller
    assert broker["controller.quorum.voters"] == controller["controller.quorum.voters"]


def test_log_dirs_and_the_metadata_log_dir_are_set(tmp_path: Path) -> None:
    first = tmp_path / "broker-1" / "data-1"
    cluster = KraftCluster(tmp_path, log_dirs=2)
    assert cluster.log_dirs(1) == (first, first.with_name("data-2"))
    assert cluster.metadata_log_dir(1) == first
    apart = KraftCluster(tmp_path, properties={"metadata.log.dir": "{directory}/metadata"})
    assert apart.metadata_log_dir(1) == tmp_path / "broker-1" / "metadata"


def test_given_properties_override_the_defaults(tmp_path: Path) -> None:
    cluster = ZookeeperCluster(
        tmp_path, chroot="/kafka", properties={"zookeeper.session.timeout.ms": 3000}
    )
    settings = settings_of(cluster, "broker-1")
    assert settings["zookeeper.session.timeout.ms"] == "3000"
    assert settings["zookeeper.connect"] == cluster.zookeeper_connect
    assert cluster.zookeeper_connect.endswith("/kafka")


def test_unknown_broker_is_an_error(tmp_path: Path) -> None:
    cluster = KraftCluster(tmp_path, KAFKA_3_9, brokers=2)
    with pytest.raises(LocalServerError, match="no broker 3, only 1, 2"):
        cluster.bootstrap_of(3)


def test_cluster_id_never_looks_like_an_option() -> None:
    """Kafka's `format` refused about one ID in 64: `-t` with a value that begins with a dash."""
    ids = [random_cluster_id() for _ in range(2_000)]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)
