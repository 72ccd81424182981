"""Filters of Spark prune no record that they do not exclude."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.spark.source import pruning
from sidetier.segments.offsets import Offset


@dataclass(frozen=True)
class OneColumn:
    """The shape of PySpark 4.1's filters on one column."""

    attribute: tuple[str, ...]
    value: Any


class EqualTo(OneColumn):
    pass


class In(OneColumn):
    pass


class GreaterThan(OneColumn):
    pass


class GreaterThanOrEqual(OneColumn):
    pass


class LessThan(OneColumn):
    pass


class LessThanOrEqual(OneColumn):
    pass


@dataclass(frozen=True)
class Not:
    """A filter that is not supported."""

    child: Any


MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
NOON_MS = 1700000000123


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], Filters()),
        ([EqualTo(("partition",), 3)], Filters(partitions=frozenset({3}))),
        (
            [In(("partition",), (1, 2, 3)), In(("partition",), (2, 3, 4))],
            Filters(partitions=frozenset({2, 3})),
        ),
        ([EqualTo(("offset",), 7)], Filters(first=Offset(7), until=Offset(8))),
        (
            [GreaterThan(("offset",), 7), LessThanOrEqual(("offset",), 9)],
            Filters(first=Offset(8), until=Offset(10)),
        ),
        (
            [
                GreaterThanOrEqual(("offset",), 7),
                GreaterThanOrEqual(("offset",), 5),
                LessThan(("offset",), 20),
                LessThan(("offset",), 30),
            ],
            Filters(first=Offset(7), until=Offset(20)),
        ),
        ([LessThan(("offset",), -5)], Filters(until=Offset(0))),
        ([GreaterThan(("timestamp",), MOMENT)], Filters(since_ms=NOON_MS)),
        ([EqualTo(("timestamp",), MOMENT)], Filters(since_ms=NOON_MS)),
        ([LessThan(("timestamp",), MOMENT)], Filters()),
        ([Not(EqualTo(("partition",), 3)), EqualTo(("topic",), "a")], Filters()),
        ([EqualTo(("headers", "key"), "a"), EqualTo(("partition",), None)], Filters()),
    ],
)
def test_filters_prune_segments_and_partitions(filters: list[Any], found: Filters) -> None:
    assert pruning(filters) == found
