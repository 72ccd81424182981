"""Pure checks of the messages that a group received.

A partition has one log for each topic id: a topic that was deleted and created again has several.
The rules are those of `docs/consumer.md`. A reader that leaves an archive compares the topic id
first. A reader of Kafka does not: without a refusal by the broker it continues in the new topic's
log at the next offset, as confluent-kafka does, and a committed offset of the deleted topic counts
for the new one. When the broker refuses an offset later, the reader compares the ids, and may read
the new topic once more from its first record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from tests.end_to_end.chaos.groups import Assignment, Sign
from tests.end_to_end.chaos.ledger import Fate, Ledger, Partition, Sums

_NOTHING = Sums()
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Log:
    """Acknowledgements of producers under one topic id: committed records, and offsets of aborted
    ones. `since` is a time in monotonic seconds from which on all brokers had this topic id.
    """

    committed: Sums
    aborted: frozenset[int] = frozenset()
    since: float = 0.0

    def next(self, offset: int) -> int | None:
        """The first committed offset at or above this one."""
        return next((at for at, _ in self.committed.items() if at >= offset), None)


@dataclass(frozen=True, slots=True)
class Truth:
    """The logs of each partition, oldest first. `unplaced` are checksums of acknowledged records
    whose offsets are unknown. `ends` are offsets, by partition, from which on a group need not
    receive the last log.
    """

    logs: Mapping[Partition, Sequence[Log]]
    unplaced: Mapping[Partition, AbstractSet[int]] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)

    @property
    def lasts(self) -> dict[Partition, tuple[int, int]]:
        """The last wanted record of each partition, offset and checksum."""
        rows = {tp: self.wanted(tp) for tp in self.logs}
        return {tp: found[-1] for tp, found in rows.items() if found}

    def wanted(self, tp: Partition) -> list[tuple[int, int]]:
        """Offset and checksum of the records that a group must receive."""
        rows, end = self.logs[tp][-1].committed.items(), self.ends.get(tp)
        return [row for row in rows if end is None or row[0] < end]


def truth_of(ledger: Ledger, transactional: Iterable[str], topics: Iterable[str]) -> Truth:
    """Known outcome of each record of these topics; a transaction with an unknown outcome has no
    entry.
    """
    with_outcomes, wanted = set(transactional), set(topics)
    logs: dict[Partition, list[Log]] = {}
    since: dict[Partition, float] = {}
    for gone in ledger.by_deletions:
        logs.setdefault(gone.tp, []).append(Log(gone.records, since=since.get(gone.tp, 0.0)))
        since[gone.tp] = gone.at
    for tp, sums in ledger.acknowledged.items():
        ended = ledger.fates.get(tp, _NOTHING)
        outcome = Fate.COMMITTED if tp[0] in with_outcomes else None
        rows = [row for row in sums.items() if outcome is None or ended.get(row[0]) == outcome]
        aborted = frozenset(at for at, fate in ended.items() if fate == Fate.ABORTED)
        logs.setdefault(tp, []).append(Log(Sums(*rows), aborted, since.get(tp, 0.0)))
    return Truth({tp: found for tp, found in logs.items() if tp[0] in wanted}, ledger.unplaced)


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one assignment that follow one another in one log; `number` is that log's, from 0,
    and `first` the number of records that came before in the assignment.
    """

    number: int
    first: int
    rows: Sequence[tuple[int, int]]


def runs_of(truth: Truth, assignment: Assignment) -> list[Run]:
    """Split what a member received where the log changes. A record that no producer knows of
    belongs to no log where there are several.
    """
    logs, unplaced = truth.logs[assignment.tp], truth.unplaced.get(assignment.tp, frozenset())
    numbers, current = [], len(logs) - 1
    for offset, number in assignment.rows:
        found = [at for at, log in enumerate(logs) if log.committed.get(offset) == number]
        if found:
            current = found[-1]
        numbers.append(current if found or len(logs) == 1 or number in unplaced else _UNKNOWN)
    runs, first = [], 0
    for which, same in groupby(numbers):
        count = len(list(same))
        runs.append(Run(which, first, assignment.rows[first : first + count]))
        first += count
    return runs


def changes(truth: Truth, assignments: Iterable[Assignment]) -> int:
    """How often a reader came from one log of a partition into another one."""
    return sum(max(0, len(runs_of(truth, one)) - 1) for one in assignments)


def violations(
    truth: Truth, assignments: Iterable[Assignment], mode: str = "KAFKA_PREFERRED"
) -> Iterator[str]:
    """Messages that one group received wrongly or did not receive."""
    received = _Received(truth, mode)
    for assignment in assignments:
        where = f"{assignment.tp} of {assignment.member}"
        yield from (f"{where}: {problem}" for problem in received.add(assignment))
    for tp in truth.logs:
        yield from (f"{tp}: {problem}" for problem in received.missing(tp))


@dataclass(frozen=True, slots=True)
class _Received:
    """What a group has received so far.

    Attributes:
        handed: The records of each log, by partition and number.
        newest: By member and partition, the number of the newest log.
        skipped: Offsets below which readers have left out records of the last log, because they
            continued at an offset of a deleted topic.
        stale: Offsets that were committed for a deleted topic.
    """

    truth: Truth
    mode: str
    handed: dict[tuple[Partition, int], Sums] = field(default_factory=dict)
    newest: dict[tuple[str, Partition], int] = field(default_factory=dict)
    skipped: dict[Partition, set[int]] = field(default_factory=dict)
    stale: dict[Partition, set[int]] = field(default_factory=dict)

    def add(self, assignment: Assignment) -> Iterator[str]:
        tp, runs = assignment.tp, runs_of(self.truth, assignment)
        for run in runs:
            yield from self._run(assignment, run)
        known = [run for run in runs if run.number != _UNKNOWN]
        if known:
            self._begun(assignment, known[0])
        for old, new in pairwise(known):
            signs = [sign for sign in assignment.signs if old.first <= sign.rows <= new.first]
            entry = _entered(old, new, self.truth.logs[tp][new.number], signs, self.mode)
            yield from entry.problems
            if entry.skipped and self._is_last(tp, new):
                self.skipped.setdefault(tp, set()).add(entry.skipped)
        stale = _stale_commits(assignment, runs, len(self.truth.logs[tp]) - 1)
        self.stale.setdefault(tp, set()).update(stale)

    def missing(self, tp: Partition) -> Iterator[str]:
        sums = self.handed.get((tp, len(self.truth.logs[tp]) - 1), _NOTHING)
        start = min(self.skipped.get(tp, ()), default=0)
        wanted = (offset for offset, _ in self.truth.wanted(tp) if offset >= start)
        gone = [offset for offset in wanted if sums.get(offset) is None]
        if gone:
            yield f"{len(gone)} committed records never came, the first at {gone[0]}"

    def _run(self, assignment: Assignment, run: Run) -> Iterator[str]:
        tp, member = assignment.tp, (assignment.member, assignment.tp)
        if run.number == _UNKNOWN:
            yield from (f"{offset} is a record that no topic had there" for offset, _ in run.rows)
            return
        log, sums = (
            self.truth.logs[tp][run.number],
            self.handed.setdefault((tp, run.number), Sums()),
        )
        late = self._noticed_late(assignment, run, log)
        if late is None:
            yield from _of_run(run.rows, log, sums)
        else:
            before, after = run.rows[: late.rows - run.first], run.rows[late.rows - run.first :]
            yield from _of_run(before, log, sums)
            yield from _of_run(after, log, sums)
            yield from _left_out(log, late.offset, after[0][0])
        if run.number < self.newest.get(member, 0):
            yield f"{run.rows[0][0]} is of a deleted topic, and came after a newer one"
        self.newest[member] = max(run.number, self.newest.get(member, 0))

    def _noticed_late(self, assignment: Assignment, run: Run, log: Log) -> Sign | None:
        """Return the reset within a run, if the member knew only the deleted topic's id."""
        if self.mode == "TIERED_STORAGE_ONLY" or assignment.began >= log.since:
            return None
        between = range(run.first + 1, run.first + len(run.rows))
        resets = (sign for sign in assignment.signs if sign.kind == "reset")
        return next((sign for sign in resets if sign.rows in between), None)

    def _begun(self, assignment: Assignment, run: Run) -> None:
        """Note the begin in the last log, if it is the commit of a deleted topic."""
        tp, log = assignment.tp, self.truth.logs[assignment.tp][run.number]
        if self._is_last(tp, run) and not assignment.was_reset():
            first = run.rows[0][0]
            starts = {at for at in self.stale.get(tp, ()) if log.next(at) == first}
            self.skipped.setdefault(tp, set()).update(starts)

    def _is_last(self, tp: Partition, run: Run) -> bool:
        return run.number == len(self.truth.logs[tp]) - 1


def _of_run(rows: Sequence[tuple[int, int]], log: Log, handed: Sums) -> Iterator[str]:
    last = -1
    for offset, number in rows:
        if log.committed.get(offset) not in {None, number}:
            yield f"other bytes at {offset} than were produced"
        elif not handed.put(offset, number):
            yield f"other bytes at {offset} than before"
        if offset <= last:
            yield f"{offset} came after {last}"
        if offset in log.aborted:
            yield f"{offset} was aborted"
        last = max(last, offset)
    offsets = {offset for offset, _ in rows}
    yield from _left_out(log, min(offsets), max(offsets), offsets)


def _left_out(
    log: Log, start: int, end: int, received: AbstractSet[int] = frozenset()
) -> Iterator[str]:
    between = range(start, end)
    gaps = [at for at in between if log.committed.get(at) is not None and at not in received]
    if gaps:
        yield f"{len(gaps)} records were left out, the first at {gaps[0]}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A reader's way into the log of a new topic; the records below `skipped` are left out, as
    confluent-kafka does.
    """

    problems: Sequence[str] = ()
    skipped: int = 0


def _entered(old: Run, new: Run, log: Log, signs: Sequence[Sign], mode: str) -> _Entry:
    first, position = new.rows[0][0], old.rows[-1][0] + 1
    resets = [s.offset for s in signs if s.kind == "reset" and s.rows == new.first]
    if resets:
        return _Entry(list(_left_out(log, resets[-1], first)))
    if first < position and mode == "KAFKA_ONLY":
        return _Entry(list(_left_out(log, 0, first)))  # librdkafka resets, and logs nothing
    if first < position or mode == "TIERED_STORAGE_ONLY":
        return _Entry([f"{first} of a new topic came after {position - 1} without a reset"])
    # The archive may be left before the application has received the archive's last records.
    left = (s for s in signs if s.kind == "kafka" and s.offset == position)
    if any(sign.at > log.since for sign in left):
        return _Entry([f"the archive of a deleted topic was left for Kafka at {position}"])
    return _Entry(list(_left_out(log, position, first)), position)


def _stale_commits(assignment: Assignment, runs: Sequence[Run], last: int) -> Iterator[int]:
    """Offsets that were committed while the last record was one of a deleted topic."""
    for sign in assignment.signs:
        before = [run.number for run in runs if run.first < sign.rows]
        if sign.kind == "commit" and before and before[-1] < last:
            yield sign.offset
