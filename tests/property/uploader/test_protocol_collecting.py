"""The protocol while `sidetier gc` deletes the oldest segments of the archive.

One or two gcs run beside the sidecars, unclean elections, retirements and `sidetier repair`. Their
requests are slow, fail, lose their answers, or arrive after a kill. The archive stays contiguous
from its start to its end, and no record at or above the start disappears.

A retirement amid a gc is not among the `EVENTS` that the search must have had: it needs a recreated
topic and a gc that has moved the start, which few examples have together. A scripted run makes it
happen at the decisive request (`_the_topic_is_recreated_meanwhile`), and a mutant shows that the
run detects the missing guard.
"""

# ruff: noqa: ANN401 - a mutant passes on what it gets
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.listing import NotCollectableError
from sidetier.archive.gc.retention import Need, Retention, expired_segments
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.watermark import encode_watermark
from sidetier.archive.verify.light import check_partition, read_partition
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.repair import Repair, Repairer, carry_out, planned_repairs
from tests.harness.daemons import LAYOUT, key_of, stored_logs
from tests.harness.simulation.commands import Command
from tests.harness.simulation.laws import Laws
from tests.harness.simulation.network import Fate, Request
from tests.harness.simulation.replicas import Replicated
from tests.harness.simulation.world import WORLDS, World
from tests.property.uploader.test_protocol import BROKERS, PARTITIONS, SECONDS, examples
from tests.property.uploader.test_protocol import HAPPENED as FAULTS
from tests.property.uploader.test_protocol_disasters import Disasters

pytestmark = pytest.mark.timeout(SECONDS)
FATES = st.sampled_from([Fate.ARRIVES, Fate.ARRIVES, *Fate])
KEPT = st.sampled_from([1, 1, 300])
"""Bytes that each partition keeps: its newest segment, or about three segments."""
STEPS = st.sampled_from([200, 30, 12, 7, 5, 4])
_MOST = 3

HAPPENED: Counter[str] = Counter()
"""Number of times that each event has happened, over all runs of this process."""
EVENTS = frozenset(
    {
        "segments are deleted",
        "killed amid its requests",
        "two gcs at once",
        "an unclean election amid a gc",
        "a repair amid a gc",
        "a need limits a gc",
        "a new segment where a gc deletes",
    }
)


class Collecting(Disasters):
    """All invariants hold while gcs run."""

    worlds: ClassVar = WORLDS.map(
        lambda world: replace(world, offset_reset="earliest", early=not world.early)
    )

    def _note_world(self) -> None:
        super()._note_world()
        self.commands: list[Command] = []
        for partition in self.partitions:
            partition.laws.needed = 0

    def _start_gc(self, at: int, kept: int = 1) -> Command:
        """Begin a gc. It reads what the consumer needs, and then waits in its first request."""
        partition = self.partitions[at % len(self.partitions)]
        laws = partition.laws
        need = Need(Offset(laws.needed or 0), "a consumer", laws.archived_id)
        return self._begun(self._gc(partition.cluster.tp, kept, need))

    def _gc(self, tp: TopicPartition, kept: int, need: Need) -> Callable[[RemoteStorage], object]:
        def collect(store: RemoteStorage) -> None:
            done = PartitionCollector(
                store,
                LAYOUT,
                tp,
                Retention(size=kept),
                needs=[need],
                now_ms=self._store_ms,
            ).collect()
            HAPPENED["segments are deleted"] += done.segments > 0
            HAPPENED["a need limits a gc"] += "a consumer still needs" in done.reason

        return collect

    def _begun(self, work: Callable[[RemoteStorage], object]) -> Command:
        self._forget_ended()
        if len(self.commands) == _MOST:
            self.commands.pop(0).run()
        command = Command(
            self.store, self.world.attempts, lambda: self.now, work, self._note_deleted
        )
        HAPPENED["two gcs at once"] += bool(self.commands)
        self.commands.append(command)
        return command

    def _note_deleted(self, key: str) -> None:
        """Note an index that gc deletes: without a condition, so it can be of a new segment."""
        if key.endswith((FileKind.INDEX.value, FileKind.TIMEINDEX.value)):
            for partition in self.partitions:
                if key.startswith(LAYOUT.partition_prefix(partition.cluster.tp)):
                    partition.laws.lost_indexes.add(key)

    def _forget_ended(self) -> None:
        for command in self.commands:
            if command.defect is not None:
                raise command.defect
        self.commands = [command for command in self.commands if command.request is not None]

    def consumer_reads(self, at: int, share: float) -> None:
        """Let the consumer commit an offset up to the archive end."""
        laws = self.partitions[at % len(self.partitions)].laws
        laws.needed = max(laws.needed or 0, int(laws.moved_to * share))

    @rule(
        segments=st.integers(1, 3),
        share=st.sampled_from([1.0, 0.6, 0.0]),
        kept=KEPT,
        steps=STEPS,
        at=PARTITIONS,
    )
    def a_gc(self, segments: int, share: float, kept: int, steps: int, at: int = 0) -> None:
        """The leader's sidecar archives some segments; a gc makes some or all of its requests."""
        self.a_backlog(records=1, rolls=set(self.brokers), segments=segments, at=at)
        self.sidecars[self._at(at).leader].work(24)
        self._check()
        self.consumer_reads(at, share)
        self._start_gc(at, kept).run(steps)

    @precondition(lambda self: self.commands)
    @rule(number=st.integers(0, 2), fates=st.lists(FATES, min_size=1, max_size=8))
    def a_gc_goes_on(self, number: int, fates: list[Fate]) -> None:
        command = self.commands[number % len(self.commands)]
        for fate in fates:
            command.go_on(fate)
            self._check()
        self._forget_ended()

    @precondition(lambda self: self.commands)
    @rule(number=st.integers(0, 2), late=st.booleans(), deletes=st.sampled_from([0, 0, 1, 4]))
    def a_gc_is_killed(self, number: int, *, late: bool, deletes: int = 0) -> None:
        """Kill a gc, some amid its deletes. With `late`, its last request arrives later."""
        left = self.commands.pop(number % len(self.commands)).kill(deletes=deletes)
        HAPPENED["killed amid its requests"] += bool(left) or deletes > 0
        if late:
            self.on_the_wire.extend(left)

    @rule(before=st.lists(st.booleans(), max_size=24), kept=KEPT, at=PARTITIONS)
    def two_gcs_at_once(self, before: list[bool], kept: int, at: int = 0) -> None:
        """Two gcs of one partition, whose requests alternate in any way."""
        self.a_gc(segments=2, share=1.0, kept=kept, steps=0, at=at)
        first, second = self.commands[-1], self._start_gc(at)
        for is_first in before:
            (first if is_first else second).go_on()
            self._check()

    @rule(
        broker=BROKERS,
        segments=st.integers(1, 3),
        steps=STEPS,
        stored=st.sampled_from([12, 4]),
        worked=st.sampled_from([30, 8, 0]),
        at=PARTITIONS,
    )
    def an_unclean_election_amid_a_gc(
        self, broker: int, segments: int, steps: int, stored: int, worked: int, at: int = 0
    ) -> None:
        """The archive diverges between two requests of a gc, which then goes on."""
        self.a_gc(segments=segments, share=1.0, kept=1, steps=steps, at=at)
        command = self.commands[-1]
        HAPPENED["an unclean election amid a gc"] += command.request is not None
        self.an_unclean_election(
            broker=broker, records=1, segments=segments, stored=stored, deaf=set(), at=at
        )
        for _ in range(worked):
            self.now += 1.0
            for sidecar in self.sidecars.values():
                sidecar.work(2)
            self._check()
        command.run()
        self._forget_ended()

    @rule(
        broker=BROKERS,
        segments=st.integers(2, 4),
        deletes=st.integers(0, 10),
        worked=st.sampled_from([30, 30, 8, 0]),
        at=PARTITIONS,
    )
    def an_unclean_election_below_a_new_start(
        self, broker: int, segments: int, deletes: int, worked: int, at: int = 0
    ) -> None:
        """The elected replica lacks segments that a gc is about to delete. The next segments have
        the same base offsets. The gc has made some of its deletes before.
        """
        cluster = self._at(at)
        self._a_replica_lacks_segments(cluster, broker, segments)
        self.consumer_reads(at, 1.0)
        command = self._start_gc(at)
        while command.request is not None and command.request.operation != "delete":
            command.go_on()
        command.run(deletes)
        self._check()
        self._elect_the_replica(cluster, broker, segments, worked)
        HAPPENED["a new segment where a gc deletes"] += (
            command.request is not None
            and command.request.operation == "delete"
            and command.request.key in self.store.contents()
        )
        command.run()
        self._forget_ended()

    def _a_replica_lacks_segments(self, cluster: Replicated, broker: int, segments: int) -> None:
        self._fetch(cluster, set(cluster.replicas))
        cluster.fall_behind(_another(cluster, broker))
        for _ in range(segments):
            cluster.append(1)
            self._fetch(cluster, cluster.in_sync)
            cluster.roll(cluster.leader)
        self._fetch(cluster, cluster.in_sync)
        self.sidecars[cluster.leader].work(60)
        self._check()

    def _elect_the_replica(
        self, cluster: Replicated, broker: int, segments: int, worked: int
    ) -> None:
        cluster.elect_unclean(_another(cluster, broker))
        self._pins_are_lost()
        self._tell(cluster.replicas)
        for _ in range(segments):
            cluster.append(1)
            self._fetch(cluster, set(cluster.replicas))
            cluster.roll(cluster.leader)
        self._fetch(cluster, set(cluster.replicas))
        for _ in range(worked):
            self.now += 1.0
            for sidecar in self.sidecars.values():
                sidecar.work(2)
            self._check()

    @rule(steps=st.integers(1, 10), at=PARTITIONS)
    def a_repair(self, steps: int, at: int = 0) -> None:
        """A repair of `_metadata` reads the partition, and writes later or not at all."""
        tp = self._at(at).tp

        def repair(store: RemoteStorage) -> None:
            stored = StoredPartition(store, LAYOUT, tp)
            objects, _ = read_partition(stored)
            if objects.watermark is not None and objects.watermark.watermark.pending is None:
                repairs = [Repair(tp, LAYOUT.metadata_key(tp))]
                carry_out(Repairer(stored, objects), repairs, lambda _: None)

        HAPPENED["a repair amid a gc"] += bool(self.commands)
        self._begun(repair).run(steps)

    def _retire_what_was_before(self) -> None:
        """Retire the old archive while gcs are under way, which end during the new one."""
        super()._retire_what_was_before()
        self._go_on()
        self._end_commands()

    def _catch_up(self) -> None:
        super()._catch_up()
        self._end_commands()
        for partition in self.partitions:
            self._rebuild_indexes(partition.laws)
            self.consumer_reads(partition.cluster.tp.partition, 1.0)
            command = self._start_gc(partition.cluster.tp.partition)
            self._end_commands()
            assert command.error is None or isinstance(command.error, NotCollectableError)
            if command.error is None:
                partition.laws.check_after_gc()

    def _rebuild_indexes(self, laws: Laws) -> None:
        """Repair the indexes that late deletes have removed; then none may be missing."""
        stored = StoredPartition(self.store, LAYOUT, laws.tp)
        objects, _ = read_partition(stored)
        findings = check_partition(objects, LAYOUT, self._store_ms())
        repairs = [repair for repair in planned_repairs(objects, findings, LAYOUT) if repair.kind]
        carry_out(Repairer(stored, objects), repairs, lambda _: None)
        laws.lost_indexes.clear()
        laws.changes = -1
        laws.check()

    def _end_commands(self) -> None:
        for command in self.commands:
            while command.request is not None:
                command.go_on()
                self._check()
        self._forget_ended()

    def teardown(self) -> None:
        """See `Protocol`."""
        try:
            super().teardown()
        finally:
            for command in getattr(self, "commands", ()):
                command.kill()


def test_no_gc_breaks_an_archive() -> None:
    HAPPENED.clear()
    FAULTS.clear()
    run_state_machine_as_test(Collecting, settings=examples(30))
    never = sorted(event for event in EVENTS if not HAPPENED[event])
    assert not never, f"{never} never happened"
    assert FAULTS["a gap halts the partition"]


def _another(cluster: Replicated, broker: int) -> int:
    """Return the broker, or the next one if it leads."""
    return broker % len(cluster.replicas) + 1 if broker == cluster.leader else broker


def test_new_segment_is_kept_and_the_gc_says_that_the_archive_was_replaced() -> None:
    state = _archived()
    command = _a_quarantine_from_below_meanwhile(state)
    assert isinstance(command.error, ArchiveConflictError)
    assert "no further object is deleted" in str(command.error)
    state.laws_hold()
    assert not state.laws.lost_indexes
    state.teardown()


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_index_of_a_new_segment_that_a_late_delete_removes_is_built_again(kind: FileKind) -> None:
    """The deletes of indexes have no condition."""
    state = _archived()
    key = key_of(state.cluster.tp, state.laws.moved_to, kind)
    _a_quarantine_from_below_meanwhile(state, kind)
    state.laws_hold()
    assert key in state.laws.lost_indexes
    state._rebuild_indexes(state.laws)
    assert key in state.store.contents()
    state.teardown()


@pytest.mark.parametrize("only_stored", [False, True])
@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
def test_late_delete_of_an_index_before_the_commit_blocks_no_later_leader(
    kind: FileKind, *, only_stored: bool
) -> None:
    """A sidecar dies before it commits a new segment, and then the delete of a killed gc arrives.
    The next leader's segment begins at the same offset and ends elsewhere; or all brokers have
    deleted the records, so that only the segment on the store has them.
    """
    state = _archived()
    cluster, divergence = state.cluster, state.laws.moved_to
    late = _killed_before_it_deletes(state, kind)
    _elect_with_a_segment_of_several_batches(state)
    _killed_before_the_commit(state, broker=2, base=divergence)
    late.effect()
    cluster.elect(3)
    if only_stored:
        for broker in state.brokers:
            state.retention(broker, segments=9, seen=False, unlink=True)
    state._tell(state.brokers)
    state.teardown()
    assert state.laws.moved_to > divergence
    assert all(start > divergence for start, _ in state.laws.gaps), "the stored segment is in a gap"


def _killed_before_it_deletes(state: Collecting, kind: FileKind) -> Request:
    """Archive segments that broker 2 lacks. Return the request with which a gc, killed by then,
    deletes a file of the first of them.
    """
    key = key_of(state.cluster.tp, state.laws.moved_to, kind)
    state._a_replica_lacks_segments(state.cluster, 2, segments=3)
    state.consumer_reads(0, 1.0)
    command = state._start_gc(0)
    _until(command, "delete", key)
    state.laws_hold()
    [late] = command.kill()
    return late


def _elect_with_a_segment_of_several_batches(state: Collecting) -> None:
    """Broker 2 closes a segment of several batches, so that its index has entries; broker 3 closes
    a longer one.
    """
    cluster = state.cluster
    cluster.elect_unclean(2)
    state._pins_are_lost()
    state._tell(cluster.replicas)
    for broker in (2, 3):
        for _ in range(12):
            cluster.append(1)
        state._fetch(cluster, set(cluster.replicas))
        cluster.roll(broker)


def _killed_before_the_commit(state: Collecting, broker: int, base: int) -> None:
    sidecar, log = state.sidecars[broker], key_of(state.cluster.tp, base)
    before = state.store.contents().get(log)
    for _ in range(200):
        if state.store.contents().get(log, before) is not before:
            break
        state.now += 1.0
        for pool, task in sidecar.waiting():
            sidecar.go_on(pool, task, Fate.ARRIVES)
        sidecar.step()
        state.laws_hold()
    else:
        raise AssertionError(f"{log} is not stored: {sidecar}")
    state.kill(broker, late=False)
    assert state.laws.moved_to == base, "the new segment is committed already"


# Each guard of gc is removed in turn, and a scripted run must detect it.


def _archived(segments: int = 4) -> Collecting:
    """A cluster whose leader's sidecar, of broker 1, has archived some segments."""
    state = Collecting()
    state.begin(seed=1, world=World())
    state.a_backlog(records=1, rolls=set(state.brokers), segments=segments)
    state.sidecars[1].work(60)
    state.laws_hold()
    assert len(stored_logs(state.store, state.cluster.tp)) == segments
    return state


def _killed_at_each_request(state: Collecting) -> None:
    """A gc is killed after each number of requests, and the last one ends."""
    state.consumer_reads(0, 1.0)
    for requests in range(20):
        command = state._start_gc(0)
        command.run(requests)
        ended = command.request is None
        command.kill(deletes=1)
        state.laws_hold()
        if ended:
            break
    assert len(stored_logs(state.store, state.cluster.tp)) == 1


def _a_consumer_is_behind(state: Collecting) -> None:
    state.consumer_reads(0, 0.5)
    state._start_gc(0).run()


def _until(command: Command, operation: str, key: str) -> None:
    """Let requests arrive until the command is about to make one."""
    while (waiting := command.request) is not None:
        if (waiting.operation, waiting.key) == (operation, key):
            return
        command.go_on()
    raise RuntimeError(f"the command never made the request {operation} {key}")


def _a_sidecar_commits_meanwhile(state: Collecting) -> None:
    """A sidecar commits between the gc's reading of `offset.wm` and its write."""
    state.consumer_reads(0, 1.0)
    command = state._start_gc(0)
    _until(command, "put", LAYOUT.watermark_key(state.cluster.tp))
    state.a_backlog(records=1, rolls=set(state.brokers), segments=2)
    state.sidecars[1].work(60)
    state.laws_hold()
    command.run()


def _the_topic_is_recreated_meanwhile(state: Collecting) -> None:
    """The archive is retired after a gc has moved its start, and the new topic gets an archive."""
    state.consumer_reads(0, 1.0)
    command = state._start_gc(0)
    _until(command, "get", LAYOUT.metadata_key(state.cluster.tp))
    command.go_on()  # the survey has read it; the second time it is about to be changed
    _until(command, "get", LAYOUT.metadata_key(state.cluster.tp))
    state.the_topic_is_created_again(chance=3, deaf=set())
    Disasters._retire_what_was_before(state)
    state.a_backlog(records=1, rolls=set(state.brokers), segments=3)
    for _ in range(3):
        state.now += 65.0
        state.sidecars[state.cluster.leader].work(30)
    state.laws_hold()
    assert len(stored_logs(state.store, state.cluster.tp)) == 3, "the new topic is not archived"
    command.run()


def _the_topic_is_recreated_before_the_survey(state: Collecting) -> None:
    """A gc has read what a consumer needs of the old topic, and finds the new one's archive."""
    state.consumer_reads(0, 1.0)
    command = state._start_gc(0)
    state.the_topic_is_created_again(chance=3, deaf=set())
    Disasters._retire_what_was_before(state)
    state.a_backlog(records=1, rolls=set(state.brokers), segments=3)
    for _ in range(3):
        state.now += 65.0
        state.sidecars[state.cluster.leader].work(30)
    state.laws_hold()
    assert len(stored_logs(state.store, state.cluster.tp)) == 3, "the new topic is not archived"
    command.run()
    state.laws_hold()


def _a_quarantine_from_below_meanwhile(state: Collecting, kind: FileKind = FileKind.LOG) -> Command:
    """A segment is quarantined, and another one gets its key, before a gc deletes a file of it."""
    cluster = state.cluster
    divergence = state.laws.moved_to
    state._a_replica_lacks_segments(cluster, 2, segments=3)
    state.consumer_reads(0, 1.0)
    command = state._start_gc(0)
    before = state.store.contents()[key_of(cluster.tp, divergence)]
    _until(command, "delete", key_of(cluster.tp, divergence, kind))
    state._elect_the_replica(cluster, 2, segments=3, worked=60)
    after = state.store.contents()[key_of(cluster.tp, divergence)]
    assert after != before, "no new segment has the base offset"
    command.run()
    return command


def _objects_first(self: Any) -> Any:
    """Mutant: delete the objects, and then move the start."""
    survey = self._survey()
    self._store.delete_objects([row.key for row in survey.below])
    return self._move_start().result


def _whatever_is_needed(
    logs: Any, start: Any, retention: Any, facts: Any, _: Any, now_ms: int
) -> Any:
    """Mutant: ignore `keep_for`."""
    return expired_segments(logs, start, retention, facts, (), now_ms)


def _without_a_condition(store: Any, key: str, watermark: Any, _: Any) -> str:
    """Mutant: replace `offset.wm`, whatever has been written meanwhile."""
    etag: str = store.put_object(key, BytesBody(encode_watermark(replace(watermark, nonce="gc"))))
    return etag


def _whatever_the_version(self: Any, row: Any) -> None:
    """Mutant: delete an object without a condition."""
    self._store.delete_object(row.key)


def _nothing(*_: object) -> None:
    """Mutant: leave the check out."""


COLLECTOR = "sidetier.archive.gc.collector"
MUTANTS: dict[str, tuple[Callable[[Collecting], object], str, Callable[..., object]]] = {
    "objects are deleted before the start moves": (
        _killed_at_each_request,
        f"{COLLECTOR}.PartitionCollector.collect",
        _objects_first,
    ),
    "keep_for is ignored": (
        _a_consumer_is_behind,
        f"{COLLECTOR}.expired_segments",
        _whatever_is_needed,
    ),
    "an offset of another topic counts": (
        _the_topic_is_recreated_before_the_survey,
        f"{COLLECTOR}.other_topic",
        _nothing,
    ),
    "offset.wm is written without a condition": (
        _a_sidecar_commits_meanwhile,
        f"{COLLECTOR}.write_watermark",
        _without_a_condition,
    ),
    "entries and objects of another archive are deleted": (
        _the_topic_is_recreated_meanwhile,
        f"{COLLECTOR}.PartitionCollector._expect_unchanged",
        _nothing,
    ),
    "another version is deleted": (
        _a_quarantine_from_below_meanwhile,
        f"{COLLECTOR}.PartitionCollector._delete_version",
        _whatever_the_version,
    ),
}


@pytest.mark.parametrize("is_mutated", [False, True])
@pytest.mark.parametrize("name", MUTANTS)
def test_scripted_run_detects_a_mutant(name: str, *, is_mutated: bool) -> None:
    script, target, mutant = MUTANTS[name]
    state = _archived()
    with ExitStack() as stack:
        if is_mutated:
            stack.enter_context(pytest.raises(AssertionError))
            stack.enter_context(patch(target, mutant))
        stack.callback(state.teardown)
        script(state)
        state.laws_hold()
