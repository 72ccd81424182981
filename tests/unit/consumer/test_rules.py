import pytest
from confluent_kafka import KafkaError

from sidetier.consumer.errors import is_transient


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,  # a broker restarts, and the client knows its old epoch
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._DESTROY_BROKER,  # a broker's address has changed under a question
        KafkaError._TRANSPORT,
    ],
)
def test_what_a_leader_change_answers_passes(code: int) -> None:
    assert is_transient(KafkaError(code))


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION]
)
def test_what_stays_until_somebody_acts_does_not(code: int) -> None:
    assert not is_transient(KafkaError(code))
