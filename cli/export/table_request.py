"""Options of one export to a table of any format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sidetier.cli.export.kafka_options import java_kafka_properties
from sidetier.cli.export.request import registry_config, require_one_subject, schema_options
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.files.options import AS_BYTES, ValueOptions
from sidetier.pipeline.export.files.values.registry import RegistryConfig
from sidetier.pipeline.export.tables.run import Terms
from sidetier.pipeline.planning.offsets_json import parse_numbers
from sidetier.pipeline.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    Edge,
    Limit,
    ReadRequest,
    Topics,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel

_EDGES: Final = {edge.value: edge for edge in Edge}


@dataclass(frozen=True, slots=True)
class TableRequest:
    """One call.

    Attributes:
        read: Records to read of the exported partitions.
        terms: Isolation, commit size, timeouts and other settings of a run.
        values, flat, null_values: How values become columns.
        keys: How keys become a column.
        registry: How to reach the schema registry.
        dead_letters: URL for records whose value does not fit the schema.
        follow: Seconds between runs; None for one run.
        tail: What to do about records that only the brokers have.
        kafka: Properties of Kafka's Java client, with which Spark reads the tail.
        patience: Maximum wait for the tail, in seconds.
        spark_conf: Settings of the Spark session.
        max_batch_bytes: Maximum decompressed size of one stored batch.
    """

    topics: tuple[str, ...]
    read: ReadRequest
    terms: Terms
    values: ValueOptions
    keys: ValueOptions = AS_BYTES
    registry: RegistryConfig | None = None
    flat: bool = False
    null_values: Literal["keep", "skip"] = "keep"
    dead_letters: str | None = None
    follow: float | None = None
    tail: str = "stop"
    bootstrap: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience: float = 3600.0
    dry_run: bool = False
    master: str = "local[*]"
    spark_conf: Mapping[str, str] | None = None
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    metrics_file: Path | None = None

    @property
    def follows_registry(self) -> bool:
        """Whether keys or values have the newest schema of a registry's subject."""
        return any(options.subject is not None for options in (self.values, self.keys))


def table_request(
    topics: tuple[str, ...], given: Mapping[str, Any], terms: Terms, interval: float
) -> TableRequest:
    """Return the request; `terms` and `interval` are the defaults of the table's format.

    Raises:
        ConfigurationError: Options contradict one another, or one is invalid.
    """
    require_one_subject(topics, given)
    isolation = IsolationLevel(given["isolation"])
    starting = given["starting_offsets"]
    return TableRequest(
        topics=tuple(dict.fromkeys(topics)),
        read=ReadRequest(
            Topics(tuple(dict.fromkeys(topics))),
            starting=_limit(starting or "earliest", "--starting-offsets"),
            ending=_limit(given["ending_offsets"] or "latest", "--ending-offsets"),
            isolation=isolation,
            fail_on_data_loss=given["on_data_loss"] == "error",
            include_headers=True,
        ),
        terms=Terms(
            isolation=isolation,
            most_offsets=given["chunk"],
            most_bytes=given["chunk_bytes"],
            timeout=given["timeout"] or terms.timeout,
            allow_empty=terms.allow_empty,
            anew=starting is not None,
            reread=given["on_truncation"] == "reread",
            whole_state_every=given["whole_state_every"] or terms.whole_state_every,
            transaction_timeout_ms=round(given["transaction_timeout"] * 1000),
        ),
        values=schema_options("value", topics[0], given),
        keys=schema_options("key", topics[0], given),
        registry=registry_config(given),
        flat=given["flat"],
        null_values=given["null_values"],
        dead_letters=given["dead_letters"],
        follow=(given["interval"] or interval) if given["follow"] else None,
        tail=given["tail"],
        bootstrap=given["bootstrap"],
        kafka=java_kafka_properties(given),
        patience=given["tail_timeout"],
        dry_run=given["dry_run"],
        metrics_file=given["metrics_file"],
        master=given["master"],
        spark_conf=given["spark_conf"],
        max_batch_bytes=given["max_batch_bytes"],
    )


def _limit(text: str, option: str) -> Limit:
    if text in _EDGES:
        return _EDGES[text]
    offsets = parse_numbers(text, option)
    if min(offsets.values(), default=0) < min(EARLIEST_OFFSET, LATEST_OFFSET):
        raise ConfigurationError(f"{option}: an offset is below {EARLIEST_OFFSET}")
    return AtOffsets(offsets)
