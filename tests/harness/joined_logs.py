"""An endpoint that joins an archive and a live cluster of fake brokers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.endpoint.catalog import CatalogSettings
from sidetier.endpoint.live.client import LiveCluster
from sidetier.endpoint.live.logs import LiveLogs, LiveSettings
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.segments.headers import walk_headers
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.endpoint import EAGER, Parts, endpoint_over, fetch_of
from tests.harness.fake_leaders import Leaders
from tests.harness.made_archive import MadeArchive

STORE: Final = 0.0
BROKER: Final = float("inf")
"""Windows (`--live-window`) that prefer one side."""


@dataclass(frozen=True, slots=True)
class Both:
    """An endpoint over both sides."""

    parts: Parts
    cluster: Leaders
    live: LiveLogs
    registry: CollectorRegistry

    def read(self, *asked: tuple[str, int, int], **options: Any) -> list[Any]:  # noqa: ANN401 - kio's
        """Return the answers to a Fetch of topics, partitions and offsets."""
        fields = fetch_of("t", 0, **options)
        fields["topics"] = [
            {
                "topic": topic,
                "partitions": [
                    {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
                ],
            }
            for topic, number, offset in asked
        ]
        answer = self.parts.fetch(**fields)
        return [topic.partitions[0] for topic in answer.responses]


@contextmanager
def both(
    archive: MadeArchive,
    cluster: Leaders,
    window: float = BROKER,
    timeout: float = 30.0,
    gap_patience: float = 0.0,
    catalog: CatalogSettings = EAGER,
) -> Iterator[Both]:
    """Yield the endpoint; `timeout` is that of requests to leaders."""
    settings = LiveSettings(
        LiveCluster(lambda: cluster.client().settings), window, gap_patience=gap_patience
    )
    registry = CollectorRegistry()
    live = LiveLogs(settings, 8 << 20, LiveMetrics(registry), lambda: None)
    live.reads.pool.timeout = timeout
    live.start()
    live.expect_cluster(None)
    try:
        with endpoint_over(archive.store, live=live, settings=catalog) as parts:
            yield Both(parts, cluster, live, registry)
    finally:
        for event in cluster.hanging.values():
            event.set()
        live.close()


def offsets(data: Any) -> list[int]:  # noqa: ANN401 - kio's
    """Offsets of the batches of an answer."""
    records = bytes(data.records or b"")
    found: list[int] = []
    for _, header in walk_headers(lambda at, size: records[at : at + size], len(records)):
        found += range(header.base_offset, header.next_offset)
    return found


def archived(*borders: int, topic: str = "t", partition: int = 0) -> MadeArchive:
    """Return an archive whose segments have these borders."""
    made = MadeArchive(FakeStorage(), tp=TopicPartition(topic, partition))
    made.segments(*borders)
    return made


def written(cluster: Leaders, end: int, start: int = 0, number: int = 0) -> None:
    """Write a partition up to an offset, and delete what is below another one."""
    for _ in range(0, end, 5):
        cluster.write(number, 5)
    cluster.starts[number] = start


def read_all(read: Both, end: int) -> list[int]:
    """Read partition 0 of topic t as a client does."""
    found: list[int] = []
    while not found or found[-1] < end - 1:
        (data,) = read.read(("t", 0, found[-1] + 1 if found else 0))
        assert data.error_code is ErrorCode.none
        assert data.high_watermark == end
        found += [offset for offset in offsets(data) if not found or offset > found[-1]]
    return found
