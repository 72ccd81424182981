import pytest

from sidetier.pipeline.export.sinks.tables.hudi import (
    OPERATION,
    RECORD_KEY,
    merges_rows,
    parse_options,
    whole_state_every,
)
from sidetier.pipeline.export.sinks.tables.iceberg import IcebergOptions
from sidetier.segments.errors import ConfigurationError

LEAST = {"target.base.path": "file:///lake/orders/", "target.table.name": "orders"}


def test_minimal_options_are_accepted() -> None:
    options = parse_options(LEAST)
    assert (options.base_path, options.table) == ("file:///lake/orders", "orders")
    assert (options.interval, options.timeout, options.allow_empty) == (60, 300, True)
    assert options.write["hoodie.datasource.write.recordkey.field"] == "topic,partition,offset"
    assert options.write["hoodie.datasource.write.operation"] == "insert"
    assert options.write["hoodie.datasource.write.commitmeta.key.prefix"] == "sidetier."
    assert options.write["hoodie.clean.failed.writes.policy"] == "EAGER"


def test_options_of_the_hudi_sink_are_accepted() -> None:
    options = parse_options(
        LEAST
        | {
            "transaction.interval.ms": "1500",
            "coordinator.writestatus.timeout": "20",
            "hoodie.allow.empty.commit": "false",
            "hoodie.datasource.write.operation": "BULK_INSERT",
            "hoodie.datasource.write.table.type": "merge_on_read",
            "hoodie.datasource.write.partitionpath.field": "topic",
            "hoodie.cleaner.policy.failed.writes": "EAGER",
        }
    )
    assert (options.interval, options.timeout, options.allow_empty) == (1.5, 20, False)
    assert options.write["hoodie.datasource.write.operation"] == "bulk_insert"
    assert options.write["hoodie.datasource.write.table.type"] == "MERGE_ON_READ"
    assert options.write["hoodie.compact.inline"] == "true"
    assert options.write["hoodie.datasource.write.partitionpath.field"] == "topic"
    assert options.write["hoodie.allow.empty.commit"] == "true", "the export leaves them out"
    assert "hoodie.cleaner.policy.failed.writes" not in options.write


def test_option_names_of_the_released_sink_are_accepted() -> None:
    options = parse_options(
        LEAST
        | {
            "hoodie.kafka.commit.interval.secs": "5",
            "hoodie.kafka.coordinator.write.timeout.secs": "7",
        }
    )
    assert (options.interval, options.timeout) == (5, 7)
    assert not [name for name in options.write if name.startswith("hoodie.kafka.")]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("target.base.path", "", "target.base.path is missing"),
        ("target.table.name", " ", "target.table.name is missing"),
        ("hoodie.datasource.write.operation", "delete", "one of insert, bulk_insert, upsert"),
        ("hoodie.datasource.write.table.type", "COW", "one of COPY_ON_WRITE, MERGE_ON_READ"),
        ("transaction.interval.ms", "soon", "must be a number"),
        ("coordinator.writestatus.timeout", "0", "must be above 0"),
        ("coordinator.writestatus.timeout", "nan", "must be above 0"),
        ("hoodie.allow.empty.commit", "maybe", "true or false"),
        ("target.table", "x", "is not an option of an export into Hudi"),
        ("hoodie.kafka.control.topic", "c", "has no effect here: there is no control topic"),
        ("hoodie.kafka.allow.commit.on.errors", "true", "never leaves out a record"),
        ("hoodie.write.concurrency.mode", "OPTIMISTIC_CONCURRENCY_CONTROL", "SINGLE_WRITER"),
        ("hoodie.cleaner.policy.failed.writes", "LAZY", "an export needs EAGER"),
        ("hoodie.datasource.write.commitmeta.key.prefix", "my.", "an export needs sidetier."),
    ],
)
def test_error_names_the_wrong_option(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_options(LEAST | {name: value})


@pytest.mark.parametrize(
    "name", ["branch", "isolation-level", "snapshot-property.sidetier.offsets"]
)
def test_iceberg_option_set_by_the_export_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is set by the export itself"):
        IcebergOptions("lake.db.t", write={name: "x"})


@pytest.mark.parametrize(
    ("kept", "given", "every"), [(None, None, 10), ("6", None, 3), ("60", 30, 30), ("60", None, 10)]
)
def test_whole_state_stays_in_the_active_timeline(
    kept: str | None, given: int | None, every: int
) -> None:
    options = parse_options(LEAST | ({} if kept is None else {"hoodie.keep.min.commits": kept}))
    assert whole_state_every(options, given) == every
    with pytest.raises(ConfigurationError, match="--whole-state-every 31: may be"):
        whole_state_every(options, 31)


@pytest.mark.parametrize(
    ("given", "merges"),
    [
        ({}, False),
        ({OPERATION: "bulk_insert", RECORD_KEY: "id"}, False),
        ({OPERATION: "upsert"}, False),
        ({OPERATION: "upsert", RECORD_KEY: "id"}, True),
        ({OPERATION: "upsert", RECORD_KEY: "id, offset,partition,topic"}, False),
        ({RECORD_KEY: "id", "hoodie.combine.before.insert": "true"}, True),
        ({RECORD_KEY: "id", "hoodie.datasource.insert.dup.policy": "drop"}, True),
        ({RECORD_KEY: "id", "hoodie.merge.allow.duplicate.on.inserts": "false"}, True),
        ({RECORD_KEY: "id", "hoodie.merge.allow.duplicate.on.inserts": "true"}, False),
        ({"hoodie.datasource.write.payload.class": "org.example.Payload"}, True),
    ],
)
def test_only_tables_with_repeating_keys_may_have_fewer_rows(
    given: dict[str, str],
    merges: bool,  # noqa: FBT001
) -> None:
    options = parse_options(LEAST | given)
    assert merges_rows(options.write) is merges
