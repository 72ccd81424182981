"""An unexpected exception delays only the partition, topic or request that it concerns."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from sidetier.leadership.port import HighWatermark, TopicConfig
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.state import segment as segment_state
from sidetier.uploader.stores import Place
from sidetier.uploader.watching.log_dirs import LogDirs
from tests.harness.archive_sound import check_archive, recorded_gaps
from tests.harness.daemons import (
    LAYOUT,
    ConfigsByHand,
    HighWatermarksByHand,
    RunningDaemon,
    Site,
    key_of,
    place_of,
    stored_next,
)
from tests.harness.log_dir import LogDir, PartitionLog


@pytest.fixture(autouse=True)
def _short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after 20 ms instead of one second."""
    monkeypatch.setattr(segment_state, "_FIRST_HOLD", 0.02)
    monkeypatch.setattr(segment_state, "_LONGEST_HOLD", 0.1)


@pytest.fixture
def good(log_dir: LogDir) -> PartitionLog:
    """A partition without errors."""
    return log_dir.create("good")


def counted(site: Site, kind: str) -> float:
    return site.registry.get_sample_value("sidetier_unexpected_errors_total", {"kind": kind}) or 0.0


def held(running: RunningDaemon, subject: str) -> str | None:
    """The error that delays a subject, as the status shows it."""
    errors = running.daemon.status.snapshot().held_errors
    return next((held.error for held in errors if held.subject == subject), None)


def last_error(running: RunningDaemon, tp: TopicPartition) -> str:
    status = running.status(tp)
    return "" if status is None else status.last_error or ""


def store_all(running: RunningDaemon, site: Site, log: PartitionLog) -> None:
    """Close two more segments of a partition and wait until they are stored."""
    log.closed_segments(2)
    for log_dir in site.log_dirs:
        log_dir.checkpoint_high_watermarks()
    store = site.store
    assert isinstance(store, FakeStorage)
    running.wait(lambda: stored_next(store, log.tp) == log.active, f"{log.tp} to be stored")


# -- requests and uploads -------------------------------------------------------------------------


def test_unexpected_answer_of_the_store_delays_one_partition(
    site: Site, store: FakeStorage, log: PartitionLog, good: PartitionLog
) -> None:
    """The answer to its commit."""
    store.fail("put", KeyError("LastModified"), key=LAYOUT.watermark_key(log.tp), times=None)
    log.closed_segments(1)
    with capture_logs() as logs, site.running() as running:
        store_all(running, site, good)
        running.wait(lambda: "KeyError: 'LastModified'" in last_error(running, log.tp), "the error")
        running.wait(lambda: counted(site, "KeyError") > 2, "more than one try")
        store.heal()
        store_all(running, site, log)
        running.wait(lambda: not last_error(running, log.tp), "the error to be gone")
    check_archive(store, log.tp)
    told = [entry for entry in logs if entry["event"] == "error.unexpected"]
    assert {entry["topic"] for entry in told} == {"t"}
    assert isinstance(told[0]["exc_info"], KeyError), "with its traceback"


def test_failure_to_resolve_a_store_delays_one_topic(
    site: Site, store: FakeStorage, log: PartitionLog, good: PartitionLog
) -> None:
    """For example a third-party endpoint provider may raise any exception."""
    place, broken = place_of(store), ["t"]

    def places(topic: str) -> Place:
        if topic in broken:
            raise ZeroDivisionError("for the test")
        return place

    site.places = places
    log.closed_segments(1)
    with site.running() as running:
        store_all(running, site, good)
        error = "ZeroDivisionError: for the test"
        running.wait(lambda: held(running, "planning of t-0") == error, "the error in the status")
        broken.clear()
        store_all(running, site, log)
        running.wait(lambda: held(running, "planning of t-0") is None, "the error to be gone")


# -- the broker's files ---------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 0x80
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_flipped_bit_in_a_file_of_a_partition_delays_that_partition(
    site: Site, log: PartitionLog, good: PartitionLog, name: str
) -> None:
    log.closed_segments(1)
    sound = (log.path / name).read_bytes()
    flip_a_bit(log.path / name)
    with site.running(rescan_interval=0.1) as running:
        store_all(running, site, good)
        running.wait(
            lambda: (
                "is not UTF-8" in last_error(running, log.tp)
                or held(running, f"{name} of t-0") is not None
            ),
            "the damage to show in the status",
        )
        (log.path / name).write_bytes(sound)
        store_all(running, site, log)
        running.wait(lambda: held(running, f"{name} of t-0") is None, "the error to be gone")


def test_brokers_are_asked_when_the_high_watermark_checkpoint_is_damaged(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog
) -> None:
    log.closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    path = log_dir.path / "replication-offset-checkpoint"
    flip_a_bit(path)
    os.utime(path, ns=(log.newest_ns() + 10**9,) * 2)
    site.high_watermarks = HighWatermarksByHand(
        {log.tp: HighWatermark(Offset(20), LeaderEpoch(log.epoch))}
    )
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 20, "the segments, by ListOffsets")
        running.wait(lambda: "is not UTF-8" in (held(running, str(path)) or ""), "the damage")
        log_dir.checkpoint_high_watermarks()
        store_all(running, site, log)
        running.wait(lambda: held(running, str(path)) is None, "the error to be gone")


# -- partition steps ------------------------------------------------------------------------------


class FaultyLogDirs(LogDirs):
    """Log dirs in which one partition cannot be found because of an unexpected exception."""

    def __init__(self, log_dirs: Iterable[str], wanted: Callable[[str], bool]) -> None:
        super().__init__(log_dirs, wanted)
        self.broken: set[TopicPartition] = {TopicPartition("t", 0)}

    def directory(self, tp: TopicPartition) -> str | None:
        if tp in self.broken:
            raise RuntimeError("for the test")
        return super().directory(tp)

    def resolve(self, directory: str) -> TopicPartition | None:
        tp = super().resolve(directory)
        if tp in self.broken:
            raise RuntimeError("for the test")
        return tp


def test_failed_step_delays_its_partition(
    site: Site, store: FakeStorage, log: PartitionLog, good: PartitionLog
) -> None:
    made: list[FaultyLogDirs] = []

    def make(log_dirs: list[str], wanted: Callable[[str], bool]) -> LogDirs:
        made.append(FaultyLogDirs(log_dirs, wanted))
        return made[0]

    site.make_log_dirs = make
    log.closed_segments(1)
    with site.running() as running:
        store_all(running, site, good)
        error = "RuntimeError: for the test"
        running.wait(lambda: held(running, "listing of t-0") == error, "the error in the status")
        running.wait(lambda: error in last_error(running, log.tp), "the error of the partition")
        log.closed_segments(1)  # a hint, which cannot be processed either
        running.wait(lambda: held(running, f"a hint at {log.path}") == error, "the hint to fail")
        made[0].broken.clear()
        store_all(running, site, log)
        running.wait(lambda: not last_error(running, log.tp), "the error to be gone")
    assert recorded_gaps(store, log.tp) == []
    check_archive(store, log.tp)


# -- requests to the brokers ----------------------------------------------------------------------


class FaultyConfigs(ConfigsByHand):
    """Raise an unexpected exception while it is `broken`."""

    broken = True

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        answers = super().topic_configs(topics)
        if self.broken:
            raise ValueError("retention.ms is 'x'")
        return answers


class AnswersForOthers(FaultyConfigs):
    """Also answers for a topic that nobody has asked for: the event cannot be handled."""

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        answers = ConfigsByHand.topic_configs(self, topics)
        return {**answers, "other": TopicConfig()} if self.broken else answers


@pytest.mark.parametrize(
    ("source", "error"), [(FaultyConfigs, "retention.ms"), (AnswersForOthers, "KeyError: 'other'")]
)
def test_topic_configs_are_requested_again_after_an_unexpected_answer(
    site: Site,
    store: FakeStorage,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    source: type[FaultyConfigs],
    error: str,
) -> None:
    monkeypatch.setattr("sidetier.uploader.engine._HOUSEKEEPING_SECONDS", 0.02)
    site.topic_configs = configs = source({"t": TopicConfig()})
    log.closed_segments(1)
    with site.running() as running:
        subject = "asking the brokers for topic configurations"
        running.wait(lambda: error in (held(running, subject) or ""), "the error")
        configs.broken = False
        store_all(running, site, log)
        running.wait(lambda: held(running, subject) is None, "the error to be gone")
    check_archive(store, log.tp)


class FaultyConfig:
    """A topic configuration whose retention cannot be read while `broken` is set."""

    compacted = native_tiering = broken = False
    retention_bytes = delete_delay = None

    @property
    def retention(self) -> float:
        if self.broken:
            raise ZeroDivisionError("for the test")
        return float("inf")


def test_request_ends_even_if_the_rules_of_its_partition_raise(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog, good: PartitionLog
) -> None:
    """A request whose end is lost would keep the partition from all further requests."""
    config, key = FaultyConfig(), LAYOUT.watermark_key(log.tp)
    site.topic_configs = ConfigsByHand({"t": cast("TopicConfig", config), "good": TopicConfig()})
    with site.running() as running:
        with store.hold("put", key):
            log.closed_segments(1)
            log_dir.checkpoint_high_watermarks()
            running.wait(lambda: store.count("put", key) > 0, "the commit to be under way")
            config.broken = True
        error = "ZeroDivisionError: for the test"
        running.wait(lambda: held(running, "planning of t-0") == error, "the error")
        store_all(running, site, good)
        config.broken = False
        store_all(running, site, log)
        running.wait(lambda: held(running, "planning of t-0") is None, "the error to be gone")
    check_archive(store, log.tp)


class FaultyHighWatermarks(HighWatermarksByHand):
    """Raise an unexpected exception at the first request."""

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        answers = super().high_watermarks(partitions)
        if len(self.asked) == 1:
            raise AttributeError("offset")
        return answers


def test_high_watermarks_are_requested_again_after_an_unexpected_answer(
    site: Site, store: FakeStorage, log: PartitionLog
) -> None:
    log.closed_segments(1)
    site.high_watermarks = FaultyHighWatermarks(
        {log.tp: HighWatermark(Offset(10), LeaderEpoch(log.epoch))}
    )
    with site.running() as running:
        running.wait(lambda: stored_next(store, log.tp) == 10, "the second answer")
        assert counted(site, "AttributeError") == 1


# -- expected errors ------------------------------------------------------------------------------


def test_expected_error_is_not_counted_as_unexpected(
    site: Site, store: FakeStorage, log_dir: LogDir, log: PartitionLog
) -> None:
    """A refusal by the store has a counter of its own."""
    store.refuse(key_of(log.tp, 0, FileKind.INDEX))
    log.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    with site.running() as running:
        running.wait(lambda: "403" in last_error(running, log.tp), "the refusal")
        assert running.daemon.status.snapshot().held_errors == ()
    assert site.registry.get_sample_value("sidetier_errors_total", {"kind": "AccessDeniedError"})
    assert not counted(site, "AccessDeniedError")
