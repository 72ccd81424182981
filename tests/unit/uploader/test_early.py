"""Early archiving in the daemon: parts of active segments, and what follows when they close."""

import os
import re
import struct
import threading
from dataclasses import replace
from functools import reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sidetier.config.uploader import EarlyConfig, EarlyLimits
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    StoreUnavailableError,
)
from sidetier.segments.headers import CONTROL, TRANSACTIONAL
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.txn_index import AbortedTxn, encode_txn_index, parse_txn_index
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import Body
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionState
from sidetier.uploader import engine
from sidetier.uploader.archive.archive_state import ArchiveState
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.early import EarlySegments, EarlyWanted, find_part, is_due
from sidetier.uploader.gates import committed_range
from sidetier.uploader.gates.committed_range import CommittedRange, LedLog
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.sending.upload import Uploader
from sidetier.uploader.state.following import Following
from sidetier.uploader.state.gap import Halt
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Timeline, TrackedSegment
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.disk import WholeBatches, log_file
from sidetier.wire.log_offsets import OffsetKind
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.batches import make_batch
from tests.harness.daemons import (
    ConfigsByHand,
    LeadershipByHand,
    OffsetsByHand,
    RunningDaemon,
    Site,
    is_killed_before,
    key_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.intercepted_store import MortalStore
from tests.harness.log_dir import LogDir, PartitionLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidetier.uploader.workers import WorkerPool

ASK = OffsetKind.HIGH_WATERMARK
"""The first question before the reading, and the one after it."""
EARLY = {"topics": ["t"], "bytes": 500, "age": 3600}
"""A part has two batches of 296 bytes, of five records each."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the logs all the time."""
    monkeypatch.setattr(engine, "_TAILS_SECONDS", 0.02)
    monkeypatch.setattr(engine, "_TOTALS_SECONDS", 0.02)
    monkeypatch.setattr(engine, "_MAX_SHARE_OF_TIME", 1.0)
    monkeypatch.setattr(engine, "LONGEST_WAIT", 0.02)


@pytest.fixture
def led(site: Site) -> OffsetsByHand:
    """The broker of the site, which archives topic t early."""
    site.settings["early"] = EARLY
    site.settings["rescan_interval"] = 0.1
    site.log_offsets = led = OffsetsByHand(site.log_dirs)
    return led


def wait_to(running: RunningDaemon, store: FakeStorage, log: PartitionLog, end: int) -> None:
    running.wait(lambda: stored_next(store, log.tp) == end, f"{log.tp} to be archived to {end}")


def stored_bytes(store: FakeStorage, log: PartitionLog) -> bytes:
    return b"".join(data for _, data in sorted(stored_logs(store, log.tp).items()))


def test_active_segment_is_archived_and_continued_when_it_closes(
    site: Site, log_dir: LogDir, log: PartitionLog, store: FakeStorage, led: OffsetsByHand
) -> None:
    """No record twice, none missing, and the usual files beside each part."""
    log.closed_segment()
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        wait_to(running, store, log, 10)
        log.append(10)
        wait_to(running, store, log, 20)
        log.append(20)
        wait_to(running, store, log, 40)
        log.append(5)  # too few for another part
        wait_to(running, store, log, 40)
        log.roll()
        log.append(1)
        log_dir.checkpoint_high_watermarks()
        wait_to(running, store, log, 45)

        def unarchived() -> int | None:
            status = running.status(log.tp)
            return None if status is None else status.unarchived_records

        running.wait(lambda: unarchived() == 1, "the status to show one record")
    assert sorted(stored_logs(store, log.tp)) == [0, 10, 20, 30, 40]
    assert stored_bytes(store, log) == log.written[0] + log.written[10]
    check_archive(store, log.tp)
    watermark = watermark_of(store, log.tp)
    assert watermark is not None
    assert (watermark.base_offset, watermark.next_offset) == (40, 45)
    assert site.registry.get_sample_value("sidetier_early_segments_total") == 3
    assert led.closed


def test_off_by_default_nothing_is_asked_or_read(
    site: Site, log: PartitionLog, store: FakeStorage, led: OffsetsByHand
) -> None:
    del site.settings["early"]
    log.append(100)
    site.settle()
    assert not led.asked
    assert not store.requests


def test_other_topics_are_not_archived_early(
    site: Site, log_dir: LogDir, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    other = log_dir.create("other")
    other.append(50)
    log.append(50)
    with site.running() as running:
        wait_to(running, store, log, 50)
    assert stored_next(store, other.tp) is None
    assert led.topics == {"t"}


def test_records_above_the_high_watermark_wait(
    site: Site, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    led.high_watermarks[log.tp] = 23
    log.append(50)
    with site.running() as running:
        wait_to(running, store, log, 20)  # whole batches
        led.high_watermarks[log.tp] = 50
        wait_to(running, store, log, 50)
    assert stored_bytes(store, log) == log.written[0]


def test_compacted_topics_are_never_archived_early(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    store: FakeStorage,
    log: PartitionLog,
    led: OffsetsByHand,
) -> None:
    dues: list[bool] = []
    note = Partition.note_early

    def noted(self: Partition, *, due: bool, now: float) -> None:
        note(self, due=due, now=now)
        if self.config is not None:
            dues.append(due)

    monkeypatch.setattr(Partition, "note_early", noted)
    site.topic_configs = ConfigsByHand({"t": TopicConfig(compacted=True)})
    site.settings["rescan_interval"] = 0.1
    log.append(50)
    site.daemon()
    with site.running() as running:
        running.wait(
            lambda: site.topic_configs is not None and site.topic_configs.asked,  # type: ignore[attr-defined]
            "the configuration",
        )
        running.wait(lambda: len(dues) > 2, "the log to be measured")
    assert not any(dues)
    assert not led.asked
    assert not store.contents()


def ready() -> Partition:
    """Return a partition of which a part may be stored."""
    partition = Partition(TopicPartition("t", 0), LeaderEpoch(1))
    partition.move_to("/logs/t-0", 1)
    partition.config, partition.log.active = TopicConfig(), BaseOffset(0)
    partition.archive = ArchiveState(next_offset=Offset(5))
    return partition


CLOSED = TrackedSegment(
    ClosedSegment(BaseOffset(0), BaseOffset(9), marked_for_deletion=False), 9, 9, Timeline(0.0)
)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        (None, None),
        ("config", TopicConfig(compacted=True)),
        ("config", None),
        ("cleaned", True),
        ("leader_epoch", UNKNOWN_EPOCH),
        ("following", Following()),
        ("lost", True),
        ("unsure", True),
        ("diverged", True),
        ("refused", "a test"),
        ("halt", Halt("a test")),
        ("unanswered", "a request"),
        ("log.early", CLOSED),
        ("log.tracked", {BaseOffset(0): CLOSED}),
        ("early_hold.until", 1e99),
    ],
)
def test_nothing_is_asked_while_something_holds_the_partition_back(
    attribute: str | None, value: object
) -> None:
    partition = ready()
    if attribute is not None:
        *path, name = attribute.split(".")
        setattr(reduce(getattr, path, partition), name, value)
    metrics = Metrics(CollectorRegistry())
    early = EarlySegments(
        EarlyConfig(topics=("t",), bytes=100, age=60.0),
        OffsetsByHand([]),
        cast("WorkerPool[Any]", None),
        SYSTEM_CLOCK,
        metrics,
        UnexpectedErrors(metrics, SYSTEM_CLOCK),
    )
    early.consider(partition, TAIL)
    assert bool(early._waiting) == (attribute is None)


@pytest.mark.parametrize("answers", ["fenced", "away"])
def test_part_that_is_not_confirmed_is_not_stored(
    site: Site, store: FakeStorage, log: PartitionLog, led: OffsetsByHand, answers: str
) -> None:
    """After the reading, the broker answers in a later epoch, or not at all."""

    def move() -> None:
        if answers == "away":
            raise BrokerUnavailableError("away for the test")
        log.epoch += 1

    led.before[ASK] = [lambda: None, move]
    log.append(50)
    with site.running() as running:
        running.wait(lambda: led.asked.count((ASK, 1)) >= 2, "the second question")
        running.wait(
            lambda: site.registry.get_sample_value(
                "sidetier_errors_total",
                {"kind": "NotCommittedError" if answers == "fenced" else "BrokerUnavailableError"},
            ),
            "the error",
        )
        assert not stored_logs(store, log.tp)
        if answers == "fenced":
            log.epoch -= 1
        wait_to(running, store, log, 50)


def test_part_that_is_not_confirmed_after_it_was_sent_is_not_committed(
    site: Site, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    """The file is read a second time to be sent. The next attempt finds the objects."""
    stored: list[bool] = []
    confirmed = threading.Event()

    def away() -> None:
        stored.append(bool(stored_logs(store, log.tp)))
        if not confirmed.is_set():
            raise BrokerUnavailableError("away for the test")

    led.before[ASK] = [lambda: None, lambda: None, *[away] * 1000]
    log.append(10)
    with site.running() as running:
        running.wait(lambda: len(stored) > 1, "the next attempt")
        assert stored[0], "the objects are sent before the last question"
        assert stored_next(store, log.tp) is None
        confirmed.set()
        wait_to(running, store, log, 10)
    check_archive(store, log.tp)


def test_lasting_refusal_is_in_the_status_and_ends_with_its_reason(
    site: Site, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    site.leadership = LeadershipByHand({log.tp: 0})
    log.append(10)
    log.epoch = 7  # the broker answers in another epoch

    def last_error() -> str | None:
        status = running.status(log.tp)
        return None if status is None else status.last_error

    with site.running() as running:
        running.wait(lambda: "is not led in epoch 0" in (last_error() or ""), "the status")
        assert not stored_logs(store, log.tp)
        log.epoch = 0
        wait_to(running, store, log, 10)
        running.wait(lambda: last_error() is None, "the end of the error")
    assert led.asked


def test_part_that_ends_elsewhere_than_chosen_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    store: FakeStorage,
    log: PartitionLog,
    led: OffsetsByHand,
) -> None:
    """The rule judges what was read, not what was planned."""
    monkeypatch.setattr("sidetier.uploader.sending.verify._check_end", lambda *_: None)
    choose = committed_range.choose

    def shorter(*args: Any) -> CommittedRange | None:  # noqa: ANN401
        chosen = choose(*args)
        return chosen and replace(chosen, end=Offset(chosen.end - 1))

    monkeypatch.setattr("sidetier.uploader.early.choose", shorter)
    log.append(10)
    with site.running() as running:
        running.wait(
            lambda: site.registry.get_sample_value(
                "sidetier_errors_total", {"kind": "NotCommittedError"}
            ),
            "the refusal",
        )
    assert led.asked.count((ASK, 1)) > 1
    assert not stored_logs(store, log.tp)


@pytest.mark.parametrize("change", ["recreated", "moved", "truncated"])
def test_part_of_another_file_is_not_stored(
    site: Site,
    log_dir: LogDir,
    store: FakeStorage,
    log: PartitionLog,
    led: OffsetsByHand,
    change: str,
) -> None:
    """The look after the second answer, which a topic of the same name and epoch also gives."""
    moved: list[PartitionLog] = []

    def recreate() -> None:
        log.delete_topic()
        moved.append(log_dir.create("t", topic_id="AAAAAAAAAAAAAAAAAAAAAg"))
        moved[0].append(50, size=41)

    def move() -> None:
        copy = log.copy_to(log_dir, ())
        log.delete_topic()
        copy.rename_to("t-0")
        log_dir.partitions[log.tp] = copy
        moved.append(copy)

    def truncate() -> None:
        log.truncate(10)
        log.lead(1)
        log.append(50)

    changes: dict[str, Callable[[], None]] = {
        "recreated": recreate,
        "moved": move,
        "truncated": truncate,
    }
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    changed = threading.Event()

    def make() -> None:
        changes[change]()
        changed.set()

    put, sent = store.put_object, []

    def putting(key: str, body: Body, *args: Any) -> str:  # noqa: ANN401
        if key.endswith(".log"):
            with body.open() as file:
                sent.append(file.read())
        return put(key, body, *args)

    store.put_object = putting  # type: ignore[method-assign, assignment]
    led.before[ASK] = [lambda: None, make]
    log.append(50)
    before = log.written[0]
    with site.running() as running:
        running.wait(changed.is_set, "the change")
        now = moved[0] if moved else log
        if change == "truncated":
            leadership.lead(log.tp, 1)
        wait_to(running, store, now, now.log_end)
        stored = stored_bytes(store, now)
    assert stored == now.written[0]
    part = sent[0]  # what the old file had is sent only if the new one has it, too
    assert part in now.written[0]
    assert (part in before) == (change != "recreated")
    check_archive(store, now.tp)


def test_segment_that_closes_during_the_upload_is_continued(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    log_dir: LogDir,
    store: FakeStorage,
    log: PartitionLog,
    led: OffsetsByHand,
) -> None:
    listed = threading.Event()
    observe = Partition.observe

    def observed(self: Partition, listing: Any, now: float, track: Any) -> list[TrackedSegment]:  # noqa: ANN401
        released = observe(self, listing, now, track)
        if self.log.tracked:
            listed.set()
        return released

    monkeypatch.setattr(Partition, "observe", observed)

    def close() -> None:
        log.append(10)
        log.roll()
        log.append(1)
        log_dir.checkpoint_high_watermarks()
        assert listed.wait(10)

    led.before[ASK] = [lambda: None, close]
    log.append(10)
    with site.running() as running:
        wait_to(running, store, log, 20)
    assert sorted(stored_logs(store, log.tp)) == [0, 10]
    assert stored_bytes(store, log) == log.written[0]
    check_archive(store, log.tp)


@pytest.mark.usefixtures("led")
@pytest.mark.parametrize("deletes", [False, True])
def test_part_that_waits_when_its_segment_closes_gives_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    log_dir: LogDir,
    store: FakeStorage,
    log: PartitionLog,
    *,
    deletes: bool,
) -> None:
    """Otherwise the rest of the segment is stored first and waits for the part, which is the least
    urgent upload of a backlog; and where pins are at their bound, retention makes a gap of it.
    """
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.2)
    site.settings |= {"threads": 1, "pins": {"max_deleted_bytes": 1}}
    backlog = log_dir.create("u")
    for _ in range(30):
        backlog.closed_segment()
    log_dir.checkpoint_high_watermarks()
    log.append(10)
    order: list[str] = []
    original, go_on, slow = store.put_object, threading.Event(), threading.Event()

    def put(key: str, *args: object, **kwargs: object) -> object:
        if key.endswith(".log"):
            order.append(key)
            go_on.wait(10)
            slow.wait(0.03)
        return original(key, *args, **kwargs)  # type: ignore[arg-type]

    store.put_object = put  # type: ignore[method-assign, assignment]

    def queued() -> TrackedSegment | None:
        partition = running.daemon._engine._leads.get(log.tp)
        return None if partition is None else partition.log.early

    with site.running() as running:
        running.wait(queued, "the part to wait for the thread")
        log.append(10)
        log.roll()
        log.append(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: not queued(), "the part to give way")
        go_on.set()
        if deletes:
            running.wait(lambda: any("t-0" in key for key in order), "the upload")
            log.stage(0)
            log.unlink(0)
        wait_to(running, store, log, 20)
    assert list(stored_logs(store, log.tp)) == [0], "one object"
    assert [key for key in order if "t-0" in key] == [key_of(log.tp, 0)], "sent once"
    assert not recorded_gaps(store, log.tp)
    check_archive(store, log.tp)


def test_part_that_is_not_confirmed_when_its_segment_closes_leaves_no_orphan(
    site: Site, log_dir: LogDir, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    """Nothing behind the part is sent before it is confirmed."""
    before: list[set[int]] = []

    def close() -> None:
        log.append(10)
        log.roll()
        log.append(1)
        log_dir.checkpoint_high_watermarks()
        threading.Event().wait(1)  # the sidecar sees the closed segment
        before.append(set(stored_logs(store, log.tp)))
        raise BrokerUnavailableError("away for the test")

    led.before[ASK] = [lambda: None, close]
    log.append(10)
    with site.running() as running:
        wait_to(running, store, log, 20)
    assert before == [set()]
    assert list(stored_logs(store, log.tp)) == [0]
    check_archive(store, log.tp)


def test_lead_that_is_lost_drops_the_part(
    site: Site, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    gone = []

    def lose() -> None:
        leadership.lose(log.tp)
        log.epoch = 9
        gone.append(True)

    led.before[ASK] = [lambda: None, lose]
    log.append(50)
    with site.running() as running:
        running.wait(lambda: gone, "the second question")
        running.wait(
            lambda: site.registry.get_sample_value(
                "sidetier_errors_total", {"kind": "NotCommittedError"}
            ),
            "the refusal",
        )
    assert not stored_logs(store, log.tp)


def test_transaction_index_ends_with_the_part(
    site: Site, log_dir: LogDir, store: FakeStorage, log: PartitionLog, led: OffsetsByHand
) -> None:
    """Each aborted transaction is in the index of the part that has its marker, and in no other."""

    def transaction(records: int) -> AbortedTxn:
        first = log.log_end
        log.append_bytes(
            make_batch(first, records, attributes=TRANSACTIONAL, payload=bytes(435)), records
        )
        marker = log.log_end
        log.append_bytes(make_batch(marker, attributes=TRANSACTIONAL | CONTROL), 1)
        return AbortedTxn(7, Offset(first), Offset(marker), Offset(marker + 1))

    entries = [transaction(4), transaction(4)]
    index = log.file(0, FileKind.TXNINDEX)
    index.write_bytes(encode_txn_index(entries))
    led.high_watermarks[log.tp] = 5
    with site.running() as running:
        wait_to(running, store, log, 5)
        log.append(10)
        index.write_bytes(encode_txn_index(entries) + b"\0\0cut")  # the broker is writing
        del led.high_watermarks[log.tp]
        wait_to(running, store, log, 20)
        led.high_watermarks[log.tp] = 20
        entries.append(transaction(4))
        index.write_bytes(encode_txn_index(entries))
        log.roll()
        log_dir.checkpoint_high_watermarks()
        wait_to(running, store, log, 25)
    contents = store.contents()
    stored = {
        base: parse_txn_index(contents[key_of(log.tp, base, FileKind.TXNINDEX)])
        for base in stored_logs(store, log.tp)
        if key_of(log.tp, base, FileKind.TXNINDEX) in contents
    }
    assert {base: list(found) for base, found in stored.items()} == {
        0: entries[:1],
        5: entries[1:2],
        20: entries[2:],
    }
    check_archive(store, log.tp)


@pytest.mark.usefixtures("led")
def test_after_a_start_the_active_segment_is_read_once(
    site: Site, store: FakeStorage, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of histories finds the archive's end, and the search begins there."""
    log.append(20)
    with site.running() as running:
        wait_to(running, store, log, 20)
    end = log.file(0).stat().st_size
    starts: list[int] = []

    def counting(descriptor: int, size: int, start: int = 0) -> WholeBatches:
        starts.append(start)
        return WholeBatches(descriptor, size, start)

    monkeypatch.setattr("sidetier.uploader.watching.disk.WholeBatches", counting)
    log.append(5)
    with site.running(early={**EARLY, "age": 1}) as running:
        wait_to(running, store, log, 25)
    assert starts == [0, end]
    check_archive(store, log.tp)


@pytest.mark.usefixtures("led")
def test_transaction_index_is_read_before_the_proof(
    site: Site, store: FakeStorage, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that restarts right after the proof empties the index of the active segment.

    Without its entry, the `.log` would say that no transaction was aborted.
    """
    log.append_bytes(make_batch(0, 4, attributes=TRANSACTIONAL, payload=bytes(435)), 4)
    log.append_bytes(make_batch(4, attributes=TRANSACTIONAL | CONTROL), 1)
    index = log.file(0, FileKind.TXNINDEX)
    entries = encode_txn_index([AbortedTxn(7, Offset(0), Offset(4), Offset(5))])
    index.write_bytes(entries)
    leadership = site.leadership = LeadershipByHand({log.tp: 0})
    confirm, restarted = Uploader._confirm, threading.Event()

    def confirm_and_restart(self: Uploader, *args: Any) -> None:  # noqa: ANN401
        confirm(self, *args)
        if not restarted.is_set():
            restarted.set()
            index.write_bytes(b"")
            log.lead(1)

    monkeypatch.setattr(Uploader, "_confirm", confirm_and_restart)
    with site.running() as running:
        running.wait(restarted.is_set, "the proof")
        running.wait(lambda: getattr(running.status(log.tp), "last_error", None), "a refusal")
        index.write_bytes(entries)  # the recovery has ended
        leadership.lead(log.tp, 1)
        wait_to(running, store, log, 5)
    assert store.contents()[key_of(log.tp, 0, FileKind.TXNINDEX)] == entries
    check_archive(store, log.tp)


@pytest.mark.usefixtures("led")
def test_part_that_the_store_refuses_is_in_the_status(
    site: Site, store: FakeStorage, log: PartitionLog
) -> None:
    original, refuses, sending = store.put_object, threading.Event(), threading.Event()
    refuses.set()

    def put(key: str, *args: object, **kwargs: object) -> object:
        if key.endswith(".log") and refuses.is_set():
            raise AccessDeniedError("no permission for the test")
        if key.endswith(".log"):
            sending.wait(10)
        return original(key, *args, **kwargs)  # type: ignore[arg-type]

    store.put_object = put  # type: ignore[method-assign, assignment]
    log.append(10)

    def shown() -> tuple[PartitionState, str | None] | None:
        status = running.status(log.tp)
        return None if status is None else (status.state, status.last_error)

    with site.running() as running:
        running.wait(lambda: "no permission" in str(shown()), "the error")
        status = running.status(log.tp)
        assert status is not None
        assert status.waiting_for == f"another try after: {status.last_error}"
        refuses.clear()
        running.wait(lambda: (shown() or [None])[0] is PartitionState.UPLOADING, "the upload")
        sending.set()
        wait_to(running, store, log, 10)
        running.wait(lambda: shown() == (PartitionState.ARCHIVED, None), "the end of the error")


@pytest.mark.usefixtures("led")
def test_store_that_fails_gets_the_same_part_again(
    site: Site, store: FakeStorage, log: PartitionLog
) -> None:
    """Its index is stored already, and fits only a `.log` with the same end."""
    log.append(10)
    failed: list[str] = []

    original = store.put_object

    def put(key: str, *args: object, **kwargs: object) -> object:
        if re.search(r"\d{20}\.log$", key) and not failed:
            failed.append(key)
            log.append(20)
            raise StoreUnavailableError("away for the test")
        return original(key, *args, **kwargs)  # type: ignore[arg-type]

    store.put_object = put  # type: ignore[method-assign, assignment]
    with site.running() as running:
        wait_to(running, store, log, 30)
    assert sorted(stored_logs(store, log.tp)) == [0, 10, 20]
    assert store.contents()[key_of(log.tp, 0, FileKind.TIMEINDEX)]
    check_archive(store, log.tp)


def test_index_entry_that_leads_into_a_batch_is_not_believed(log: PartitionLog) -> None:
    """Kafka truncates an index without writing over its last entries."""
    log.append(5)
    within = make_batch(3, 9)
    log.append_bytes(make_batch(5, 1, payload=within), 1)
    log.append(5)
    position = log.file(0).read_bytes().index(within)
    log.file(0, FileKind.INDEX).write_bytes(struct.pack(">ii", 3, position))
    led = LedLog(Offset(11), Offset(11), LeaderEpoch(0))
    file = log_file(str(log.path), log.active)
    assert file is not None

    def found(start: int, stored: CommittedRange | None) -> CommittedRange | None:
        tp, path, active = log.tp, str(log.path), log.active
        known = None if stored is None else stored.behind
        wanted = EarlyWanted(
            tp, path, active, Offset(start), LeaderEpoch(0), file.topic_id, 0, known, 0, 1 << 20
        )
        found = find_part(wanted, led)
        return found if isinstance(found, CommittedRange) else None

    first = found(5, None)
    assert first is not None
    assert (first.start, first.position) == (5, 296)
    # The next part begins where this one ended, and nothing before it is read.
    second = replace(first, end=Offset(6), size=log.file(0).stat().st_size - 2 * 296)
    with log.file(0).open("r+b") as damaged:
        damaged.write(bytes(100))
    third = found(6, second)
    assert third is not None
    assert (third.start, third.end, third.size) == (6, 11, 296)
    assert found(6, replace(second, file=file._replace(inode=1))) is None


TAIL = LogTail(Offset(9), 500, 1000.0, 500, has_batch=True)


@pytest.mark.parametrize(
    ("tail", "last", "wall", "least"),
    [
        (TAIL, None, 1010.0, None),
        (TAIL, None, 1060.0, 0),  # by age, however few
        (TAIL, 1050.0, 1060.0, None),  # timestamps of the past count from the last upload on
        (TAIL, 1050.0, 1110.0, 0),
        (TAIL, 9999.0, 1060.0, 0),  # the clock was ahead at the last upload
        (replace(TAIL, unarchived_since=9999.0), 1050.0, 1060.0, None),  # at the last append
        (replace(TAIL, unarchived_since=9999.0), 1050.0, 1110.0, 0),
        (LogTail(Offset(9), 5000, 1000.0, 999, has_batch=True), None, 1010.0, None),  # preallocated
        (LogTail(Offset(9), 5000, 1000.0, 1000, has_batch=True), None, 1010.0, 1000),
        (LogTail(Offset(9), 5000, 1000.0, 0, has_batch=True), None, 9999.0, 0),  # compressed
        (LogTail(Offset(9), 5000, 1000.0, 5000, has_batch=False), None, 9999.0, None),
        (LogTail(Offset(9), 0, None, 0), None, 9999.0, None),
    ],
)
def test_part_is_due_by_its_bytes_or_its_age(
    tail: LogTail, last: float | None, wall: float, least: int | None
) -> None:
    assert is_due(tail, last, wall, EarlyLimits(1000, 60.0)) == least


@pytest.mark.usefixtures("led")
def test_part_is_due_by_age_and_preallocated_bytes_do_not_count(
    site: Site, store: FakeStorage, log: PartitionLog
) -> None:
    site.settings["early"] = {"topics": ["t"], "bytes": "1MiB", "age": 1}
    log.append(5)
    os.truncate(log.file(0), 8 << 20)  # zeros follow, as on a broker with `preallocate`
    with site.running() as running:
        wait_to(running, store, log, 5)
    assert stored_bytes(store, log) == log.written[0]


@pytest.mark.parametrize("closes", [False, True], ids=["stays active", "closes"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_request_leaves_a_sound_archive(
    tmp_path: Path, *, after: bool, closes: bool
) -> None:
    """The next process stores parts that end elsewhere, or the closed segment."""
    kills = 0
    for lives in count():
        store, log_dir = FakeStorage(), LogDir(tmp_path / f"killed-{lives}")
        log = log_dir.create()
        log.append(20)
        site = Site([log_dir], MortalStore(store, lives, after=after))
        site.log_offsets = OffsetsByHand(site.log_dirs)
        site.settings = {"early": EARLY, "threads": 1, "request_threads": 1}
        is_killed = is_killed_before(site, store, log.tp, 20)
        kills += is_killed
        check_archive(store, log.tp)
        log.append(10)
        if closes:
            log.roll()
            log_dir.checkpoint_high_watermarks()
        site.store = store
        with site.running(early={**EARLY, "bytes": 200}) as running:
            wait_to(running, store, log, 30)
        assert stored_bytes(store, log) == log.written[0], f"after a kill at request {lives + 1}"
        check_archive(store, log.tp)
        if not is_killed:
            break
    assert kills >= 12
