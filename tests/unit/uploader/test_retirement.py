"""The archive of a deleted and recreated topic is moved to `retired/` as a whole or not at all."""

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from sidetier.archive.objects.acknowledgements import Acknowledgement, acknowledge_gap
from sidetier.archive.objects.quarantine import MovePlan
from sidetier.archive.objects.watermark import encode_watermark, read_watermark
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.status import PartitionState
from sidetier.uploader.archive.quarantine.mover import MoveContext
from sidetier.uploader.archive.quarantine.retirement import retire
from sidetier.uploader.clock import SYSTEM_CLOCK
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import LAYOUT, Site, stored_logs, stored_next, watermark_of
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog
from tests.unit.uploader.test_quarantine import copied

pytestmark = pytest.mark.usefixtures("quick_gaps", "quick_divergences")
ANOTHER_ID = "BBBBBBBBBBBBBBBBBBBBBQ"


@pytest.fixture
def recreated(log_dir: LogDir, log: PartitionLog, store: FakeStorage) -> PartitionLog:
    """Store segments, an acknowledged gap and a start record; then recreate the topic."""
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    record = BytesBody(b'{"version": 1, "start_offset": 0}')
    store.put_object(LAYOUT.start_key(log.tp), record)
    log.closed_segments(3)
    for base in (0, 10, 20):
        log.unlink(base)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    [gap] = recorded_gaps(store, log.tp)
    accepted = Acknowledgement("INC-42", "ann", 1)
    acknowledge_gap(store, LAYOUT, log.tp, OffsetRange(Offset(gap[0]), Offset(gap[1])), accepted)
    log.delete_topic()
    again = log_dir.create(topic_id=ANOTHER_ID)
    again.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    return again


def retired(store: FakeStorage, tp: TopicPartition, topic_id: str = TOPIC_ID) -> dict[str, bytes]:
    prefix = f"{LAYOUT.retired_prefix(tp)}{topic_id}/"
    return {
        key.removeprefix(prefix): data
        for key, data in store.contents().items()
        if key.startswith(prefix)
    }


def move(store: RemoteStorage, tp: TopicPartition) -> MovePlan | None:
    return retire(
        MoveContext(store, LAYOUT), tp, read_watermark(store, LAYOUT.watermark_key(tp)), "by a test"
    )


def live(store: FakeStorage) -> dict[str, bytes]:
    """All objects outside `retired/`."""
    return {key: data for key, data in store.contents().items() if "/retired/" not in key}


def test_only_objects_of_the_deleted_topic_are_moved(
    recreated: PartitionLog, store: FakeStorage
) -> None:
    tp, before = recreated.tp, live(store)
    prefix = LAYOUT.partition_prefix(tp)
    done = move(store, tp)
    assert done is not None
    assert done.target == f"{LAYOUT.retired_prefix(tp)}{TOPIC_ID}/"
    assert not live(store)
    moved = retired(store, tp)
    for key, data in before.items():
        if key.startswith(prefix) and not key.endswith("offset.wm"):
            assert moved[key.removeprefix(prefix)] == data
    assert done.watermark == before[LAYOUT.watermark_key(tp)].decode()
    [gap] = [name for name in moved if name.startswith("gaps/")]
    assert json.loads(moved[f"acknowledged/{gap}"])["reason"] == "INC-42"
    assert move(store, tp) is None


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_request_is_repaired_by_the_next_call(
    recreated: PartitionLog, store: FakeStorage, *, after: bool
) -> None:
    tp, before = recreated.tp, stored_logs(store, recreated.tp)
    undisturbed = copied(store)
    move(undisturbed, tp)
    expected = retired(undisturbed, tp)
    for lives in count():
        survivor = copied(store)
        try:
            move(MortalStore(survivor, lives, after=after), tp)
        except KilledError:
            watermark = watermark_of(survivor, tp)
            if watermark is not None and (watermark.base_offset, watermark.next_offset) != (0, 0):
                check_archive(survivor, tp)
            there = set(stored_logs(survivor, tp).values()) | set(retired(survivor, tp).values())
            assert there >= set(before.values())
        else:
            break
        move(survivor, tp)
        assert not live(survivor), f"after a kill at request {lives + 1}"
        assert retired(survivor, tp).keys() == expected.keys()
    assert lives >= 20


def test_recreated_topic_halts_until_its_old_archive_has_been_moved(
    site: Site, recreated: PartitionLog, store: FakeStorage
) -> None:
    tp, before = recreated.tp, store.contents()
    with site.running() as running:
        running.wait(
            lambda: (s := running.status(tp)) and s.state is PartitionState.HALTED, "the halt"
        )
        status = running.status(tp)
        assert status is not None
        assert "sidetier retire" in str(status.last_error)
        assert store.contents() == before
        move(store, tp)
        running.wait(lambda: stored_next(store, tp) == 20, "the new archive")
    assert stored_logs(store, tp) == {0: recreated.written[0], 10: recreated.written[10]}


def test_on_recreated_retire_moves_the_old_archive(
    site: Site, recreated: PartitionLog, store: FakeStorage
) -> None:
    before = stored_logs(store, recreated.tp)
    site.settle(on_recreated="retire")
    assert stored_next(store, recreated.tp) == 20
    check_archive(store, recreated.tp)
    assert set(retired(store, recreated.tp).values()) >= set(before.values())


@pytest.mark.parametrize("store_is_ahead_by", [-600, 600])
@pytest.mark.parametrize("created_later_by", [-60, 60])
def test_creation_times_are_compared_on_the_stores_clock(
    log_dir: LogDir, log: PartitionLog, store_is_ahead_by: int, created_later_by: int
) -> None:
    """The clocks of the store and the broker differ by minutes in either direction. Our directory
    was created a minute before or after the last write to the other topic's archive.
    """
    store = FakeStorage(now_ms=lambda: int((SYSTEM_CLOCK.wall() + store_is_ahead_by) * 1000))
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    Site([log_dir], store).settle()
    log.delete_topic()
    again = log_dir.create(topic_id=ANOTHER_ID)
    created = SYSTEM_CLOCK.wall() + created_later_by
    os.utime(again.path / "partition.metadata", (created, created))
    again.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    before = store.contents()
    with Site([log_dir], store).running(on_recreated="retire") as running:
        if created_later_by > 0:
            running.wait(lambda: stored_next(store, log.tp) == 10, "the new archive")
        else:
            running.wait(lambda: (s := running.status(log.tp)) and s.last_error, "the refusal")
    assert (store.contents() == before) is (created_later_by < 0)
    assert not any("/clock/" in key for key in store.contents())


def test_interrupted_retirement_is_finished_by_configuration(
    site: Site, recreated: PartitionLog, store: FakeStorage
) -> None:
    """The interrupted run wrote the watermark after the new topic was created."""
    tp, before = recreated.tp, stored_logs(store, recreated.tp)
    for lives in count():
        with suppress(KilledError):
            move(MortalStore(store, lives, after=True), tp)
        watermark = watermark_of(store, tp)
        if watermark is not None and watermark.pending is not None:
            break
    assert stored_logs(store, tp) == before, "nothing has been moved yet"
    site.settle(on_recreated="retire")
    assert stored_next(store, tp) == 20
    check_archive(store, tp)
    assert set(retired(store, tp).values()) >= set(before.values())


def test_broker_with_the_deleted_topic_does_not_retire_the_new_topics_archive(
    log_dir: LogDir, log: PartitionLog, store: FakeStorage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its own directory is older than the last write to the archive."""
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    other = LogDir(tmp_path_factory.mktemp("other"), broker_id=2)
    other.create(topic_id=ANOTHER_ID).closed_segments(2)
    other.checkpoint_high_watermarks()
    Site([other], store, broker_id=2).settle()
    before = store.contents()
    with Site([log_dir], store).running(on_recreated="retire") as running:
        running.wait(lambda: (s := running.status(log.tp)) and s.last_error, "the refusal")
    assert store.contents() == before


def test_new_archive_begun_after_another_move_of_the_old_one_stays(
    site: Site, log_dir: LogDir, recreated: PartitionLog, store: FakeStorage
) -> None:
    """The sidecar pauses between reading the old topic's archive and moving it. Meanwhile an
    operator moves the old archive, and the next leader's sidecar begins the new one.
    """
    tp, clock = recreated.tp, LAYOUT.clock_key(recreated.tp)
    running = site.running(on_recreated="retire")
    with store.hold("put", clock):
        running.start()
        running.wait(lambda: store.count("put", clock), "the old archive to be read")
        move(store, tp)
        Site([log_dir], store, broker_id=2).settle()
        begun = stored_logs(store, tp)
    recreated.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    running.wait(lambda: stored_next(store, tp) == 30, "the next segment")
    running.stop()
    assert not retired(store, tp, ANOTHER_ID)
    assert begun.items() <= stored_logs(store, tp).items()


@pytest.mark.parametrize("finished", [False, True])
def test_retirement_with_an_outdated_watermark_moves_nothing(
    recreated: PartitionLog, log_dir: LogDir, store: FakeStorage, *, finished: bool
) -> None:
    tp, mark = recreated.tp, read_watermark(store, LAYOUT.watermark_key(recreated.tp))
    if finished:
        move(store, tp)
        Site([log_dir], store, broker_id=2).settle()
    else:
        assert mark is not None
        moved = encode_watermark(replace(mark.watermark, nonce="of another sidecar"))
        store.put_object(LAYOUT.watermark_key(tp), BytesBody(moved))
    before = live(store)
    with pytest.raises(ArchiveConflictError, match=re.escape("offset.wm")):
        retire(MoveContext(store, LAYOUT), tp, mark, "by a test")
    assert {key: live(store)[key] for key in before} == before
