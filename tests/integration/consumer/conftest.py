"""A topic of a real broker, archived by a real sidecar on a real S3 server."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.s3server import S3Server
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import closed_end, small_segments
from tests.harness.s3 import new_bucket
from tests.harness.sidecar import Sidecar, beside
from tests.harness.stored_log import Record
from tests.harness.topics import create_topic, delete_records

PARTITIONS = (0, 1)


@dataclass(frozen=True, slots=True)
class Tier:
    """A topic of two partitions:

    Kafka has the second half, and the store everything except the end. `kafka_start` and `stored`
    are, by partition, the start of Kafka's log and the end of the archive.
    """

    topic: str
    bootstrap: str
    sent: dict[int, dict[int, Record]]
    kafka_start: dict[int, int]
    stored: dict[int, int]
    config: Path
    sidecar: Sidecar

    def settings(self, mode: str, **more: object) -> dict[str, Any]:
        """A consumer's configuration; names in `more` have underscores for dots."""
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"g-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            "tiered.storage.mode": mode,
            "tiered.storage.config": str(self.config),
            **{key.replace("_", "."): value for key, value in more.items()},
        }


@pytest.fixture(scope="package")
def tier(
    kraft43: KraftCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tier]:
    """Created once per package: nothing is written or deleted afterwards."""
    topic, ledger = f"tiered-{uuid.uuid4().hex[:6]}", Ledger()
    bootstrap = kraft43.bootstrap_servers
    store = s3_store(new_bucket(s3_server))
    create_topic(bootstrap, topic, partitions=2, configs=small_segments())
    directory = tmp_path_factory.mktemp("sidecar")
    settings = beside(kraft43, store, topics=[topic])
    with Sidecar(directory, settings, store) as sidecar, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        ledger.produce(bootstrap, topic, 600, partitions=PARTITIONS)
        ends = {
            number: closed_end(kraft43.log_dirs(1)[0] / f"{topic}-{number}")
            for number in PARTITIONS
        }
        for number, end in ends.items():
            wait_until_stored(store.objects, topic, number, end)
            delete_records(bootstrap, topic, number, 300)
        yield Tier(
            topic,
            bootstrap,
            {number: dict(ledger.records[topic, number]) for number in PARTITIONS},
            dict.fromkeys(PARTITIONS, 300),
            ends,
            sidecar.config,
            sidecar,
        )
