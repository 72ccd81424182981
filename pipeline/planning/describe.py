"""A plan in words, for people and for scripts: `sidetier export --dry-run`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sidetier.config.units import size_text
from sidetier.pipeline.errors import describe_missing
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What a plan says of one partition; `size` is in bytes."""

    tp: TopicPartition
    range: OffsetRange
    splits: int
    segments: int
    size: int
    missing: int
    """How many offsets."""


def summaries(plan: Plan) -> list[PartitionSummary]:
    """One for each partition, by topic and partition."""
    splits = {tp: list(some) for tp, some in groupby(plan.splits, lambda split: split.tp)}
    missing = {tp: list(some) for tp, some in groupby(plan.missing, lambda one: one.tp)}
    return [
        _summary(tp, span, splits.get(tp, []), missing.get(tp, []))
        for tp, span in sorted(plan.ranges.items())
    ]


def plan_text(plan: Plan, *, every_split: bool = False) -> str:
    """A line for each partition, for each offset range that is missing, and one for all; with
    `every_split` a line for each split, too.
    """
    return "\n".join(_lines(plan, every_split=every_split))


def plan_json(plan: Plan, *, every_split: bool = False) -> dict[str, Any]:
    """The same as a tree that `json.dumps` takes; sizes are in bytes, ends are not included."""
    tree: dict[str, Any] = {
        "partitions": [
            {
                **_named(one.tp, one.range),
                "splits": one.splits,
                "segments": one.segments,
                "bytes": one.size,
                "missing_offsets": one.missing,
            }
            for one in summaries(plan)
        ],
        "on_broker": [_named(one.tp, one.range) for one in plan.on_broker],
        "missing": [{**_named(one.tp, one.range), "detail": one.detail} for one in plan.missing],
        "splits": len(plan.splits),
        "bytes": plan.size,
        "pruned_bytes": plan.pruned,
    }
    if every_split:
        tree["every_split"] = [_split_json(split) for split in plan.splits]
    return tree


def split_text(split: Split) -> str:
    """`topic orders, partition 3, offsets 100 to 199: 1.0 MB of 2 segments`."""
    span = split.range
    return f"{in_words(split.tp)}, {_span_text(span)}: {_amount(split.size, len(split.pieces))}"


def _lines(plan: Plan, *, every_split: bool) -> Iterator[str]:
    for one in summaries(plan):
        splits = f"{one.splits} split{'' if one.splits == 1 else 's'}"
        what = f"{_amount(one.size, one.segments)} in {splits}" if one.splits else "nothing to read"
        yield f"{in_words(one.tp)}, {_span_text(one.range)}: {what}"
    if every_split:
        yield from (f"split {at}: {split_text(one)}" for at, one in enumerate(plan.splits, start=1))
    yield from (
        f"on the broker: {in_words(one.tp)}, {_span_text(one.range)}" for one in plan.on_broker
    )
    yield from (f"missing: {describe_missing(one)}" for one in plan.missing)
    pruned = f", {size_text(plan.pruned)} left out by filters" if plan.pruned else ""
    count = len(plan.splits)
    partitions = len(plan.ranges)
    yield (
        f"in all: {size_text(plan.size)} in {count} split{'' if count == 1 else 's'} of "
        f"{partitions} partition{'' if partitions == 1 else 's'}{pruned}"
    )


def _summary(
    tp: TopicPartition, span: OffsetRange, splits: list[Split], missing: list[Missing]
) -> PartitionSummary:
    return PartitionSummary(
        tp,
        span,
        len(splits),
        len({piece.key for split in splits for piece in split.pieces}),
        sum(split.size for split in splits),
        sum(one.range.end - one.range.start for one in missing),
    )


def _named(tp: TopicPartition, span: OffsetRange) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "first_offset": span.start,
        "until_offset": span.end,
    }


def _split_json(split: Split) -> dict[str, Any]:
    return {
        **_named(split.tp, split.range),
        "bytes": split.size,
        "pieces": [
            {"key": piece.key, "start_byte": piece.start, "end_byte": piece.end}
            for piece in split.pieces
        ],
    }


def _span_text(span: OffsetRange) -> str:
    if span.start >= span.end:
        return f"no offset (at {span.start})"
    return f"offsets {span}"


def _amount(size: int, segments: int) -> str:
    return f"{size_text(size)} of {segments} segment{'' if segments == 1 else 's'}"
