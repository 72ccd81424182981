"""A broker that has just started, with ZooKeeper: it knows no brokers and no topics yet.

At such an answer to `AdminClient.describe_cluster`, librdkafka 2.16 ends the process. So each test
asks in a process of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

import sidetier
from sidetier.wire.protocol import ApiKey
from tests.harness.fake_broker import Received, fake_broker, led_by

CONSUMER = """
from sidetier.consumer.kafka_side import Callbacks, KafkaClients
print(KafkaClients({"bootstrap.servers": servers}, Callbacks()).cluster_id())
"""
SNAPSHOT = """
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import allowed_on_cluster
from sidetier.wire.settings import ClientSettings
with Cluster(ClientSettings.from_properties({"bootstrap.servers": servers})) as cluster:
    print(allowed_on_cluster(cluster, timeout=5))
"""
LIBRARY = """
from confluent_kafka.admin import AdminClient
client = AdminClient({"bootstrap.servers": servers})
client.describe_cluster(request_timeout=5).result(10)
"""


OLD = {ApiKey.API_VERSIONS: (0, 3), ApiKey.METADATA: (0, 9)}
NEW = {**OLD, ApiKey.DESCRIBE_CLUSTER: (0, 2)}


def run(
    program: str, versions: dict[ApiKey, tuple[int, int]], *, known: int
) -> "subprocess.CompletedProcess[str]":
    """Run a program against a broker that knows the cluster for some answers only."""
    with fake_broker(versions) as broker:

        def answer(request: Received) -> bytes:
            if request.api is ApiKey.METADATA and broker.apis().count(request.api) <= known:
                return led_by(broker, request)
            own: dict[str, object] = {"cluster_id": "cluster", "error_message": None}
            if request.api is ApiKey.METADATA:
                own = {"cluster_id": None, "topics": []}
            return request.response(
                throttle_time=0,
                controller_id=-1,
                error_code=ErrorCode.none,
                brokers=[],
                cluster_authorized_operations=1 << 8,
                **own,
            )

        broker.answers |= {ApiKey.METADATA: answer, ApiKey.DESCRIBE_CLUSTER: answer}
        servers = "{}:{}".format(*broker.address)
        line = [sys.executable, "-c", f"servers = {servers!r}\n{program}"]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("program", "versions", "known", "answer"),
    [
        (CONSUMER, OLD, 1, "cluster"),
        (SNAPSHOT, OLD, 0, "frozenset({8})"),
        (SNAPSHOT, NEW, 0, "frozenset({8})"),
    ],
)
def test_the_process_goes_on(
    program: str, versions: dict[ApiKey, tuple[int, int]], known: int, answer: str
) -> None:
    done = run(program, versions, known=known)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == answer


def test_no_other_module_describes_the_cluster() -> None:
    """Only hydrate does, for the brokers' racks: it is no daemon, and can be run again."""
    packages = Path(sidetier.__file__).parent
    callers = {
        f"{package.name}/{path.relative_to(package.resolve())}"
        for package in packages.iterdir()
        for path in package.resolve().rglob("*.py")
        if ".describe_cluster(" in path.read_text()
    }
    assert callers == {"mirror/hydrate/topics.py"}


def test_the_library_ends_the_process() -> None:
    """If this fails, the library is mended, and `describe_cluster` can be used again."""
    done = run(LIBRARY, OLD, known=1)
    assert done.returncode < 0, done.stderr
    assert "Assertion" in done.stderr
