"""Deletion of records: the broker has to confirm its lead first; with a fake cluster client."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.leadership.kraft.image import print_uuid
from sidetier.leadership.port import RecordDeletion
from sidetier.leadership.record_deletion import KafkaRecordDeleter
from sidetier.segments.errors import KafkaApiError, LeadershipError, UnsupportedVersionError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire import cluster
from sidetier.wire.cluster import (
    DEFAULT_TIMEOUT,
    Broker,
    Cluster,
    ClusterMetadata,
    Route,
    TopicMetadata,
)
from sidetier.wire.protocol import ApiKey, build_request, build_response, encode

TP = TopicPartition("t", 3)
OTHER = TopicPartition("t", 4)
TOPIC_ID = print_uuid(UUID(int=5).bytes)
WANTED = {
    TP: RecordDeletion(Offset(40), LeaderEpoch(7), TOPIC_ID),
    OTHER: RecordDeletion(Offset(50), LeaderEpoch(8), TOPIC_ID),
}


class Answering(Cluster):
    """Answers ListOffsets and DeleteRecords with these error codes and offsets."""

    errors: dict[tuple[ApiKey, int], ErrorCode]
    high_watermark: int
    version: int
    sent: list[tuple[ApiKey, Any]]
    cluster_id: str | None
    topic_id: UUID | None

    def metadata(
        self, topics: Collection[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> ClusterMetadata:
        del timeout
        described = {
            name: TopicMetadata(name, self.topic_id, is_internal=False, partitions={})
            for name in topics or ()
        }
        return ClusterMetadata(self.cluster_id, BrokerId(1), {}, described, {})

    def request_once(
        self,
        route: Route,
        api: ApiKey,
        /,
        *,
        tolerate: Collection[ErrorCode] = (),
        **values: object,
    ) -> Any:  # noqa: ANN401 - of the real one
        assert route == Broker(BrokerId(1)), "only the own broker is asked"
        version = {ApiKey.LIST_OFFSETS: self.version, ApiKey.DELETE_RECORDS: 2}[api]
        request: Any = build_request(api, version, **values)
        encode(request)
        self.sent.append((api, request))
        topics = [
            {
                "name": topic.name,
                "partitions": [self._answer(api, p.partition_index) for p in topic.partitions],
            }
            for topic in request.topics
        ]
        errors = {answer["error_code"] for topic in topics for answer in topic["partitions"]}
        assert errors <= {ErrorCode.none, *tolerate}
        return build_response(api, version, throttle_time=0, topics=topics)

    def _answer(self, api: ApiKey, number: int) -> dict[str, Any]:
        error = self.errors.get((api, number), ErrorCode.none)
        fields: dict[str, Any] = {"partition_index": number, "error_code": error}
        if api is ApiKey.DELETE_RECORDS:
            return {**fields, "low_watermark": 60}
        return {**fields, "offset": self.high_watermark, "timestamp": None, "leader_epoch": 7}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> type[Answering]:
    monkeypatch.setattr(cluster, "Cluster", Answering)
    Answering.errors, Answering.high_watermark = {}, 100
    Answering.version, Answering.sent = 7, []
    Answering.cluster_id, Answering.topic_id = "K", UUID(int=5)
    return Answering


def deleter() -> KafkaRecordDeleter:
    return KafkaRecordDeleter("broker:9092", {}, BrokerId(1), "K")


@pytest.mark.parametrize(
    ("cluster_id", "topic_id"),
    [("another", UUID(int=5)), (None, UUID(int=5)), ("K", UUID(int=6)), ("K", None)],
)
def test_nothing_is_deleted_of_another_cluster_or_topic(
    answering: type[Answering], cluster_id: str | None, topic_id: UUID | None
) -> None:
    """It may have a broker of the same id that leads a topic of the same name."""
    answering.cluster_id, answering.topic_id = cluster_id, topic_id
    answers = deleter().delete_records(WANTED)
    assert all(isinstance(answer, LeadershipError) for answer in answers.values())
    assert answers.keys() == WANTED.keys()
    assert not answering.sent


def test_nothing_is_deleted_if_neither_the_brokers_nor_the_log_have_a_topic_id(
    answering: type[Answering],
) -> None:
    """Two missing ids are not equal ids."""
    answering.topic_id = None
    wanted = {TP: RecordDeletion(Offset(40), LeaderEpoch(7), None)}
    assert isinstance(deleter().delete_records(wanted)[TP], LeadershipError)
    assert not answering.sent


def test_lead_is_confirmed_before_records_are_deleted(answering: type[Answering]) -> None:
    assert deleter().delete_records(WANTED) == {TP: 60, OTHER: 60}
    (first, offsets), (second, records) = answering.sent
    assert (first, second) == (ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS)
    epochs = {p.partition_index: p.current_leader_epoch for p in offsets.topics[0].partitions}
    assert epochs == {3: 7, 4: 8}
    assert {p.partition_index: p.offset for p in records.topics[0].partitions} == {3: 40, 4: 50}


@pytest.mark.parametrize("error", [ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower])
def test_partition_of_another_leader_is_left_out(
    answering: type[Answering], error: ErrorCode
) -> None:
    answering.errors = {(ApiKey.LIST_OFFSETS, 3): error}
    answers = deleter().delete_records(WANTED)
    assert isinstance(answers[TP], KafkaApiError)
    assert answers[OTHER] == 60
    [_, (_, records)] = answering.sent
    assert [p.partition_index for p in records.topics[0].partitions] == [4]


def test_uncommitted_records_are_not_deleted(answering: type[Answering]) -> None:
    answering.high_watermark = 40
    answers = deleter().delete_records(WANTED)
    assert answers[TP] == 60
    assert isinstance(answers[OTHER], LeadershipError)


def test_errors_of_the_deletion_are_returned(answering: type[Answering]) -> None:
    answering.errors = {
        (ApiKey.DELETE_RECORDS, 3): ErrorCode.topic_authorization_failed,
        (ApiKey.DELETE_RECORDS, 4): ErrorCode.request_timed_out,
    }
    answers = deleter().delete_records(WANTED)
    assert "needs Delete on the topic" in str(answers[TP])
    assert answers[OTHER] == 50, "the leader has deleted them, and a follower has not yet"


def test_nothing_to_delete_needs_no_request(answering: type[Answering]) -> None:
    assert deleter().delete_records({}) == {}
    assert not answering.sent


def test_broker_without_leader_epochs_is_refused(answering: type[Answering]) -> None:
    answering.version = 3
    with pytest.raises(UnsupportedVersionError, match=r"2\.1"):
        deleter().delete_records(WANTED)
