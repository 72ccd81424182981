"""What would be lost with a broker, from facts alone."""

from dataclasses import replace

import pytest

from sidetier.cli.commands.can_i_lose import LoseResult
from sidetier.cli.inspect.cluster import LogOffsets, ReplicaSet
from sidetier.cli.inspect.local import LocalLog, LocalSegment, Place
from sidetier.cli.inspect.loss import Broker, Held, Pin, risks_of
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition

BROKER = Broker(1, frozenset({1, 2, 3}))
SAFE = Held(
    TopicPartition("t", 0),
    ReplicaSet(1, (1, 2), (1, 2)),
    LogOffsets(Offset(100), Offset(300)),
    next_offset=Offset(200),
    pins=(),
)
ALONE = replace(SAFE, replicas=ReplicaSet(1, (1,), (1,)))


def ranges(held: Held, broker: Broker = BROKER) -> list[tuple[int | None, int | None]]:
    return [(risk.start, risk.end) for risk in risks_of(held, broker)]


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (SAFE, []),
        (replace(SAFE, replicas=ReplicaSet(2, (1, 2), (1, 2))), []),
        (replace(SAFE, replicas=ReplicaSet(2, (1, 2), (2,))), []),
        (replace(SAFE, next_offset=None), []),
        (replace(SAFE, bounds=LogOffsets(problem="no answer")), []),
        (ALONE, [(200, 300)]),
        (replace(ALONE, next_offset=Offset(300)), []),
        (replace(ALONE, next_offset=None), [(100, 300)]),
        (replace(ALONE, next_offset=Offset(50)), [(100, 300)]),
        (replace(ALONE, next_offset=Offset(301)), [(100, 300)]),
        (replace(ALONE, bounds=LogOffsets(Offset(300), Offset(300)), next_offset=None), []),
        (replace(ALONE, bounds=LogOffsets()), [(200, None)]),
        (replace(ALONE, bounds=LogOffsets(), next_offset=None), [(None, None)]),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 2), (1,))), [(200, 300)]),
        (replace(SAFE, replicas=ReplicaSet(None, (1, 9), (9,))), [(200, 300)]),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 9), (1, 9))), [(200, 300)]),
    ],
)
def test_what_only_this_broker_s_log_holds(
    held: Held, expected: list[tuple[int | None, int | None]]
) -> None:
    assert ranges(held) == expected


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (ALONE, "not stored yet; there is no other replica"),
        (replace(ALONE, next_offset=None), "nothing of it is stored"),
        (replace(ALONE, not_archived="compacted", next_offset=None), "never stored: compacted"),
        (replace(ALONE, archive_problem="403"), "perhaps not stored: the archive cannot be read"),
        (replace(ALONE, next_offset=Offset(301)), "reaches 301, above the high watermark"),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 2), (1,))), "broker 2 is not in sync"),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 9), (1,))), "broker 9 is down"),
        (
            replace(ALONE, bounds=LogOffsets(problem="nobody leads")),
            "the end of the log is not known (nobody leads)",
        ),
    ],
)
def test_it_says_why(held: Held, words: str) -> None:
    [risk] = risks_of(held, BROKER)
    assert words in risk.why


PINS = (
    Pin(Offset(0), Offset(60), 600),
    Pin(Offset(80), None, 200),
    Pin(Offset(150), Offset(200), 9),
)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (replace(SAFE, next_offset=Offset(20), pins=PINS), [(20, 60), (80, 100)]),
        (replace(SAFE, next_offset=None, pins=PINS), [(0, 60), (80, 100)]),
        (replace(SAFE, next_offset=Offset(90), pins=PINS), [(90, 100)]),
        (replace(SAFE, next_offset=Offset(100), pins=PINS), []),
        (replace(SAFE, next_offset=Offset(20), pins=()), []),
        (replace(SAFE, next_offset=Offset(20), pins=None), [(20, 100)]),
        (replace(SAFE, next_offset=None, pins=None), []),
        (replace(SAFE, next_offset=None, not_archived="compacted", pins=PINS), []),
    ],
)
def test_what_brokers_have_deleted_and_only_pins_hold(
    held: Held, expected: list[tuple[int, int]]
) -> None:
    assert ranges(held) == expected


def test_the_verdict_is_yes_when_nothing_is_at_risk() -> None:
    result = LoseResult.of(BROKER, [SAFE, replace(SAFE, next_offset=None)], ())
    assert result.can_be_lost
    assert result.verdict() == (
        "yes: broker 1 and its disk can be lost: all that it holds of 2 partitions is stored, or "
        "on another in-sync replica"
    )


def test_the_verdict_counts_records_and_bytes() -> None:
    segments = [
        LocalSegment(BaseOffset(base), Offset(base + 50), Place.CLOSED, "", 1000, 0)
        for base in (100, 150, 200, 250)
    ]
    local = replace(ALONE, local=LocalLog("/d", tuple(segments)))
    other = TopicPartition("t", 1)
    pinned = replace(SAFE, topic_partition=other, next_offset=Offset(20), pins=PINS)
    result = LoseResult.of(BROKER, [SAFE, local, pinned], ())
    assert not result.can_be_lost
    assert result.records == 100 + 40 + 20
    assert result.size_bytes == 2000 + 600 + 200
    assert result.verdict() == (
        "no: with broker 1 and its disk 160 records (in segments of 2.8 kB) would be lost, of 2 of "
        "the 3 partitions on it"
    )
    unknown = LoseResult.of(BROKER, [replace(ALONE, bounds=LogOffsets())], ())
    assert "at least 0 records would be lost" in unknown.verdict()


def test_notes_tell_what_is_never_stored_and_what_is_short_of_replicas() -> None:
    excluded = replace(SAFE, not_archived="left out by `topics`", next_offset=None)
    short = replace(SAFE, replicas=ReplicaSet(1, (1, 2, 3), (1, 2)))
    unread = replace(SAFE, archive_problem="503", next_offset=None)
    result = LoseResult.of(BROKER, [excluded, short, unread], ("said before",))
    text = [table.footer for table in result.as_tables()]
    assert text[1:] == [
        "said before",
        "never stored, so only as safe as their replicas: t",
        "the archive could not be read: 503",
        "1 of its partitions are under-replicated",
    ]
