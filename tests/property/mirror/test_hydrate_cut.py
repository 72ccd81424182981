"""No transaction is half in after a consistent cut, whatever was written and wherever it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from sidetier.mirror.hydrate.cut import CLOCK_SKEW_MS, consistent_cut
from sidetier.mirror.hydrate.transactions import Transaction
from sidetier.segments.offsets import Offset, TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(3)]

# Each transaction: producer, the partitions it writes to, whether it commits, and how long after
# its decision each partition's marker is written.
TRANSACTION = st.tuples(
    st.integers(1, 2),
    st.sets(st.sampled_from(range(3)), min_size=1),
    st.booleans(),
    st.lists(st.integers(0, 5_000), min_size=3, max_size=3),
    st.integers(1, 20_000),
)


@given(
    st.lists(TRANSACTION, max_size=12),
    st.lists(st.integers(-CLOCK_SKEW_MS // 2, CLOCK_SKEW_MS // 2), min_size=3, max_size=3),
    st.lists(st.integers(0, 80), min_size=3, max_size=3),
    st.lists(st.integers(0, 80), min_size=3, max_size=3),
)
def test_no_transaction_is_half_in(
    written: list[tuple[int, set[int], bool, list[int], int]],
    skews: list[int],
    wanted: list[int],
    archived: list[int],
) -> None:
    logs: list[list[Transaction]] = [[], [], []]
    lengths = [0, 0, 0]
    markers: list[tuple[bool, dict[int, int]]] = []
    free = {1: 1_000_000, 2: 1_000_000}
    for producer, partitions, commits, delays, pause in written:
        decided = free[producer] + pause
        free[producer] = decided + max(delays[number] for number in partitions)
        mine = {}
        for number in partitions:
            first, marker = lengths[number], lengths[number] + 1
            lengths[number] += 2
            at_ms = decided + delays[number] + skews[number]
            mine[number] = marker
            logs[number].append(
                Transaction(
                    producer,
                    0,
                    Offset(first),
                    decided - pause + skews[number],
                    Offset(marker),
                    at_ms,
                    commits,
                )
            )
        markers.append((commits, mine))
    ends = [min(length, end) for length, end in zip(lengths, archived, strict=True)]
    seen = {
        tp: [_as_archived(one, end) for one in log if one.first_offset < end]
        for tp, log, end in zip(PARTITIONS, logs, ends, strict=True)
    }
    asked = {
        tp: Offset(min(end, want)) for tp, end, want in zip(PARTITIONS, ends, wanted, strict=True)
    }
    cut = consistent_cut(seen, asked)
    assert all(cut[tp] <= asked[tp] for tp in asked)
    for commits, mine in markers:
        known = {number for number in mine if mine[number] - 1 < ends[number]}
        inside = {number for number in known if mine[number] < cut[PARTITIONS[number]]}
        assert not commits or inside in (set(), known)


def _as_archived(one: Transaction, end: int) -> Transaction:
    """Without its marker where that was not archived."""
    if one.marker_offset is not None and one.marker_offset >= end:
        return Transaction(one.producer_id, one.producer_epoch, one.first_offset, one.begin_ms)
    return one
