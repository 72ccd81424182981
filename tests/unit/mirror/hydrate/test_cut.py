"""The transaction-consistent cut."""

from sidetier.mirror.hydrate.cut import consistent_cut
from sidetier.mirror.hydrate.transactions import Transaction
from sidetier.segments.offsets import Offset, TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def done(
    first: int, marker: int, at_ms: int, *, commit: bool = True, producer: int = 1
) -> Transaction:
    return Transaction(producer, 0, Offset(first), at_ms - 10, Offset(marker), at_ms, commit)


def opened(first: int, at_ms: int, producer: int = 1) -> Transaction:
    return Transaction(producer, 0, Offset(first), at_ms)


def cut(a: list[Transaction], b: list[Transaction], end_a: int, end_b: int) -> tuple[int, int]:
    found = consistent_cut({A: a, B: b}, {A: Offset(end_a), B: Offset(end_b)})
    return found[A], found[B]


def test_a_transaction_whose_marker_was_never_archived_elsewhere_is_left_out() -> None:
    a = [done(0, 9, 10_000), done(10, 19, 20_000)]
    b = [done(0, 4, 10_001), opened(5, 19_990)]
    assert cut(a, b, 30, 8) == (19, 8)


def test_whole_transactions_stay() -> None:
    a = [done(0, 9, 10_000), done(10, 19, 20_000)]
    b = [done(0, 4, 10_001), done(5, 8, 20_002)]
    assert cut(a, b, 20, 9) == (20, 9)


def test_one_lowered_end_lowers_the_next() -> None:
    a = [done(0, 9, 10_000), done(10, 19, 20_000, producer=2)]
    b = [done(0, 4, 10_001), done(5, 9, 20_001, producer=2)]
    # Producer 1's transaction is cut off in b, so a ends before offset 9, and producer 2's goes.
    assert cut(a, b, 20, 4) == (9, 4)
    b_first = [done(0, 4, 20_001, producer=2), done(5, 9, 10_001 + 50_000)]
    assert cut(a, b_first, 19, 10) == (19, 4)


def test_an_aborted_transaction_is_never_half_in() -> None:
    a = [done(0, 9, 10_000, commit=False)]
    b = [done(0, 4, 10_001, commit=False)]
    assert cut(a, b, 10, 3) == (10, 3)


def test_another_producer_is_another_transaction() -> None:
    assert cut([done(0, 9, 10_000)], [opened(0, 9_000, producer=2)], 10, 5) == (10, 5)


def test_a_transaction_of_long_ago_is_not_the_one_that_is_cut_off() -> None:
    a = [done(0, 9, 10_000)]
    b = [done(0, 4, 500_000)]
    assert cut(a, b, 10, 4) == (10, 4)
