"""How far a log may be trimmed: tables of the pure decision."""

import pytest

from sidetier.config.retention import LocalRetentionConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.trim.decision import (
    Held,
    Hindrance,
    LocalSegment,
    Trim,
    bounded_by_groups,
    decide,
    retained_from,
    topic_hindrance,
    within_rate,
)

TP = TopicPartition("t", 0)
NOW = 1_000_000.0


def segments(*ages: float, size: int = 100) -> tuple[LocalSegment, ...]:
    """Closed segments of 10 offsets with these ages, and an active segment of the same size."""
    closed = [
        LocalSegment(BaseOffset(10 * i), Offset(10 * i + 10), size, NOW - age)
        for i, age in enumerate(ages)
    ]
    return (*closed, LocalSegment(BaseOffset(10 * len(ages)), None, size, NOW))


def local(**settings: object) -> LocalRetentionConfig:
    return LocalRetentionConfig.model_validate({"topics": ["t"], "age": 60, **settings})


def trim_to(end: int, count: int = 4, tp: TopicPartition = TP, size: int = 100) -> Trim:
    return Trim(tp, segments(*[100.0] * count, size=size), Offset(end), Offset(end))


@pytest.mark.parametrize(
    ("ages", "age", "size", "expected"),
    [
        ((90, 70, 50, 10), 60, None, 20),  # by age: up to the first segment that is younger
        ((90, 50, 90, 10), 60, None, 10),  # an older segment behind a younger one stays
        ((90, 70, 60), 60, None, 20),  # exactly as old as the limit: it stays
        ((90, 90, 90), 60, None, 30),  # the active segment stays
        ((1, 1, 1, 1), None, 300, 20),  # 500 bytes in all: 200 are surplus
        ((1, 1, 1, 1), None, 250, 20),  # as in Kafka, at least `bytes` stay
        ((1, 1, 1, 1), None, 0, 40),  # no byte must stay, but the active segment does
        ((1, 1, 1, 1), None, 10_000, 0),
        ((90, 1, 1, 1), 60, 300, 20),  # either of them is enough
        ((90, 90, 90, 1), 60, 300, 30),
        ((90, 90), None, None, 0),
    ],
)
def test_retention_keeps(
    ages: tuple[float, ...], age: float | None, size: int | None, expected: int
) -> None:
    assert retained_from(segments(*ages), age, size, NOW) == expected


def test_log_without_segments_has_nothing_to_trim() -> None:
    assert retained_from((), 60, None, NOW) is None
    assert decide(TP, (), Offset(10), None, local(), NOW) is None


def test_log_within_retention_is_no_decision() -> None:
    assert decide(TP, segments(10, 10), Offset(0), None, local(), NOW) is None


@pytest.mark.parametrize(
    ("archived_to", "end", "hindrance"),
    [
        (40, 30, None),
        (30, 30, None),
        (29, 20, Hindrance.ARCHIVE_BEHIND),  # to the boundary below the archive end offset
        (10, 10, Hindrance.ARCHIVE_BEHIND),
        (9, 0, Hindrance.ARCHIVE_BEHIND),
        (0, 0, Hindrance.ARCHIVE_BEHIND),
        (None, 0, Hindrance.ARCHIVE_UNKNOWN),
    ],
)
def test_trim_never_passes_the_archive_end(
    archived_to: int | None, end: int, hindrance: Hindrance | None
) -> None:
    known = None if archived_to is None else Offset(archived_to)
    trim = decide(TP, segments(90, 90, 90, 10), known, None, local(), NOW)
    assert trim is not None
    assert (trim.end, trim.retained_from) == (end, 30)
    assert (None if trim.held is None else trim.held.hindrance) == hindrance
    assert (trim.size, trim.excess) == (10 * end, 300 - 10 * end)


def test_held_partition_is_not_trimmed_whatever_is_archived() -> None:
    held = Held(Hindrance.PARTITION_HELD, "halted")
    trim = decide(TP, segments(90, 90, 10), Offset(30), held, local(), NOW)
    assert trim is not None
    assert (trim.end, trim.size, trim.excess, trim.held) == (0, 0, 200, held)


@pytest.mark.parametrize(
    ("topic", "config", "hindrance"),
    [
        ("t", TopicConfig(only_deleted=True), None),
        ("t", TopicConfig(compacted=True), Hindrance.TOPIC_REFUSED),
        ("t", TopicConfig(), Hindrance.TOPIC_REFUSED),
        ("t", TopicConfig(only_deleted=True, native_tiering=True), Hindrance.TOPIC_REFUSED),
        ("t", None, Hindrance.TOPIC_CONFIG_UNKNOWN),
        ("__consumer_offsets", TopicConfig(only_deleted=True), Hindrance.TOPIC_REFUSED),
        ("__mine", TopicConfig(only_deleted=True), Hindrance.TOPIC_REFUSED),
    ],
)
def test_only_plain_topics_are_trimmed(
    topic: str, config: TopicConfig | None, hindrance: Hindrance | None
) -> None:
    held = topic_hindrance(topic, config)
    assert (None if held is None else held.hindrance) == hindrance


@pytest.mark.parametrize(
    ("committed", "end"), [([], 30), ([35], 30), ([30], 30), ([29], 20), ([25, 12], 10), ([0], 0)]
)
def test_protected_groups_keep_what_they_have_not_committed(committed: list[int], end: int) -> None:
    groups = [(f"g{i}", Offset(offset)) for i, offset in enumerate(committed)]
    trim = bounded_by_groups(trim_to(30), groups)
    assert trim.end == end
    expected = None if end == 30 else Hindrance.GROUP_BEHIND
    assert (None if trim.held is None else trim.held.hindrance) == expected


def test_rate_limit_takes_the_largest_partition_first_and_whole_segments_only() -> None:
    other = TopicPartition("t", 1)
    trims = [trim_to(20), trim_to(40, tp=other)]
    assert [trim.end for trim in within_rate(trims, None)] == [20, 40]
    assert [trim.end for trim in within_rate(trims, 600)] == [20, 40]
    assert [trim.end for trim in within_rate(trims, 550)] == [10, 40]
    limited = within_rate(trims, 350)
    assert [trim.end for trim in limited] == [0, 30]
    assert {trim.held.hindrance for trim in limited if trim.held} == {Hindrance.RATE_LIMIT}


def test_rate_limit_lets_at_least_one_segment_go() -> None:
    assert [trim.end for trim in within_rate([trim_to(30)], 1)] == [10]
