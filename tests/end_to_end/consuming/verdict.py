"""Pure checks of the messages that a group received."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.end_to_end.chaos.ledger import Fate, Partition, Sums
from tests.end_to_end.consuming.groups import Assignment


@dataclass(frozen=True, slots=True)
class Truth:
    """Acknowledgements of producers: committed records, and offsets of aborted ones."""

    committed: Mapping[Partition, Sums]
    aborted: Mapping[Partition, frozenset[int]]


def truth_of(
    acknowledged: Mapping[Partition, Sums],
    fates: Mapping[Partition, Sums],
    transactional: Iterable[str],
) -> Truth:
    """Known outcome of each record; a transaction with an unknown outcome has no entry."""
    topics = set(transactional)
    committed: dict[Partition, Sums] = {}
    aborted: dict[Partition, frozenset[int]] = {}
    for tp, sums in acknowledged.items():
        ended = fates.get(tp, Sums())
        wanted = None if tp[0] not in topics else Fate.COMMITTED
        rows = [row for row in sums.items() if wanted is None or ended.get(row[0]) == wanted]
        committed[tp] = Sums(*rows)
        aborted[tp] = frozenset(at for at, fate in ended.items() if fate == Fate.ABORTED)
    return Truth(committed, aborted)


def violations(truth: Truth, assignments: Iterable[Assignment]) -> Iterator[str]:
    """Messages that one group received wrongly or did not receive."""
    handed: dict[Partition, set[int]] = {}
    for assignment in assignments:
        handed.setdefault(assignment.tp, set()).update(offset for offset, _ in assignment.rows)
        yield from _of_assignment(truth, assignment)
    for tp, sums in truth.committed.items():
        gone = [offset for offset, _ in sums.items() if offset not in handed.get(tp, set())]
        if gone:
            yield f"{tp}: {len(gone)} committed records never came, the first at {gone[0]}"


def _of_assignment(truth: Truth, assignment: Assignment) -> Iterator[str]:
    tp, where = assignment.tp, f"{assignment.tp} of {assignment.member}"
    known, aborted = truth.committed.get(tp, Sums()), truth.aborted.get(tp, frozenset())
    last = -1
    for offset, number in assignment.rows:
        if offset <= last:
            yield f"{where}: {offset} came after {last}"
        if offset in aborted:
            yield f"{where}: {offset} was aborted"
        if known.get(offset) not in {None, number}:
            yield f"{where}: other bytes at {offset} than were produced"
        last = max(last, offset)
    offsets = {offset for offset, _ in assignment.rows}
    if offsets:
        between = range(min(offsets), max(offsets))
        gaps = [at for at in between if known.get(at) is not None and at not in offsets]
        if gaps:
            yield f"{where}: {len(gaps)} records were left out, the first at {gaps[0]}"
