"""Transactions and read_committed compared with Kafka's own rule, batch by batch."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.segments.arrow import Fate, fates_of, scan_headers
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.transactions import TransactionTracker
from sidetier.segments.txn_index import AbortedTxn
from tests.harness.record_batches import MadeBatch, TransactionalLog
from tests.harness.transactions import FEEDS

PRODUCERS = st.integers(1, 4)


@st.composite
def transactional_logs(draw: st.DrawFn) -> TransactionalLog:
    log = TransactionalLog(next_offset=draw(st.sampled_from([0, 1000])))
    for _ in range(draw(st.integers(1, 30))):
        producer, what = draw(PRODUCERS), draw(st.sampled_from("wwwwnca"))
        epoch = draw(st.integers(0, 2))
        if what in "wn":
            log.write(producer, draw(st.integers(1, 3)), transactional=what == "w", epoch=epoch)
        else:
            log.mark(producer, commit=what == "c", epoch=epoch)
    return log


def is_abort(batch: MadeBatch) -> bool:
    return batch.records[0].key == b"\0\0\0\0"


def fate_of(batches: list[MadeBatch], row: int, known: int) -> Fate:
    """The fate of a batch, found by its next marker among the known batches."""
    batch = batches[row]
    if batch.is_control:
        return Fate.CONTROL
    if not batch.is_transactional:
        return Fate.COMMITTED
    for later in batches[row:known]:
        if later.is_control and later.producer_id == batch.producer_id:
            return Fate.ABORTED if is_abort(later) else Fate.COMMITTED
    return Fate.UNDECIDED


def model(
    batches: list[MadeBatch], known: int
) -> tuple[dict[int, OpenTransaction], list[AbortedTxn]]:
    """The open and the aborted transactions after the first `known` batches."""
    still_open: dict[int, OpenTransaction] = {}
    aborted = []
    for batch in batches[:known]:
        producer = batch.producer_id
        if batch.is_control:
            ended = still_open.pop(producer, None)
            if ended is not None and is_abort(batch):
                firsts = [one.first_offset for one in still_open.values()]
                stable = min(firsts, default=Offset(batch.first + 1))
                marker = Offset(batch.first)
                aborted.append(AbortedTxn(producer, ended.first_offset, marker, stable))
        elif batch.is_transactional:
            first = still_open[producer].first_offset if producer in still_open else batch.first
            still_open[producer] = OpenTransaction(producer, Offset(first), batch.producer_epoch)
    return still_open, aborted


@settings(max_examples=200, deadline=None)
@given(
    transactional_logs(),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from((None, *FEEDS))), max_size=5),
    st.sampled_from(FEEDS),
    st.integers(0, 30),
)
def test_every_source_in_any_order_decides_like_kafka(
    log: TransactionalLog, steps: list[tuple[int, object]], last: object, before: int
) -> None:
    """The tracker begins at any batch with the broker's snapshot. Then it gets tables, single
    headers, or the files that describe them (None).
    """
    batches = log.batches
    before = min(before, len(batches) - 1)
    table = scan_headers(log.encoded)
    rest = table.where(slice(before, None))
    tracker = TransactionTracker(batches[before].first, model(batches, before)[0].values())
    aborted_before = len(model(batches, before)[1])
    known = before
    for until, feed in [*sorted(steps, key=lambda step: step[0]), (len(batches), last)]:
        known = max(known, min(until, len(batches)))
        still_open, aborted = model(batches, known)
        if feed is None:
            end = batches[known - 1].last + 1 if known else 0
            tracker.skip_to(end, aborted, still_open.values())
        else:
            feed(tracker, b"".join(batch.encoded() for batch in batches[before:known]))  # type: ignore[operator]
        assert dict(tracker.open) == still_open
        assert list(tracker.aborted) == aborted[aborted_before:]
        firsts = [one.first_offset for one in still_open.values()]
        assert tracker.last_stable_offset == min(firsts, default=tracker.end)
        found = [Fate(int(fate)) for fate in fates_of(tracker, rest)]
        assert found == [fate_of(batches, row, known) for row in range(before, len(batches))]
