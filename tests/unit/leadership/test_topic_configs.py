"""Interpretation of a broker's answers about topic configurations, with a fake admin client."""

from collections.abc import Mapping
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigEntry, ConfigResource

from sidetier.leadership import cluster
from sidetier.leadership.cluster import KafkaTopicConfigs
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import LeadershipUnavailableError

Answer = Mapping[str, str] | int
"""Settings by name, or the code of a KafkaError."""


class Client:
    """Return the prepared answer for each topic."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers

    def describe_configs(
        self, resources: list[ConfigResource], **_: float
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        return {resource: _future(self.answers[resource.name]) for resource in resources}

    def reason(self, error: KafkaException) -> str:
        return str(error)


def _future(answer: Answer) -> Future[dict[str, ConfigEntry]]:
    future: Future[dict[str, ConfigEntry]] = Future()
    if isinstance(answer, int):
        future.set_exception(KafkaException(KafkaError(answer)))
    else:
        future.set_result({name: ConfigEntry(name, value) for name, value in answer.items()})
    return future


def ask(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, Answer]
) -> Mapping[str, TopicConfig | None]:
    monkeypatch.setattr(cluster, "admin_client", lambda *_: Client(answers))
    return KafkaTopicConfigs("broker:9092", {}).topic_configs(answers)


SOUND = {"cleanup.policy": "compact,delete", "retention.ms": "60000", "file.delete.delay.ms": "5"}


def test_answer_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, {"a": SOUND})["a"]
    assert found is not None
    assert (found.compacted, found.retention, found.delete_delay) == (True, 60.0, 0.005)


@pytest.mark.parametrize(
    ("policy", "size", "expected"),
    [
        ("delete", "1000", (60.0, 1000)),
        ("delete", "-1", (60.0, None)),
        ("compact,delete", "1000", (60.0, 1000)),
        ("compact", "1000", (float("inf"), None)),
    ],
)
def test_retention_counts_for_topics_with_policy_delete(
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    size: str,
    expected: tuple[float | None, int | None],
) -> None:
    settings = {**SOUND, "cleanup.policy": policy, "retention.bytes": size}
    found = ask(monkeypatch, {"a": settings})["a"]
    assert found is not None
    assert (found.retention, found.retention_bytes) == expected


def test_topic_unknown_to_the_broker_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have just been created; missing knowledge must not allow a topic."""
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    assert ask(monkeypatch, {"a": unknown}) == {}
    assert ask(monkeypatch, {"a": unknown, "b": SOUND}).keys() == {"b"}


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED]
)
def test_refusal_is_an_answer(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    found = ask(monkeypatch, {"a": code, "b": SOUND})
    assert found["a"] is None
    assert found["b"] is not None


def test_one_failing_topic_does_not_prevent_answers_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ask(monkeypatch, {"a": KafkaError.REQUEST_TIMED_OUT, "b": SOUND, "c": SOUND})
    assert found.keys() == {"b", "c"}


def test_error_without_any_answer_names_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeadershipUnavailableError, match="broker:9092"):
        ask(monkeypatch, {"a": KafkaError.REQUEST_TIMED_OUT, "b": KafkaError.REQUEST_TIMED_OUT})
