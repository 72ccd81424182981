"""Leadership moves between brokers that each have a sidecar: no record is lost, and no truncated
record is in the archive.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from tests.harness.archive_check import ArchiveReader, ArchiveWatch, compare, wait_until_stored
from tests.harness.archive_objects import ArchiveStore, file_store, s3_store
from tests.harness.consumed import consume_all
from tests.harness.ledger import Ledger, Load
from tests.harness.local_segments import closed_end, log_bases, small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy, always, answer
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, leader_of
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def sidecars(
    cluster: KraftCluster, store: ArchiveStore, topic: str, directory: Path
) -> Iterator[Mapping[int, Sidecar]]:
    """One sidecar beside each broker; all must end without an error."""
    with ExitStack() as stack:
        running = {
            broker_id: stack.enter_context(
                Sidecar(
                    directory / f"sidecar-{broker_id}",
                    merged(
                        beside(cluster, store, broker_id=broker_id, topics=[topic]),
                        {"storage": {"retry": {"max_elapsed": "2s"}}},
                    ),
                    store,
                )
            )
            for broker_id in cluster.broker_ids
        }
        for sidecar in running.values():
            sidecar.wait_until_ready()
        yield running
        for broker_id, sidecar in running.items():
            assert sidecar.process.running, f"the sidecar of broker {broker_id} has ended"
            assert sidecar.seen("gap.recorded") == []
            assert sidecar.stop() == 0


def unstored(sidecar: Sidecar, topic: str) -> int:
    """Number of closed segments that this sidecar has not stored."""
    return sum(row["unstored_segments"] for row in sidecar.partitions(topic))


def wait_for_unstored(sidecar: Sidecar, topic: str, count: int) -> None:
    wait_until(lambda: unstored(sidecar, topic) >= count, 30, f"{count} unstored segments")


def wait_for_reason(sidecar: Sidecar, topic: str, reason: str) -> None:
    """Wait until the status page gives this reason for the oldest waiting segment."""

    def said() -> bool:
        row = sidecar.partition(topic)
        return row is not None and reason in (row["waiting_for"] or "")

    wait_until(said, 30, f"{topic} to wait for {reason}")


def directory_of(cluster: KraftCluster, broker_id: int, topic: str, partition: int = 0) -> Path:
    return cluster.log_dirs(broker_id)[0] / f"{topic}-{partition}"


def test_uncommitted_segments_wait_and_truncated_ones_are_not_stored(
    pair: KraftCluster, topic: str, tmp_path: Path
) -> None:
    """With a stopped follower and acks=1 the leader closes segments that no other broker has; then
    it dies.
    """
    cluster, (old, new) = pair, pair.broker_ids
    create_topic(
        cluster.bootstrap_servers,
        topic,
        assignment=[[old, new]],
        configs=small_segments(min_insync_replicas=1, unclean_leader_election_enable="true"),
    )
    store = file_store(tmp_path / "store")
    ledger, thrown_away = Ledger(), Ledger(seed=12)
    wait_until(lambda: leader_of(cluster.bootstrap_servers, topic, 0) == old, 30, "the leader")
    with sidecars(cluster, store, topic, tmp_path) as running, ArchiveWatch(store.objects):
        ledger.produce(cluster.bootstrap_of(old), topic, 110, settings={"acks": "all"})
        committed = closed_end(directory_of(cluster, old, topic))
        wait_until_stored(store.objects, topic, 0, committed)
        cluster.pause_broker(new)
        thrown_away.produce(cluster.bootstrap_of(old), topic, 200, settings={"acks": 1})
        wait_for_unstored(running[old], topic, 5)
        wait_for_reason(running[old], topic, "high watermark")
        cluster.kill_broker(old)
        cluster.resume_broker(new)
        wait_until(
            lambda: leader_of(cluster.bootstrap_of(new), topic, 0) == new,
            60,
            "the follower to lead",
        )
        cluster.start_broker(old)
        ledger.produce(cluster.bootstrap_servers, topic, 300, settings={"acks": "all"})
        leader = leader_of(cluster.bootstrap_servers, topic, 0)
        assert leader is not None
        end = log_bases(directory_of(cluster, leader, topic))[-2]
        wait_until_stored(store.objects, topic, 0, end, 60)
    truth = consume_all(cluster.bootstrap_servers, topic)
    assert compare(store.objects, {(topic, 0): truth}) >= 300
    view = ArchiveReader(store.objects).views()[topic, 0]
    stored = set(ArchiveReader(store.objects).records(view).values())
    lost = set(thrown_away.records[topic, 0].values()) - set(truth.values())
    assert len(lost) >= 150, "the cluster was to throw records away"
    assert not stored & lost
    assert stored >= {r for o, r in ledger.records[topic, 0].items() if o < 100}


def test_rolling_restart_with_unstored_segments_loses_nothing(
    pair: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    """The store refuses requests at each stop: every leader hands over closed, unstored
    segments.
    """
    cluster, partitions = pair, range(2)
    create_topic(
        cluster.bootstrap_servers,
        topic,
        assignment=[[1, 2], [2, 1]],
        configs=small_segments(min_insync_replicas=1),
    )
    ledger = Ledger()
    with S3Proxy(s3_bucket.server.port) as proxy:
        store = s3_store(s3_bucket, proxy.url)
        with sidecars(cluster, store, topic, tmp_path) as running, ArchiveWatch(store.objects):
            ledger.produce(cluster.bootstrap_servers, topic, 100, partitions=partitions)
            for partition in partitions:
                wait_until_stored(store.objects, topic, partition, 60)
            with Load(ledger, cluster.bootstrap_servers, topic, partitions, rate=60):
                for broker_id in cluster.broker_ids:
                    proxy.misbehave(always(answer(503, "SlowDown")))
                    wait_for_unstored(running[broker_id], topic, 2)
                    cluster.stop_broker(broker_id)
                    proxy.heal()
                    cluster.start_broker(broker_id)
            ends = [
                min(closed_end(directory_of(cluster, b, topic, p)) for b in cluster.broker_ids)
                for p in partitions
            ]
            for partition, end in zip(partitions, ends, strict=True):
                wait_until_stored(store.objects, topic, partition, end, 60)
    assert not ledger.failures
    assert compare(store.objects, ledger.records) >= sum(ends)
