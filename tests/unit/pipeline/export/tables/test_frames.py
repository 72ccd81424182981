"""Rows of a plan have the newest schema of the registry, from the archive and from the brokers."""

import json
from dataclasses import dataclass, field
from typing import Any

from sidetier.pipeline.export.sinks.tables.columns import ValueColumns
from sidetier.pipeline.export.sinks.tables.frames import table_frames, value_columns
from sidetier.pipeline.export.values.options import ValueFormat, ValueOptions
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.planning.split import BrokerRange, Plan
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from tests.harness.schema_changes import V1, V3
from tests.harness.schema_registry import serving


@dataclass
class Seen:
    """Stand in for Spark, a frame and the report of a read; record the columns of the frames."""

    columns: list[list[str]] = field(default_factory=list)
    value: dict[object, int] = field(default_factory=dict)

    def range(self, *_bounds: int) -> "Seen":
        return self

    def mapInArrow(self, _work: object, schema: Any) -> "Seen":  # noqa: ANN401, N802 -- Spark's
        self.columns.append(schema.names)
        return self

    @property
    def sparkContext(self) -> "Seen":  # noqa: N802 -- Spark's
        return self

    def accumulator(self, value: dict[object, int], _merge: object) -> "Seen":
        self.value = value
        return self

    def add(self, counted: dict[object, int]) -> None:
        self.value |= counted

    def frame(self, _ranges: object, columns: ValueColumns, _counter: object) -> "Seen":
        self.columns.append(columns.decoded_schema().names)
        return self

    def expect(self, _plan: Plan) -> None: ...

    def task_reporter(self) -> None: ...


def test_field_added_since_the_start_becomes_a_column() -> None:
    seen: Any = Seen()
    span = OffsetRange(Offset(0), Offset(5))
    tp = TopicPartition("orders", 0)
    plan = Plan({tp: span}, (), (), on_broker=(BrokerRange(tp, span),))
    with serving() as registry:
        first = registry.register("orders-value", {"schema": json.dumps(V1)})
        options = ValueOptions(
            format=ValueFormat.AVRO,
            schema_text=json.dumps(V1),
            registry=registry.url,
            subject="orders-value",
            schema_id=first,
        )
        columns = value_columns(options, flat=True, registry=RegistryConfig(url=registry.url))
        rows = table_frames(seen, seen, columns, seen, seen)
        rows(plan)
        registry.register("orders-value", {"schema": json.dumps(V3)})
        rows(plan)
    archived, on_broker, *later = (set(names) - set(columns.schema.names) for names in seen.columns)
    assert archived == on_broker == {"id", "at"}
    assert later == [{"id", "note"}, {"id", "note"}]
