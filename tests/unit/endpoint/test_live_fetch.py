"""A Fetch of an endpoint that joins an archive and a live cluster of fake brokers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.endpoint.session import Progress, Session
from sidetier.endpoint.users import EVERYTHING
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey, build_request
from tests.harness.endpoint import ask, earliest, fetch_of
from tests.harness.fake_leaders import leaders
from tests.harness.joined_logs import (
    BROKER,
    STORE,
    Both,
    archived,
    both,
    offsets,
    read_all,
    written,
)
from tests.harness.made_archive import LAYOUT, MadeArchive, batches
from tests.harness.record_batches import TransactionalLog
from tests.harness.waiting import wait_until

NONE = ErrorCode.none


def test_both_halves_are_one_log_whichever_side_is_preferred() -> None:
    for window in (STORE, BROKER):
        with leaders(1, {0: 1}) as cluster:
            written(cluster, 100, start=30)
            with both(archived(0, 20, 40, 60), cluster, window) as read:
                assert read_all(read, 100) == list(range(100))


def test_a_leader_that_loses_its_start_meanwhile_refuses_nobody() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100)
        with both(archived(0, 20, 40, 60), cluster) as read:
            assert offsets(*read.read(("t", 0, 0)))[0] == 0
            cluster.starts[0] = 50
            read.live.reads.forget([TopicPartition("t", 0)])  # no longer kept
            assert offsets(*read.read(("t", 0, 10)))[0] == 10
            assert len(cluster.asked(ApiKey.FETCH)) >= 1


def test_an_offset_on_neither_side_is_out_of_range_and_counted() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=80)
        with both(archived(0, 20, 40, 60), cluster) as read:
            (data,) = read.read(("t", 0, 70))
            assert data.error_code is ErrorCode.offset_out_of_range
            assert read.registry.get_sample_value("sidetier_endpoint_live_gaps_total") == 1
            (data,) = read.read(("t", 0, 101))
            assert data.error_code is ErrorCode.offset_out_of_range
            assert read.registry.get_sample_value("sidetier_endpoint_live_gaps_total") == 1
            # A client that resets its position goes on behind the lost records.
            session = Session("client:1")
            for offset, starts in ((70, (80, 0)), (101, (0,))):
                fields = fetch_of("t", offset)
                read.parts.fetch_as(EVERYTHING, 11, session.progress, **fields)
                for start in starts:
                    assert earliest(session, read.parts.handlers, "t") == start


def test_records_that_a_sidecar_still_uploads_are_waited_for() -> None:
    """The broker has deleted them by its own retention, and the sidecar has kept the segment."""
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=80)
        made = archived(0, 20, 40, 60)
        with both(made, cluster, gap_patience=60) as read, ThreadPoolExecutor(1) as client:
            (data,) = read.read(("t", 0, 70))
            assert data.error_code is ErrorCode.not_leader_or_follower
            waiting = client.submit(read.read, ("t", 0, 60), max_wait=20_000)
            made.segment(60, batches(60, 80))
            made.mark(60, 80)
            (data,) = waiting.result(20)
            assert offsets(data) == list(range(60, 80))
            assert read.registry.get_sample_value("sidetier_endpoint_live_gaps_total") == 0


def test_what_compaction_left_nothing_of_does_not_hold_a_client_back() -> None:
    """The archive's last offsets have no records; the leader has what follows."""
    made = MadeArchive(FakeStorage(), tp=TopicPartition("t", 0))
    made.segment(0, batches(0, 15), next_offset=40)
    made.mark(0, 40)
    for start in (0, 30):
        with leaders(1, {0: 1}) as cluster:
            written(cluster, 100, start=start)
            cluster.written[0] = [each for each in cluster.written[0] if not 15 < each[0] < 40]
            with both(made, cluster, STORE) as read:
                wait_until(lambda: read.read(("t", 0, 0))[0].records, 20, "the archive")
                assert offsets(*read.read(("t", 0, 20)))[0] == 40


def test_the_archive_is_served_and_the_end_is_held_while_a_leader_hangs() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=30)
        with both(archived(0, 20, 40, 60), cluster, timeout=0.5) as read:
            cluster.hanging[1] = threading.Event()
            assert offsets(*read.read(("t", 0, 0)))[0] == 0
            (data,) = read.read(("t", 0, 60))
            assert data.error_code is ErrorCode.not_leader_or_follower
            archive_half, live_half = read.read(("t", 0, 40), ("t", 0, 60))
            assert offsets(archive_half)[0] == 40
            assert live_half.error_code is ErrorCode.not_leader_or_follower


def test_archived_and_live_partitions_are_fetched_together() -> None:
    with leaders(1, {0: 1, 1: 1}) as cluster:
        written(cluster, 100, start=60)
        written(cluster, 20, number=1)
        with both(archived(0, 20, 40, 60), cluster) as read:
            first, second = read.read(("t", 0, 0), ("t", 1, 0))
            assert offsets(first)[0] == 0
            assert second.error_code is NONE
            assert second.high_watermark == 20
            assert cluster.asked(ApiKey.FETCH) == [], "a response with records does not wait"
            (alone,) = read.read(("t", 1, 0))
            assert offsets(alone)[0] == 0
            kept, first = read.read(("t", 1, 0), ("t", 0, 0))
            assert offsets(kept)[0] == 0
            assert first.error_code is NONE


def test_a_client_at_the_end_of_a_topic_that_only_the_archive_has_waits() -> None:
    with leaders(1, {0: 1}) as cluster:
        cluster.unknown = {"orders": ErrorCode.unknown_topic_or_partition}
        with both(archived(0, 20, topic="orders"), cluster) as read:
            assert not read.live.watch.is_gone("orders")
            wait_until(lambda: "orders" in read.live.watch._unknown_since, 20, "the question")
            read.live.watch._unknown_since["orders"] -= 60
            read.live.watch.renew(wait=20)
            wait_until(lambda: read.live.watch.is_gone("orders"), 20, "the answer")
            request = build_request(ApiKey.FETCH, 11, **fetch_of("orders", 20, max_wait=500))
            answer = read.parts.fetcher.fetch(request, 11, may_wait=False)
            assert answer.awaited is not None
            assert not read.parts.catalog.is_changed(answer.awaited), "it would ask without end"
            answer.release()
            (data,) = read.read(("orders", 0, 21))
            assert data.error_code is ErrorCode.unknown_topic_or_partition, "no reset"


def test_live_records_do_not_wait_for_the_store() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=30)
        with both(archived(0, 20, 40, 60), cluster, STORE) as read:
            assert offsets(*read.read(("t", 0, 0)))[0] == 0
            read.live.note_store_failure("t")
            before = _requests(read)
            assert offsets(*read.read(("t", 0, 40)))[0] == 40
            assert _requests(read) == before + 1, "the leader is asked"


def test_offsets_stay_known_beside_kept_records_when_the_leader_has_just_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 20)
        with both(archived(0, 5), cluster) as read:
            (before,) = read.read(("t", 0, 10))
            known = iter([read.live.reads.bounds(TopicPartition("t", 0), 60.0), None])
            monkeypatch.setattr(read.live.reads, "bounds", lambda *_: next(known))
            (data,) = read.read(("t", 0, 10))
            assert offsets(data) == offsets(before)
            assert (data.high_watermark, data.last_stable_offset) == (20, 20)
            assert data.log_start_offset == 0


def test_answers_are_counted_by_side_with_the_changes_of_a_client() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=30)
        with both(archived(0, 20, 40, 60), cluster) as read:
            progress = Progress()
            for offset in (0, 20, 40, 60, 60, 0, 99, 100):
                request = build_request(ApiKey.FETCH, 11, **fetch_of("t", offset))
                read.parts.fetcher.fetch(request, 11, progress=progress).release()
            read.read(("t", 0, 0))  # another client

            def counted(name: str, **labels: str) -> float | None:
                return read.registry.get_sample_value(f"sidetier_endpoint_live_{name}", labels)

            assert counted("answers_total", side="archive") == 4
            assert counted("answers_total", side="broker") == 4
            assert counted("side_changes_total") == 3
            status: Any = read.live.status()
            for name in ("record_bytes", "fetched_bytes"):
                assert status[name] == counted(f"{name}_total")
                assert status[name] > 0
            (row,) = status["followed"]  # one client waits at the end
            assert (row["topic"], row["partition"], row["leader"]) == ("t", 0, 1)
            assert (row["position"], row["end"], row["lag_records"]) == (100, 100, 0)
            assert row["isolation_level"] == "read_uncommitted"


def test_the_status_names_what_cannot_be_reached() -> None:
    with leaders(2, {0: 1, 1: 2}) as cluster:
        written(cluster, 100, start=30)
        made = archived(0, 20, 40, 60)
        with both(made, cluster, timeout=0.3) as read:
            read.read(("t", 0, 0), ("t", 1, 0))
            status: Any = read.live.status()
            assert [broker["problem"] for broker in status["brokers"]] == [None, None]
            assert [broker["id"] for broker in status["brokers"]] == [1, 2]
            assert (status["cluster_id"], status["problem"], status["topics"]) == (
                "cluster",
                None,
                1,
            )
            assert status["topics_age_seconds"] < 30
            assert [broker["led_partitions"] for broker in status["brokers"]] == [1, 1]
            assert status["leaderless_partitions"] == 0
            cluster.hanging[2] = threading.Event()
            read.live.reads.forget([TopicPartition("t", 1)])
            read.read(("t", 1, 0))
            status = read.live.status()
            one, other = status["brokers"]
            assert one["problem"] is None
            assert "does not answer" in other["problem"] or "timed out" in other["problem"]
            (store,) = read.parts.catalog.status()
            assert store["problem"] is None
            assert isinstance(made.store, FakeStorage)
            made.store.fail("list", StoreUnavailableError("away"), times=None)
            wait_until(lambda: read.parts.catalog.status()[0]["problem"] == "away", 20, "a listing")


def test_what_another_endpoint_may_have_shown_the_client_is_looked_for() -> None:
    """A partition that was added, and the id of the cluster before a broker has answered."""
    with leaders(1, {0: 1}) as cluster, both(archived(0, 5), cluster) as read:
        (row,) = metadata(read).topics[0].partitions
        assert row.partition_index == 0
        cluster.led_by[1], cluster.logs[1] = 1, TransactionalLog()
        cluster.write(1, 5)
        (data,) = read.read(("t", 1, 0))
        assert offsets(data) == list(range(5))
        assert len(metadata(read).topics[0].partitions) == 2
        assert metadata(read).cluster_id == "cluster"
        read.live.watch.latest = replace(read.live.topics, cluster_id=None)
        assert metadata(read).cluster_id == LAYOUT.cluster, "not the answer that was remembered"
        read.live.expect_cluster("of the archive")
        assert metadata(read).cluster_id == "of the archive"


def metadata(read: Both) -> Any:  # noqa: ANN401 - kio's
    """Return the answer to a Metadata request for all topics."""
    return ask(
        read.parts.handlers,
        ApiKey.METADATA,
        12,
        topics=None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def _requests(read: Both) -> int:
    return len(read.cluster.asked(ApiKey.FETCH))
