"""An archive and a live cluster are one log for a client, whatever happens to either.

Records are produced, archived, deleted at the broker and by gc; leaders move, and the new ones lag
behind; brokers, the store and both are away; views of either side are old; records are lost before
they are archived; the topic is deleted and created again, and its archive stays for a while. Any of
this also happens between two requests that an endpoint makes for one answer. The client moves
between two endpoints. It follows Kafka's rules: it fetches by topic id from its position on, skips
what is lost after OFFSET_OUT_OF_RANGE, at once or later, and asks for Metadata after other errors.

Each record comes once and in order; OFFSET_OUT_OF_RANGE is only answered for what neither side has;
and a client that nothing hinders any more comes to the end of the log.

`SERVE_LIVE_EXAMPLES` in the environment sets the number of examples; they are then different in
each run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from kio.schema.errors import ErrorCode

from sidetier.endpoint.fetch import FetchedData
from tests.harness.live_world import EARLIEST, LATEST, Endpoint, Log, World, answered_by

if TYPE_CHECKING:
    from uuid import UUID

EXAMPLES = int(os.environ.get("SERVE_LIVE_EXAMPLES", "0"))
NONE = ErrorCode.none
STORE, BROKER = 0.0, float("inf")
MAX_TOPICS = 3
RETRIABLE = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
    }
)
THINGS: dict[str, Callable[[World, int], None]] = {
    "produce": lambda world, size: world.produce(size),
    "produce above a hole": lambda world, size: world.produce(2, size),
    "commit": lambda world, _: world.commit(),
    "upload": lambda world, size: world.upload(size),
    "trim": lambda world, size: world.trim(size * 3),
    "trim all": lambda world, _: world.trim(1 << 20),
    "lose": lambda world, _: world.lose(),
    "collect": lambda world, _: world.collect(),
    "delete objects": lambda world, _: world.delete_objects(),
    "move": lambda world, size: world.move_leader(size - 1),
    "cut off": lambda world, _: world.cut_off(),
    "show": lambda world, _: world.show(),
    "wait": lambda world, size: world.pass_time(size / 2),
}
USUAL = ("produce", "commit", "upload", "trim", "trim all", "wait")
"""Drawn more often."""
Thing = tuple[str, int]
thing = st.tuples(st.sampled_from([*THINGS, *USUAL, *USUAL]), st.integers(1, 4))
meanwhile = st.lists(thing, max_size=4)
endpoints = st.sampled_from([0, 1])


@contextmanager
def closing_agenda(world: World) -> Iterator[None]:
    """Drop what has not happened until the end."""
    try:
        yield
    finally:
        world.agenda = []


class LiveLog(RuleBasedStateMachine):
    """The state machine."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.logs: dict[UUID, Log] = {}
        self.endpoints: list[Endpoint] = []
        self.topic_id: UUID | None = None
        """The topic that the client reads; None before it knows one."""
        self.position: int | None = None
        """The client's next offset; None while it must ask for the first one."""
        self.epoch = 0
        """Leader epoch of the record before."""
        self._answering = answered_by(self.world)
        self._answering.__enter__()

    @initialize(
        window=st.sampled_from([STORE, BROKER, 4.0]),
        patience=st.sampled_from([0.0, 0.0, 60.0]),
        alone=st.sampled_from([0, 0, 1, 2]),
    )
    def begin(self, window: float, patience: float, alone: int) -> None:
        """Start both endpoints, the second one perhaps while the brokers or the store are away."""
        for size in (2, 3, 2, 1, 2, 2, 3, 2):
            self.world.act(lambda size=size: self.world.produce(size))  # type: ignore[misc]
        self.world.commit()
        self.world.act(lambda: self.world.upload(2))
        self.note_topic()
        self.endpoints.append(Endpoint(self.world, window, patience))
        self.world.away = {0, 1} if alone == 1 else set()
        self.world.set_store_away(is_away=alone == 2)
        self.endpoints.append(Endpoint(self.world, window, patience))

    def note_topic(self) -> None:
        if self.world.log is not None:
            self.logs[self.world.log.topic_id] = self.world.log

    # What happens

    def acts(self, things: Sequence[Thing]) -> list[Callable[[], None]]:
        return [
            lambda name=name, size=size: THINGS[name](self.world, size)  # type: ignore[misc]
            for name, size in things
        ]

    @rule(things=st.lists(thing, min_size=1, max_size=5))
    def happen(self, things: list[Thing]) -> None:
        for act in self.acts(things):
            self.world.act(act)

    @rule(seconds=st.sampled_from([0, 0, 0.5, 2.5, 6, 12, 70]), at=endpoints, lists=st.booleans())
    def threads_run(self, seconds: float, at: int, *, lists: bool) -> None:
        """Let time pass, and then one endpoint do what it does in threads."""
        self.world.pass_time(seconds)
        self.endpoints[at].run_threads(lists=lists)

    @rule(seconds=st.sampled_from([0.5, 2.5, 6]), at=endpoints)
    def topics_are_asked_for(self, seconds: float, at: int) -> None:
        self.world.pass_time(seconds)
        self.endpoints[at].ask_for_topics()

    @rule(
        away=st.sampled_from([(), (), (), (0,), (1,), (0, 1)]),
        store=st.sampled_from([False, False, True]),
        hints=st.booleans(),
    )
    def trouble(self, away: tuple[int, ...], *, store: bool, hints: bool) -> None:
        """Let brokers or the store be away, or come back."""
        self.world.away, self.world.hints = set(away), hints
        self.world.set_store_away(is_away=store)

    @rule(acts=st.sampled_from([("delete",), ("delete", "show"), ("create",), ("retire",)]))
    def change_topic(self, acts: tuple[str, ...]) -> None:
        """Delete the topic, create it again, or move the archive of a deleted one away."""
        if "delete" in acts and len(self.logs) < MAX_TOPICS:
            self.world.delete()
        if "create" in acts and self.world.log is None:
            self.create()
        if "retire" in acts:
            self.world.act(self.world.retire)
        if "show" in acts:
            self.world.show()

    def create(self) -> None:
        self.world.create()
        self.note_topic()
        for size in (1, 2, 3):
            self.world.act(lambda size=size: self.world.produce(size))  # type: ignore[misc]
        self.world.commit()

    def during(
        self, things: Sequence[Thing], look: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Let these things happen between the requests of an endpoint; look at the world before,
        and after each of them.
        """
        look()

        def looking(act: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                act()
                look()

            return run

        self.world.agenda = [looking(act) for act in self.acts(things)]
        return closing_agenda(self.world)

    # The client

    @rule(at=endpoints, times=st.integers(1, 5), skips=st.booleans())
    def read_on(self, at: int, times: int, *, skips: bool) -> None:
        for _ in range(times):
            self.read_once(self.endpoints[at], skips=skips)

    @rule(at=endpoints, isolated=st.booleans(), meanwhile=meanwhile, times=st.integers(1, 3))
    def fetch(self, at: int, meanwhile: list[Thing], times: int, *, isolated: bool) -> None:
        for _ in range(times):
            self.read_once(self.endpoints[at], meanwhile, isolated=isolated, skips=False)

    def read_once(
        self,
        endpoint: Endpoint,
        meanwhile: Sequence[Thing] = (),
        *,
        isolated: bool = False,
        skips: bool = True,
    ) -> None:
        """Fetch as a client does that knows its topic and its position; if not, ask for them."""
        if self.topic_id is None:
            self.topic_id, self.position = endpoint.topic_id(), None
        if self.topic_id is not None and self.position is None:
            self.reset(endpoint)
        if self.topic_id is None or self.position is None:
            return
        log, was_there = self.logs[self.topic_id], list[bool]()
        with self.during(meanwhile, lambda: was_there.append(self.is_there(log))):
            data, records = endpoint.fetch(self.topic_id, self.position, isolated=isolated)
        if data.error is NONE:
            self.take(log, data, records)
            is_unknown = log.is_live and len(self.logs) == 1 and not endpoint.shows(log)
            assert records or not is_unknown or data.high_watermark > self.position, (
                "the end of the archive is no end of the log"
            )
        elif data.error is ErrorCode.offset_out_of_range:
            assert not all(was_there), f"a false OFFSET_OUT_OF_RANGE at {self.position}"
            if skips:
                self.skip(log)
        else:
            assert data.error in RETRIABLE, data.error
            self.look_at_topic(endpoint)

    def is_there(self, log: Log) -> bool:
        """Whether the client's position is on one side."""
        assert self.position is not None
        return not log.is_lost(self.position)

    def skip(self, log: Log) -> None:
        """Continue behind what is lost, as an administrator would let the client do."""
        while self.position is not None and not self.is_there(log):
            self.position = self.position + 1 if self.position < log.end else None

    def look_at_topic(self, endpoint: Endpoint) -> None:
        """Ask for Metadata: a topic that was created again is read from its start.

        An endpoint that no broker has told of it still shows the deleted one.
        """
        shown = endpoint.topic_id()
        if shown not in {None, self.topic_id}:
            assert shown in self.logs
            assert len(self.logs) > 1
            self.topic_id, self.position = shown, None

    def reset(self, endpoint: Endpoint) -> None:
        """Begin at the first offset, as `auto.offset.reset=earliest`."""
        answer = endpoint.list_offset(EARLIEST, isolated=False)
        if answer.error is NONE:
            known = [each.starts for each in (self.world.log, self.world.archived) if each]
            assert not known or any(answer.offset in starts for starts in known)
            self.position, self.epoch = answer.offset, 0
        else:
            assert answer.error in RETRIABLE, answer.error
            self.look_at_topic(endpoint)

    def take(self, log: Log, data: FetchedData, records: bytes) -> None:
        """Check that an answer continues at the client's position."""
        position = self.position
        assert position is not None
        while records:
            batch = log.next_batch(position)
            assert batch is not None
            if len(records) < len(batch.data):
                assert batch.data.startswith(records)  # cut off, as by a broker
                break
            assert records.startswith(batch.data), f"not the records at {position}"
            records = records[len(batch.data) :]
            position, self.epoch = batch.end, batch.epoch
        if log is self.world.log:  # not while a deleted topic is read on
            assert self.position is not None
            assert data.log_start_offset <= self.position
            assert data.high_watermark <= log.committed
            # Without records: a new leader may not know yet how far the old one was.
            assert position <= data.high_watermark or position == self.position
        self.position = position

    @precondition(lambda self: self.position is not None)
    @rule(share=st.floats(0, 1))
    def seek(self, share: float) -> None:
        """Go back, to an offset that the client may have read."""
        assert self.topic_id is not None
        assert self.position is not None
        log = self.logs[self.topic_id]
        self.position, self.epoch = int(self.position * share), 0
        if not self.is_there(log):
            self.position = None

    @rule(at=endpoints, meanwhile=meanwhile, isolated=st.booleans())
    def list_latest(self, at: int, meanwhile: list[Thing], *, isolated: bool) -> None:
        log, ends = self.world.log, list[int]()
        if log is None:
            return
        with self.during(meanwhile, lambda: ends.append(log.high_watermark)):
            answer = self.endpoints[at].list_offset(LATEST, isolated=isolated)
        # An endpoint may not have heard yet of a topic that was created again.
        is_known = len(self.logs) == 1 or self.endpoints[at].shows(log)
        if answer.error is NONE and is_known and not self.world.was_cut_off():
            assert ends[0] <= answer.offset <= log.committed

    @rule(at=endpoints, meanwhile=meanwhile)
    def list_earliest(self, at: int, meanwhile: list[Thing]) -> None:
        log, starts = self.world.log, list[int]()
        if log is None:
            return
        with self.during(meanwhile, lambda: starts.append(self.first_of(log))):
            answer = self.endpoints[at].list_offset(EARLIEST, isolated=False)
        is_known = self.endpoints[at].shows(log) and not self.world.was_cut_off()
        if answer.error is NONE and is_known:
            assert answer.offset <= max(starts)

    def first_of(self, log: Log) -> int:
        has_archive = log is self.world.archived and log.archive_end > 0
        return log.archive_start if has_archive else log.start

    @rule(at=endpoints, meanwhile=meanwhile, of=st.floats(0, 1), later=st.sampled_from([0, 1]))
    def list_time(self, at: int, meanwhile: list[Thing], of: float, later: int) -> None:
        """Ask for the first record of a time or after it."""
        log, looks = self.world.log, list[set[int]]()
        if log is None or log is not self.world.archived:
            return

        def look() -> None:
            looks.append({row for row, batch in enumerate(log.batches) if log.is_there(batch)})

        time = log.batches[int((len(log.batches) - 1) * of)].time + later
        with self.during(meanwhile, look):
            answer = self.endpoints[at].list_offset(time, isolated=False)
        is_known = self.endpoints[at].shows(log) and not self.world.was_cut_off()
        if answer.error is not NONE or not is_known:
            return
        found = log.next_batch(answer.offset) if answer.offset >= 0 else None
        assert found is None or found.time >= time
        for batch in (log.batches[row] for row in sorted(set.intersection(*looks))):
            if found is not None and batch.first >= found.first:
                break
            assert batch.time < time, "an earlier record is skipped"

    @precondition(lambda self: self.position is not None)
    @rule(at=endpoints, meanwhile=meanwhile)
    def ask_for_the_end_of_an_epoch(self, at: int, meanwhile: list[Thing]) -> None:
        """Ask as a client that finds out whether records before its position were replaced."""
        assert self.topic_id is not None
        assert self.position is not None
        log = self.logs[self.topic_id]
        if log is not self.world.log or log is not self.world.archived:
            return
        with self.during(meanwhile, lambda: None):
            answer = self.endpoints[at].epoch_end(self.epoch)
        if answer.error is NONE and not self.world.was_cut_off():
            assert 0 <= answer.leader_epoch <= self.epoch
            last = next((each for each in log.batches if each.end == self.position), None)
            if last is not None and last.epoch == self.epoch:
                assert answer.end_offset >= self.position, "its records count as replaced"

    # The end

    def teardown(self) -> None:
        """End all that hinders the client: it reads everything that is left."""
        try:
            if self.endpoints:
                self.world.away = set()
                self.world.set_store_away(is_away=False)
                self.world.create()
                self.note_topic()
                self.world.act(self.world.retire)
                self.world.show()
                self.world.commit()
                self.read_to_the_end()
        finally:
            for endpoint in self.endpoints:
                endpoint.close()
            self._answering.__exit__(None, None, None)

    def read_to_the_end(self) -> None:
        log = self.world.log
        assert log is not None
        for turn in range(500):
            if self.topic_id == log.topic_id and self.position == log.end:
                return
            endpoint = self.endpoints[turn % 2]
            self.world.pass_time(1.5)
            endpoint.run_threads(lists=turn % 10 < 2)
            self.read_once(endpoint)
        raise AssertionError(f"the client stands at {self.position} of {log.end}")


TestLiveLog = pytest.mark.timeout(max(120, EXAMPLES))(LiveLog.TestCase)
TestLiveLog.settings = settings(
    max_examples=EXAMPLES or 30,
    stateful_step_count=40,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
