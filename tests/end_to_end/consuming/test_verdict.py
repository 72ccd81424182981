"""The check of each promise finds its violations, and reports none for valid evidence."""

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
"""The result of offset 5 is unknown; offset 3 is the marker of a transaction."""


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
    ],
)
def test_invalid_assignment_is_found(assignments: list[Assignment], said: str) -> None:
    [found] = violations(TRUTH, assignments)
    assert said in found


def test_acknowledged_records_without_a_transaction_are_committed() -> None:
    truth = truth_of({("plain", 0): Sums((3, 103))}, {}, ["paid"])
    assert dict(truth.committed["plain", 0].items()) == {3: 103}
