"""The ledger: what was acknowledged, since when it waits, and where the cluster contradicts."""

from tests.end_to_end.chaos.ledger import Fate, Ledger, Sums, checksum

TP = ("t", 0)


def test_a_checksum_tells_key_from_value_and_a_null_from_nothing() -> None:
    told = [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (None, b"ab"), (b"ab", None), (None, None)]
    assert len({checksum(key, value) for key, value in told}) == len(told)
    assert checksum(b"a", b"b") == checksum(b"a", b"b")


def test_sums_are_found_at_their_offsets_and_nowhere_else() -> None:
    sums = Sums((3, 30), (1, 10))
    assert list(sums.items()) == [(1, 10), (3, 30)]
    assert (sums.get(0), sums.get(1), sums.get(2), sums.get(3), sums.get(4)) == (
        None, 10, None, 30, None,
    )  # fmt: skip
    assert len(sums) == 2


def test_what_stands_at_an_offset_stays() -> None:
    sums = Sums((1, 10))
    assert sums.put(1, 10)
    assert not sums.put(1, 11)
    assert sums.get(1) == 10


def test_one_offset_for_two_records_is_a_problem() -> None:
    ledger = Ledger()
    ledger.acknowledge(TP, 5, 50, 0.0)
    ledger.acknowledge(TP, 5, 51, 0.0)
    assert ledger.problems == ["t-0: offset 5 was acknowledged twice"]
    assert ledger.total() == 1


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_stored() -> None:
    ledger = Ledger()
    for offset in range(10):
        ledger.acknowledge(TP, offset, offset + 1, float(offset))
    assert ledger.lag(TP, 0, 10.0) == 10.0
    assert ledger.lag(TP, 4, 10.0) == 6.0
    assert ledger.lag(TP, 10, 10.0) == 0.0
    assert ledger.lag(("other", 0), 0, 10.0) == 0.0


def test_a_fate_is_entered_once_its_transaction_has_ended() -> None:
    ledger = Ledger()
    ledger.decide(TP, 2, Fate.ABORTED)
    assert list(ledger.fates[TP].items()) == [(2, Fate.ABORTED)]
