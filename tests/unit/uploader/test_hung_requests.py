"""A store whose requests hang, like those to a `file://` store on NFS whose server is gone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import structlog
from structlog.testing import LogCapture

from sidetier.config.loading import load
from sidetier.storage.fake import FakeStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.store_calls import StoreCalls
from sidetier.telemetry.status import PartitionState, StatusSnapshot
from sidetier.uploader.wiring import _store_calls
from sidetier.uploader.workers import StoreGate
from tests.harness.daemons import LAYOUT, RunningDaemon, Site, key_of, place_of, stored_next
from tests.harness.log_dir import LogDir, PartitionLog

SOON = 0.3
"""Seconds after which a request counts as hung here."""


@dataclass
class Hanging:
    """A daemon over a store in which some requests hang."""

    running: RunningDaemon
    store: FakeStorage

    @property
    def seen(self) -> StatusSnapshot:
        return self.running.daemon.status.snapshot()

    @property
    def store_condition(self) -> str:
        (reason,) = (c.reason for c in self.seen.conditions if c.name == "store reachable")
        return reason

    def waits(self, what: str, condition: Callable[[], object]) -> None:
        self.running.wait(condition, what)


@contextmanager
def hanging(site: Site, store: FakeStorage, **settings: object) -> Iterator[Hanging]:
    calls = StoreCalls(SOON)
    place = place_of(RetryingStorage(store, calls=calls, url="file:///nfs"))
    site.places, site.store_calls = lambda _: place, calls
    with site.running(**settings) as running:
        yield Hanging(running, store)


@pytest.fixture
def events() -> Iterator[LogCapture]:
    capture = LogCapture()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(processors=before)


def test_hung_request_is_reported_and_not_repeated(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, events: LogCapture
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    watermark = LAYOUT.watermark_key(log.tp)
    with hanging(site, store) as here:
        with store.hold("get", watermark):
            here.waits("the hung request", lambda: here.seen.hung_requests == 1)
            (shown,) = here.seen.partitions
            assert shown.state is PartitionState.WAITING
            assert shown.waiting_for == (
                f"the store: get {watermark} at file:///nfs has not been answered in time"
            )
            assert here.store_condition.startswith(
                f"get {watermark} at file:///nfs has not been answered for "
            )
            assert not here.seen.ready
            log.closed_segments(1)
            log_dir.checkpoint_high_watermarks()
            here.waits("the new segment", lambda: here.seen.partitions[0].unstored_segments == 3)
            assert store.count("get", watermark) == 1
        here.waits("the archive", lambda: stored_next(store, log.tp) == 30)
        here.waits("readiness", lambda: here.seen.ready and not here.seen.hung_requests)
    told = [
        (entry["event"], entry["topic"], entry["partition"], entry["key"])
        for entry in events.entries
        if str(entry["event"]).startswith("store.request_")
    ]
    assert told == [
        ("store.request_hangs", "t", 0, watermark),
        ("store.request_returned", "t", 0, watermark),
    ]


def test_no_second_upload_of_a_partition_starts_while_one_hangs(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with hanging(site, store, threads=4) as here:
        with store.hold("put", key_of(log.tp, 0)):
            here.waits("the hung upload", lambda: here.seen.hung_requests == 1)
            assert here.seen.partitions[0].state is PartitionState.WAITING
            puts = store.count("put")
            log.closed_segments(3)
            log_dir.checkpoint_high_watermarks()
            here.waits("the new segments", lambda: here.seen.partitions[0].unstored_segments == 4)
            other = log_dir.create("other")
            assert store.count("put") == puts
        here.waits("the archive", lambda: stored_next(store, log.tp) == 40)
        assert stored_next(store, other.tp) is None


def test_few_requests_hang_once_the_store_is_known_to_hang(
    site: Site, log_dir: LogDir, store: FakeStorage
) -> None:
    logs = [log_dir.create("t", number) for number in range(12)]
    for one in logs:
        one.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with hanging(site, store, threads=8, request_threads=8) as here:
        here.waits("all archives", lambda: all(stored_next(store, one.tp) == 10 for one in logs))
        first, *others = logs
        with store.hold("put"):
            first.closed_segments(1)
            log_dir.checkpoint_high_watermarks()
            here.waits("the first to hang", lambda: here.seen.hung_requests == 1)
            for one in others:
                one.closed_segments(1)
            log_dir.checkpoint_high_watermarks()
            here.waits("the probe to hang", lambda: here.seen.hung_requests == 2)
            queued = len(others) - 1
            here.waits("the others to queue", lambda: here.seen.queued_segments == queued)
            assert here.seen.hung_requests == 2
        here.waits("all archives", lambda: all(stored_next(store, one.tp) == 20 for one in logs))


def test_backfill_does_not_wait_for_a_hung_request(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage
) -> None:
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    calls = StoreCalls(SOON)
    place = place_of(RetryingStorage(store, calls=calls))
    site.places, site.store_calls = lambda _: place, calls
    with store.hold("get"):
        daemon = site.daemon(shutdown_grace=0.1)
        daemon.run_until_settled(patience=0.5)
    assert daemon.status.snapshot().hung_requests == 1


def test_gate_closes_for_a_hanging_store_even_without_another_store() -> None:
    gate = StoreGate()
    gate.leave(None, began=0.0, now=0.0, probe=gate.enter())
    assert gate.admits(1.0, alone=True)
    gate.hangs()
    assert gate.admits(1.0, alone=True)
    probe = gate.enter()
    assert probe
    assert not gate.admits(1000.0, alone=True)
    gate.leave(None, began=1.0, now=2.0, probe=probe)
    assert gate.admits(3.0, alone=True)


class TestStoreCalls:
    def test_request_body_extends_the_time_limit_of_an_attempt(self) -> None:
        now = 0.0
        calls = StoreCalls(10, min_bytes_per_second=100, clock=lambda: now)
        with calls.begun("put", "k", "file:///a", size=500) as call, calls.begun("get", "k", ""):
            now = 11.0
            assert [found.operation for found in calls.hung()] == ["get"]
            now = 16.0
            assert [found.operation for found in calls.hung()] == ["put", "get"]
            calls.try_again(call)
            assert [found.operation for found in calls.hung()] == ["get"]
            assert (call.attempt, calls.seconds(call)) == (2, 16.0)
        assert calls.under_way() == []

    @pytest.mark.parametrize(("topics", "limit"), [("[]", 10_120), ("[.*]", 20_120)])
    def test_bandwidth_cap_counts_an_encrypted_body_twice(self, topics: str, limit: int) -> None:
        flags = [
            "cluster.name=a",
            "log_dirs=[/data]",
            "storage.url=memory://archive",
            f"storage.encryption={{topics: {topics}, key: k1, keys: {{k1: {{file: /k1}}}}}}",
            "uploader.max_bytes_per_second=1000",
            "uploader.threads=2",
        ]
        calls = _store_calls(load(flags=flags).config)
        now = 0.0
        calls._clock = lambda: now
        with calls.begun("put", "a.log", "", size=5_000_000):
            now = limit
            assert calls.hung() == []
            now = limit + 1
            assert [call.operation for call in calls.hung()] == ["put"]
