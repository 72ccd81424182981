"""Description of a plan as text and as JSON: `sidetier export --dry-run`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sidetier.config.units import size_text
from sidetier.pipeline.errors import describe_missing
from sidetier.pipeline.planning.split import Missing, Plan, Split, in_words
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """Summary of one partition's plan; `size` is in bytes."""

    tp: TopicPartition
    range: OffsetRange
    splits: int
    segments: int
    size: int
    missing: int
    """Number of missing offsets."""


def summaries(plan: Plan) -> list[PartitionSummary]:
    """Return one summary for each partition, sorted by topic and partition."""
    splits = {tp: list(group) for tp, group in groupby(plan.splits, lambda split: split.tp)}
    missing = {tp: list(group) for tp, group in groupby(plan.missing, lambda gap: gap.tp)}
    return [
        _summary(tp, span, splits.get(tp, []), missing.get(tp, []))
        for tp, span in sorted(plan.ranges.items())
    ]


def plan_text(plan: Plan, *, every_split: bool = False) -> str:
    """Return a line for each partition and each range of missing offsets, and a line of totals.

    With `every_split`, also a line for each split.
    """
    return "\n".join(_lines(plan, every_split=every_split))


def plan_json(plan: Plan, *, every_split: bool = False) -> dict[str, Any]:
    """Return the plan as a tree for `json.dumps`. Sizes are in bytes; offset and byte ends are
    exclusive.
    """
    tree: dict[str, Any] = {
        "partitions": [
            {
                **_named(item.tp, item.range),
                "splits": item.splits,
                "segments": item.segments,
                "bytes": item.size,
                "missing_offsets": item.missing,
            }
            for item in summaries(plan)
        ],
        "on_broker": [_named(item.tp, item.range) for item in plan.on_broker],
        "missing": [
            {**_named(item.tp, item.range), "detail": item.detail} for item in plan.missing
        ],
        "splits": len(plan.splits),
        "bytes": plan.size,
        "pruned_bytes": plan.pruned,
    }
    if every_split:
        tree["every_split"] = [_split_json(split) for split in plan.splits]
    return tree


def split_text(split: Split) -> str:
    """Return, for example, `topic orders, partition 3, offsets [10, 20): 1.0 MB of 2 segments`."""
    span = split.range
    return f"{in_words(split.tp)}, {_span_text(span)}: {_amount(split.size, len(split.pieces))}"


def _lines(plan: Plan, *, every_split: bool) -> Iterator[str]:
    for item in summaries(plan):
        splits = f"{item.splits} split{'' if item.splits == 1 else 's'}"
        amount = (
            f"{_amount(item.size, item.segments)} in {splits}" if item.splits else "nothing to read"
        )
        yield f"{in_words(item.tp)}, {_span_text(item.range)}: {amount}"
    if every_split:
        yield from (
            f"split {number}: {split_text(item)}"
            for number, item in enumerate(plan.splits, start=1)
        )
    yield from (
        f"on the broker: {in_words(item.tp)}, {_span_text(item.range)}" for item in plan.on_broker
    )
    yield from (f"missing: {describe_missing(item)}" for item in plan.missing)
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
        sum(gap.range.end - gap.range.start for gap in missing),
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
