"""The report of a read on the driver, without a Spark session."""

from sidetier.pipeline.planning.split import Missing, Origin, Piece, Plan, Split
from sidetier.pipeline.spark.report import MergedByKey, describe_plan
from sidetier.pipeline.spark.tasks import Counts, describe_split
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition


def split(topic: str, partition: int, first: int, size: int = 1 << 20) -> Split:
    piece = Piece("key", BaseOffset(first), 0, size, size, "etag")
    span = OffsetRange(Offset(first), Offset(first + 10))
    origin = Origin(None, False, span.end)  # noqa: FBT003 -- is_peers
    return Split(TopicPartition(topic, partition), span, (piece,), origin)


def test_plan_is_described_in_one_line() -> None:
    splits = (split("a", 0, 0), split("a", 1, 0), split("b", 0, 0))
    plan = Plan({item.tp: item.range for item in splits}, splits)
    assert describe_plan(plan) == "a (2 partitions), b (1 partition): 3 splits, 3MiB"
    assert describe_plan(Plan({}, ())) == "nothing: 0 splits, 0B"
    assert describe_split(splits[0]) == "a-0, offsets [0, 10), 1048576 bytes"


def test_a_split_that_is_read_several_times_counts_once() -> None:
    union = MergedByKey()
    tp = TopicPartition("a", 0)
    missing = (Missing(tp, OffsetRange(Offset(3), Offset(5)), "gone"),)
    again = {("a", 0, 0): (10, Counts(8, missing))}
    result = union.addInPlace(union.zero({}), again)
    assert union.addInPlace(result, dict(again)) == again
