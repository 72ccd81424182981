"""Records that would be lost with a broker, with given facts."""

from dataclasses import replace

import pytest

from sidetier.cli.commands.can_i_lose import LoseResult
from sidetier.cli.inspect.facts import BrokerFacts, Exclusion, PartitionFacts
from sidetier.cli.inspect.local_log import LocalLog, LocalSegment, Place
from sidetier.cli.inspect.loss import only_on_store, risks_of
from sidetier.cli.inspect.sidecar import SidecarPartition
from sidetier.leadership.cluster_map import LogOffsets, ReplicaSet
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.telemetry.status import PinnedRange

BROKER = BrokerFacts(1, frozenset({1, 2, 3}), ())
COMPACTED = Exclusion("compacted", "topic t is compacted")
SAFE = PartitionFacts(
    TopicPartition("t", 0),
    ReplicaSet(1, (1, 2), (1, 2)),
    LogOffsets(Offset(100), Offset(300)),
    archived_up_to=Offset(200),
    sidecar=SidecarPartition(1),
)
ALONE = replace(SAFE, replicas=ReplicaSet(1, (1,), (1,)))


def result_of(*partitions: PartitionFacts, notes: tuple[str, ...] = ()) -> LoseResult:
    return LoseResult.of(replace(BROKER, partitions=partitions, notes=notes))


def ranges(
    partition: PartitionFacts, broker: BrokerFacts = BROKER
) -> list[tuple[int | None, int | None]]:
    return [(risk.start, risk.end) for risk in risks_of(partition, broker)]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (SAFE, []),
        (replace(SAFE, replicas=ReplicaSet(2, (1, 2), (1, 2))), []),
        (replace(SAFE, replicas=ReplicaSet(2, (1, 2), (2,))), []),
        (replace(SAFE, archived_up_to=None), []),
        (replace(SAFE, log_offsets=LogOffsets(problem="no answer")), []),
        (ALONE, [(200, 300)]),
        (replace(ALONE, archived_up_to=Offset(300)), []),
        (replace(ALONE, archived_from=Offset(20)), [(200, 300)]),
        (replace(ALONE, archived_from=Offset(130)), [(100, 130), (200, 300)]),
        (replace(ALONE, archived_from=Offset(130), archived_up_to=Offset(300)), [(100, 130)]),
        (replace(SAFE, archived_from=Offset(130)), []),
        (replace(ALONE, archived_from=Offset(130), archived_up_to=Offset(301)), [(100, 300)]),
        (replace(ALONE, archived_up_to=None), [(100, 300)]),
        (replace(ALONE, archived_up_to=Offset(50)), [(100, 300)]),
        (replace(ALONE, archived_up_to=Offset(301)), [(100, 300)]),
        (replace(ALONE, log_offsets=LogOffsets(Offset(300), Offset(300)), archived_up_to=None), []),
        (replace(ALONE, log_offsets=LogOffsets()), [(200, None)]),
        (replace(ALONE, log_offsets=LogOffsets(), archived_up_to=None), [(None, None)]),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 2), (1,))), [(200, 300)]),
        (replace(SAFE, replicas=ReplicaSet(None, (1, 9), (9,))), [(200, 300)]),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 9), (1, 9))), [(200, 300)]),
    ],
)
def test_ranges_only_in_this_brokers_log_are_at_risk(
    partition: PartitionFacts, expected: list[tuple[int | None, int | None]]
) -> None:
    assert ranges(partition) == expected


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (ALONE, "not archived yet; there is no other replica"),
        (
            replace(ALONE, archived_from=Offset(130), archived_up_to=Offset(300)),
            "the archive begins at 130: never archived, or deleted by `sidetier gc`; there is no",
        ),
        (replace(ALONE, archived_up_to=None), "nothing is archived"),
        (replace(ALONE, exclusion=COMPACTED, archived_up_to=None), "never archived: compacted"),
        (replace(ALONE, archive_problem="403"), "perhaps not archived: the archive cannot be read"),
        (
            replace(ALONE, archived_up_to=Offset(301)),
            "archived up to 301, above the high watermark",
        ),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 2), (1,))), "broker 2 is not in sync"),
        (replace(SAFE, replicas=ReplicaSet(1, (1, 9), (1,))), "broker 9 is down"),
        (
            replace(ALONE, log_offsets=LogOffsets(problem="no leader")),
            "the high watermark is not known (no leader)",
        ),
    ],
)
def test_risk_is_explained(partition: PartitionFacts, words: str) -> None:
    [risk] = risks_of(partition, BROKER)
    assert words in risk.why


PINS = SidecarPartition(
    1,
    pins=(
        PinnedRange("t", 0, Offset(0), Offset(60), 600),
        PinnedRange("t", 0, Offset(80), None, 200),
        PinnedRange("t", 0, Offset(150), Offset(200), 9),
    ),
)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (replace(SAFE, archived_up_to=Offset(20), sidecar=PINS), [(20, 60), (80, 100)]),
        (replace(SAFE, archived_up_to=None, sidecar=PINS), [(0, 60), (80, 100)]),
        (replace(SAFE, archived_up_to=Offset(90), sidecar=PINS), [(90, 100)]),
        (replace(SAFE, archived_up_to=Offset(100), sidecar=PINS), []),
        (replace(SAFE, archived_up_to=Offset(20), sidecar=SidecarPartition(1)), []),
        (replace(SAFE, archived_up_to=Offset(20), sidecar=None), [(20, 100)]),
        (replace(SAFE, archived_up_to=None, sidecar=None), []),
        (replace(SAFE, archived_up_to=None, exclusion=COMPACTED, sidecar=PINS), []),
    ],
)
def test_deleted_ranges_that_only_pins_hold_are_at_risk(
    partition: PartitionFacts, expected: list[tuple[int, int]]
) -> None:
    assert ranges(partition) == expected


@pytest.mark.parametrize(
    ("first", "archived", "log_start", "expected"),
    [
        (20, 200, 100, (20, 100)),
        (20, 80, 100, (20, 80)),
        (100, 200, 100, None),
        (130, 200, 100, None),
        (None, 200, 100, None),
        (20, None, 100, None),
        (20, 200, None, None),
    ],
)
def test_archived_offsets_below_the_log_start_are_only_on_the_store(
    first: int | None,
    archived: int | None,
    log_start: int | None,
    expected: tuple[int, int] | None,
) -> None:
    def offset(number: int | None) -> Offset | None:
        return None if number is None else Offset(number)

    partition = replace(
        ALONE,
        archived_from=offset(first),
        archived_up_to=offset(archived),
        log_offsets=LogOffsets(offset(log_start), Offset(300)),
    )
    assert only_on_store(partition) == expected


def test_verdict_is_yes_when_nothing_is_at_risk() -> None:
    result = result_of(SAFE, replace(SAFE, archived_up_to=None))
    assert result.can_be_lost
    assert result.verdict() == (
        "yes: broker 1 and its disk can be lost: every committed record of its 2 partitions is "
        "archived, or on another in-sync replica"
    )


def test_verdict_counts_records_and_bytes() -> None:
    segments = [
        LocalSegment(BaseOffset(base), Offset(base + 50), Place.CLOSED, "", 1000, 0)
        for base in (100, 150, 200, 250)
    ]
    local = replace(ALONE, local=LocalLog("/d", tuple(segments)))
    other = TopicPartition("t", 1)
    pinned = replace(SAFE, topic_partition=other, archived_up_to=Offset(20), sidecar=PINS)
    result = result_of(SAFE, local, pinned)
    assert not result.can_be_lost
    assert result.records == 100 + 40 + 20
    assert result.size_bytes == 2000 + 600 + 200
    assert result.verdict() == (
        "no: with broker 1 and its disk, 160 records (in segments of 2.8 kB) in 2 of its 3 "
        "partitions would be lost"
    )
    unknown = result_of(replace(ALONE, log_offsets=LogOffsets()))
    assert "at least 0 records in 1 of its 1" in unknown.verdict()


def test_notes_name_unarchived_and_under_replicated_partitions() -> None:
    excluded = replace(SAFE, exclusion=COMPACTED, archived_up_to=None)
    short = replace(SAFE, replicas=ReplicaSet(1, (1, 2, 3), (1, 2)))
    unread = replace(SAFE, archive_problem="503", archived_up_to=None)
    result = result_of(excluded, short, unread, notes=("said before",))
    text = [table.footer for table in result.as_tables()]
    assert text[1:] == [
        "said before",
        "never archived, so only as safe as their replicas: t",
        "the archive could not be read: 503",
        "1 of its partitions are under-replicated",
    ]
