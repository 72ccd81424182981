"""Which segments are past their retention."""

from collections.abc import Mapping, Sequence

import pytest

from sidetier.archive.gc.retention import (
    Expired,
    Need,
    Retention,
    SegmentFacts,
    expired_segments,
)
from sidetier.archive.objects.segment import StoredLog
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.port import ObjectSummary

NOW = 1_000_000
DAY = 86_400_000


def stored(*bases: int, size: int = 100) -> list[StoredLog]:
    return [
        StoredLog(BaseOffset(base), ObjectSummary(f"{base}.log", size, "", 0)) for base in bases
    ]


def expired(
    logs: Sequence[StoredLog],
    retention: Retention,
    timestamps: Mapping[int, int],
    needs: Sequence[Need] = (),
    ends: Mapping[int, int] | None = None,
) -> Expired:
    """Segments end at the next base offset unless `ends` says otherwise. `timestamps` has the
    segments that may be read.
    """
    bases = [log.base_offset for log in logs]

    def facts(log: StoredLog) -> SegmentFacts:
        following = bases[bases.index(log.base_offset) + 1]
        end = (ends or {}).get(log.base_offset, following)
        return SegmentFacts(Offset(end), timestamps[log.base_offset])

    return expired_segments(logs, Offset(bases[0]), retention, facts, needs, NOW)


def test_segments_older_than_the_age_are_expired() -> None:
    result = expired(stored(0, 10, 20, 30), Retention(age=100), {0: 1, 10: 2, 20: NOW - 100_000})
    assert (result.segments, result.start) == (2, 20)
    assert "within age: 100s" in result.reason or "within age" in result.reason


def test_an_old_segment_behind_a_young_one_is_kept() -> None:
    result = expired(stored(0, 10, 20, 30), Retention(age=100), {0: NOW, 10: 2})
    assert (result.segments, result.start) == (0, 0)


def test_a_timestamp_in_the_future_keeps_its_segment_and_is_reported() -> None:
    result = expired(stored(0, 10, 20), Retention(age=100), {0: NOW + DAY})
    assert result.segments == 0
    assert "timestamp in the future" in result.reason


def test_the_newest_segment_is_always_kept() -> None:
    result = expired(stored(0, 10, 20), Retention(age=1), {0: 1, 10: 2, 20: 3})
    assert (result.segments, result.start) == (2, 20)
    assert result.reason == "the newest segment is always kept"
    assert expired(stored(5), Retention(age=1), {}).segments == 0


@pytest.mark.parametrize(("size", "start"), [(399, 0), (400, 0), (300, 10), (299, 10), (1, 30)])
def test_at_least_the_given_bytes_are_kept(size: int, start: int) -> None:
    """As in Kafka: a segment is deleted if the rest still has the bytes."""
    times = dict.fromkeys((0, 10, 20), NOW)
    assert expired(stored(0, 10, 20, 30), Retention(size=size), times).start == start


def test_either_limit_expires_a_segment() -> None:
    retention = Retention(age=100, size=200)
    assert expired(stored(0, 10, 20, 30), retention, {0: NOW, 10: 1, 20: NOW}).start == 20
    assert expired(stored(0, 10, 20, 30), retention, {0: 1, 10: 1, 20: 1}).start == 30


def test_a_segment_that_a_consumer_needs_is_kept() -> None:
    needs = [Need(Offset(25), "consumer group a", None), Need(Offset(15), "consumer group b", None)]
    result = expired(stored(0, 10, 20, 30), Retention(age=1), {0: 1, 10: 2}, needs)
    assert (result.segments, result.start) == (1, 10)
    assert result.reason == "consumer group b still needs offset 15"


def test_a_consumer_at_the_end_of_a_segment_is_not_put_out_of_range_by_a_gap() -> None:
    """Offsets [10, 20) are a gap. Its consumer is at 10, and must be able to see the gap."""
    needs = [Need(Offset(10), "export", None)]
    assert expired(stored(0, 20, 30), Retention(age=1), {0: 1}, needs, ends={0: 10}).segments == 0


def test_overlapping_segments_are_deleted_together_or_not_at_all() -> None:
    """The first segment reaches up to 25: below 20 it is not the only one, above 20 it is."""
    ends = {0: 25, 10: 20}
    young = {0: 1, 10: 2, 20: NOW}
    assert expired(stored(0, 10, 20, 30), Retention(age=1), young, ends=ends).segments == 0
    old = {0: 1, 10: 2, 20: 3}
    assert expired(stored(0, 10, 20, 30), Retention(age=1), old, ends=ends).start == 30
