"""A plan as text and as JSON."""

import json
from dataclasses import replace

from sidetier.pipeline.planning.describe import plan_json, plan_text, split_text
from sidetier.pipeline.planning.split import BrokerRange, Missing, Origin, Piece, Plan, Split
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


def piece(base: int, start: int, end: int) -> Piece:
    return Piece(f"a-0/{base}.log", BaseOffset(base), start, end, 4000, "etag")


ORIGIN = Origin(None, is_pinterest=False, until=Offset(300))
PLAN = Plan(
    {A1: span(7, 7), A0: span(10, 300)},
    (
        Split(A0, span(50, 200), (piece(40, 100, 4000), piece(100, 0, 1000)), ORIGIN),
        Split(A0, span(200, 300), (piece(100, 900, 4000),), ORIGIN),
    ),
    (Missing(A0, span(10, 50), "below the start"),),
    pruned=2_500_000,
)


def test_a_plan_as_text_has_a_line_for_each_partition() -> None:
    assert plan_text(PLAN).splitlines() == [
        "topic a, partition 0, offsets [10, 300): 8.0 kB of 2 segments in 2 splits",
        "topic a, partition 1, no offset (at 7): nothing to read",
        "missing: topic a, partition 0, offsets [10, 50) (below the start)",
        "in all: 8.0 kB in 2 splits of 2 partitions, 2.5 MB left out by filters",
    ]
    assert plan_text(PLAN, every_split=True).splitlines()[2:4] == [
        "split 1: topic a, partition 0, offsets [50, 200): 4.9 kB of 2 segments",
        "split 2: topic a, partition 0, offsets [200, 300): 3.1 kB of 1 segment",
    ]
    assert split_text(PLAN.splits[1]) in plan_text(PLAN, every_split=True)


def test_offsets_that_only_the_brokers_have_are_described() -> None:
    plan = replace(PLAN, on_broker=(BrokerRange(A1, span(7, 9)),))
    assert plan_text(plan).splitlines()[2] == "on the broker: topic a, partition 1, offsets [7, 9)"
    assert plan_json(plan)["on_broker"] == [
        {"topic": "a", "partition": 1, "first_offset": 7, "until_offset": 9}
    ]
    assert plan_json(PLAN)["on_broker"] == []


def test_an_empty_plan_is_described_too() -> None:
    assert plan_text(Plan({}, ())) == "in all: 0 B in 0 splits of 0 partitions"


def test_a_plan_as_json_has_the_same_content() -> None:
    tree = json.loads(json.dumps(plan_json(PLAN, every_split=True)))

    assert tree["partitions"] == [
        {
            "topic": "a",
            "partition": 0,
            "first_offset": 10,
            "until_offset": 300,
            "splits": 2,
            "segments": 2,
            "bytes": 8000,
            "missing_offsets": 40,
        },
        {
            "topic": "a",
            "partition": 1,
            "first_offset": 7,
            "until_offset": 7,
            "splits": 0,
            "segments": 0,
            "bytes": 0,
            "missing_offsets": 0,
        },
    ]
    assert tree["missing"] == [
        {
            "topic": "a",
            "partition": 0,
            "first_offset": 10,
            "until_offset": 50,
            "detail": "below the start",
        }
    ]
    assert (tree["splits"], tree["bytes"], tree["pruned_bytes"]) == (2, 8000, 2_500_000)
    assert tree["every_split"][0]["pieces"] == [
        {"key": "a-0/40.log", "start_byte": 100, "end_byte": 4000},
        {"key": "a-0/100.log", "start_byte": 0, "end_byte": 1000},
    ]
    assert "every_split" not in plan_json(PLAN)
