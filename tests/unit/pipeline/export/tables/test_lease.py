import json
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from sidetier.pipeline.export.errors import OtherWriterError
from sidetier.pipeline.export.sinks.tables.lease import (
    Lease,
    LeaseTimes,
    ProcessId,
    process_here,
    state_of,
)
from sidetier.segments.errors import MalformedObjectError, StoreUnavailableError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from tests.harness.waiting import wait_until

KEY = "_sidetier/orders.lease"
ELSEWHERE = ProcessId("another machine", 7, 7, "host-b")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


def lease(
    store: FakeStorage | LocalStorage, clock: Clock | None = None, me: ProcessId | None = None
) -> Lease:
    times = LeaseTimes(ttl=10, wait=15, look=0.001)
    return Lease(store, KEY, times, me or process_here(), clock or Clock())


def test_second_holder_is_refused_while_the_first_runs(store: FakeStorage) -> None:
    first, second = lease(store), lease(store)
    first.acquire()
    before = store.contents()
    renewals = threading.Event()
    clock = Clock()

    class Renewing(Clock):
        def __call__(self) -> float:
            first.renew()
            renewals.set()
            return clock()

    with pytest.raises(OtherWriterError, match=f"held by process {process_here().pid} on"):
        lease(store, Renewing()).acquire()
    assert renewals.is_set()
    assert before != store.contents()
    first.release()
    second.acquire()
    assert not second.lost


def test_lease_that_is_not_renewed_is_taken_over(store: FakeStorage) -> None:
    dead, clock = lease(store, me=ELSEWHERE), Clock()
    dead.acquire()
    began = clock.now
    lease(store, clock).acquire()
    assert 10 <= clock.now - began < 15
    dead.renew()
    assert dead.lost
    with pytest.raises(OtherWriterError, match="this one stops"):
        dead.require()


def test_lease_of_a_dead_process_is_taken_over_at_once(store: FakeStorage) -> None:
    gone = replace(process_here(), started=process_here().started + 1)
    lease(store, me=gone).acquire()
    clock = Clock()
    began = clock.now
    lease(store, clock).acquire()
    assert clock.now - began < 5


def test_release_keeps_a_lease_that_another_holder_took_over(store: FakeStorage) -> None:
    first = lease(store, me=ELSEWHERE)
    first.acquire()
    second = lease(store)
    second.acquire()
    first.release()
    assert KEY in store.contents()
    second.release()
    assert not store.contents()


def test_long_store_outage_loses_the_lease(store: FakeStorage) -> None:
    clock = Clock()
    held = lease(store, clock)
    held.acquire()
    store.fail("put", StoreUnavailableError("away"))
    with pytest.raises(StoreUnavailableError):
        held.renew()
    assert not held.lost
    clock.now += 10
    assert held.lost


def test_acquisition_with_a_lost_answer_is_recognized_and_counts(store: FakeStorage) -> None:
    clock = Clock()
    held = Lease(store, KEY, LeaseTimes(ttl=10, wait=15, look=0.001), process_here(), clock)
    store.fail("put", StoreUnavailableError("the answer was lost"), after=True)
    with pytest.raises(StoreUnavailableError):
        held.acquire()
    held.acquire()
    assert not held.lost
    clock.now += 10
    assert held.lost, "the lease counts from the write"


def test_renewal_with_a_lost_answer_is_recognized_and_counts(store: FakeStorage) -> None:
    clock = Clock()
    held = Lease(store, KEY, LeaseTimes(ttl=10, wait=15, look=0.001), process_here(), clock)
    held.acquire()
    clock.now += 5
    store.fail("put", StoreUnavailableError("the answer was lost"), after=True)
    with pytest.raises(StoreUnavailableError):
        held.renew()
    clock.now += 3  # more than 2/3 of ttl since the acquisition, less than that since the renewal
    held.renew()
    assert not held.lost
    held.renew()
    assert not held.lost


def test_lease_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path)
    times = LeaseTimes(ttl=0.3, wait=0.1, look=0.01)
    with Lease(store, KEY, times):
        first = store.head_object(KEY).etag
        wait_until(lambda: store.head_object(KEY).etag != first, 10, "the lease to be renewed")
    assert not list(store.list_objects(""))


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"lease": 1, "holder": {"pid": 1}})])
def test_malformed_lease_is_refused(store: FakeStorage, text: str) -> None:
    store.put_object(KEY, BytesBody(text.encode()))
    with pytest.raises(MalformedObjectError, match=KEY):
        lease(store).acquire()


def test_lease_of_a_later_version_is_refused(store: FakeStorage) -> None:
    """Its holder may be dead by our rules but not by the rules of that version."""
    body = json.dumps({"version": 2, "lease": "a", "holder": {"of": "another kind"}})
    store.put_object(KEY, BytesBody(body.encode()))
    with pytest.raises(MalformedObjectError, match=f"{KEY} has version 2"):
        Lease(store, KEY).acquire()
    assert store.get_object(KEY).data == body.encode()


def test_processes_are_identified_by_machine_pid_and_start_time(tmp_path: Path) -> None:
    me = process_here()
    assert state_of(me) == "runs"
    assert state_of(replace(me, started=me.started - 1)) == "gone"
    assert state_of(ELSEWHERE) == "unknown"
    assert asdict(process_here(proc=tmp_path))["machine"] == ""
    assert state_of(process_here(proc=tmp_path), tmp_path) == "unknown"
