"""High watermarks from real brokers, by a client that lives as long as the sidecar."""

import pytest

from sidetier.leadership.cluster import KafkaHighWatermarks
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import TopicPartition
from tests.harness.clusters import KraftFactory
from tests.harness.records import seeded_records
from tests.harness.topics import add_partitions, create_topic, move_leader, produce
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.integration


def test_new_leader_is_queried_soon_and_an_old_one_in_its_new_epoch(
    kraft_cluster: KraftFactory, topic: str
) -> None:
    """Without help, librdkafka queries the old leader or the old leader epoch for five minutes, and
    no leader for a partition that had none when it was asked for first.
    """
    cluster = kraft_cluster(brokers=2, controllers=1)
    bootstrap, tp = cluster.bootstrap_servers, TopicPartition(topic, 0)
    create_topic(bootstrap, topic, assignment=[[1, 2]])
    produce(bootstrap, topic, seeded_records(1, 10))
    source = KafkaHighWatermarks(bootstrap, {})

    def high_watermark(of: TopicPartition = tp) -> int | None:
        try:
            return source.high_watermarks([of])[of].offset
        except LeadershipUnavailableError:
            return None

    try:
        wait_until(lambda: high_watermark() == 10, 30, "the first answer")
        move_leader(bootstrap, topic, 0, 2)
        wait_until(lambda: high_watermark() == 10, 30, "the new leader's answer")
        move_leader(bootstrap, topic, 0, 1)
        move_leader(bootstrap, topic, 0, 2)
        wait_until(lambda: high_watermark() == 10, 30, "the answer in the new leader epoch")
        added, unknown = TopicPartition(topic, 1), TopicPartition(f"{topic}-later", 0)
        for later in (added, unknown):
            with pytest.raises(LeadershipUnavailableError, match="No leaders found"):
                source.high_watermarks([later])
        add_partitions(bootstrap, topic, 2)
        create_topic(bootstrap, unknown.topic)
        for later in (added, unknown):
            wait_until(lambda: high_watermark(later) == 0, 30, f"{later}, which has a leader now")  # noqa: B023
        assert source.high_watermarks([tp, added, unknown]).keys() == {tp, added, unknown}
    finally:
        source.close()
