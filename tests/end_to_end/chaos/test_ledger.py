"""The ledger: acknowledged records, the age of unstored ones, and contradictions of the cluster."""

from tests.end_to_end.chaos.ledger import Fate, Ledger, Sums, checksum

TP = ("t", 0)


def test_checksum_distinguishes_key_value_null_and_empty() -> None:
    told = [(b"a", b"b"), (b"ab", b""), (b"", b"ab"), (None, b"ab"), (b"ab", None), (None, None)]
    assert len({checksum(key, value) for key, value in told}) == len(told)
    assert checksum(b"a", b"b") == checksum(b"a", b"b")


def test_checksums_are_found_only_at_their_offsets() -> None:
    sums = Sums((3, 30), (1, 10))
    assert list(sums.items()) == [(1, 10), (3, 30)]
    assert (sums.get(0), sums.get(1), sums.get(2), sums.get(3), sums.get(4)) == (
        None, 10, None, 30, None,
    )  # fmt: skip
    assert len(sums) == 2


def test_existing_checksum_is_not_replaced() -> None:
    sums = Sums((1, 10))
    assert sums.put(1, 10)
    assert not sums.put(1, 11)
    assert sums.get(1) == 10


def test_checksums_can_be_truncated() -> None:
    sums = Sums((1, 10), (3, 30), (4, 40))
    assert list(sums.cut(3).items()) == [(3, 30), (4, 40)]
    assert list(sums.items()) == [(1, 10)]
    assert len(sums.cut(9)) == 0


def test_one_offset_for_two_records_is_a_problem() -> None:
    ledger = Ledger()
    ledger.acknowledge(TP, 5, 50, 0.0)
    ledger.acknowledge(TP, 5, 51, 0.0)
    assert ledger.problems == ["t-0: offset 5 was acknowledged twice"]
    assert ledger.total() == 1


def test_lag_is_the_age_of_the_oldest_unstored_record() -> None:
    ledger = Ledger()
    for offset in range(10):
        ledger.acknowledge(TP, offset, offset + 1, float(offset))
    assert ledger.lag(TP, 0, 10.0) == 10.0
    assert ledger.lag(TP, 4, 10.0) == 6.0
    assert ledger.lag(TP, 10, 10.0) == 0.0
    assert ledger.lag(("other", 0), 0, 10.0) == 0.0


def told(count: int) -> Ledger:
    """A ledger of this many records, acknowledged one per second."""
    ledger = Ledger()
    for offset in range(count):
        ledger.acknowledge(TP, offset, offset + 100, float(offset))
    return ledger


def test_records_lost_in_an_unclean_election_are_kept_separately() -> None:
    ledger = told(10)
    lost = ledger.lose_to_election(TP, 6, 8)
    assert ledger.by_elections == [lost]
    assert (lost.start, lost.archived_to, lost.topic_id) == (6, 8, None)
    assert list(lost.records.items()) == [(offset, offset + 100) for offset in range(6, 10)]
    assert [offset for offset, _ in ledger.acknowledged[TP].items()] == list(range(6))
    ledger.acknowledge(TP, 6, 999, 20.0)
    assert ledger.problems == [], "the offset is free again"
    assert ledger.total() == 11
    assert ledger.lag(TP, 6, 21.0) == 1.0, "what is lost is not waited for"


def test_records_of_a_deleted_topic_are_kept_separately_under_its_id() -> None:
    ledger = told(4)
    lost = ledger.lose_to_deletion(TP, 3, "old")
    assert ledger.by_deletions == [lost]
    assert (len(lost.records), lost.start, lost.archived_to, lost.topic_id) == (4, 0, 3, "old")
    assert ledger.lag(TP, 0, 10.0) == 0.0
    ledger.acknowledge(TP, 0, 999, 20.0)
    assert ledger.problems == []


def test_deleted_records_are_not_waited_for() -> None:
    ledger = told(10)
    ledger.raise_log_start(TP, 7)
    ledger.raise_log_start(TP, 5)
    assert ledger.log_starts == {TP: 7}
    assert ledger.lag(TP, 2, 10.0) == 3.0


def test_record_with_an_unknown_offset_is_kept_by_its_checksum() -> None:
    ledger = Ledger()
    ledger.acknowledge_unplaced(TP, 7)
    assert ledger.unplaced == {TP: {7}}


def test_fate_is_recorded_once_its_transaction_has_ended() -> None:
    ledger = Ledger()
    ledger.decide(TP, 2, Fate.ABORTED)
    assert list(ledger.fates[TP].items()) == [(2, Fate.ABORTED)]
