"""The rule of committed bytes against a model of one broker's log.

Between any two steps of the rule, the model appends, loses and regains the lead, is truncated and
refilled by another leader, also below the high watermark, or becomes another topic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from sidetier.segments.errors import DamagedSegmentError, LeadershipError, SidetierError
from sidetier.segments.headers import BatchHeader, parse_batch_header
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset
from sidetier.uploader.gates import committed_range
from sidetier.uploader.gates.committed_range import (
    CommittedRange,
    LedLog,
    NotCommittedError,
    choose,
)
from sidetier.uploader.watching.disk import LogFile
from sidetier.wire.log_offsets import AnsweredOffset
from tests.harness.batches import make_batch

Refusal = Callable[..., str | None]


@dataclass
class Log:
    """A broker's log: batches with base offset, epoch and bytes that are written once."""

    topic: int = 0
    epoch: int = 0
    leads: bool = True
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    high_watermark: int = 0
    is_torn: bool = False
    written: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][0] + 1 if self.batches else 0

    def append(self) -> None:
        self.written += 1
        base = self.end
        self.is_torn = False
        payload = f"{self.topic} {self.written}".encode()
        self.batches.append((base, self.epoch, make_batch(base, epoch=self.epoch, payload=payload)))

    def replicate(self) -> None:
        self.high_watermark = self.end

    def tear(self) -> None:
        """Begin to write a batch: its header is not whole yet."""
        self.is_torn = True

    def lose(self) -> None:
        """Follow a leader that has all committed batches, and then leads in a later epoch."""
        self._follow(self.high_watermark)

    def lose_uncleanly(self) -> None:
        """Follow a leader that lacks committed batches, with others in their place."""
        self._follow(max(0, self.high_watermark - 2))

    def _follow(self, end: int) -> None:
        self.epoch += 1
        self.leads, self.is_torn = False, False
        del self.batches[end:]
        self.append()
        self.append()
        self.high_watermark = self.end

    def lead(self) -> None:
        if not self.leads:
            self.epoch, self.leads = self.epoch + 1, True

    def restart(self) -> None:
        self.epoch += 1

    def recreate(self) -> None:
        written = self.written
        self.__init__(topic=self.topic + 1, written=written)  # type: ignore[misc]
        for _ in range(4):
            self.append()
        self.replicate()

    # What the sidecar sees -----------------------------------------------------------------------

    def ask(self, epoch: int) -> AnsweredOffset | SidetierError:
        if not self.leads or epoch != self.epoch:
            return LeadershipError(f"not the leader in epoch {epoch}")
        return AnsweredOffset(Offset(self.high_watermark), LeaderEpoch(self.epoch))

    def walk(self) -> Iterator[tuple[int, BatchHeader]]:
        position = 0
        for _, _, data in list(self.batches):
            yield position, parse_batch_header(data)
            position += len(data)
        if self.is_torn:
            raise DamagedSegmentError("a batch is being written")

    def look(self) -> LogFile:
        return LogFile(1, self.topic, str(self.topic))

    def committed(self, start: int, end: int) -> list[bytes] | None:
        """Return the committed batches of these offsets; None if not all are committed."""
        return None if end > self.high_watermark else [b for _, _, b in self.batches[start:end]]


STEPS = {
    "append": Log.append,
    "replicate": Log.replicate,
    "tear": Log.tear,
    "lose": Log.lose,
    "lose uncleanly": Log.lose_uncleanly,
    "lead": Log.lead,
    "restart": Log.restart,
    "recreate": Log.recreate,
}
Events = st.lists(st.sampled_from(sorted(STEPS)), max_size=4)


def play(log: Log, events: list[str]) -> None:
    for name in events:
        STEPS[name](log)


def stores_only_committed(moments: list[list[str]], start: int, refusal: Refusal) -> None:
    """Apply the rule once, with these events before and between its steps."""
    before, asked, halfway, read, confirmed = moments
    log = Log()
    for _ in range(3):
        log.append()
    log.replicate()
    play(log, before)
    log.lead()
    epoch = LeaderEpoch(log.epoch)
    answer = log.ask(epoch)
    assert isinstance(answer, AnsweredOffset)
    led = LedLog(answer.offset, answer.offset, answer.leader_epoch)
    play(log, asked)
    topic, file = log.topic, log.look()
    try:
        wanted = choose(log.walk(), BaseOffset(0), Offset(start), led, file, 1 << 20)
    except (NotCommittedError, DamagedSegmentError):
        return
    if wanted is None:
        return
    # The bytes are read in two parts, and the log may change in between.
    middle = (wanted.start + wanted.end) // 2
    data = [b for _, _, b in log.batches[wanted.start : middle]]
    play(log, halfway)
    data += [b for _, _, b in log.batches[middle : wanted.end]]
    play(log, read)
    again = log.ask(epoch)
    was = log.topic, log.committed(wanted.start, wanted.end)
    play(log, confirmed)
    headers = [parse_batch_header(batch) for batch in data]
    runs = [
        (LeaderEpoch(run), next(batches).base_offset)
        for run, batches in groupby(headers, key=lambda header: header.leader_epoch)
    ]
    is_whole = all(after.base_offset >= one.next_offset for one, after in pairwise(headers))
    end = headers[-1].next_offset if headers else None
    if not is_whole or refusal(wanted, runs, end, again, log.look()) is not None:
        event("refused")
        return
    event("stored")
    assert was == (topic, data), "bytes that are not committed were stored"


MOMENTS = st.lists(Events, min_size=5, max_size=5)


@settings(max_examples=400, deadline=None)
@given(MOMENTS, st.integers(0, 3))
def test_only_committed_bytes_are_stored(moments: list[list[str]], start: int) -> None:
    stores_only_committed(moments, start, committed_range.refusal)


def without_the_second_ask(
    wanted: CommittedRange, runs: object, end: object, again: object, file: object
) -> str | None:
    del again
    said = AnsweredOffset(wanted.end, wanted.leader_epoch)
    return committed_range.refusal(wanted, runs, end, said, file)  # type: ignore[arg-type]


def without_the_look(
    wanted: CommittedRange, runs: object, end: object, again: object, file: object
) -> str | None:
    del file
    return committed_range.refusal(wanted, runs, end, again, wanted.file)  # type: ignore[arg-type]


@pytest.mark.parametrize("mutant", [without_the_second_ask, without_the_look])
def test_each_step_of_the_rule_is_needed(mutant: Refusal) -> None:
    @settings(
        max_examples=2000, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(MOMENTS, st.integers(0, 3))
    def mutated(moments: list[list[str]], start: int) -> None:
        stores_only_committed(moments, start, mutant)

    with pytest.raises(AssertionError, match="not committed"):
        mutated()
