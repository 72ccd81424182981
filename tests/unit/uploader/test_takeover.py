"""Takeover of partitions that Pinterest's uploader has filled, each with one of its observed
faults. Afterwards its consumer reads every record once and in order, except records that are lost
for good.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from sidetier.archive.objects.watermark import encode_watermark
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.status import PartitionState
from sidetier.uploader.archive.takeover import HELPERS, scan
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    LeadershipByHand,
    RunningDaemon,
    Site,
    key_of,
    stored_logs,
    stored_next,
    watermark_of,
)
from tests.harness.log_dir import LogDir, PartitionLog, record_batch
from tests.harness.pinterest_archive import THREE, PinterestArchive, read_as_pinterest

if TYPE_CHECKING:
    from collections.abc import MutableMapping, MutableSequence

pytestmark = pytest.mark.usefixtures("quick_gaps")


@dataclass
class Scene:
    """A broker's partition with segments of ten records, Pinterest's archive of it, and a
    daemon.
    """

    log_dir: LogDir
    log: PartitionLog
    store: FakeStorage
    site: Site
    pinterest: PinterestArchive
    deleted: list[int] = field(default_factory=list)

    def retain_from(self, start: int) -> None:
        """Act as retention: delete the segments below the offset from the broker."""
        for base in [base for base in self.log.bases() if base < start]:
            self.log.unlink(base)

    def settle(self) -> None:
        """Run the sidecar until it has nothing more to do."""
        self.log_dir.checkpoint_high_watermarks()
        self.site.settle()

    def check(self, *, start: int = 0, gaps: tuple[tuple[int, int], ...] = ()) -> None:
        """Assert that Pinterest's consumer reads everything below the active segment except these
        gaps.
        """
        tp, end = self.log.tp, self.log.active
        assert stored_next(self.store, tp) == end
        check_archive(self.store, tp, start)
        assert recorded_gaps(self.store, tp) == list(gaps)
        lost = {offset for first, following in gaps for offset in range(first, following)}
        expected = [offset for offset in range(start, end) if offset not in lost]
        found = list(read_as_pinterest(self.store.contents().get, LAYOUT.partition_prefix(tp)))
        assert [offset for offset, _ in found] == expected
        assert all(record.value == self.log.values[offset] for offset, record in found)

    def sent(self, base: int) -> int:
        """Number of PUT requests for a `.log`, by Pinterest's uploader and by the sidecar."""
        return self.store.count("put", key_of(self.log.tp, base))

    def entries(self) -> list[int]:
        data = self.store.contents()[LAYOUT.metadata_key(self.log.tp)]
        return [row["baseOffset"] for row in json.loads(data)["metadata"]["timeindex"]["entries"]]


@pytest.fixture
def scene(log_dir: LogDir, log: PartitionLog, store: FakeStorage, site: Site) -> Scene:
    """Ten closed segments, 0 to 90, on the broker."""
    log.closed_segments(10)
    return Scene(log_dir, log, store, site, PinterestArchive(store, LAYOUT, log.tp))


def bases(start: int, end: int) -> range:
    return range(start, end, 10)


def test_complete_archive_is_continued_at_its_end(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 70))
    scene.pinterest.mark(60)
    scene.settle()
    scene.check()
    assert [scene.sent(base) for base in bases(0, 100)] == [1] * 10, "nothing is sent again"
    watermark = watermark_of(scene.store, scene.log.tp)
    assert watermark is not None
    assert (watermark.base_offset, watermark.start_offset) == (90, 0)


def test_archive_is_scanned_once(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 70))
    scene.pinterest.mark(60)
    scene.settle()
    before = scene.store.count("stream")
    assert before == 7, "a tail for each segment: they are too small for an index entry"
    scene.log.closed_segment()
    scene.settle()
    scene.check()
    assert scene.store.count("stream") == before


def test_scan_sends_one_listing_and_two_requests_per_segment(scene: Scene) -> None:
    """Helper threads send the requests; the answers may come in any order."""
    assert HELPERS > 1
    stored = [scene.log.closed_segment(50) for _ in range(20)]
    scene.pinterest.upload(scene.log, *stored)
    scene.pinterest.mark(stored[-1])
    made = len(scene.store.requests)
    segments, damaged = scan(scene.store, LAYOUT, scene.log.tp)
    assert [s.base_offset for s in segments] == stored
    assert [int(s.next_offset) for s in segments] == [*stored[1:], scene.log.active]
    assert damaged == []
    assert len(scene.store.requests) - made == 1 + 2 * len(stored)


def test_gap_that_the_broker_can_fill_is_filled(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.lose(30)
    scene.pinterest.mark(70)
    scene.settle()
    scene.check()
    assert [scene.sent(base) for base in bases(0, 30)] == [1, 1, 1], "never what lies before it"
    assert scene.sent(30) == 2


def test_gap_that_the_broker_cannot_fill_is_recorded(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.lose(30)
    scene.pinterest.lose(50)
    scene.pinterest.mark(70)
    scene.retain_from(70)
    with capture_logs() as logs:
        scene.settle()
    scene.check(gaps=((30, 40), (50, 60)))
    told = [entry for entry in logs if entry["event"] == "gap.recorded"]
    assert [(entry["start_offset"], entry["end_offset"]) for entry in told] == [(30, 40), (50, 60)]
    (taken,) = (entry for entry in logs if entry["event"] == "pinterest.taken_over")
    assert (taken["segments"], taken["gaps"], taken["next_offset"]) == (6, 2, 80)


def test_gap_is_filled_as_far_as_the_broker_has_the_records(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    for base in (30, 40, 50):
        scene.pinterest.lose(base)
    scene.pinterest.mark(70)
    scene.retain_from(50)
    scene.settle()
    scene.check(gaps=((30, 50),))


def test_gaps_on_both_sides_of_the_log_start_are_handled(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 90))
    for base in (20, 70):
        scene.pinterest.lose(base)
    scene.pinterest.mark(80)
    scene.retain_from(50)
    scene.settle()
    scene.check(gaps=((20, 30),))


@pytest.mark.parametrize("log_start", [0, 70, 90])
def test_watermark_of_a_missing_segment_is_accepted(scene: Scene, log_start: int) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.lose(70, FileKind.LOG)
    scene.pinterest.mark(70)
    scene.retain_from(log_start)
    scene.settle()
    scene.check(gaps=((70, 90),) if log_start == 90 else ())
    assert key_of(scene.log.tp, 70, FileKind.INDEX) in scene.store.contents()


def test_watermark_far_behind_the_stored_segments_is_accepted(scene: Scene) -> None:
    """Pinterest's watermark also moves backwards. Segments the broker has deleted are accepted; the
    others are compared with the log, because Pinterest's uploader ignores the high watermark.
    """
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.mark(10)
    scene.retain_from(60)
    scene.settle()
    scene.check()
    assert [scene.sent(base) for base in bases(0, 90)] == [1] * 9, (
        "a store that sums tells equal bytes"
    )


@pytest.mark.parametrize("log_start", [0, 70])
@pytest.mark.parametrize("kinds", [(FileKind.INDEX,), (FileKind.TIMEINDEX,), THREE[:2]])
def test_missing_index_is_rebuilt_from_its_log(
    scene: Scene, kinds: tuple[FileKind, ...], log_start: int
) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.lose(40, *kinds)
    scene.pinterest.mark(70)
    scene.retain_from(log_start)
    with capture_logs() as logs:
        scene.settle()
    scene.check()
    assert scene.sent(40) == 1, "its log is as it was"
    (taken,) = (entry for entry in logs if entry["event"] == "pinterest.taken_over")
    assert taken["rebuilt"] == [
        key_of(scene.log.tp, 40, kind) for kind in sorted(kinds, key=THREE.index)
    ]


def test_segments_missing_in_metadata_are_listed(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.forget(0, 30, 70)
    scene.pinterest.mark(70)
    scene.settle()
    scene.check()


def test_metadata_with_missing_segments_in_any_order_is_accepted(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.entries[20] = scene.pinterest.entries[60] + 1  # a log that was touched later
    scene.pinterest.entries[75] = scene.pinterest.entries[70]
    scene.pinterest.mark(70, [70, 0, 75, *bases(10, 70)])
    scene.settle()
    scene.check()


def test_all_segments_are_listed_without_metadata(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    scene.pinterest.move_watermark(70)
    scene.settle()
    scene.check()


def test_overlapping_segments_stay_unchanged(scene: Scene) -> None:
    """Two leaders had other segment boundaries."""
    scene.pinterest.upload(scene.log, *bases(0, 40))
    data = scene.log.written[30] + scene.log.written[40]
    scene.pinterest.segment(
        25, scene.log.written[20][len(scene.log.written[20]) // 2 :] + data, b"", b""
    )
    scene.pinterest.upload(scene.log, 50, 60)
    scene.pinterest.mark(60)
    scene.settle()
    scene.check()
    assert 25 in stored_logs(scene.store, scene.log.tp)
    assert 25 in scene.entries()


@pytest.mark.parametrize("index", ["empty", "not trimmed", "of another log", "cut"])
def test_useless_index_is_ignored(scene: Scene, index: str) -> None:
    scene.log.append(600, batch=5)
    base = scene.log.roll()
    built = scene.log.indexes_of(base).index
    data = {
        "empty": b"",
        "not trimmed": built + bytes(8 * 100),
        "of another log": b"\0\0\xff\xff\0\0\1\1",
        "cut": built[:-3],
    }[index]
    scene.pinterest.upload(scene.log, *bases(0, 100), base)
    scene.pinterest.put(base, FileKind.INDEX, data)
    scene.pinterest.mark(base)
    segments, damaged = scan(scene.store, LAYOUT, scene.log.tp)
    assert damaged == []
    assert segments[-1].next_offset == base + 600


@pytest.mark.parametrize("how", ["cut", "empty", "garbage"])
@pytest.mark.parametrize("log_start", [0, 80])
def test_damaged_log_is_a_gap(scene: Scene, how: str, log_start: int) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 80))
    whole = scene.log.written[30]
    data = {"cut": whole[:-7], "empty": b"", "garbage": b"x" * 200}[how]
    scene.pinterest.put(30, FileKind.LOG, data)
    scene.pinterest.mark(70)
    scene.retain_from(log_start)
    scene.settle()
    if log_start == 0:
        scene.check()
        return
    tp = scene.log.tp
    assert recorded_gaps(scene.store, tp) == [(30, 40)]
    assert stored_next(scene.store, tp) == 100
    assert 30 not in scene.entries(), "its consumer would stumble over it"
    found = read_as_pinterest(scene.store.contents().get, LAYOUT.partition_prefix(tp))
    assert [o for o, _ in found] == [*range(30), *range(40, 100)]


def test_uncommitted_records_are_replaced(log_dir: LogDir, store: FakeStorage) -> None:
    """Pinterest's uploader ignores the high watermark: its records were truncated and the offsets
    written again.
    """
    log = log_dir.create()
    site = Site([log_dir], store)
    scene = Scene(log_dir, log, store, site, PinterestArchive(store, LAYOUT, log.tp))
    log.closed_segments(5)
    scene.pinterest.upload(log, *bases(0, 50))
    scene.pinterest.mark(40)
    thrown_away = log.written[40]
    log.truncate(25)
    for base in (30, 40):
        log.unlink(base)
    log.lead(1)
    log.append(15)
    log.roll()
    log.closed_segments(2)
    scene.settle()
    scene.check()
    aside = LAYOUT.quarantine_prefix(log.tp)
    kept = {key: data for key, data in store.contents().items() if key.startswith(aside)}
    (copy,) = (key for key in kept if key.endswith(f"/{40:020d}.log"))
    assert copy.startswith(f"{aside}peer/")
    assert kept[copy] == thrown_away


def test_later_takeover_does_not_overwrite_objects_quarantined_by_an_earlier_one(
    log_dir: LogDir, store: FakeStorage
) -> None:
    """Pinterest's uploader was started again after the first takeover and stored the same base
    offset.
    """
    log = log_dir.create()
    site = Site([log_dir], store)
    pinterest = PinterestArchive(store, LAYOUT, log.tp)
    log.closed_segments(3)
    thrown_away = [log.written[20], record_batch(20, [b"again"] * 10)]
    log.truncate(20)
    log.lead(1)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    ours = log.written[20]
    for data in thrown_away:
        log.written[20] = data
        pinterest.upload(log, 0, 10, 20)
        pinterest.mark(20)
        log.written[20] = ours
        site.settle()
        for key in list(store.contents()):
            if key.startswith(LAYOUT.partition_prefix(log.tp)):
                store.delete_object(key)
    kept = [data for key, data in store.contents().items() if "/peer/" in key]
    assert all(data in kept for data in thrown_away)


def test_archive_of_another_topic_of_the_same_name_is_left_alone(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    before = scene.store.contents()
    scene.log.delete_topic()
    again = scene.log_dir.create()
    again._random.seed("another topic")
    again.closed_segments(12)
    with capture_logs() as logs:
        scene.log_dir.checkpoint_high_watermarks()
        scene.site.settle()
    assert scene.store.contents() == before
    (refused,) = (entry for entry in logs if entry["event"] == "takeover.refused")
    assert "the records of another log under this name" in refused["reason"]


def test_takeover_waits_while_the_archive_reaches_beyond_the_log(scene: Scene) -> None:
    """Pinterest's uploader stored uncommitted records; the log continues with other records."""
    scene.pinterest.upload(scene.log, *bases(0, 100))
    scene.pinterest.mark(90)
    before = scene.store.contents()
    scene.log.truncate(50)
    scene.log.lead(1)
    with capture_logs() as logs:
        scene.log_dir.checkpoint_high_watermarks()
        with scene.site.running() as running:
            running.wait(lambda: _failures(logs), "the refusal")
    assert scene.store.contents() == before
    (refused, *_) = _failures(logs)
    assert refused["kind"] == "DivergedError"
    assert "reaches 100" in refused["error"]
    assert "ends at 50" in refused["error"]
    for base in bases(60, 100):
        scene.log.unlink(base)
    scene.log.append(35)
    scene.log.roll()
    scene.log.closed_segments(2)
    scene.settle()
    scene.check()


def _failures(logs: "MutableSequence[MutableMapping[str, Any]]") -> list[dict[str, Any]]:
    return [dict(entry) for entry in list(logs) if entry["event"] == "request.failed"]


@pytest.mark.parametrize("why", ["halt", "another epoch"])
def test_nothing_is_quarantined_while_the_divergence_is_in_doubt(
    log_dir: LogDir, store: FakeStorage, why: str
) -> None:
    log = log_dir.create()
    log.closed_segments(3)
    pinterest = PinterestArchive(store, LAYOUT, log.tp)
    pinterest.upload(log, *bases(0, 30))
    pinterest.mark(20)
    log.truncate(20)
    log.lead(1)
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    before = store.contents()
    site = Site([log_dir], store)
    if why == "halt":
        site.settings["on_divergence"] = "halt"
    else:
        site.leadership = LeadershipByHand({log.tp: 2})
    with capture_logs() as logs, site.running() as running:
        running.wait(lambda: _failures(logs), "the refusal")
    assert store.contents() == before
    assert "Pinterest's segment 20 is not the one in" in _failures(logs)[0]["error"]


def test_archive_starts_anew_without_a_complete_segment(scene: Scene) -> None:
    scene.pinterest.mark(30)
    scene.settle()
    scene.check()


# -- Pinterest's uploader still runs ---------------------------------------------------------------


def test_running_pinterest_uploader_halts_the_partition(scene: Scene) -> None:
    """The first overwritten write halts the partition and reports what to do."""
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.log_dir.checkpoint_high_watermarks()
    tp = scene.log.tp
    with capture_logs() as logs, scene.site.running() as running:
        running.wait(lambda: stored_next(scene.store, tp) == 100, "the takeover")
        scene.pinterest.move_watermark(90)
        theirs = scene.store.contents()[LAYOUT.watermark_key(tp)]
        scene.log.closed_segment()
        scene.log_dir.checkpoint_high_watermarks()
        running.wait(lambda: _alarms(logs), "the alarm")
        made = len(scene.store.requests)
        scene.log.closed_segment()
        scene.log_dir.checkpoint_high_watermarks()
        closed = len(scene.log.bases()) - 1
        running.wait(lambda: _lag(running, tp) == closed, "the segment to be seen")
    assert len(scene.store.requests) == made, "nothing is asked of the store any more"
    assert scene.store.contents()[LAYOUT.watermark_key(tp)] == theirs
    (alarm,) = _alarms(logs)
    assert "Pinterest's uploader is running" in alarm["reason"]
    assert "stop it on every broker" in alarm["reason"]
    (failure,) = _failures(logs)
    assert (failure["kind"], failure["request"]) == ("PinterestUploaderRunningError", "commit")


def _alarms(logs: "MutableSequence[MutableMapping[str, Any]]") -> list[dict[str, Any]]:
    return [dict(entry) for entry in list(logs) if entry["event"] == "pinterest.still_running"]


def _lag(running: RunningDaemon, tp: TopicPartition) -> int | None:
    status = running.status(tp)
    return status.unstored_segments if status else None


def test_watermark_overwritten_by_pinterest_is_detected_by_a_read(scene: Scene) -> None:
    """A renewed lead reads the watermark again in the same process."""
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.log_dir.checkpoint_high_watermarks()
    tp = scene.log.tp
    leadership = scene.site.leadership = LeadershipByHand({tp: 0})
    with capture_logs() as logs, scene.site.running() as running:
        running.wait(lambda: stored_next(scene.store, tp) == 100, "the takeover")
        scene.pinterest.move_watermark(90)
        leadership.lead(tp, 1)
        running.wait(lambda: _alarms(logs), "the alarm")
    assert stored_next(scene.store, tp) is None, "Pinterest's mark stands"
    (failure,) = _failures(logs)
    assert (failure["kind"], failure["request"]) == ("PinterestUploaderRunningError", "load")


def test_restart_takes_over_again_once_pinterest_is_stopped(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.settle()
    scene.pinterest.move_watermark(20)
    scene.log.closed_segments(2)
    scene.settle()
    scene.check()


def test_pinterest_write_during_the_scan_is_detected(scene: Scene) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.log_dir.checkpoint_high_watermarks()
    daemon = scene.site.daemon()
    metadata = LAYOUT.metadata_key(scene.log.tp)
    scene.store.race("put", lambda: scene.pinterest.move_watermark(50), key=metadata, after=True)
    with capture_logs() as logs:
        daemon.run_until_settled()
    assert [entry["event"] for entry in logs].count("pinterest.still_running") == 1
    assert watermark_of(scene.store, scene.log.tp) is not None
    assert stored_next(scene.store, scene.log.tp) is None


def test_takeover_by_a_second_sidecar_uses_the_first_ones_watermark(scene: Scene) -> None:
    """The other sidecar was first: its watermark is trusted, and nothing is scanned again."""
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.settle()
    found = watermark_of(scene.store, scene.log.tp)
    assert found is not None
    scene.store.put_object(LAYOUT.watermark_key(scene.log.tp), BytesBody(encode_watermark(found)))
    scene.log.closed_segment()
    scene.settle()
    scene.check()


# -- followers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_follower_leaves_the_takeover_to_the_leader(scene: Scene, reset: str) -> None:
    """Regardless of its patience: it reads the watermark, recognises Pinterest's, and stores
    nothing.
    """
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.mark(40)
    scene.log_dir.checkpoint_high_watermarks()
    before, tp, lists = scene.store.contents(), scene.log.tp, scene.store.count("list")
    scene.site.leadership = LeadershipByHand()
    rescue = {"enabled": True, "patience": 0.1, "before_deletion": 600.0}
    for base in scene.log.bases()[:9]:
        scene.log.set_age(base, 7 * 86400)  # its deletion is near
    settings = {"rescue": rescue, "offset_reset": reset, "local_retention": 7 * 86400}
    with scene.site.running(**settings) as running:
        mark = LAYOUT.watermark_key(tp)
        running.wait(lambda: scene.store.count("get", mark) >= 3, "three looks at the watermark")
        assert scene.store.contents() == before
        assert scene.store.count("list") == lists, "nor does it prepare to"
        leadership = scene.site.leadership
        leadership.lead(tp, 0)
        running.wait(lambda: stored_next(scene.store, tp) == 100, "the takeover")
    scene.check()


# -- archives without a watermark -----------------------------------------------------------------


def unmark(scene: Scene) -> None:
    """Delete the watermark, as if Pinterest's uploader had died before its first one."""
    scene.store.delete_object(LAYOUT.watermark_key(scene.log.tp))


def test_segments_below_the_log_start_are_taken_over_without_a_watermark(
    scene: Scene,
) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 70))
    scene.pinterest.mark(60)
    unmark(scene)
    scene.retain_from(40)
    with capture_logs() as logs:
        scene.settle()
    scene.check()
    assert [scene.sent(base) for base in bases(0, 100)] == [1] * 10, "what is the same is not sent"
    [told] = [entry for entry in logs if entry["event"] == "pinterest.taken_over"]
    assert (told["peer_base_offset"], told["base_offset"], told["next_offset"]) == (None, 30, 40)


def test_segments_in_the_log_are_compared_and_replaced_without_a_watermark(
    scene: Scene,
) -> None:
    scene.pinterest.upload(scene.log, *bases(0, 50))
    scene.pinterest.segment(20, scene.log.written[20][:-1], b"", b"")
    scene.pinterest.mark(40)
    unmark(scene)
    scene.settle()
    scene.check()
    assert [scene.sent(base) for base in bases(0, 50)] == [1, 1, 3, 1, 1]


def test_archive_of_another_log_is_left_alone_without_a_watermark(
    scene: Scene, tmp_path: Path
) -> None:
    another = LogDir(tmp_path / "another").create(scene.log.tp.topic)
    another.append(7)
    another.closed_segments(4, 13)
    scene.pinterest.upload(another, *another.bases()[:-1])
    scene.pinterest.mark(0)
    unmark(scene)
    before = scene.store.contents()
    with capture_logs() as logs, scene.site.running() as running:
        scene.log_dir.checkpoint_high_watermarks()
        tp = scene.log.tp
        running.wait(
            lambda: (s := running.status(tp)) and s.state is PartitionState.HALTED, "the halt"
        )
    assert scene.store.contents() == before
    [refused] = [entry for entry in logs if entry["event"] == "takeover.refused"]
    assert "stored the records of another log" in refused["reason"]


def test_new_partition_is_not_checked_for_pinterest_segments(scene: Scene) -> None:
    scene.settle()
    heads = [request for request in scene.store.requests if request.operation == "head"]
    assert heads == []
    scene.check()
