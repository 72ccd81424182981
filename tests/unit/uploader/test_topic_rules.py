"""Compacted and natively tiered topics are refused with a reason; retention gives the order."""

import os
import queue
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sidetier.leadership.port import TopicConfig
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.telemetry.status import PartitionState
from sidetier.uploader import engine
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates import topic_rules
from sidetier.uploader.gates.topic_rules import TopicConfigEvent, TopicRules
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import WorkerPool
from tests.harness.daemons import LAYOUT, ConfigsByHand, Site, stored_logs, stored_next
from tests.harness.log_dir import TOPIC_ID, LogDir, PartitionLog


class Rules:
    """TopicRules on their own thread, with a manual clock."""

    def __init__(self, source: ConfigsByHand | None, *, compacted: str = "refuse") -> None:
        self.now = 0.0
        self.learned: list[str] = []
        self.metrics = Metrics(CollectorRegistry())
        self.errors = UnexpectedErrors(self.metrics, Clock(lambda: self.now, lambda: self.now))
        self.finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.pool: WorkerPool[TopicConfigEvent] = WorkerPool("rules", 1, self.finished.put)
        self.rules = TopicRules(
            source,
            self.pool,
            lambda: self.now,
            self.metrics,
            self.errors,
            "refuse" if compacted == "refuse" else "as_closed",
        )

    def ask(self, *topics: str, topic_id: str | None = None) -> None:
        self.rules.ask(dict.fromkeys(topics, topic_id))
        if self.pool.busy:
            event = self.finished.get(timeout=5).event
            self.pool.release()
            self.learned.extend(self.rules.handle(event))


def test_every_topic_is_allowed_without_a_config_source() -> None:
    at = Rules(None)
    at.ask("a")
    assert at.rules.is_known("a")
    assert at.rules.refusal("a") is None


def test_topic_is_unknown_before_the_answer() -> None:
    at = Rules(ConfigsByHand({"a": TopicConfig(retention=60.0)}))
    assert not at.rules.is_known("a")
    at.ask("a")
    assert at.rules.is_known("a")
    assert at.rules.config("a").retention == 60.0
    assert at.learned == ["a"]


@pytest.mark.parametrize(
    ("config", "compacted", "reason"),
    [
        (TopicConfig(), "refuse", None),
        (TopicConfig(compacted=True), "refuse", "topics.compacted: as_closed"),
        (TopicConfig(compacted=True), "as_closed", None),
        (TopicConfig(native_tiering=True), "as_closed", "remote.storage.enable=true"),
    ],
)
def test_refusal_tells_the_operator_what_to_do(
    config: TopicConfig, compacted: str, reason: str | None
) -> None:
    at = Rules(ConfigsByHand({"a": config}), compacted=compacted)
    at.ask("a")
    refusal = at.rules.refusal("a")
    assert (refusal is None) if reason is None else (reason in str(refusal))


def test_missing_describe_permission_does_not_block_the_archive() -> None:
    at = Rules(ConfigsByHand({"a": None}))
    at.ask("a")
    assert at.rules.is_known("a")
    assert at.rules.refusal("a") is None


def test_only_new_topics_are_queried_until_the_refresh_interval_ends() -> None:
    source = ConfigsByHand({"a": TopicConfig(), "b": TopicConfig()})
    at = Rules(source)
    at.ask("a")
    at.ask("a")
    at.ask("a", "b")
    assert source.asked == [["a"], ["b"]]
    source.answers["a"] = TopicConfig(compacted=True)
    at.now = 301.0
    at.ask("a", "b")
    assert source.asked[-1] == ["a", "b"]
    assert at.rules.refusal("a") is not None
    assert at.learned == ["a", "b", "a"]


def test_answer_does_not_apply_to_another_topic_id_of_the_same_name() -> None:
    """The topic was deleted and recreated as a compacted one within the five minutes."""
    source = ConfigsByHand({"a": TopicConfig()})
    at = Rules(source)
    at.ask("a", topic_id=TOPIC_ID)
    assert at.rules.is_known("a", TOPIC_ID)
    assert at.rules.is_known("a", None), "before its id has been read"
    source.answers["a"] = TopicConfig(compacted=True)
    assert not at.rules.is_known("a", "BBBBBBBBBBBBBBBBBBBBBQ")
    at.ask("a", topic_id="BBBBBBBBBBBBBBBBBBBBBQ")
    assert at.rules.is_known("a", "BBBBBBBBBBBBBBBBBBBBBQ")
    assert at.rules.refusal("a") is not None
    at.ask("a", topic_id="BBBBBBBBBBBBBBBBBBBBBQ")
    assert len(source.asked) == 2


def test_unavailable_broker_is_queried_again_after_a_pause() -> None:
    source = ConfigsByHand({"a": TopicConfig()})
    source.away = True
    at = Rules(source)
    at.ask("a")
    assert not at.rules.is_known("a")
    source.away = False
    at.ask("a")
    assert len(source.asked) == 1
    at.now = 5.0
    at.ask("a")
    assert at.rules.is_known("a")


def test_topic_missing_in_an_answer_stays_unknown_and_is_queried_again() -> None:
    """A broker whose metadata lags does not know a topic that was just created."""
    source = ConfigsByHand({"a": TopicConfig()})
    source.left_out = {"b"}
    at = Rules(source)
    at.ask("a", "b")
    assert at.rules.is_known("a")
    assert not at.rules.is_known("b")
    source.answers["b"] = TopicConfig(compacted=True)
    source.left_out = set()
    at.ask("a", "b")
    assert source.asked == [["a", "b"], ["b"]]
    assert at.rules.refusal("b") is not None


# -- in the daemon --------------------------------------------------------------------------------


def test_changed_retention_changes_which_segments_are_pinned(
    site: Site, log_dir: LogDir, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three closed segments two can be pinned: those that the broker deletes first."""
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.05)
    monkeypatch.setattr(topic_rules, "_ASK_AGAIN_SECONDS", 0.05)
    other = log_dir.create("other")
    for one in (log, other):
        one.closed_segments(1)
    source = ConfigsByHand(
        {log.tp.topic: TopicConfig(retention=60.0), "other": TopicConfig(retention=3600.0)}
    )
    site.topic_configs = source

    def pinned(partition: PartitionLog) -> list[bool]:
        status = running.status(partition.tp)
        return [] if status is None else [segment.pinned for segment in status.segments]

    def is_ever_deleted() -> bool:
        status = running.status(log.tp)
        return status is not None and status.seconds_until_local_deletion is not None

    pins = {"max_files": 6, "min_free_disk": "0"}
    with site.running(rescan_interval=0.05, pins=pins) as running:
        running.wait(is_ever_deleted, "the topics' configuration")
        running.wait(lambda: pinned(log) == pinned(other) == [True], "the pins of two segments")
        source.answers[log.tp.topic] = TopicConfig(retention=float("inf"))
        running.wait(lambda: not is_ever_deleted(), "the new configuration")
        other.closed_segments(1)
        running.wait(lambda: pinned(other) == [True, True], "the pins of the other topic")
        running.wait(lambda: pinned(log) == [False], "the pin of this one to be let go")


def test_refused_topic_has_no_pin_and_is_archived_once_it_is_allowed(
    site: Site,
    log_dir: LogDir,
    log: PartitionLog,
    store: FakeStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not make the sidecar unready either. Its directory has not changed since it was
    refused.
    """
    monkeypatch.setattr(engine, "_HOUSEKEEPING_SECONDS", 0.05)
    monkeypatch.setattr(topic_rules, "_ASK_AGAIN_SECONDS", 0.05)
    good = log_dir.create("good")
    log.closed_segments(3)
    good.closed_segments(1)
    log_dir.checkpoint_high_watermarks()
    os.utime(log.path, (1e9, 1e9))
    source = ConfigsByHand({log.tp.topic: TopicConfig(compacted=True), "good": TopicConfig()})
    source.left_out = {log.tp.topic}
    site.topic_configs = source
    with site.running(rescan_interval=0.05) as running:
        seen = running.daemon.status.snapshot
        with store.hold("get", LAYOUT.watermark_key(log.tp)):
            running.wait(lambda: stored_next(store, good.tp) == 10, "the other topic")
            running.wait(lambda: seen().pinned_files == 9, "the pins of three segments")
            source.left_out = set()
            running.wait(lambda: seen().pinned_files == 0, "its files to be let go")
        running.wait(lambda: seen().ready, "readiness")
        status = running.status(log.tp)
        assert status is not None
        assert status.state is PartitionState.HALTED
        assert "compacted" in (status.waiting_for or "")
        assert all(condition.reason == "" for condition in seen().conditions)
        assert stored_logs(store, log.tp) == {}
        source.answers[log.tp.topic] = TopicConfig()
        running.wait(lambda: stored_next(store, log.tp) == 30, "the topic that is allowed now")
    assert stored_logs(store, log.tp) == {base: log.written[base] for base in (0, 10, 20)}
