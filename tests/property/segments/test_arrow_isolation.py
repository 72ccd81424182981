"""read_committed compared with Kafka's own rule, batch by batch."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.segments.arrow import Fate, HeaderTable, TransactionFilter, read_markers, scan_headers
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn
from tests.harness.record_batches import MadeBatch, TransactionalLog

PRODUCERS = st.integers(1, 4)


@st.composite
def transactional_logs(draw: st.DrawFn) -> TransactionalLog:
    log = TransactionalLog(next_offset=draw(st.sampled_from([0, 1000])))
    for _ in range(draw(st.integers(1, 30))):
        producer, what = draw(PRODUCERS), draw(st.sampled_from("wwwwnca"))
        if what in "wn":
            log.write(producer, draw(st.integers(1, 3)), transactional=what == "w")
        else:
            log.mark(producer, commit=what == "c")
    return log


def is_abort(batch: MadeBatch) -> bool:
    return batch.records[0].key == b"\0\0\0\0"


def fate_of(log: TransactionalLog, row: int, known: int) -> Fate:
    """The fate of a batch, found by its next marker among the known batches."""
    batch = log.batches[row]
    if batch.is_control:
        return Fate.CONTROL
    if not batch.is_transactional:
        return Fate.COMMITTED
    for later in log.batches[row:known]:
        if later.is_control and later.producer_id == batch.producer_id:
            return Fate.ABORTED if is_abort(later) else Fate.COMMITTED
    return Fate.UNDECIDED


def told_fates(log: TransactionalLog, known: int) -> list[Fate]:
    return [fate_of(log, row, known) for row in range(len(log.batches))]


def open_transactions(log: TransactionalLog, known: int) -> list[OpenTransaction]:
    """Content of the producer snapshot after `count` batches."""
    fates, firsts = told_fates(log, known), dict[int, int]()
    for batch, fate in zip(log.batches[:known], fates, strict=False):
        if fate is Fate.UNDECIDED:
            firsts.setdefault(batch.producer_id, batch.first)
    return [OpenTransaction(producer, Offset(first)) for producer, first in firsts.items()]


def aborted(log: TransactionalLog, known: int) -> list[AbortedTxn]:
    """Content of the `.txnindex` of segments with `count` batches."""
    found, firsts = [], dict[int, int]()
    for batch in log.batches[:known]:
        if batch.is_control:
            first = firsts.pop(batch.producer_id, None)
            if first is not None and is_abort(batch):
                marker = Offset(batch.first)
                found.append(AbortedTxn(batch.producer_id, Offset(first), marker, Offset(0)))
        elif batch.is_transactional:
            firsts.setdefault(batch.producer_id, batch.first)
    return found


def check(
    log: TransactionalLog, transactions: TransactionFilter, table: HeaderTable, known: int
) -> None:
    assert [Fate(int(fate)) for fate in transactions.fates(table)] == told_fates(log, known)
    firsts = [txn.first_offset for txn in open_transactions(log, known)]
    assert transactions.last_stable_offset == min(firsts, default=transactions.known_below)


@settings(max_examples=150, deadline=None)
@given(transactional_logs(), st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=5))
def test_every_source_in_any_order_decides_like_kafka(
    log: TransactionalLog, steps: list[tuple[int, bool]]
) -> None:
    table = scan_headers(log.encoded)
    markers = read_markers(log.encoded, table)
    transactions = TransactionFilter(log.batches[0].first)
    known = 0
    for until, from_files in [*sorted(steps), (len(table), False)]:
        known = max(known, min(until, len(table)))
        if from_files and known:
            end = log.batches[known - 1].last + 1
            transactions.learn(end, aborted(log, known), open_transactions(log, known))
        else:
            transactions.feed(table.where(slice(0, known)), markers[:known])
        check(log, transactions, table, known)


@settings(max_examples=60, deadline=None)
@given(transactional_logs(), st.integers(0, 30))
def test_snapshot_in_the_middle_of_the_log_decides_like_the_whole(
    log: TransactionalLog, before: int
) -> None:
    before = min(before, len(log.batches) - 1)
    table = scan_headers(log.encoded).where(slice(before, None))
    markers = read_markers(log.encoded, table)
    transactions = TransactionFilter(log.batches[before].first, open_transactions(log, before))
    transactions.feed(table, markers)
    whole = told_fates(log, len(log.batches))
    assert [Fate(int(fate)) for fate in transactions.fates(table)] == whole[before:]
    firsts = [txn.first_offset for txn in open_transactions(log, len(log.batches))]
    assert transactions.last_stable_offset == min(firsts, default=transactions.known_below)
