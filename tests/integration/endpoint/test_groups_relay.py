"""`--groups relay` with three brokers, over TLS and with logins.

The topic of the live cluster is empty: every record that a client gets is from the archive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from sidetier.wire.cluster import AnyBroker, Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.endpoint import RawClient
from tests.harness.group_reading import (
    ALL,
    END,
    PARTITIONS,
    commit,
    committed,
    read,
    store_topic,
)
from tests.harness.secure_cluster import SecureCluster
from tests.harness.serve_process import ServeProcess, serve_process
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

GROUPS = tuple(f"group-{number}" for number in range(8))


@dataclass(frozen=True, slots=True)
class Relayed:
    """An endpoint, its live cluster, and the file with its login."""

    endpoint: ServeProcess
    live: SecureCluster
    properties: Path

    def coordinator(self, group: str) -> int:
        """Return the broker that coordinates a group, as the live cluster says."""
        settings = ClientSettings.from_properties(
            {"bootstrap.servers": self.live.bootstrap_servers}
        )
        with Cluster(settings) as cluster:
            found = cluster.request(AnyBroker(), ApiKey.FIND_COORDINATOR, key=group, key_type=0)
            return int(found.node_id)

    def listed(self) -> set[str]:
        """Return the names of the groups, as the endpoint lists them."""
        admin = AdminClient({"bootstrap.servers": self.endpoint.bootstrap})
        return {row.group_id for row in admin.list_consumer_groups().result(30).valid or []}


@pytest.fixture(scope="module")
def relayed(
    java: object,  # noqa: ARG001 - servers need it
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Relayed]:
    root = tmp_path_factory.mktemp("relay")
    store_topic(root, "orders")
    with SecureCluster(tmp_path_factory.mktemp("live")) as live:
        live.set_password("first")
        create_topic(live.bootstrap_servers, "orders", partitions=PARTITIONS, replicas=3)
        properties = root / "live.properties"
        properties.write_text(live.client_properties("first"))
        options = (
            *("--groups", f"relay={live.secure_servers}"),
            *("--groups-properties", str(properties)),
        )
        with serve_process(root, *options) as endpoint:
            yield Relayed(endpoint, live, properties)


def offsets_of(bootstrap: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """Ask for the offsets of several groups in one request, as Java's administrators do."""
    host, _, port = bootstrap.rpartition(":")
    rows = [{"group_id": group, "topics": None} for group in groups]
    with RawClient((host, int(port)), 30) as client:
        response: Any = client.request(ApiKey.OFFSET_FETCH, 9, groups=rows, require_stable=False)
    return {
        row.group_id: row.error_code
        or [each.committed_offset for topic in row.topics for each in topic.partitions]
        for row in response.groups
    }


def test_groups_of_several_coordinators(relayed: Relayed) -> None:
    for number, group in enumerate(GROUPS):
        member = relayed.endpoint.member(group)
        member.subscribe(["orders"])
        assert len(read(member, 10 + number)) == 10 + number
        commit(member)
        member.close()
    assert len({relayed.coordinator(group) for group in GROUPS}) > 1
    assert relayed.listed() >= set(GROUPS)
    offsets = offsets_of(relayed.endpoint.bootstrap, GROUPS)
    assert {group: sum(rows) for group, rows in offsets.items()} == {
        group: 10 + number for number, group in enumerate(GROUPS)
    }


def test_a_group_continues_at_another_broker(relayed: Relayed) -> None:
    """The broker that coordinates the group is stopped in the middle of it."""
    member = relayed.endpoint.member("moving")
    member.subscribe(["orders"])
    before = read(member, 60)
    commit(member)
    coordinator = relayed.coordinator("moving")
    relayed.live.stop_broker(coordinator)
    try:
        rest = read(member, 60, seconds=90)
        commit(member)
        assert set(before + rest) == ALL
        assert "moving" in relayed.listed(), "the brokers that are there list their groups"
        assert relayed.coordinator("moving") != coordinator
        done = dict.fromkeys(range(PARTITIONS), END)
        assert committed(relayed.live.bootstrap_servers, "moving") == done
    finally:
        relayed.live.start_broker(coordinator)
    member.close()


def test_live_records_come_over_tls_and_no_address_of_a_broker_gets_to_clients(
    relayed: Relayed, tmp_path: Path
) -> None:
    live, topic = relayed.live, "live"
    create_topic(live.bootstrap_servers, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": live.bootstrap_servers})

    def send(first: int) -> None:
        for number in range(first, first + 90):
            producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    send(0)
    options = ("--live", live.secure_servers, "--live-properties", str(relayed.properties))
    with serve_process(tmp_path, *options) as endpoint:
        plain = Consumer(
            {
                "bootstrap.servers": endpoint.bootstrap,
                "group.id": "over-tls",
                "auto.offset.reset": "earliest",
            }
        )
        plain.subscribe([topic])
        found = read_values(plain, 90)
        send(90)
        found += read_values(plain, 90)
        plain.close()
        assert sorted(map(int, found)) == list(range(180))
        host, _, port = endpoint.bootstrap.rpartition(":")
        with RawClient((host, int(port)), 30) as client:
            answers = (
                client.exchange(
                    ApiKey.METADATA,
                    12,
                    topics=None,
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=False,
                ),
                client.exchange(ApiKey.FIND_COORDINATOR, 3, key="over-tls", key_type=0),
                client.exchange(
                    ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False
                ),
            )
        servers = f"{live.bootstrap_servers},{live.secure_servers}".split(",")
        ports = {int(server.rpartition(":")[2]).to_bytes(4) for server in servers}
        assert not [known for known in ports for answer in answers if known in answer]


def read_values(plain: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []

    def take() -> bool:
        message = plain.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
        return len(found) == count

    wait_until(take, 90, f"{count} records")
    return found


def test_a_password_that_was_changed(relayed: Relayed) -> None:
    """New connections fail with a clear log event until the file has the new password."""
    assert relayed.endpoint.count("endpoint.relay_login_failed") == 0
    away = relayed.endpoint.count("endpoint.relay_unavailable")
    relayed.live.set_password("second")
    bootstrap = relayed.endpoint.bootstrap

    def is_refused() -> bool:
        (answer,) = offsets_of(bootstrap, ("rotated",)).values()
        return answer is ErrorCode.not_coordinator

    wait_until(is_refused, 30, "the changed password to be known to all brokers", every=0.5)
    assert relayed.endpoint.count("endpoint.relay_login_failed") == 1
    assert relayed.endpoint.count("endpoint.relay_unavailable") == away
    relayed.properties.write_text(relayed.live.client_properties("second"))
    member = relayed.endpoint.member("rotated")
    member.subscribe(["orders"])
    assert set(read(member, len(ALL), seconds=60)) == ALL
    commit(member)
    member.close()
    done = dict.fromkeys(range(PARTITIONS), END)
    assert committed(relayed.live.bootstrap_servers, "rotated") == done
