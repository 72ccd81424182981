"""The protocol while sidecars delete archived records: local retention.

Each pass of a leader's sidecar deletes every closed segment that is archived, while leaders change,
records are lost in unclean elections, and requests fail or arrive late. A record that only the
broker has is never deleted.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from sidetier.leadership.port import TopicConfig
from tests.harness.daemons import LAYOUT
from tests.harness.simulation.network import Fate
from tests.harness.simulation.world import WORLDS, World
from tests.property.uploader.test_protocol import BROKERS, PARTITIONS, SECONDS, examples
from tests.property.uploader.test_protocol_disasters import Disasters

pytestmark = pytest.mark.timeout(SECONDS)
_PASS_SECONDS = 6.0
TRIMS = [0]
"""Trims of all runs of this process."""
EVENTS: Counter[str] = Counter()
"""Events of all runs of this process, by name."""


class Trimming(Disasters):
    """All invariants hold while sidecars trim."""

    config: ClassVar = TopicConfig(only_deleted=True)
    worlds: ClassVar = WORLDS.map(
        lambda world: replace(world, offset_reset="earliest", local_retention=True)
    )

    @rule(segments=st.integers(1, 3), steps=st.sampled_from([60, 30, 8, 4]), at=PARTITIONS)
    def a_pass(self, segments: int, steps: int, at: int = 0) -> None:
        """The leader's sidecar archives some segments, and makes a pass or a part of it."""
        self._begin_pass(segments, at)
        self.sidecars[self._at(at).leader].work(steps)

    @rule(segments=st.integers(1, 3), at=PARTITIONS)
    def a_whole_pass(self, segments: int, at: int = 0) -> None:
        """All sidecars hear of the leaders, and the leader's makes a whole pass."""
        self._tell(self.brokers)
        self.a_pass(segments=segments, steps=60, at=at)

    @rule(broker=BROKERS, steps=st.sampled_from([60, 30, 8, 4]))
    def a_pass_of_any_sidecar(self, broker: int, steps: int) -> None:
        """Let a sidecar make a pass that may believe in an earlier leader."""
        self.now += _PASS_SECONDS
        self.sidecars[broker].work(steps)

    @rule(
        broker=BROKERS,
        segments=st.integers(1, 3),
        before=st.integers(1, 12),
        unclean=st.booleans(),
        deaf=st.sets(BROKERS),
        at=PARTITIONS,
    )
    def the_leader_moves_amid_a_pass(
        self, broker: int, segments: int, before: int, deaf: set[int], *, unclean: bool, at: int = 0
    ) -> None:
        """Elect another leader between two requests of a pass, which then goes on."""
        self._begin_pass(segments, at)
        leader = self.sidecars[self._at(at).leader]
        leader.work(before)
        if unclean:
            self.an_unclean_election(
                broker=broker, records=1, segments=1, stored=0, deaf=deaf, at=at
            )
        else:
            self.elect(broker=broker, deaf=deaf, at=at)
        leader.work(30)

    def _begin_pass(self, segments: int, at: int) -> None:
        self.a_backlog(records=1, rolls=set(self.brokers), segments=segments, at=at)
        self.sidecars[self._at(at).leader].work(24)
        self.now += _PASS_SECONDS

    def teardown(self) -> None:
        """See `Protocol`."""
        if hasattr(self, "partitions"):
            TRIMS[0] += sum(partition.laws.trims for partition in self.partitions)
        super().teardown()


class OnlyTrims(Trimming):
    """Nothing but the invariant of trims is checked. Producers have transactions, archives also
    disappear, and other programs replace objects and keep their metadata.
    """

    @rule(at=PARTITIONS)
    def the_archive_is_deleted(self, at: int = 0) -> None:
        """Delete all objects of an archive, as a lifecycle rule or an operator may do."""
        prefix = LAYOUT.partition_prefix(self._at(at).tp)
        for key in self.store.contents():
            if key.startswith(prefix):
                self.store.delete_object(key)

    @rule(at=PARTITIONS)
    def a_transaction(self, at: int = 0) -> None:
        """A producer begins a transaction, or decides the one that is open."""
        self._at(at).next_of_transaction()
        EVENTS["transaction"] += 1

    @rule(number=st.integers(0, 9), at=PARTITIONS)
    def an_object_is_overwritten(self, number: int, at: int = 0) -> None:
        """Replace a `.log` by other bytes of the same size."""
        keys = self._logs(at)
        if keys:
            data = self.store.contents()[key := keys[number % len(keys)]]
            self.store.overwrite(key, bytes([*data[:-1], data[-1] ^ 1]))
            EVENTS["replaced"] += 1

    @rule(number=st.integers(0, 9), with_metadata=st.booleans(), at=PARTITIONS)
    def two_objects_are_exchanged(
        self, number: int, at: int = 0, *, with_metadata: bool = True
    ) -> None:
        """Exchange two `.log`s that follow each other."""
        if len(self._logs(at)) < 2:
            self._begin_pass(2, at)
        keys = self._logs(at)
        if len(keys) < 2:
            return
        first, second = keys[number % (len(keys) - 1) :][:2]
        if with_metadata:
            self.store.copy_object(first, "kept")
            self.store.copy_object(second, first)
            self.store.copy_object("kept", second)
            self.store.delete_object("kept")
        else:
            data = self.store.contents()
            self.store.overwrite(first, data[second])
            self.store.overwrite(second, data[first])
        EVENTS["replaced"] += 1

    def _logs(self, at: int) -> list[str]:
        prefix = LAYOUT.partition_prefix(self._at(at).tp)
        keys = self.store.contents()
        return sorted(key for key in keys if key.startswith(prefix) and key.endswith(".log"))

    def _check(self) -> None:
        self._take_told()
        for partition in self.partitions:
            partition.laws.check_trims()

    def _catch_up(self) -> None:
        self._check()


@pytest.mark.parametrize("machine", [Trimming, OnlyTrims])
def test_no_trim_deletes_what_is_not_archived(machine: type[Trimming]) -> None:
    TRIMS[0] = 0
    EVENTS.clear()
    run_state_machine_as_test(machine, settings=examples(15))
    assert TRIMS[0] > 2, "the examples hardly trim anything"
    if machine is OnlyTrims:
        assert EVENTS.keys() == {"transaction", "replaced"}, "the examples lack an event"


def test_late_commit_names_no_segment_that_a_quarantine_has_moved() -> None:
    """A sidecar that has stored a segment for an earlier leader commits it after a quarantine."""
    state = Trimming()
    state.begin(seed=0, world=World(local_retention=True))
    steps: list[Callable[[], object]] = [
        lambda: state.elect(broker=3, deaf=set()),
        lambda: state.the_leader_moves_amid_a_pass(
            broker=1, segments=1, before=1, deaf={1, 2, 3}, unclean=True
        ),
        lambda: state.requests(broker=3, backlog=True, choices=[(0, Fate.ARRIVES)]),
        lambda: state.live(frozen=set(), lagging=set(), records=1, rolls=set()),
        lambda: state.a_whole_pass(segments=1),
        lambda: state.an_unclean_election(broker=3, records=1, segments=1, stored=12, deaf=set()),
        lambda: state.a_whole_pass(segments=1),
    ]
    for step in steps:
        step()
        state.laws_hold()
    state.teardown()


# Each check before a trim is removed in turn, and a scripted run must detect it.


def _begun() -> OnlyTrims:
    """A cluster whose leader's sidecar, of broker 1, has archived some segments."""
    state = OnlyTrims()
    state.begin(seed=1, world=World(local_retention=True))
    for _ in range(2):
        state.a_backlog(records=2, rolls=set(state.brokers), segments=2)
        for broker in state.brokers:
            state.sidecars[broker].work(24)
    return state


def _pass_without_writes(state: OnlyTrims) -> None:
    """Let the leader's sidecar make a pass while the store refuses every put."""
    state.now += _PASS_SECONDS
    sidecar = state.sidecars[state.cluster.leader]
    for _ in range(40):
        sidecar.step()
        for pool, task in sidecar.waiting():
            if task.request is not None:
                refused = task.request.operation == "put"
                sidecar.go_on(pool, task, Fate.CUT if refused else Fate.ARRIVES)


def _segments_wait(state: OnlyTrims) -> None:
    """Segments are closed and committed, and the store does not take them."""
    state.a_backlog(records=2, rolls=set(state.brokers), segments=3)
    _pass_without_writes(state)


def _the_archive_is_gone(state: OnlyTrims) -> None:
    """The store has lost the archive, which the sidecar has just written."""
    state.the_archive_is_deleted()
    _pass_without_writes(state)


def _objects_are_overwritten(state: OnlyTrims) -> None:
    """Another program has replaced the bytes of all objects."""
    for number in range(len(state._logs(0))):
        state.an_object_is_overwritten(number)
    _pass_without_writes(state)


def _objects_are_exchanged(state: OnlyTrims) -> None:
    """Another program has exchanged the first two objects, with their metadata."""
    state.two_objects_are_exchanged(0)
    _pass_without_writes(state)


def _a_transaction_is_open(state: OnlyTrims) -> None:
    """Its first records are archived, and it ends above the archive's end."""
    state.a_transaction()
    state.a_whole_pass(segments=2)
    _pass_without_writes(state)


def _another_history(state: OnlyTrims) -> None:
    """A replica without the last records leads after an unclean election, and appends its own."""
    state.an_unclean_election(broker=2, records=2, segments=3, stored=40, deaf=set())
    for broker in state.brokers:
        state.cluster.replicate(broker)
    state.a_backlog(records=1, rolls=set(state.brokers), segments=4)
    for _ in range(4):
        _pass_without_writes(state)


def _unbounded(trim: Any, *_: object) -> Any:  # noqa: ANN401 - a mutant passes on what it gets
    return trim


def _unbounded_by(_: object, __: object, trim: Any, *___: object) -> Any:  # noqa: ANN401
    return trim


def _all_segments(_: object, led: Any, trim: Any, *__: object) -> Any:  # noqa: ANN401
    return trim, led.etag


def _none(*_: object, **__: object) -> None:
    """Mutant: leave the check out."""


def _as_it_was(_: object, __: object, archive: Any, ___: object) -> Any:  # noqa: ANN401
    return archive


TRIM = "sidetier.uploader.trim"
Patches = dict[str, Callable[..., object]]
NO_DIVERGENCE: Patches = {
    "sidetier.uploader.archive.history.latest_divergence": _none,
    "sidetier.uploader.archive.archive_writer.ArchiveWriter.compare": _as_it_was,
}
"""The sidecar does not notice that archive and log differ: only the check of the trim does."""
SCENARIOS: dict[str, tuple[Callable[[OnlyTrims], None], Patches, Patches]] = {
    "the archive's end": (
        _segments_wait,
        {},
        {
            f"{TRIM}.decision.bounded_by_archive": _unbounded,
            f"{TRIM}.archive_check.bounded_by_archive": _unbounded,
            f"{TRIM}.trimmer.bounded_by_transactions": _unbounded,
            f"{TRIM}.archive_check.bounded_by_transactions": _unbounded,
            f"{TRIM}.archive_check.ArchiveCheck._bounded_by_segments": _all_segments,
        },
    ),
    "the archive on the store": (
        _the_archive_is_gone,
        {},
        {f"{TRIM}.archive_check.ArchiveCheck.bound": _unbounded_by},
    ),
    "the bytes of the objects": (
        _objects_are_overwritten,
        {},
        {
            f"{TRIM}.archive_check.checksum_problem": _none,
            f"{TRIM}.archive_check.ArchiveCheck._bytes_problem": _none,
        },
    ),
    "the place of the objects": (
        _objects_are_exchanged,
        {},
        {
            f"{TRIM}.archive_check.place_problem": _none,
            f"{TRIM}.archive_check.mismatch": _none,
            f"{TRIM}.archive_check.size_problem": _none,
            f"{TRIM}.archive_check.ArchiveCheck._bytes_problem": _none,
        },
    ),
    "the transactions": (
        _a_transaction_is_open,
        {},
        {
            f"{TRIM}.trimmer.bounded_by_transactions": _unbounded,
            f"{TRIM}.archive_check.bounded_by_transactions": _unbounded,
        },
    ),
    "the leader epochs": (
        _another_history,
        NO_DIVERGENCE,
        {
            f"{TRIM}.archive_check.epochs_hindrance": _none,
            f"{TRIM}.archive_check.segment_problem": _none,
            f"{TRIM}.archive_check.size_problem": _none,
            f"{TRIM}.archive_check.ArchiveCheck._bytes_problem": _none,
        },
    ),
}


@pytest.mark.parametrize("mutated", [False, True])
@pytest.mark.parametrize("check", SCENARIOS)
def test_removed_check_lets_a_trim_delete_what_is_not_archived(
    check: str, *, mutated: bool
) -> None:
    scenario, given, mutant = SCENARIOS[check]
    state = _begun()
    with ExitStack() as stack:
        stack.callback(state.teardown)
        for target, replacement in {**given, **(mutant if mutated else {})}.items():
            stack.enter_context(patch(target, replacement))
        assert not state.laws.bad_trims
        scenario(state)
        bad_trims, state.laws.bad_trims = state.laws.bad_trims, []
    assert bool(bad_trims) == mutated
