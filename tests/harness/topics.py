"""Operations on topics of a real cluster, by name; each returns once it has taken effect."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import (
    Consumer,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.harness import reassigning
from tests.harness.records import SeededRecord
from tests.harness.waiting import wait_until

TIMEOUT_SECONDS = 60.0


def admin_of(bootstrap: str) -> AdminClient:
    """Return an admin client that does not log errors about stopped brokers.

    Keep a reference while a future of it is pending: its requests end with the client.
    """
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(
    bootstrap: str,
    topic: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    assignment: Sequence[Sequence[int]] | None = None,
    configs: Mapping[str, object] | None = None,
) -> None:
    """Create a topic, and wait until every partition has a leader.

    `assignment` lists the replicas of each partition, the preferred leader first, and replaces
    `partitions` and `replicas`.
    """
    settings = {key: str(value) for key, value in (configs or {}).items()}
    if assignment is None:
        new = NewTopic(topic, partitions, replicas, config=settings)
    else:
        placed = [list(ids) for ids in assignment]
        new = NewTopic(topic, len(placed), replica_assignment=placed, config=settings)
        partitions = len(placed)
    admin = admin_of(bootstrap)
    admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)
    _wait_for_partitions(bootstrap, topic, partitions)


def alter_topic(bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
    """Set configs of a topic; other configs stay."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = admin_of(bootstrap)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_SECONDS)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic and wait until the cluster's metadata no longer shows it."""
    admin = admin_of(bootstrap)
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)
    wait_until(
        lambda: topic not in admin.list_topics(timeout=TIMEOUT_SECONDS).topics,
        TIMEOUT_SECONDS,
        f"the end of topic {topic}",
    )


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Raise the number of partitions to `total`, and wait until each has a leader."""
    admin = admin_of(bootstrap)
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(TIMEOUT_SECONDS)
    _wait_for_partitions(bootstrap, topic, total)


def leader_of(bootstrap: str, topic: str, partition: int) -> int | None:
    """Return the broker that leads the partition; None without a leader or partition."""
    described = admin_of(bootstrap).list_topics(topic, timeout=TIMEOUT_SECONDS).topics.get(topic)
    if described is None or partition not in described.partitions:
        return None
    leader = described.partitions[partition].leader
    return None if leader < 0 else leader


def move_leader(bootstrap: str, topic: str, partition: int, broker_id: int) -> None:
    """Make a replica the leader: first the preferred one, and then by a preferred election."""
    replicas = _replicas(bootstrap, topic, partition)
    other_replicas = [replica for replica in replicas if replica != broker_id]
    reassign(bootstrap, topic, partition, [broker_id, *other_replicas])
    elect_preferred_leader(bootstrap, topic, partition)
    wait_until(
        lambda: leader_of(bootstrap, topic, partition) == broker_id,
        TIMEOUT_SECONDS,
        f"broker {broker_id} to lead {topic}-{partition}",
    )


def elect_preferred_leader(bootstrap: str, topic: str, partition: int) -> None:
    """Run a preferred election. It is no error if the preferred replica leads already."""
    wanted = TopicPartition(topic, partition)
    admin = admin_of(bootstrap)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [wanted])
    result = elected.result(TIMEOUT_SECONDS)[wanted]
    error = result.args[0] if isinstance(result, KafkaException) else result
    if error is not None and error.code() != KafkaError.ELECTION_NOT_NEEDED:
        raise KafkaException(error)


def reassign(bootstrap: str, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Assign other replicas, the preferred leader first, and wait until all are in sync."""
    line = [sys.executable, "-P", reassigning.__file__, bootstrap, topic, str(partition)]
    line.append(",".join(map(str, replicas)))
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    wait_until(
        lambda: (
            _replicas(bootstrap, topic, partition) == list(replicas)
            and _in_sync(bootstrap, topic, partition) == set(replicas)
        ),
        TIMEOUT_SECONDS,
        f"{topic}-{partition} to move to {list(replicas)}",
    )


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Raise the log start offset to `before`."""
    target = TopicPartition(topic, partition, before)
    admin = admin_of(bootstrap)
    for deleted in admin.delete_records([target]).values():
        deleted.result(TIMEOUT_SECONDS)


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[SeededRecord],
    *,
    partition: int = 0,
    settings: Mapping[str, object] | None = None,
) -> int:
    """Produce the records to one partition, wait for all acknowledgements, and return their number.

    `settings` go to the producer, such as `compression.type`, `acks` or `batch.num.messages`.

    Raises:
        KafkaException: A record was not delivered.
    """
    failures: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, **(settings or {})}
    )
    count = 0
    for record in records:
        _send(producer, topic, partition, record, failures)
        count += 1
    undelivered = producer.flush(TIMEOUT_SECONDS)
    if failures:
        raise KafkaException(failures[0])
    assert undelivered == 0, f"{undelivered} of {count} records were not acknowledged"
    return count


def watermark_offsets(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """Return the log start offset and the high watermark."""
    # With read_committed, the default, librdkafka returns the last stable offset.
    isolation = {"isolation.level": "read_uncommitted", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "harness", **isolation})
    try:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=TIMEOUT_SECONDS
        )
    finally:
        consumer.close()
    return low, high


def _send(
    producer: Producer,
    topic: str,
    partition: int,
    record: SeededRecord,
    failures: list[KafkaError],
) -> None:
    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    timestamp = record.timestamp or 0  # 0 lets the producer choose
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, partition, on_delivery=note, timestamp=timestamp
            )
        except BufferError:
            producer.poll(1)
        else:
            producer.poll(0)
            return


def _wait_for_partitions(bootstrap: str, topic: str, count: int) -> None:
    def led() -> bool:
        described = admin_of(bootstrap).list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        leaders = [partition.leader for partition in described.partitions.values()]
        return len(leaders) == count and min(leaders) >= 0

    wait_until(led, TIMEOUT_SECONDS, f"{count} led partitions of {topic}")


def _replicas(bootstrap: str, topic: str, partition: int) -> list[int]:
    metadata = admin_of(bootstrap).list_topics(topic, timeout=TIMEOUT_SECONDS)
    return list(metadata.topics[topic].partitions[partition].replicas)


def _in_sync(bootstrap: str, topic: str, partition: int) -> set[int]:
    metadata = admin_of(bootstrap).list_topics(topic, timeout=TIMEOUT_SECONDS)
    return set(metadata.topics[topic].partitions[partition].isrs)
