"""Numbers of packs, lost answers, and the threads that store packs."""

import gc
import itertools
import weakref

import pytest

from sidetier.archive.tail.pack import PackBody, PackBuilder, claim
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import PreconditionFailedError, StoreUnavailableError
from sidetier.segments.offsets import (
    MAX_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.tail.packs import (
    PackJob,
    PackNumbers,
    ThreadedSender,
    first_number,
    store_pack,
)
from tests.harness.daemons import LAYOUT
from tests.harness.waiting import wait_until

BROKER = BrokerId(1)


def pack(number: int = 0) -> PackBody:
    builder = PackBuilder()
    history = EpochHistory(((LeaderEpoch(number), Offset(number)),))
    builder.add(claim(TopicPartition("t", 0), "A" * 22, history, Offset(0), Offset(0)))
    return builder.body()


@pytest.fixture
def numbers(store: FakeStorage) -> PackNumbers:
    return PackNumbers(store, LAYOUT, BROKER, itertools.count())


def lost_answer(store: FakeStorage, key: str) -> None:
    """The first attempt has stored the object, and the second one finds it there."""
    refusal = PreconditionFailedError("412")
    refusal.ambiguous = True
    store.fail("put", refusal, key=key, after=True)


def test_a_pack_whose_answer_was_lost_is_stored_once(
    store: FakeStorage, numbers: PackNumbers
) -> None:
    lost_answer(store, LAYOUT.tail_pack_key(1, 0))
    stored = store_pack(numbers, pack(), 5)
    assert (stored.number, stored.modified_ms) == (0, 5)
    assert len(list(store.list_objects(LAYOUT.tail_packs_prefix(1)))) == 1
    assert stored.etag == store.head_object(stored.key).etag


@pytest.mark.parametrize("ambiguous", [False, True])
def test_a_number_that_another_process_has_taken_is_left(
    store: FakeStorage, numbers: PackNumbers, *, ambiguous: bool
) -> None:
    for number in (0, 1, 3):
        body = BytesBody(b"of another process")
        store.put_object(LAYOUT.tail_pack_key(1, number), body)
    if ambiguous:
        refusal = PreconditionFailedError("412")
        refusal.ambiguous = True
        store.fail("put", refusal)
    assert store_pack(numbers, pack(), 0).number == 2
    assert store_pack(numbers, pack(), 0).number == 4


def test_a_process_takes_numbers_from_its_start_time_on() -> None:
    first, later = first_number(1_700_000_000.0), first_number(1_700_000_000.001)
    assert f"{first:020d}" == "01700000000000000000"
    assert later - first == 1_000_000
    assert first_number(9_000_000_000.0) <= MAX_OFFSET


def test_threads_store_packs_and_keep_no_bytes(store: FakeStorage, numbers: PackNumbers) -> None:
    sender = ThreadedSender(lambda: 0.0)
    assert not sender.finished()
    bodies = [pack(number) for number in range(4)]
    kept = [weakref.ref(body) for body in bodies]
    store.fail("put", StoreUnavailableError("away"))
    for body in bodies:
        sender.send(PackJob(numbers, body, None))
    del bodies, body
    ended: list[PackJob] = []
    while len(ended) < 4:
        ended += sender.finished(10.0)
    assert sum(isinstance(job.result, StoreUnavailableError) for job in ended) == 1

    def freed() -> bool:
        gc.collect()
        return not any(reference() for reference in kept)

    # The error has the traceback, and so the body of its pack.
    for job in ended:
        job.result = None
    wait_until(freed, 10.0, "the bytes to be freed")
