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
        KafkaError._DESTROY_BROKER,  # a broker's address has changed during a request
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,  # the request waited for a connection until it expired
    ],
)
def test_errors_that_pass_by_themselves_are_transient(code: int) -> None:
    assert is_transient(KafkaError(code))


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION]
)
def test_errors_that_need_an_operator_are_permanent(code: int) -> None:
    assert not is_transient(KafkaError(code))
