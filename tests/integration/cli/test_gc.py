"""`sidetier gc` beside a real broker and on a real S3 server."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from devtools.sandbox.kafka import KraftCluster
from sidetier.mirror.topics.rules import Lineage, MirrorNames
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, commit_offsets
from sidetier.wire.settings import ClientSettings
from tests.harness.archive_check import ArchiveReader
from tests.harness.archive_objects import s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import small_segments
from tests.harness.s3 import S3Bucket
from tests.harness.sidecar import beside, merged
from tests.harness.topics import create_topic, delete_topic
from tests.integration.cli.test_backfill import sidetier
from tests.integration.mirror.test_cluster_state import commit

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def rule(topic: str, **keep_for: Any) -> dict[str, Any]:  # noqa: ANN401 - settings
    return {"retention": {"store": [{"topics": [topic], "age": "1ms", "keep_for": keep_for}]}}


def test_gc_keeps_what_groups_and_mirrors_need_and_deletes_the_rest_in_batches(
    kraft43: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    bootstrap = kraft43.bootstrap_servers
    create_topic(bootstrap, topic, configs=small_segments())
    ledger, store = Ledger(), s3_store(s3_bucket)
    ledger.produce(bootstrap, topic, 200)
    base = merged(beside(kraft43, store), {"storage": {"s3": {"class_tag": True}}})
    assert sidetier(tmp_path, base, store, "backfill", "--topic", topic)["code"] == 0
    reader = ArchiveReader(store.objects)
    [before] = [view for (name, _), view in reader.views().items() if name == topic]
    check_tags(s3_bucket)

    group, mirror = f"group-{topic}", f"mirror-{topic}"
    target = tmp_path / "target.properties"
    target.write_text(f"bootstrap.servers={bootstrap}\n")
    mirrors = [{"name": mirror, "target_config": str(target)}]
    settings = merged(base, rule(topic, groups=[group], mirrors=mirrors))
    blocked = sidetier(tmp_path, settings, store, "gc", "--yes")
    assert blocked["code"] == 3
    assert (
        f"consumer group {group}: its progress in {topic}-0 is unknown"
        in (blocked["partitions"][0]["reason"])
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    third, fifth = before.logs()[2], before.logs()[4]
    commit(admin, group, KafkaPartition(topic, 0, fifth))
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": bootstrap})) as cluster:
        source_id = cluster.metadata((topic,)).topics[topic].topic_id
        noted = Lineage(topic, ("source",), source_id=str(source_id)).encoded()
        progress = {TopicPartition(topic, 0): CommittedOffset(Offset(third), metadata=noted)}
        commit_offsets(cluster, MirrorNames(mirror).group, progress)

    done = sidetier(tmp_path, settings, store, "gc", "--yes")
    [row] = done["partitions"]
    assert (row["new_start_offset"], row["segments"]) == (third, 2), row
    assert row["reason"] == f"mirror {mirror} still needs offset {third}"
    [after] = [view for (name, _), view in reader.views().items() if name == topic]
    assert after.logs() == before.logs()[2:]
    assert not list(reader.problems(after))
    assert reader.records(after) == {
        offset: record
        for offset, record in ledger.records[topic, 0].items()
        if third <= offset < after.mark.next
    }

    # The group's new offset is of a topic of which nothing is archived.
    delete_topic(bootstrap, topic)
    create_topic(bootstrap, topic)
    commit(admin, group, KafkaPartition(topic, 0, before.mark.next))
    settings = merged(base, rule(topic, groups=[group]))
    recreated = sidetier(tmp_path, settings, store, "gc", "--yes")
    assert recreated["code"] == 3, recreated
    reason = recreated["partitions"][0]["reason"]
    assert "its offset is of another topic of the same name" in reason
    left = sidetier(tmp_path, base, store, "retire", topic, "--dry-run")
    assert [row["left"] for row in left["partitions"]] == [None]
    [kept] = [view for (name, _), view in reader.views().items() if name == topic]
    assert kept.logs() == after.logs()

    alone = sidetier(tmp_path, merged(base, rule(topic)), store, "gc", "--yes")
    assert alone["partitions"][0]["new_start_offset"] == before.mark.base
    [last] = [view for (name, _), view in reader.views().items() if name == topic]
    assert last.logs() == [before.mark.base]
    assert last.mark == before.mark


def check_tags(bucket: S3Bucket) -> None:
    """Each object has the tag of its class."""
    for row in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]:
        tags = bucket.client.get_object_tagging(Bucket=bucket.name, Key=row["Key"])["TagSet"]
        is_segment = row["Key"].endswith((".log", ".index", ".timeindex", ".snapshot"))
        expected = "segment" if is_segment else "metadata"
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"sidetier-class": expected}, row


def test_unfinished_uploads_of_the_cluster_are_aborted(
    kraft43: KraftCluster, tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    store = s3_store(s3_bucket)
    settings = beside(kraft43, store)
    cluster = settings["cluster"]["name"]
    prefix = settings["storage"]["url"].removeprefix(f"s3://{s3_bucket.name}").strip("/")
    root = f"{prefix}/" if prefix else ""
    bits = "" if settings["storage"].get("prefix_entropy_bits", 5) <= 0 else "10101/"
    ours, other = f"{root}{bits}{cluster}/t-0/{0:020d}.log", f"{root}{bits}other/t-0/{0:020d}.log"
    for key in (ours, other):
        s3_bucket.client.create_multipart_upload(Bucket=s3_bucket.name, Key=key)
    young = sidetier(tmp_path, settings, store, "gc", "--multipart-uploads", "--yes")
    assert [upload["aborted"] for upload in young["uploads"]] == [False]
    line = ("gc", "--multipart-uploads", "--yes", "--older-than", "0s")
    assert [upload["aborted"] for upload in sidetier(tmp_path, settings, store, *line)["uploads"]]
    left = s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name).get("Uploads", [])
    assert [upload["Key"] for upload in left] == [other]
