"""Options of a read, and the settings that are sent to executors."""

import pickle
from pathlib import Path

import pytest

from sidetier.config.archive_options import PREFIX, names_of
from sidetier.pipeline.planning.options import option_names
from sidetier.pipeline.planning.request import Edge
from sidetier.pipeline.spark.settings import TaskOptions, read_settings
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel

PLACE = {"tiered.storage.url": "s3://bucket/prefix", "tiered.storage.cluster.name": "prod-a"}
SECRET = "env:ARCHIVE_SECRET"
DOCUMENT = Path(__file__).parents[4] / "docs" / "spark.md"


def test_the_names_of_options_are_case_insensitive() -> None:
    result = read_settings(
        {
            "Tiered.Storage.URL": "s3://bucket/prefix",
            "TIERED.STORAGE.CLUSTER.NAME": "prod-a",
            "tiered.storage.memory.budget": "16MiB",
            "tiered.storage.batch.records": "1000",
            "SUBSCRIBE": "orders",
            "kafka.isolation.level": "read_committed",
            "failondataloss": "false",
            "COLUMNS": "offset,key",
            "pushfilters": "true",
        }
    )
    how = result.reading()
    assert (result.place.cluster, result.place.storage.url) == ("prod-a", "s3://bucket/prefix")
    assert (how.columns, how.isolation) == (("offset", "key"), IsolationLevel.READ_COMMITTED)
    assert (how.memory_budget, how.most_records) == (16 << 20, 1000)
    assert not how.fail_on_data_loss
    assert result.push_filters


def test_tail_packs_are_read_on_request() -> None:
    options = {**PLACE, "subscribe": "orders"}
    with_tail = {**options, "tiered.storage.with.tail": "True"}
    assert not read_settings(options).with_tail
    settings = read_settings(with_tail)
    assert settings.with_tail
    assert settings.reading().with_tail
    assert read_settings(with_tail, streaming=True).with_tail
    assert not read_settings(options, streaming=True).with_tail


def test_headers_are_a_column_only_on_request() -> None:
    without = read_settings({**PLACE, "subscribe": "orders"})
    with_them = read_settings({**PLACE, "subscribe": "orders", "includeHeaders": "true"})
    assert with_them.columns == (*without.columns, "headers")


def test_a_job_that_is_sent_to_executors_has_references_but_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ARCHIVE_SECRET", "hunter2")
    keys = dict.fromkeys(
        ("tiered.storage.s3.access.key.id", "tiered.storage.s3.secret.access.key"), SECRET
    )
    result = read_settings({**PLACE, **keys, "subscribe": "orders"})
    sent = pickle.dumps(result)
    assert b"hunter2" not in sent
    assert "hunter2" not in repr(result)
    received = pickle.loads(sent)  # noqa: S301 -- made two lines before
    assert received == result
    reference = received.place.storage.s3.secret_access_key
    assert reference.resolve() == "hunter2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**PLACE, "subscribe": "a", "pushFilters": "maybe"}, "pushFilters 'maybe'"),
        ({**PLACE, "subscribe": "a", "colums": "key"}, "colums: there is no such option"),
        ({**PLACE, "subscribe": "a", "tiered.storage.mode": "KAFKA_ONLY"}, "storage.mode: there"),
        ({**PLACE, "subscribe": "a", "tiered.storage.batch.records": "0"}, "batch.records"),
        ({"subscribe": "a", "tiered.storage.url": "s3://b"}, "tiered.storage.cluster.name"),
        (
            {**PLACE, "subscribe": "a", "tiered.storage.s3.secret.access.key": "hunter2"},
            "env:NAME or file:/path",
        ),
    ],
)
def test_errors_name_the_option_and_show_no_secret(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_settings(options)
    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_stream_has_no_ending_offsets() -> None:
    given = {**PLACE, "subscribe": "orders", "endingOffsets": "latest"}
    assert read_settings(given).request.ending is Edge.LATEST
    with pytest.raises(ConfigurationError, match="endingOffsets: a stream has no end"):
        read_settings(given, streaming=True)


def test_documentation_page_names_every_option() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    ours = [name.removeprefix(PREFIX) for name in names_of(TaskOptions)]
    known = [*option_names(), "columns", "pushFilters", *ours]
    assert [name for name in known if f"`{name}`" not in text] == []
