"""Each promise's check finds what breaks it, and finds nothing where all is well."""

import pytest

from tests.end_to_end.chaos.ledger import Fate, Sums
from tests.end_to_end.consuming.groups import Assignment
from tests.end_to_end.consuming.verdict import truth_of, violations

TP = ("paid", 0)
FATES = [(offset, Fate.COMMITTED) for offset in (0, 1, 2, 6, 7)] + [(4, Fate.ABORTED)]
TRUTH = truth_of(
    {TP: Sums(*((offset, offset + 100) for offset in (0, 1, 2, 4, 5, 6, 7)))},
    {TP: Sums(*FATES)},
    ["paid"],
)
"""Nobody knows of 5; at 3 is a transaction's marker."""


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
def test_what_is_well(assignments: list[Assignment]) -> None:
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
    ],
)
def test_what_is_not(assignments: list[Assignment], said: str) -> None:
    [found] = violations(TRUTH, assignments)
    assert said in found


def test_without_transactions_everything_acknowledged_is_committed() -> None:
    truth = truth_of({("plain", 0): Sums((3, 103))}, {}, ["paid"])
    assert dict(truth.committed["plain", 0].items()) == {3: 103}
