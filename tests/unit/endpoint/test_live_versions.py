"""One log in front of each release of Kafka: fake brokers that know its versions of requests."""

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.brokers.kafka import KAFKA_2_8, KAFKA_4_3
from sidetier.segments.offsets import BrokerId
from sidetier.wire.protocol import ApiKey, known_versions
from tests.harness.endpoint import ask, fetch_of
from tests.harness.fake_leaders import TOPIC_ID, leaders
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
from tests.harness.kafka_versions import VERSIONS, Versions

NONE = ErrorCode.none
FIRST_WITH_MAX_TIMESTAMP, FIRST_WITH_HINT = 7, 16
"""Versions of ListOffsets and of Fetch."""
RELEASES = pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS.keys())


def newest(api: ApiKey, versions: Versions) -> int:
    return min(versions[api][1], known_versions(api)[1])


def listed(read: Both, timestamp: int) -> Any:  # noqa: ANN401 - kio's
    partition = {"partition_index": 0, "timestamp": timestamp}
    topics = [{"name": "t", "partitions": [partition]}]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    answer = ask(read.parts.handlers, ApiKey.LIST_OFFSETS, 9, **fields)
    return answer.topics[0].partitions[0]


@RELEASES
def test_each_request_has_the_newest_version_that_both_sides_know(versions: Versions) -> None:
    with leaders(1, {0: 1}, versions) as cluster:
        written(cluster, 100, start=30)
        for window in (STORE, BROKER):
            with both(archived(0, 20, 40, 60), cluster, window) as read:
                assert read_all(read, 100) == list(range(100))
                end = read.parts.offsets.epoch_end("t", 0, 5)
                assert (end.error, end.end_offset) == (NONE, 100)
        for api in versions:
            sent = {each.version for each in cluster.asked(api)}
            assert sent == {newest(api, versions)}, api.title


@RELEASES
def test_the_next_leader_is_found_with_and_without_a_hint(versions: Versions) -> None:
    """Brokers before 3.7 do not name it, so the endpoint asks for Metadata."""
    with leaders(2, {0: 1}, versions) as cluster:
        written(cluster, 100, start=30)
        with both(archived(0, 20, 40, 60), cluster) as read:
            assert read.parts.fetch(**fetch_of("t", 90)).responses[0].partitions[0].records
            has_hint = newest(ApiKey.FETCH, versions) >= FIRST_WITH_HINT
            cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
            cluster.shown = {0: 1} if has_hint else {}
            assert offsets(*read.read(("t", 0, 70)))[0] == 70
            latest = read.live.topics
            assert latest.leader(next(latest.partitions())) == BrokerId(2)


@RELEASES
def test_special_timestamps_are_those_of_the_leader(versions: Versions) -> None:
    with leaders(1, {0: 1}, versions) as cluster:
        written(cluster, 100, start=60)
        with both(archived(0, 20, 40, 60), cluster) as read:
            assert [listed(read, time).offset for time in (-1, -2, -4, -5)] == [100, 0, 60, 59]
            is_known = newest(ApiKey.LIST_OFFSETS, versions) >= FIRST_WITH_MAX_TIMESTAMP
            error = NONE if is_known else ErrorCode.unsupported_version
            assert listed(read, -3).error_code is error, "the largest timestamp (KIP-734)"


@pytest.mark.parametrize("release", [KAFKA_2_8, KAFKA_4_3])
@pytest.mark.parametrize("topic_id", [TOPIC_ID, None], ids=["with_id", "without_id"])
def test_clients_fetch_by_id_what_leaders_give_by_name(release: str, topic_id: UUID | None) -> None:
    """Fetch has topic ids from 13 on (Kafka 3.1). Brokers with ZooKeeper give none while
    `inter.broker.protocol.version` is below 2.8: clients then get an id of the endpoint's own.
    """
    with leaders(1, {0: 1}, VERSIONS[release]) as cluster:
        cluster.topic_id = topic_id
        written(cluster, 100, start=60)
        with both(archived(0, 20, 40, 60), cluster) as read:
            fields = {"topics": None, "include_topic_authorized_operations": False}
            metadata = ask(read.parts.handlers, ApiKey.METADATA, 12, **fields)
            shown = metadata.topics[0].topic_id
            assert shown == (topic_id or shown)
            partition = {"partition": 0, "partition_max_bytes": 1 << 20}
            for offset in (0, 60):
                asked = fetch_of("t", offset)
                partitions = [{**partition, "fetch_offset": offset}]
                asked["topics"] = [{"topic_id": shown, "partitions": partitions}]
                answer = read.parts.fetch(13, **asked).responses[0]
                assert answer.topic_id == shown
                assert offsets(answer.partitions[0])[0] == offset
            named = newest(ApiKey.FETCH, VERSIONS[release]) if topic_id else 12
            assert {each.version for each in cluster.asked(ApiKey.FETCH)} == {named}


def test_a_time_is_searched_below_the_live_log_start_in_the_archive_and_then_at_the_leader() -> (
    None
):
    """The archive may begin later than the live log, or have a gap: records of format v1 are not
    archived.
    """
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 100, start=0)
        with both(archived(40, 60, 80), cluster) as read:
            first = listed(read, 0)
            assert first.offset == -1, "nothing in either"
            cluster.times = 20
            assert listed(read, 1).offset == 20
            cluster.starts[0] = 50
            assert listed(read, 1).offset == 40, "below the live log start"


def test_the_error_of_a_leader_whose_records_have_no_timestamps_is_passed_on() -> None:
    """Clients would repeat any other one for ever. Format v0 has no timestamps."""
    with leaders(1, {0: 1}) as cluster:
        cluster.times = ErrorCode.unsupported_for_message_format
        with both(archived(40, 60), cluster) as read:
            assert listed(read, 1).error_code is ErrorCode.unsupported_for_message_format
