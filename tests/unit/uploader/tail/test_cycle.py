"""The cycle of the tail's writer, with a broker that lies between the questions."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sidetier.archive.tail import pack as pack_module
from sidetier.archive.tail.inventory import TailInventory
from sidetier.archive.tail.pack import PackBuilder, TailRow
from sidetier.segments.errors import BrokerUnavailableError, StoreUnavailableError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.status_board import _safe_of
from sidetier.uploader.tail import cycle as cycle_module
from sidetier.uploader.tail import reader as reader_module
from sidetier.uploader.tail.cycle import TailCycle
from sidetier.uploader.tail.packs import TailPlace
from sidetier.uploader.tail.ranges import read_range
from sidetier.uploader.watching import disk
from sidetier.uploader.watching.disk import list_names
from sidetier.wire.log_offsets import OffsetKind
from tests.harness.daemons import LAYOUT
from tests.harness.log_dir import PartitionLog, record_batch
from tests.harness.tail_packs import last_stable
from tests.harness.tail_writing import (
    TailSite,
    log_bytes,
    merged,
    replicate,
    tail_bytes,
    transactional,
)

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
READ = OffsetKind.LOG_START
"""The first question after the reading."""
ASK = OffsetKind.HIGH_WATERMARK


def check_complete(store: FakeStorage, log: PartitionLog, end: int = 0) -> None:
    """The merged tail has every record of the log, once."""
    tail = merged(store, log, end)
    assert tail.end == log.log_end, tail.left_out
    if not end:
        assert tail_bytes(store, tail) == log_bytes(log)


def test_what_is_committed_is_stored_once_and_an_idle_cycle_costs_one_request(
    site: TailSite, store: FakeStorage
) -> None:
    log, idle = site.log_dir.create("t", 0), site.log_dir.create("idle", 3)
    log.append(10)
    site.run()
    assert site.packs() == 1  # with the claim of the idle partition, too
    check_complete(store, log)
    assert merged(store, idle).leader_epoch == 0

    before, asked = len(store.requests), len(site.source.asked)
    site.run()
    assert len(store.requests) == before
    assert site.source.asked[asked:] == [(ASK, 2)]

    log.append(5)
    site.source.high_watermarks[log.tp] = 10
    site.run()
    assert site.packs() == 1
    del site.source.high_watermarks[log.tp]
    site.run()
    assert site.packs() == 2
    assert site.source.asked[-1] == (ASK, 1)  # again, only about the partition with data
    assert [part[1:] for part in merged(store, log).slices] == [(0, 10), (10, 15)]
    check_complete(store, log)
    safe = site.cycle.safe()
    assert (safe[log.tp].safe_up_to, safe[idle.tp].safe_up_to) == (15, 0)
    assert safe[log.tp].newest_ms == 1_700_000_000_014


# -- lies between the questions -----------------------------------------------------------------


def recreate(site: TailSite, log: PartitionLog) -> PartitionLog:
    log.delete_topic()
    del site.log_dir.partitions[log.tp]
    new = site.log_dir.create("t", 0, topic_id=OTHER_ID)
    new.append(20, size=60)
    return new


@pytest.mark.parametrize("kind", [ASK, READ])
def test_a_topic_that_is_recreated_in_a_cycle_is_not_mixed_with_the_old_one(
    site: TailSite, store: FakeStorage, kind: OffsetKind
) -> None:
    """The epoch is 0 both times, so the second answer agrees: only the look shows it."""
    log = site.log_dir.create("t", 0)
    log.append(10)
    site.run()
    log.append(5)
    found: list[PartitionLog] = []
    site.source.before[kind] = [lambda: found.append(recreate(site, log))]
    site.run()
    assert merged(store, log).end == 10
    assert site.cycle.totals.refused_ranges == 1
    site.run()
    site.run()
    check_complete(store, found[0])
    assert merged(store, log).end == 10


def another_epoch(_: TailSite, log: PartitionLog) -> None:
    """The broker restarts, or another one has led in between and the log was cut."""
    log.truncate(10)
    log.lead(2)
    log.append(5, size=50)


def moved(site: TailSite, log: PartitionLog) -> None:
    """The log moves to another log dir: other segments, other positions."""
    copy = log.copy_to(site.log_dir, [])
    old = log.path
    log.rename_to("old")
    copy.rename_to(old.name)
    copy.epoch = log.epoch
    site.log_dir.partitions[log.tp] = copy


def falling(site: TailSite, log: PartitionLog) -> None:
    site.source.high_watermarks[log.tp] = 12


@pytest.mark.parametrize("act", [another_epoch, moved, falling])
def test_what_is_not_confirmed_after_the_reading_is_not_stored(
    site: TailSite, store: FakeStorage, act: Callable[[TailSite, PartitionLog], None]
) -> None:
    log = site.log_dir.create("t", 0)
    log.closed_segment()
    site.run()
    log.append(5)
    site.source.before[READ] = [lambda: act(site, log)]
    site.run()
    assert merged(store, log).end == 10
    assert site.cycle.totals.refused_ranges == 1
    site.source.high_watermarks.clear()
    site.run()
    site.run()
    check_complete(store, site.log_dir.partitions[log.tp])


def test_without_an_answer_nothing_is_stored_and_the_next_cycle_goes_on(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(10)
    site.run()
    log.append(5)

    def goes_down() -> None:
        site.source.down = True

    site.source.before[READ] = [goes_down]
    site.run()
    assert site.packs() == 1
    site.source.down = False
    site.run()
    check_complete(store, log)


# -- what the file shows ------------------------------------------------------------------------


def test_torn_bytes_are_not_stored(site: TailSite, store: FakeStorage) -> None:
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.append(5)
    path, data = log.file(0), log_bytes(log)
    path.write_bytes(data[:-7] + b"torn!!!")
    site.run()
    assert merged(store, log).end == 5
    assert "CRC" in (site.cycle.safe()[log.tp].error or "")
    path.write_bytes(data)
    site.run()
    check_complete(store, log)
    assert site.cycle.safe()[log.tp].error is None


@pytest.mark.parametrize("rolled", [False, True])
def test_zeros_of_a_preallocated_segment_below_the_high_watermark_are_read_again(
    site: TailSite, store: FakeStorage, *, rolled: bool
) -> None:
    """Also if the next segment is there: its records must not hide those that are not read."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.append(5)
    path, data = log.file(0), log_bytes(log)
    if rolled:
        log.roll()
        log.append(5)
    first = len(data) // 2
    path.write_bytes(data[:first] + bytes(1 << 20))
    site.run()
    assert merged(store, log).end == 5
    path.write_bytes(data + (b"" if rolled else bytes(1 << 20)))
    site.run()
    check_complete(store, log)


def test_segments_that_roll_in_a_range_and_a_log_that_begins_later(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.append(5)
    log.roll()
    log.closed_segments(3)
    log.append(5)
    site.run()
    check_complete(store, log)
    assert site.packs() == 2
    # Retention removes what is archived, then more than that.
    log.closed_segment(20)
    log.append(5)
    for base in log.bases()[:-1]:
        log.stage(base)
    log.start_at(log.bases()[0])
    site.run()
    tail = merged(store, log)
    assert tail.gap is not None
    site.archive_ends[log.tp] = log.bases()[0]
    site.run()
    assert merged(store, log, log.bases()[0]).end == log.log_end


def test_a_listing_that_lacks_a_segment_hides_no_record(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two segments roll while the directory is listed."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.closed_segments(3)
    log.append(5)
    hidden = f"{log.bases()[1]:020d}."
    calls: list[str] = []

    def lists(directory: str) -> list[str]:
        calls.append(directory)
        names = list_names(directory)
        return [name for name in names if len(calls) > 1 or not name.startswith(hidden)]

    monkeypatch.setattr(disk, "list_names", lists)
    for _ in range(3):
        site.run()
    check_complete(store, log)


def test_an_index_entry_into_a_batch_is_not_believed(site: TailSite, store: FakeStorage) -> None:
    """Kafka truncates an index without writing over its last entries."""
    log = site.log_dir.create("t", 0)
    inner = record_batch(7, [b"never committed"] * 5)
    log.append(5)
    # A value that looks like a batch of the offsets that are wanted.
    log.append_bytes(record_batch(5, [b"x" * 2000, inner]), 2)
    site.archive_ends[log.tp] = 7
    log.append(20)
    position = log.written[0].index(inner)
    log.file(0, FileKind.INDEX).write_bytes(
        (7).to_bytes(4, "big") + position.to_bytes(4, "big") + bytes(8 * 20)
    )
    site.run()
    tail = merged(store, log, 7)
    assert tail.end == log.log_end
    assert tail_bytes(store, tail) in log_bytes(log)
    assert b"never committed" not in tail_bytes(store, tail)


def test_a_large_backlog_is_split_and_stays_in_order(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_PACK_BYTES", 3000), ("MAX_BYTES", 9000), ("MIN_ROOM", 500)):
        monkeypatch.setattr(cycle_module, name, value)
    logs = [site.log_dir.create("t", number) for number in range(3)]
    for log in logs:
        log.append(100)
    site.run()
    for log in logs:
        check_complete(store, log)
    sizes = [each.size for each in store.list_objects(LAYOUT.tail_packs_prefix(1))]
    assert len(sizes) >= 6
    assert max(sizes) < 4000


# -- the store ----------------------------------------------------------------------------------


def test_a_pack_behind_one_that_failed_does_not_count(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader stops at the gap, so the sidecar begins again there."""
    monkeypatch.setattr(cycle_module, "MAX_PACK_BYTES", 500)
    log = site.log_dir.create("t", 0)
    site.run()
    log.append(40)
    site.sender.held = True
    site.run()
    first, *later = list(site.sender.waiting)
    assert len(later) >= 2
    for job in later:
        site.sender.end(job)
    tail = merged(store, log)
    assert (tail.end, tail.gap is not None) == (0, True)
    site.sender.held = False
    site.sender.fail(first, StoreUnavailableError("away"))
    site.cycle.settle(0)
    assert site.cycle.safe()[log.tp].safe_up_to == 0
    site.run()
    check_complete(store, log)
    assert site.cycle.safe()[log.tp].safe_up_to == 40


def test_what_is_archived_while_its_pack_is_in_flight_is_not_sent_again(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    site.run()
    log.append(10)
    site.sender.held = True
    site.run()
    site.archive_ends[log.tp] = 10
    led = site.led()  # the board changes once
    site.cycle.run(led)
    site.sender.fail(site.sender.waiting[0], StoreUnavailableError("away"))
    site.sender.held = False
    packs = site.packs()
    for _ in range(2):
        site.time.now += 60
        site.cycle.run(led)
        site.cycle.settle(0)
    assert (site.packs(), site.cycle.safe()[log.tp].safe_up_to) == (packs, 10)
    log.append(5)
    site.run()
    assert merged(store, log, 10).end == 15


def test_a_store_that_is_away_or_slow_holds_nothing_else_up(
    site: TailSite, store: FakeStorage
) -> None:
    second = FakeStorage()
    site.cycle = TailCycle(
        site.source,
        lambda topic: TailPlace(second if topic == "b" else store, LAYOUT, encrypts=False),
        site.inventory_of,
        site.sender,
        site.broker,
        site.time.clock,
    )
    a, b = site.log_dir.create("a", 0), site.log_dir.create("b", 0)
    a.append(5)
    b.append(5)
    with store.away():
        site.run()
        site.run()
        check_complete(second, b)
    site.time.now += 60
    site.run()
    check_complete(store, a)
    # The first store hangs: what is in flight for it is bounded, and the other one goes on.
    site.sender.held = True
    for _ in range(6):
        a.append(5)
        b.append(5)
        site.run()
        for job in [job for job in site.sender.waiting if job.numbers.store is second]:
            site.sender.end(job)
    site.cycle.settle(0)
    check_complete(second, b)
    assert len(site.sender.waiting) == cycle_module.MAX_SENDING // 2
    for job in list(site.sender.waiting):
        site.sender.end(job)
    site.sender.held = False
    site.run()
    check_complete(store, a)


def test_encrypted_topics_have_packs_of_their_own(site: TailSite, store: FakeStorage) -> None:
    site.cycle = TailCycle(
        site.source,
        lambda topic: TailPlace(store, LAYOUT, encrypts=topic == "secret"),
        site.inventory_of,
        site.sender,
        site.broker,
        site.time.clock,
    )
    for topic in ("secret", "plain"):
        site.log_dir.create(topic, 0).append(5)
    site.run()
    assert site.packs() == 2
    for log in site.log_dir.partitions.values():
        tail = merged(store, log)
        assert tail.end == 5
        pack = tail.slices[0].source.pack
        assert pack is not None
        assert {row.tp.topic for row in site.rows_of(pack)} == {log.tp.topic}


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_before_or_after_the_create_loses_and_repeats_nothing(
    site: TailSite, store: FakeStorage, *, after: bool
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    log.append(5)
    store.fail("put", StoreUnavailableError("killed"), after=after)
    site.run()
    site.restart()
    site.run()
    check_complete(store, log)
    packs = site.packs()
    assert packs == 2  # the stored end comes from the packs
    site.run()
    assert site.packs() == packs


def test_two_sidecars_of_one_broker_overwrite_nothing(
    site: TailSite, store: FakeStorage, tmp_path: Path
) -> None:
    zombie = TailSite(tmp_path / "1", store, 1, site.time)
    log = site.log_dir.create("t", 0)
    zombie.log_dir.partitions[log.tp] = log
    for turn in range(6):
        log.append(5)
        (site if turn % 2 else zombie).run()
        (zombie if turn % 3 else site).run()
        assert merged(store, log).end == log.log_end
    check_complete(store, log)
    keys = [each.key for each in store.list_objects(LAYOUT.tail_packs_prefix(1))]
    assert sum(request.operation == "put" for request in store.requests) > len(keys)


def sender_breaks(site: TailSite, patch: pytest.MonkeyPatch) -> None:
    def send(_: object) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(site.sender, "send", send)


def packing_breaks(_: TailSite, patch: pytest.MonkeyPatch) -> None:
    def body(_: object) -> None:
        raise MemoryError

    patch.setattr(PackBuilder, "body", body)


@pytest.mark.parametrize("breaks", [sender_breaks, packing_breaks])
def test_nothing_counts_as_sent_that_was_not_handed_over(
    site: TailSite,
    store: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[TailSite, pytest.MonkeyPatch], None],
) -> None:
    a, b = site.log_dir.create("a", 0), site.log_dir.create("b", 0)
    a.append(10)
    b.append(10)
    breaks(site, monkeypatch)
    with pytest.raises((RuntimeError, MemoryError)):
        site.run()
    monkeypatch.undo()
    for log in (a, b):
        log.append(1)
    site.run()
    for log in (a, b):
        check_complete(store, log)
        assert merged(store, log).leader_epoch == 0
        assert site.cycle.safe()[log.tp].safe_up_to == 11


def reading_breaks(bad: PartitionLog, patch: pytest.MonkeyPatch) -> None:

    def read(directory: str, *args: object) -> object:
        if directory == str(bad.path):
            raise ValueError("a defect")
        return read_range(directory, *args)  # type: ignore[arg-type]

    patch.setattr(reader_module, "read_range", read)


def row_breaks(bad: PartitionLog, patch: pytest.MonkeyPatch) -> None:
    """A row that no pack has."""

    def row(tp: TopicPartition, *args: object) -> object:
        found = TailRow(tp, *args)  # type: ignore[arg-type]
        return found._replace(log_start=Offset(-1)) if tp == bad.tp else found

    patch.setattr(reader_module, "TailRow", row)


@pytest.mark.parametrize("breaks", [reading_breaks, row_breaks])
def test_a_defect_in_one_partition_holds_that_partition(
    site: TailSite,
    store: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[PartitionLog, pytest.MonkeyPatch], None],
) -> None:
    bad, good = site.log_dir.create("bad", 0), site.log_dir.create("good", 0)
    bad.append(5)
    good.append(5)
    breaks(bad, monkeypatch)
    for _ in range(2):
        site.run()
        good.append(5)
    assert merged(store, good).end == 10
    safe = site.cycle.safe()
    assert (safe[bad.tp].safe_up_to, safe[good.tp].safe_up_to) == (0, 10)
    assert safe[bad.tp].error
    assert safe[bad.tp].waiting_since_ms is not None
    monkeypatch.undo()
    site.time.now += 60
    site.run()
    check_complete(store, bad)


def test_a_pack_is_sent_before_its_index_is_full_and_a_row_above_it_holds_its_partition(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_module, "MAX_INDEX_BYTES", 4000)
    monkeypatch.setattr(cycle_module, "FULL_INDEX_BYTES", 2000)
    bad = site.log_dir.create("bad", 0)
    for number in range(200):  # 24 bytes for each transaction that is open
        bad.append_bytes(transactional(bad.log_end, 100 + number), 1)
    good = [site.log_dir.create("good", number) for number in range(40)]
    for _ in range(3):
        for log in good:
            log.append(10)
        site.run()
    assert site.packs() > 6
    for log in good:
        check_complete(store, log)
    held = site.cycle.safe()[bad.tp]
    assert held.safe_up_to == 0
    assert "200 open and 0 aborted transactions has 4954 bytes in the index" in str(held.error)


def test_a_store_that_stores_and_answers_late_gets_few_records_twice(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_module, "MIN_ROOM", 500)
    log = site.log_dir.create("t", 0)
    site.run()
    log.append(200)
    for _ in range(12):
        store.fail("put", StoreUnavailableError("late"), after=True)
        site.run()
        store._faults.clear()
    stored = sum(row.size for row in site.rows())
    size = len(log_bytes(log))
    assert size < stored < size + 6 * 700
    site.time.now += 30
    site.run()
    check_complete(store, log)
    # Then as before.
    log.append(200)
    packs = site.packs()
    site.run()
    assert site.packs() == packs + 1


def test_stores_that_hang_leave_room_for_others_and_none_is_kept_for_idle_ones(
    site: TailSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_module, "MAX_PACK_BYTES", 400)
    monkeypatch.setattr(cycle_module, "MIN_ROOM", 100)
    stores = {f"t{number}": FakeStorage() for number in range(6)}
    site.cycle = TailCycle(
        site.source,
        lambda topic: TailPlace(stores[topic], LAYOUT, encrypts=False),
        lambda place: TailInventory(place.store, place.layout),
        site.sender,
        site.broker,
        site.time.clock,
    )
    logs = {topic: site.log_dir.create(topic, 0) for topic in stores}
    for log in logs.values():
        log.append(5)
    site.run()
    # Idle groups take no share.
    site.sender.held = True
    logs["t0"].append(80)
    site.run()
    assert len(site.sender.waiting) == cycle_module.MAX_SENDING
    # All but one hang.
    for topic, log in logs.items():
        log.append(5 if topic != "t0" else 0)
    site.run()
    last = [job for job in site.sender.waiting if job.numbers.store is stores["t5"]]
    assert len(last) == 1
    site.sender.end(last[0])
    site.cycle.settle(0)
    check_complete(stores["t5"], logs["t5"])


def test_records_of_which_nothing_is_known_count_as_waiting(
    site: TailSite, store: FakeStorage
) -> None:
    """The broker is away, or does not answer for a partition."""
    log = site.log_dir.create("t", 0)
    log.append(5)
    site.run()
    site.run()
    answered = site.time.wall()

    def waits_since() -> float | None:
        since = site.cycle.safe()[log.tp].waiting_since_ms
        return None if since is None else since / 1000

    assert waits_since() is None
    site.source.down = True
    for _ in range(3):
        with pytest.raises(BrokerUnavailableError):
            site.run()
    assert waits_since() == answered
    site.source.down = False
    site.run()
    assert waits_since() is None
    answered = site.time.wall()
    site.source.refused.add((ASK, log.tp))
    for _ in range(3):
        site.run()
    assert waits_since() == answered
    # A new partition for which the broker does not answer, too.
    new = site.log_dir.create("new", 0)
    site.source.refused.add((ASK, new.tp))
    site.run()
    assert site.cycle.safe()[new.tp].waiting_since_ms is not None
    site.source.refused.clear()
    site.run()
    assert waits_since() is None
    check_complete(store, log)


# -- claims and takeover ------------------------------------------------------------------------


def test_a_claim_shows_what_an_unclean_election_has_discarded(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    """Before the new leader has a record, in an otherwise idle cycle."""
    log = site.log_dir.create("t", 0)
    log.append(10)
    copy = replicate(log, other)
    log.append(30)
    site.run()
    assert merged(store, log).end == 40
    copy.lead(1)
    other.run()
    assert other.packs() == 1
    tail = merged(store, copy)
    assert (tail.end, tail.leader_epoch) == (10, 1)
    # The old leader's sidecar was paused: its broker answers in the old epoch no more.
    log.truncate(10)
    log.epoch = 1
    log.append(5)
    led = site.led()
    site.time.now += 5
    site.source.before[ASK] = [lambda: setattr(log, "epoch", 2)]
    site.cycle.run(led)
    copy.append(5)
    other.run()
    check_complete(store, copy)
    packs = other.packs()
    other.restart()
    other.run()
    assert other.packs() == packs  # no second claim


def test_a_takeover_begins_at_the_end_of_the_tail(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(50)
    site.run()
    copy = replicate(log, other)
    copy.lead(1)
    copy.append(5)
    other.run()
    tail = merged(store, copy)
    assert [part[1:] for part in tail.slices] == [(0, 50), (50, 55)]
    assert tail_bytes(store, tail) == log_bytes(copy)
    assert all(row.start >= 50 for row in other.rows())


def test_a_broker_begins_once_its_epoch_is_in_the_checkpoint_and_not_behind_a_later_leader(
    site: TailSite, other: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(5)
    log.epoch = 1  # the broker has not written it yet
    site.run()
    assert site.packs() == 0
    log.lead(1)
    site.run()
    check_complete(store, log)
    # A sidecar that was paused over two elections: a later leader has stored already.
    copy = replicate(log, other)
    copy.lead(3)
    copy.append(5)
    other.run()
    log.lead(2)
    log.append(10)
    site.run()
    check_complete(store, copy)
    # It does not count what readers do not get: they go by the later leader.
    assert site.cycle.safe()[log.tp].safe_up_to == 10


def test_partitions_are_stored_while_the_packs_are_read_for_others(
    site: TailSite, store: FakeStorage
) -> None:
    """A reading of many packs takes long. A partition that is led in a newer epoch waits anew."""
    works = site.read_packs_by_hand()
    first = site.log_dir.create("t", 0)
    first.append(5)
    site.run()
    assert site.packs() == 0
    assert site.cycle.safe()[first.tp].waiting_since_ms is not None
    works.pop()()
    site.run()
    check_complete(store, first)
    second, third = site.log_dir.create("t", 1), site.log_dir.create("t", 2)
    for log in (first, second, third):
        log.append(5)
    site.run()
    check_complete(store, first)
    assert site.cycle.safe()[second.tp].safe_up_to is None
    third.lead(1)
    store.fail("list", StoreUnavailableError("away"))
    works.pop()()
    for _ in range(3):
        site.run()
    assert not site.cycle.safe()[second.tp].safe_up_to
    works.pop()()
    third.lead(2)
    site.run()
    check_complete(store, second)
    works.pop()()
    site.run()
    check_complete(store, third)
    assert not works


def test_the_archive_wins_and_the_tail_goes_on_behind_it(
    site: TailSite, store: FakeStorage
) -> None:
    log = site.log_dir.create("t", 0)
    log.append(10)
    site.archive_ends[log.tp] = 5
    site.run()
    assert [part[1:] for part in merged(store, log, 5).slices] == [(5, 10)]
    log.append(10)
    site.archive_ends[log.tp] = 20
    site.run()
    assert site.packs() == 1
    log.append(5)
    site.run()
    assert merged(store, log, 20).end == 25


# -- transactions -------------------------------------------------------------------------------


def test_rows_have_the_open_and_the_aborted_transactions(
    site: TailSite, store: FakeStorage
) -> None:
    """Also if one began below the archive end offset, and over a restart."""
    log = site.log_dir.create("t", 0)
    log.append_bytes(transactional(0, 7, 2), 2)
    log.append_bytes(transactional(2, 8, 1), 1)
    site.archive_ends[log.tp] = 2
    site.run()
    tail = merged(store, log, 2)
    row = tail.slices[-1].source.row
    assert [(each.producer_id, each.first_offset) for each in row.open] == [(7, 0), (8, 2)]
    assert (tail.end, last_stable(tail)) == (3, 0)
    site.restart()
    log.append_bytes(transactional(3, 7, marker=0), 1)
    site.run()
    tail = merged(store, log, 2)
    row = tail.slices[-1].source.row
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in row.aborted] == [
        (7, 0, 3)
    ]
    assert (tail.end, last_stable(tail)) == (4, 2)
    log.append_bytes(transactional(4, 8, marker=1), 1)
    site.run()
    tail = merged(store, log, 2)
    assert (tail.end, last_stable(tail), tail.slices[-1].source.row.aborted) == (5, 5, ())


def test_where_no_snapshot_shows_the_open_transactions_the_broker_is_asked(
    site: TailSite, store: FakeStorage
) -> None:
    """Also after a restart, and until a range begins below which all are decided."""
    log = site.log_dir.create("t", 0, base=100)
    log.append(5)
    log.file(100, FileKind.SNAPSHOT).unlink(missing_ok=True)
    site.archive_ends[log.tp] = 100
    site.source.last_stable[log.tp] = 60
    site.run()
    assert merged(store, log, 100).end == 100  # without an answer, it is not known
    site.run()
    assert last_stable(merged(store, log, 100)) == 60
    for restarts in (False, True):
        if restarts:
            site.restart()
        log.append(5)
        for _ in range(3):
            site.run()
        tail = merged(store, log, 100)
        assert (tail.end, last_stable(tail)) == (log.log_end, 60)
    # The broker does not answer for it: nothing is stored that claims to be stable.
    site.restart()
    log.append(5)
    site.source.refused.add((OffsetKind.LAST_STABLE, log.tp))
    site.run()
    site.run()
    assert merged(store, log, 100).end == log.log_end - 5
    site.source.refused.clear()
    site.source.last_stable.clear()
    log.append_bytes(transactional(120, 7), 1)
    site.source.last_stable[log.tp] = 120
    site.run()
    tail = merged(store, log, 100)
    assert (tail.end, last_stable(tail)) == (121, 120)
    site.restart()
    asked = len(site.source.asked)
    log.append(5)
    site.run()
    # What is open is known again.
    assert (OffsetKind.LAST_STABLE, 1) not in site.source.asked[asked:]
    assert last_stable(merged(store, log, 100)) == 120


def test_the_end_of_a_part_of_the_log_is_not_taken_for_stable(
    site: TailSite, store: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The markers below the broker's last stable offset may follow behind the part."""
    monkeypatch.setattr(cycle_module, "MAX_PACK_BYTES", 500)
    log = site.log_dir.create("t", 0, base=100)
    log.append(40)
    log.file(100, FileKind.SNAPSHOT).unlink(missing_ok=True)
    site.archive_ends[log.tp] = 100
    site.run()
    site.sender.held = True
    site.run()
    assert len(site.sender.waiting) > 1
    site.sender.end(site.sender.waiting[0])
    tail = merged(store, log, 100)
    assert (tail.end < log.log_end, last_stable(tail)) == (True, 0)


def test_nothing_waits_where_the_archive_has_all_that_was_committed(
    site: TailSite, store: FakeStorage
) -> None:
    """Also before the next cycle, but not if the broker is silent: it may have more."""
    log = site.log_dir.create("t", 0)
    log.append(10)
    store.fail("put", StoreUnavailableError("down"), times=None)
    site.run()

    def age(archive_end: int) -> float:
        safe = site.cycle.safe()[log.tp]
        return float(
            _safe_of(safe, Offset(archive_end), site.time.wall() + 1)["unsafe_age_seconds"]
        )

    assert age(9) > 0
    assert age(10) == 0
    log.append(5)
    site.run()
    assert age(14) > 0 == age(15)
    site.source.down = True
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError):
            site.run()
    assert age(15) > 0


def test_a_directory_that_cannot_be_read_holds_only_its_partition(
    site: TailSite, store: FakeStorage
) -> None:
    bad, good = site.log_dir.create("t", 0), site.log_dir.create("t", 1)
    bad.append(5)
    good.append(5)
    (bad.path / "leader-epoch-checkpoint").write_text("nonsense")
    site.run()
    check_complete(store, good)
    assert site.cycle.safe()[bad.tp].safe_up_to is None
    assert site.cycle.safe()[TopicPartition("t", 1)].safe_up_to == 5
