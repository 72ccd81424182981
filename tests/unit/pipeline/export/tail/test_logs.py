"""The end of a partition's archive and the start of the broker's log."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.errors import BrokerBehindError, OtherTopicError
from sidetier.pipeline.export.source import limited
from sidetier.pipeline.export.tail.logs import (
    BrokerLog,
    Divided,
    Log,
    joined,
    missing_of,
    require_same_topic,
)
from sidetier.pipeline.planning.log_offsets import LogOffsets
from sidetier.pipeline.planning.request import AtOffsets, AtTimes, Edge, ReadRequest, Topics
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

A = TopicPartition("orders", 0)


def reach(start: int, stable: int, end: int, topic_id: str | None = None) -> LogOffsets:
    return LogOffsets(Offset(start), Offset(stable), Offset(end), topic_id)


def broker(start: int, stable: int, high: int | None = None) -> BrokerLog:
    return BrokerLog(Offset(start), Offset(stable), Offset(stable if high is None else high))


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


def divided(log: Log, first: int, until: int) -> Divided:
    return log.divided(span(first, until))


def test_broker_is_read_from_the_decided_end_of_the_archive_on() -> None:
    log = joined(A, reach(5, 90, 100), broker(50, 180, 200))
    assert (log.earliest, log.cut, log.latest) == (5, 90, 180)
    assert divided(log, 5, 180) == Divided(span(5, 90), span(90, 90), span(90, 180))
    assert divided(log, 5, 60) == Divided(span(5, 60), span(60, 60), span(60, 60))
    assert divided(log, 120, 150) == Divided(span(120, 120), span(120, 120), span(120, 150))
    assert missing_of(A, divided(log, 5, 180).gone) == ()


def test_offsets_in_neither_log_are_missing() -> None:
    log = joined(A, reach(0, 100, 100), broker(130, 180))
    assert log.has_gap
    parts = divided(log, 40, 180)
    assert parts == Divided(span(40, 100), span(100, 130), span(130, 180))
    [missing] = missing_of(A, parts.gone)
    assert missing.range == span(100, 130)
    assert "the broker has deleted them, and they are not archived" in missing.detail
    assert divided(log, 110, 120).gone == span(110, 120)
    assert log.reach(Offset(40)) == 180


def test_undecided_offsets_of_the_archive_are_waited_for() -> None:
    """Offsets [90, 100) are archived, in a transaction whose end only the broker knows."""
    log = joined(A, reach(0, 90, 100), broker(95, 180))
    assert not log.has_gap
    assert log.reach(Offset(0)) == 90
    assert log.reach(Offset(92)) == 90
    assert log.reach(Offset(95)) == 180, "who is behind that already goes on at the broker"


def test_undecided_archived_offsets_are_not_given_up_for_a_gap_after_them() -> None:
    """Offsets [90, 100) are archived, in a transaction that ends in or after the gap."""
    log = joined(A, reach(0, 90, 100), broker(110, 180))
    assert log.has_gap
    assert log.undecided == span(90, 100)
    assert [log.reach(Offset(one)) for one in (0, 99, 100)] == [90, 90, 180]


def test_archive_or_broker_log_may_exist_alone() -> None:
    only_broker = joined(A, None, broker(7, 20, 25))
    assert (only_broker.earliest, only_broker.latest, only_broker.has_gap) == (7, 20, False)
    assert divided(only_broker, 7, 20).on_broker == span(7, 20)
    assert divided(only_broker, 3, 20).gone == span(3, 7)
    only_archive = joined(A, reach(3, 9, 10), None)
    assert (only_archive.earliest, only_archive.latest) == (3, 9)
    assert divided(only_archive, 3, 9) == Divided(span(3, 9), span(9, 9), span(9, 9))
    with pytest.raises(ValueError, match="nobody has"):
        joined(A, None, None)


def test_broker_log_that_ends_below_the_archive_is_refused() -> None:
    with pytest.raises(BrokerBehindError, match="ends at offset 100, and the broker's log at 99"):
        joined(A, reach(0, 90, 100), broker(0, 99))
    # The broker's last stable offset may be lower than the archive's, because it was read earlier.
    assert joined(A, reach(0, 100, 100), broker(0, 60, 100)).latest == 100


@settings(deadline=None)
@given(st.data())
def test_range_is_divided_without_gap_or_overlap(data: st.DataObject) -> None:
    numbers = st.integers(0, 50)
    start, stable, end = sorted(data.draw(st.tuples(numbers, numbers, numbers)))
    low, last, high = sorted(data.draw(st.tuples(numbers, numbers, numbers)))
    log = joined(A, reach(start, stable, end), broker(low, last, max(high, end)))
    first, until = sorted(data.draw(st.tuples(numbers, numbers)))
    parts = divided(log, first, until)
    assert parts.archived.start == first
    assert parts.archived.end == parts.gone.start
    assert parts.gone.end == parts.on_broker.start
    assert parts.on_broker.end == until
    for one in (parts.archived, parts.gone, parts.on_broker):
        assert one.start <= one.end
    if parts.archived.start < parts.archived.end:
        assert parts.archived.end <= stable
    if parts.on_broker.start < parts.on_broker.end:
        assert parts.on_broker.start >= max(low, stable)


@pytest.mark.parametrize(("known", "found"), [(None, "b"), ("a", None), ("a", "a"), (None, None)])
def test_unknown_topic_ids_are_accepted(known: str | None, found: str | None) -> None:
    require_same_topic("orders", known, found, "the archive")


def test_another_topic_id_of_the_same_name_is_refused() -> None:
    with pytest.raises(OtherTopicError, match="topic orders: the archive has the topic id a, but"):
        require_same_topic("orders", "a", "b", "the archive")


def test_limits_are_resolved_over_archive_and_broker_log() -> None:
    logs = {A: joined(A, reach(5, 90, 100), broker(50, 180, 200))}
    request = ReadRequest(Topics(("t",)), ending_option="--ending-offsets")
    for starting, ending, expected in (
        (Edge.EARLIEST, Edge.LATEST, span(5, 180)),
        (AtOffsets({A: -2}), AtOffsets({A: -1}), span(5, 180)),
        (Edge.LATEST, AtOffsets({A: 40}), span(180, 180)),
        (AtOffsets({A: 95}), AtOffsets({A: 120}), span(95, 120)),
    ):
        assert limited(logs, replace(request, starting=starting, ending=ending)) == {A: expected}
    with pytest.raises(ConfigurationError, match="--ending-offsets: must name each partition"):
        limited(logs, replace(request, ending=AtOffsets({})))
    with pytest.raises(ConfigurationError, match="a range by time covers only archived records"):
        limited(logs, replace(request, starting=AtTimes(5)))
