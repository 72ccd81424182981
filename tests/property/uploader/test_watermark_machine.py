"""The watermark under any order of rolls, deletions, uploads, failures, kills and takeovers.

A log of one partition, replicated: leaders may have other segment bases. Each leader runs the real
partition, requests, archive keeper and fenced writes over one store; what it has under way when it
is killed or loses the lead may still take effect later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from prometheus_client import CollectorRegistry

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import SidetierError, StoreTimeoutError, StoreUnavailableError
from sidetier.segments.listing import ClosedSegment, PartitionListing
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.archive.health import StoreHealth
from sidetier.uploader.archive.keeper import Leader
from sidetier.uploader.archive.requests import Requests, RequestTies
from sidetier.uploader.partition import (
    GAP_CONFIRM_SECONDS,
    Partition,
    Stage,
    Timeline,
    Tracked,
    next_request,
    storable,
    watch_gap,
)
from sidetier.uploader.pinning.pins import PinnedSegment
from sidetier.uploader.plan import PlannedSegment
from sidetier.uploader.running.workers import Job
from sidetier.uploader.sending.fenced import FileToStore, StoredByAnotherError, store_file
from sidetier.uploader.sending.reading import FileIdentity
from sidetier.uploader.sending.upload import NEXT_OFFSET_KEY, StoredSegment
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import LAYOUT, key_of, place_of, watermark_of

TP = TopicPartition("t", 0)
KINDS = (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG)


class ManualPool:
    """A pool whose jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job[object]] = []

    @property
    def free(self) -> int:
        return 2 - len(self.jobs)

    @property
    def busy(self) -> int:
        return len(self.jobs)

    def submit(self, job: Job[object]) -> None:
        self.jobs.append(job)

    def run(self, number: int = 0) -> None:
        job = self.jobs.pop(number)
        try:
            result = job.work()
        except SidetierError as error:
            job.failed(error)
        else:
            job.done(result)


@dataclass(slots=True)
class Upload:
    """One under way: what it will store, and whose it is."""

    tracked: Tracked
    planned: PlannedSegment
    generation: int
    sent: int = 0


@dataclass
class Sidecar:
    """A leader's own memory; a kill loses it."""

    store: FakeStorage
    epoch: int
    clock: Callable[[], float]
    uploads: list[Upload] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.partition = Partition(TP, LeaderEpoch(self.epoch))
        self.pool = ManualPool()
        place = place_of(self.store)
        self.requests = Requests(
            self.pool,  # type: ignore[arg-type]
            lambda _: place,
            RequestTies(
                lambda p: Leader(BrokerId(1), p.leader_epoch, None), lambda _: None, StoreHealth()
            ),
            self.clock,
            Metrics(CollectorRegistry()),
        )

    def look(self, closed: list[tuple[int, int]], active: int) -> None:
        segments = tuple(ClosedSegment(BaseOffset(b), BaseOffset(e), False) for b, e in closed)  # noqa: FBT003
        listing = PartitionListing(segments, BaseOffset(active))
        self.partition.observe(listing, self.clock(), self._track)

    def _track(self, segment: ClosedSegment) -> Tracked:
        pinned = PinnedSegment("", segment, FileIdentity(0, 0, 0, 0))
        return Tracked(segment, 1, 0, Timeline(self.clock()), pinned=pinned)

    def advance(self) -> None:
        """As the foreman does, without gate and bounds."""
        partition = self.partition
        archive = partition.archive
        if archive is not None and archive.next_offset is None and partition.segments():
            partition.archive = archive.beginning_at(Offset(partition.segments()[0].base_offset))
        archive = partition.archive
        if archive is not None and archive.present is not None:
            for planned in storable(partition, 3):
                tracked = partition.tracked[planned.segment.base_offset]
                if tracked.stage is Stage.CLOSED:
                    tracked.stage, tracked.planned = Stage.UPLOADING, planned
                    self.uploads.append(Upload(tracked, planned, partition.generation))
        watch_gap(partition, self.clock())
        request = next_request(partition, self.clock(), from_latest=False)
        if request is not None:
            self.requests.ask(partition, request)
        self.requests.start_some()

    def send(self, upload: Upload) -> None:
        """The next of the three files of a segment; the outcome after the last, or at an error."""
        base, end = upload.planned.start, upload.planned.segment.next_base
        assert end is not None
        kind = KINDS[upload.sent]
        data = b"%s %d to %d" % (kind.encode(), base, end)
        notes = {NEXT_OFFSET_KEY: str(end)} if kind is FileKind.LOG else {}
        file = FileToStore(
            key_of(TP, base, kind), BytesBody(data), crc64nvme(data), notes, LeaderEpoch(self.epoch)
        )
        try:
            store_file(self.store, file, may_exist=False)
        except SidetierError as error:
            self.uploads.remove(upload)
            upload.tracked.stage = Stage.CLOSED
            archive = self.partition.archive
            is_next = archive is not None and base == archive.next_offset
            if isinstance(error, StoredByAnotherError) and is_next:
                self.partition.reset()
            return
        upload.sent += 1
        if upload.sent == len(KINDS):
            self.uploads.remove(upload)
            if self.partition.generation != upload.generation:
                upload.tracked.stage = Stage.CLOSED  # the archive has been read anew since
                return
            upload.tracked.stage = Stage.STORED
            upload.tracked.stored = StoredSegment(
                BaseOffset(base), Offset(end), modified_ms=0, size=1, bytes_sent=1
            )


class WatermarkMachine(RuleBasedStateMachine):
    """What is committed is contiguous and stored; what is skipped is recorded."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.store = FakeStorage()
        self.closed: list[tuple[int, int]] = []
        self.active = 0
        self.epoch = 0
        self.moved_to = 0
        self.start: int | None = None
        self.gaps: list[tuple[int, int]] = []
        self.zombies: list[Sidecar] = []
        self.sidecar = self._started()

    def _started(self) -> Sidecar:
        return Sidecar(self.store, self.epoch, lambda: self.now)

    # -- the broker

    @rule(length=st.integers(1, 9))
    def roll(self, length: int) -> None:
        self.closed.append((self.active, self.active + length))
        self.active += length

    @precondition(lambda self: self.closed)
    @rule()
    def delete_oldest(self) -> None:
        self.closed.pop(0)

    @rule(merge=st.booleans())
    def look(self, *, merge: bool) -> None:
        del merge
        self.now += 0.5
        self.sidecar.look(self.closed, self.active)

    @rule()
    def let_time_pass(self) -> None:
        self.now += 100.0

    @rule(number=st.integers(0, 5))
    def let_go_of_a_pin(self, number: int) -> None:
        idle = [
            t for t in self.sidecar.partition.tracked.values() if t.stage is not Stage.UPLOADING
        ]
        if number < len(idle):
            idle[number].close()

    # -- the sidecar

    @rule()
    def advance(self) -> None:
        self.sidecar.advance()

    @rule(number=st.integers(0, 2))
    def send_a_file(self, number: int) -> None:
        if number < len(self.sidecar.uploads):
            self.sidecar.send(self.sidecar.uploads[number])

    @rule(after=st.booleans())
    def fail_to_send_a_file(self, *, after: bool) -> None:
        if self.sidecar.uploads:
            self.store.fail("put", StoreTimeoutError("no answer"), after=after)
            self.sidecar.send(self.sidecar.uploads[0])
            self.store.heal()

    @rule()
    def answer_a_request(self) -> None:
        if self.sidecar.pool.jobs:
            self.sidecar.pool.run()

    @rule(after=st.booleans(), nth=st.integers(1, 3))
    def fail_a_request(self, *, after: bool, nth: int) -> None:
        if self.sidecar.pool.jobs:
            self.store.fail(None, StoreUnavailableError("cut"), nth=nth, after=after)
            self.sidecar.pool.run()
            self.store.heal()

    # -- kills and takeovers

    @rule()
    def kill(self) -> None:
        self.sidecar = self._started()

    @rule(cuts=st.lists(st.integers(0, 200), max_size=4))
    def take_over(self, cuts: list[int]) -> None:
        """Another replica leads, with other segment bases over the same records."""
        self.zombies.append(self.sidecar)
        self.epoch += 1
        if self.closed:
            first = self.closed[0][0]
            borders = sorted({first, *(c for c in cuts if first < c < self.active), self.active})
            self.closed = list(pairwise(borders))
        self.sidecar = self._started()

    @precondition(lambda self: self.zombies)
    @rule()
    def a_zombie_sends_a_file(self) -> None:
        for zombie in self.zombies:
            if zombie.uploads:
                zombie.send(zombie.uploads[0])

    @precondition(lambda self: self.zombies)
    @rule()
    def a_zombies_request_arrives(self) -> None:
        for zombie in self.zombies:
            zombie.advance()
            if zombie.pool.jobs:
                zombie.pool.run()

    # -- what must hold

    @invariant()
    def what_is_committed_is_stored_or_a_recorded_gap(self) -> None:
        watermark = watermark_of(self.store, TP)
        spans = self._stored()
        if watermark is None:
            self.gaps = recorded_gaps(self.store, TP)
            return
        if self.start is None:
            self.start = min(base for base, _ in spans)
        assert watermark.next_offset is not None
        assert watermark.next_offset >= self.moved_to, "the watermark fell"
        self.moved_to = watermark.next_offset
        expected = self.start
        for first, end in sorted(spans + recorded_gaps(self.store, TP)):
            if first <= expected:
                expected = max(expected, end)
        assert expected >= watermark.next_offset, f"nothing holds offset {expected}"

    @invariant()
    def no_gap_is_recorded_over_what_is_there(self) -> None:
        for gap in recorded_gaps(self.store, TP):
            if gap not in self.gaps:
                for base, end in self.closed:
                    assert end <= gap[0] or gap[1] <= base, f"{gap} is on the disk"
                self.gaps.append(gap)

    def _stored(self) -> list[tuple[int, int]]:
        """The spans of the `.log` files, each of which has indexes that belong to it."""
        contents, spans = self.store.contents(), []
        for key, data in contents.items():
            if key.startswith(LAYOUT.partition_prefix(TP)) and key.endswith(".log"):
                _, base, _, end = data.decode().split()
                for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
                    index = contents[key_of(TP, int(base), kind)]
                    ours = b"%s %s to %s" % (kind.encode(), base.encode(), end.encode())
                    assert index in {b"", ours}, f"{index!r} lies beside {data!r}"
                spans.append((int(base), int(end)))
        return spans

    def teardown(self) -> None:
        """Healed and left alone, it catches up with all that is closed."""
        if not hasattr(self, "sidecar"):
            return
        self.kill()
        for _ in range(200):
            self.now += 2 * GAP_CONFIRM_SECONDS
            self.look(merge=False)
            self.sidecar.advance()
            while self.sidecar.uploads:
                self.sidecar.send(self.sidecar.uploads[0])
            while self.sidecar.pool.jobs:
                self.sidecar.pool.run()
            self.what_is_committed_is_stored_or_a_recorded_gap()
        watermark = watermark_of(self.store, TP)
        if self.closed:
            assert watermark is not None
            assert watermark.next_offset == self.active


WatermarkMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWatermark = WatermarkMachine.TestCase
