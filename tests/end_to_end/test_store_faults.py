"""Store failures: nothing is lost, the watermark waits and catches up."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import SEGMENT_BYTES, closed_end, small_segments, wait_until_gone
from tests.harness.quick import QUICK
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import (
    Fault,
    Rule,
    S3Proxy,
    always,
    answer,
    by_part,
    cut,
    first_puts,
    hang,
    lose_the_answer,
    refuse_replacing,
)
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration

CATCH_UP_SECONDS = 60.0


@dataclass
class Place:
    """Topics whose segments the broker deletes within seconds, and a sidecar behind a proxy."""

    cluster: KraftCluster
    topics: Sequence[str]
    ledger: Ledger
    proxy: S3Proxy
    store: ArchiveStore
    sidecar: Sidecar

    def end(self, topic: str) -> int:
        return closed_end(self.cluster.log_dirs(1)[0] / f"{topic}-0")

    def produce(self, count: int) -> None:
        for topic in self.topics:
            self.ledger.produce(self.cluster.bootstrap_servers, topic, count)

    def wait_until_stored(self) -> None:
        for topic in self.topics:
            end = self.end(topic)
            wait_until_stored(self.store.objects, topic, 0, end, CATCH_UP_SECONDS)

    def lose_local_copies(self) -> None:
        """Wait until the broker has deleted all closed segments except the last two."""
        for topic in self.topics:
            directory = self.cluster.log_dirs(1)[0] / f"{topic}-0"
            wait_until_gone(directory, closed_end(directory) - 100)

    def row(self, topic: str) -> dict[str, Any]:
        row = self.sidecar.partition(topic)
        assert row is not None
        return row

    def wait_for_error(self, topic: str) -> None:
        """Wait for the error. A failing store is probed with one request at a time, so this may
        take long.
        """
        wait_until(lambda: self.row(topic)["last_error"], 120, f"an error of {topic}")

    def end_well(self) -> None:
        """Assert that every closed segment is stored, no gap is recorded, and the sidecar ends
        without an error.
        """
        self.wait_until_stored()
        for topic in self.topics:
            self._reached(topic, self.end(topic))
            assert self.row(topic)["gap_records"] == 0
        assert self.sidecar.seen("gap.recorded") == []
        assert self.sidecar.stop() == 0
        assert compare(self.store.objects, self.ledger.records) >= 200 * len(self.topics)

    def _reached(self, topic: str, end: int) -> None:
        wait_until(lambda: self.row(topic)["next_offset"] >= end, 30, "the status page to follow")


PlaceFactory = Callable[[Sequence[str]], Place]


@pytest.fixture
def make_place(
    kraft43: KraftCluster, s3_bucket: S3Bucket, tmp_path: Path
) -> Iterator[PlaceFactory]:
    with ExitStack() as stack:
        yield lambda names: stack.enter_context(_place(kraft43, s3_bucket, tmp_path, names))


@contextmanager
def _place(
    cluster: KraftCluster, bucket: S3Bucket, directory: Path, names: Sequence[str]
) -> Iterator[Place]:
    """Set up topics whose first records are stored already."""
    run = uuid.uuid4().hex[:6]
    topics = [f"{name}-{run}" for name in names]
    configs = small_segments(retention_bytes=SEGMENT_BYTES, file_delete_delay_ms=500)
    for topic in topics:
        create_topic(cluster.bootstrap_servers, topic, configs=configs)
    with S3Proxy(bucket.server.port) as proxy:
        store = s3_store(bucket, proxy.url)
        settings = merged(beside(cluster, store, topics=topics), QUICK)
        settings = merged(settings, {"uploader": {"threads": 16}})
        with Sidecar(directory, settings, store) as sidecar, ArchiveWatch(store.objects):
            place = Place(cluster, topics, Ledger(), proxy, store, sidecar)
            place.produce(100)
            place.wait_until_stored()
            yield place


FAULTS = {
    "error-500": (answer(500, "InternalError"), 500),
    "slow-down": (answer(503, "SlowDown"), 503),
    "denied": (answer(403, "AccessDenied"), 403),
    "hanging": (hang, None),
    "cut": (cut, None),
    "conditions": (refuse_replacing, 412),
}


@pytest.mark.timeout(300)
def test_segments_stay_pinned_while_the_store_fails_and_are_stored_later(
    make_place: PlaceFactory,
) -> None:
    place = make_place(tuple(FAULTS))
    before = {topic: place.row(topic)["next_offset"] for topic in place.topics}
    faults = dict(zip(place.topics, FAULTS.values(), strict=True))
    rules = {topic: always(fault) for topic, (fault, _) in faults.items()}
    place.proxy.misbehave(by_part(rules))
    place.produce(200)
    place.lose_local_copies()
    for topic, (_, status) in faults.items():
        place.wait_for_error(topic)
        assert place.proxy.found("PUT", topic, status), topic
        row = place.row(topic)
        assert row["next_offset"] == before[topic]
        assert row["state"] in {"waiting", "uploading"}
        age = place.sidecar.metric("sidetier_oldest_unstored_segment_age_seconds", topic=topic)
        assert age > 0
    refusing = place.row(place.topics[-1])
    assert "refuses a condition that holds" in refusing["waiting_for"]
    assert place.sidecar.metric("sidetier_errors_total", kind="RefusedConditionError") >= 1
    place.proxy.heal()
    place.end_well()


LOST = {"log": ".log", "index": ".index", "metadata": "_metadata", "watermark": "offset.wm"}


def test_answer_lost_after_a_success_is_harmless(make_place: PlaceFactory) -> None:
    place = make_place(tuple(LOST))
    rules = {
        topic: first_puts(3, lose_the_answer, suffix)
        for topic, suffix in zip(place.topics, LOST.values(), strict=True)
    }
    place.proxy.misbehave(by_part(rules))
    place.produce(200)
    place.end_well()
    for topic in place.topics:
        assert len(place.proxy.found("PUT", topic, None)) == 3


def test_long_store_outage_is_waited_for(make_place: PlaceFactory) -> None:
    place = make_place(["away"])
    topic = place.topics[0]
    place.proxy.upstream, port = 1, place.proxy.upstream  # no server listens there
    for _ in range(3):
        place.produce(100)
        place.lose_local_copies()
    wait_until(lambda: len(place.sidecar.seen("segment.upload_failed")) >= 4, 60, "failures")
    assert place.row(topic)["unstored_segments"] >= 6
    assert place.sidecar.get("/healthz")[0] == 200
    place.proxy.upstream = port
    place.end_well()


def _refuse_one(fault: Fault) -> Rule:
    refused: list[str] = []

    def rule(method: str, key: str) -> Fault | None:
        if method == "PUT" and key.endswith(".log") and not refused:
            refused.append(key)
        return fault if method == "PUT" and key in refused else None

    return rule


def test_object_that_is_always_refused_blocks_the_watermark_and_is_reported(
    make_place: PlaceFactory,
) -> None:
    place = make_place(["refused"])
    topic = place.topics[0]
    place.proxy.misbehave(_refuse_one(answer(403, "AccessDenied")))
    place.produce(200)
    wait_until(lambda: len(place.proxy.found("PUT", ".log", 403)) >= 3, 30, "three refusals")
    wait_until(lambda: place.row(topic)["unstored_segments"] >= 5, 30, "the segments behind it")
    row = place.row(topic)
    refused = place.proxy.found("PUT", ".log", 403)[0].key
    assert refused.endswith(f"/{row['next_offset']:020d}.log")
    assert refused in row["last_error"]
    assert place.sidecar.metric("sidetier_errors_total", kind="AccessDeniedError") >= 2
    assert place.sidecar.metric("sidetier_remote_copy_lag_segments", topic=topic) >= 5

    def behind() -> set[str]:
        return {seen.key for seen in place.proxy.found("PUT", ".log") if seen.key > refused}

    wait_until(lambda: len(behind()) >= 5, 30, "the segments behind it, which go up all the same")
    place.lose_local_copies()
    place.proxy.heal()
    place.end_well()
