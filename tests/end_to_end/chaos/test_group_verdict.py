"""The check of each promise to readers finds its violations, and none in valid evidence."""

from dataclasses import replace

import pytest

from tests.end_to_end.chaos.group_verdict import Log, Truth, changes, truth_of, violations
from tests.end_to_end.chaos.groups import Assignment, Sign
from tests.end_to_end.chaos.ledger import Fate, Ledger, Sums

TP = ("paid", 0)
KAFKA, STORE, STORE_ONLY = "KAFKA_PREFERRED", "TIERED_STORAGE_PREFERRED", "TIERED_STORAGE_ONLY"


def ledger() -> Ledger:
    """The result of offset 5 is unknown; offset 3 is the marker of a transaction."""
    book = Ledger()
    for offset in (0, 1, 2, 4, 5, 6, 7):
        book.acknowledge(TP, offset, offset + 100, 0.0)
    for offset in (0, 1, 2, 6, 7):
        book.decide(TP, offset, Fate.COMMITTED)
    book.decide(TP, 4, Fate.ABORTED)
    return book


TRUTH = truth_of(ledger(), ["paid"], ["paid"])


def rows(*offsets: int) -> Assignment:
    return Assignment(TP, "a", [(offset, offset + 100) for offset in offsets])


@pytest.mark.parametrize(
    "assignments",
    [
        [rows(0, 1, 2, 6, 7)],
        [rows(0, 1, 2, 5, 6, 7)],
        [rows(0, 1), rows(1, 2, 6), rows(6, 7), rows()],
    ],
)
def test_valid_assignments_have_no_violation(assignments: list[Assignment]) -> None:
    assert list(violations(TRUTH, assignments)) == []


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        ([rows(0, 1, 2, 6)], "1 committed records never came, the first at 7"),
        ([], "5 committed records never came, the first at 0"),
        ([rows(0, 1, 6, 7), rows(2)], "1 records were left out, the first at 2"),
        ([rows(0, 2, 1, 6, 7)], "1 came after 2"),
        ([rows(0, 1, 1, 2, 6, 7)], "1 came after 1"),
        ([rows(0, 1, 2, 4, 6, 7)], "4 was aborted"),
        ([rows(0, 1, 2, 6, 7), Assignment(TP, "b", [(2, 9)])], "other bytes at 2"),
        ([rows(0, 1, 2, 5, 6, 7), Assignment(TP, "b", [(5, 9)])], "other bytes at 5 than before"),
    ],
)
def test_invalid_assignment_is_found(assignments: list[Assignment], said: str) -> None:
    [found] = violations(TRUTH, assignments)
    assert said in found


def test_acknowledged_records_without_a_transaction_are_committed() -> None:
    book = Ledger()
    book.acknowledge(("plain", 0), 3, 103, 0.0)
    truth = truth_of(book, ["paid"], ["plain"])
    assert truth.lasts == {("plain", 0): (3, 103)}
    assert truth_of(book, ["paid"], ["paid"]).logs == {}


def test_deleted_topics_are_logs_of_their_own() -> None:
    book = ledger()
    lost = book.lose_to_deletion(TP, 3, "old")
    book.acknowledge(TP, 0, 900, 0.0)
    [old, new] = truth_of(book, [], ["paid"]).logs[TP]
    assert dict(old.committed.items()) == {at: at + 100 for at in (0, 1, 2, 4, 5, 6, 7)}
    assert dict(new.committed.items()) == {0: 900}
    assert (old.since, new.since) == (0.0, lost.at)
    assert lost.at > 0


# A topic that was deleted and created again: three records, then six, then five, and it was created
# at 10 and 20 s.

OLD, MIDDLE, NEW = 100, 200, 300
RECREATED = Truth(
    {
        TP: [
            Log(Sums(*((at, OLD + at) for at in range(3)))),
            Log(Sums(*((at, MIDDLE + at) for at in range(6))), since=10.0),
            Log(Sums(*((at, NEW + at) for at in range(5))), since=20.0),
        ]
    }
)


def reset(after: int, to: int = 0) -> Sign:
    return Sign("reset", after, to, 30.0)


def read(
    *parts: tuple[int, range],
    signs: tuple[Sign, ...] = (),
    member: str = "a",
    began: float = 25.0,
) -> Assignment:
    """What a member received: of each log these offsets."""
    found = [(at, log + at) for log, offsets in parts for at in offsets]
    return Assignment(TP, member, found, list(signs), began)


ALL = (NEW, range(5))
COMMITTED = read((OLD, range(3)), signs=(Sign("commit", 3, 3, 5.0),))

GOOD: dict[str, tuple[list[Assignment], str]] = {
    "the last topic alone": ([read(ALL)], KAFKA),
    "each change with a reset": (
        [read((OLD, range(3)), (MIDDLE, range(6)), ALL, signs=(reset(3), reset(9)))],
        STORE_ONLY,
    ),
    "a topic was not seen": ([read((OLD, range(2)), ALL, signs=(reset(2),))], STORE_ONLY),
    "Kafka continues in the new topic's log": (
        [read((OLD, range(3)), (NEW, range(3, 5)))],
        KAFKA,
    ),
    "the archive was left before the topic was created again": (
        [read((OLD, range(3)), (NEW, range(3, 5)), signs=(Sign("kafka", 3, 3, 19.0),))],
        STORE,
    ),
    "the archive was left for Kafka, which had to be reset": (
        [read((OLD, range(3)), ALL, signs=(Sign("kafka", 3, 3, 29.0), reset(3)))],
        STORE,
    ),
    "Kafka refuses an offset of the new topic, and only the old one's id was known": (
        [read((NEW, range(3)), ALL, signs=(reset(3),), began=15.0)],
        KAFKA,
    ),
    "Kafka continues in the new topic's log, and refuses an offset of it later": (
        [read((OLD, range(3)), (NEW, range(3, 5)), ALL, signs=(reset(5),), began=5.0)],
        STORE,
    ),
    "librdkafka resets without a sign": ([read((OLD, range(3)), ALL)], "KAFKA_ONLY"),
    "an offset of the deleted topic was committed": (
        [COMMITTED, read((NEW, range(3, 5)), member="b")],
        KAFKA,
    ),
    "another member reads the deleted topic's archive": (
        [read(ALL), read((OLD, range(3)), member="b")],
        STORE,
    ),
}

BAD: dict[str, tuple[list[Assignment], str, str]] = {
    "a record of no topic": (
        [read((OLD, range(3)), (400, range(3, 4)), ALL, signs=(reset(4),))],
        KAFKA,
        "3 is a record that no topic had there",
    ),
    "an older topic follows": (
        [read(ALL, (OLD, range(3)), signs=(reset(5),))],
        KAFKA,
        "0 is of a deleted topic, and came after a newer one",
    ),
    "an older topic follows in the next assignment": (
        [read(ALL), read((MIDDLE, range(6)))],
        STORE,
        "0 is of a deleted topic, and came after a newer one",
    ),
    "a repetition": (
        [read((OLD, range(3)), (OLD, range(1)), ALL, signs=(reset(3), reset(4)))],
        KAFKA,
        "0 came after 2",
    ),
    "a repetition by a reader that began after the topic": (
        [read((NEW, range(1)), ALL, signs=(reset(1),))],
        KAFKA,
        "0 came after 0",
    ),
    "a repetition in the store alone": (
        [read((NEW, range(1)), ALL, signs=(reset(1),), began=15.0)],
        STORE_ONLY,
        "0 came after 0",
    ),
    "a repetition without a reset": (
        [read((NEW, range(1)), ALL, began=15.0)],
        KAFKA,
        "0 came after 0",
    ),
    "a second repetition": (
        [read((NEW, range(1)), (NEW, range(1)), ALL, signs=(reset(1), reset(2)), began=15.0)],
        KAFKA,
        "0 came after 0",
    ),
    "records are left out after a late reset": (
        [read((NEW, range(3)), (NEW, range(1, 5)), signs=(reset(3),), began=15.0)],
        KAFKA,
        "1 records were left out, the first at 0",
    ),
    "records are left out after a reset": (
        [read((OLD, range(3)), (NEW, range(2, 5)), signs=(reset(3),)), read(ALL, member="b")],
        KAFKA,
        "2 records were left out, the first at 0",
    ),
    "a reset to another offset than the beginning": (
        [read((OLD, range(3)), (NEW, range(2, 5)), signs=(reset(3, to=2),))],
        KAFKA,
        "2 committed records never came, the first at 0",
    ),
    "the store alone continues without a reset": (
        [read((OLD, range(3)), (NEW, range(3, 5))), read(ALL, member="b")],
        STORE_ONLY,
        "3 of a new topic came after 2 without a reset",
    ),
    "a smaller offset without a reset": (
        [read((OLD, range(3)), ALL)],
        KAFKA,
        "0 of a new topic came after 2 without a reset",
    ),
    "Kafka continues, and leaves records out": (
        [read((OLD, range(3)), (NEW, range(4, 5))), read(ALL, member="b")],
        KAFKA,
        "1 records were left out, the first at 3",
    ),
    "the archive was left for the log of the new topic": (
        [
            read((OLD, range(3)), (NEW, range(3, 5)), signs=(Sign("kafka", 3, 3, 21.0),)),
            read(ALL, member="b"),
        ],
        STORE,
        "the archive of a deleted topic was left for Kafka at 3",
    ),
    "the archive was left for the new log before its last records were received": (
        [
            read((OLD, range(3)), (NEW, range(3, 5)), signs=(Sign("kafka", 1, 3, 21.0),)),
            read(ALL, member="b"),
        ],
        STORE,
        "the archive of a deleted topic was left for Kafka at 3",
    ),
    "the end never comes": (
        [read((OLD, range(3)), (NEW, range(4)), signs=(reset(3),))],
        KAFKA,
        "1 committed records never came, the first at 4",
    ),
    "the new topic never comes": (
        [read((OLD, range(3)))],
        KAFKA,
        "5 committed records never came, the first at 0",
    ),
    "it begins where nobody has committed": (
        [COMMITTED, read((NEW, range(4, 5)), member="b")],
        KAFKA,
        "4 committed records never came, the first at 0",
    ),
    "librdkafka resets, and leaves records out": (
        [read((OLD, range(3)), (NEW, range(1, 5))), read(ALL, member="b")],
        "KAFKA_ONLY",
        "1 records were left out, the first at 0",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_promised_way_through_a_recreated_topic_is_no_violation(name: str) -> None:
    assignments, mode = GOOD[name]
    assert list(violations(RECREATED, assignments, mode)) == []


@pytest.mark.parametrize("name", BAD)
def test_wrong_way_through_a_recreated_topic_is_found(name: str) -> None:
    assignments, mode, said = BAD[name]
    [found] = violations(RECREATED, assignments, mode)
    assert said in found


def test_record_of_an_unknown_offset_is_of_the_topic_around_it() -> None:
    unplaced = replace(RECREATED, unplaced={TP: {NEW + 5}})
    assignment = read((NEW, range(6)))
    assert len(list(violations(RECREATED, [assignment]))) == 1
    assert list(violations(unplaced, [assignment])) == []


def test_reader_of_the_store_alone_needs_only_what_is_archived() -> None:
    archived = replace(RECREATED, ends={TP: 3})
    assert archived.lasts == {TP: (2, NEW + 2)}
    assert list(violations(archived, [read((NEW, range(4)))], STORE_ONLY)) == []
    [found] = violations(archived, [read((NEW, range(2)))], STORE_ONLY)
    assert "1 committed records never came, the first at 2" in found


def test_changes_into_another_topic_are_counted() -> None:
    twice = read((OLD, range(3)), (MIDDLE, range(6)), ALL)
    assert changes(RECREATED, [twice, read(ALL), read()]) == 2
