"""The whole protocol under any order of events: sidecars on every broker, elections, truncation,
retention, a store whose requests are slow, fail, or lose their answers; kills at every request.

The real engine decides, over real files and a store in memory; Hypothesis chooses what happens
next. What must hold is in `tests/harness/simulation/laws.py`. Each example is about 50 moments; the
environment says how many examples (`PROTOCOL_EXAMPLES`); then they are new ones each time.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import SidetierError
from sidetier.storage.fake import FakeStorage
from tests.harness.daemons import LAYOUT
from tests.harness.simulation.laws import Laws
from tests.harness.simulation.network import Fate, Request
from tests.harness.simulation.replicas import TP, Replicated
from tests.harness.simulation.sidecars import Sidecar

SECONDS = max(900, 10 * int(os.environ.get("PROTOCOL_EXAMPLES", "0")))
"""For all examples; on a busy machine one takes some seconds."""

pytestmark = pytest.mark.timeout(SECONDS)
BROKERS = st.integers(1, 3)
_ROUNDS_TO_CATCH_UP = 60
_ROUNDS_TO_SETTLE = 3
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - mkdtemp's own names


class Protocol(RuleBasedStateMachine):
    """Three brokers, a sidecar beside each, one partition, one store."""

    config: ClassVar = TopicConfig()

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.now = 0.0
        self.path = Path(tempfile.mkdtemp(prefix="sidetier-protocol-", dir=_IN_MEMORY))
        self.store = FakeStorage()
        self.cluster = Replicated(self.path, 3, seed)
        self.cluster.config = self.config
        self.laws = Laws(self.cluster, self.store)
        self.on_the_wire: list[Request] = []
        self.sidecars = {broker: self._started(broker) for broker in self.cluster.replicas}

    def _started(self, broker: int) -> Sidecar:
        return Sidecar(self.cluster, broker, self.store, lambda: self.now)

    # -- ordinary moments; what is drawn as empty or zero is the most ordinary

    @rule(
        records=st.integers(1, 5),
        rolls=st.sets(BROKERS),
        lagging=st.sets(BROKERS, max_size=1),
        frozen=st.sets(BROKERS, max_size=2),
    )
    def live(self, records: int, rolls: set[int], lagging: set[int], frozen: set[int]) -> None:
        """Records come, most replicas fetch them, and most sidecars do their work."""
        self.now += 0.1
        self.cluster.append(records)
        for broker in self.cluster.replicas:
            if broker not in lagging:
                self.cluster.replicate(broker)
                self.cluster.checkpoint(broker)
            if broker in rolls:
                self.cluster.roll(broker)
        for broker, sidecar in self.sidecars.items():
            if broker not in frozen:
                sidecar.work(4)

    @rule(records=st.integers(1, 3), segments=st.integers(1, 4), rolls=st.sets(BROKERS))
    def a_backlog(self, records: int, segments: int, rolls: set[int]) -> None:
        """Closed and committed, while the sidecars look elsewhere."""
        for number in range(segments):
            self.cluster.append(records)
            self.cluster.append(records)
            for broker in self.cluster.replicas:
                self.cluster.replicate(broker)
                if broker in rolls or number == broker:
                    self.cluster.roll(broker)
        for broker in self.cluster.replicas:
            self.cluster.replicate(broker)
            self.cluster.checkpoint(broker)

    @rule(broker=BROKERS, steps=st.integers(1, 12))
    def work(self, broker: int, steps: int) -> None:
        """One sidecar is ahead of the others."""
        self.now += 0.1
        self.sidecars[broker].work(steps)

    # -- what can go wrong

    @rule(
        broker=BROKERS,
        choices=st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([Fate.ARRIVES, *Fate])), max_size=6
        ),
    )
    def requests(self, broker: int, choices: list[tuple[int, Fate]]) -> None:
        """A sidecar decides; its requests arrive in any order, or fail."""
        self.now += 0.1
        self.sidecars[broker].step()
        for number, fate in choices:
            waiting = self.sidecars[broker].waiting()
            if waiting:
                pool, task = waiting[number % len(waiting)]
                pool.go_on(task, fate)

    @rule(broker=BROKERS, deaf=st.sets(BROKERS))
    def elect(self, broker: int, deaf: set[int]) -> None:
        """A sidecar that does not hear of it believes what it believed."""
        self.cluster.elect(broker)
        self._tell(self.cluster.replicas.keys() - deaf)

    @rule(broker=BROKERS, segments=st.integers(1, 8), seen=st.booleans(), unlink=st.booleans())
    def retention(self, broker: int, segments: int, *, seen: bool, unlink: bool) -> None:
        """It comes before the store has answered; the broker waits before it unlinks."""
        if seen:
            self.sidecars[broker].step()
        for _ in range(segments):
            self.cluster.stage(broker)
        if seen:
            self.sidecars[broker].step()
        if unlink:
            self.cluster.unlink(broker)

    @rule(broker=BROKERS, records=st.integers(1, 3), roll=st.booleans())
    def a_follower_stops(self, broker: int, records: int, *, roll: bool) -> None:
        """The others go on with two in sync, or none of what comes is committed."""
        self.cluster.fall_behind(broker)
        self.cluster.append(records)
        if roll:
            self.cluster.roll(self.cluster.leader)

    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0, 400.0]), hears=BROKERS)
    def time_passes(self, seconds: float, hears: int) -> None:
        self.now += seconds
        self._tell({hears})

    @rule(broker=BROKERS, late=st.booleans())
    def kill(self, broker: int, *, late: bool) -> None:
        """Late: what was on the wire arrives when its sender is dead."""
        self.laws.pins_were_lost = True
        left = self.sidecars[broker].kill()
        if late:
            self.on_the_wire.extend(left)
        self.sidecars[broker] = self._started(broker)

    @precondition(lambda self: self.on_the_wire)
    @rule(number=st.integers(0, 4))
    def arrive_after_the_sender_is_dead(self, number: int) -> None:
        request = self.on_the_wire.pop(number % len(self.on_the_wire))
        with contextlib.suppress(SidetierError):  # nobody is there to see the answer
            request.effect()

    # -- what must hold

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "laws"):
            self._check()

    def _check(self) -> None:
        self.laws.check()
        for sidecar in self.sidecars.values():
            again = sidecar.store.sent_again
            assert not again, f"the sidecar of broker {sidecar.broker} has sent {again} again"

    def teardown(self) -> None:
        """Healed and left alone, everything that is closed and committed ends in the store."""
        if not hasattr(self, "sidecars"):
            return
        try:
            self._catch_up()
        finally:
            for sidecar in self.sidecars.values():
                sidecar.kill()
            shutil.rmtree(self.path)

    def _catch_up(self) -> None:
        self._tell(self.cluster.replicas)
        for broker in self.cluster.replicas:
            self.cluster.replicate(broker)
            self.cluster.checkpoint(broker)
        leader = self.cluster.replicas[self.cluster.leader]
        goal = int(leader.log.active) if leader.closed() else 0  # else it has nothing to look for
        for rounds in range(_ROUNDS_TO_CATCH_UP):
            self.now += 65.0
            self._brokers_go_on()
            for sidecar in self.sidecars.values():
                sidecar.work(6, events=False)
                self._check()
            settled = self.laws.moved_to >= goal and not self.laws.moving
            if settled and rounds >= _ROUNDS_TO_SETTLE and not self.laws.left_over():
                break
        says = "\n".join(map(str, self.sidecars.values()))
        archived = self.laws.moved_to
        assert not self.laws.left_over(), f"thrown away, and in the archive still\n{says}"
        assert not self.laws.read_wrongly(), f"thrown away, and read from the archive\n{says}"
        assert not self.laws.moving, f"what was begun to be set aside still is\n{says}"
        assert archived >= goal, f"archived up to {archived}, closed up to {goal}\n{says}"
        self._start_again()

    def _brokers_go_on(self) -> None:
        """What they do by themselves in a minute."""

    def _start_again(self) -> None:
        """Doing it again changes nothing. The first start may finish what stood still before it."""
        self._restart_all()
        before = self.store.contents()
        self._restart_all()
        changed = {key for key, data in self.store.contents().items() if before.get(key) != data}
        assert changed <= {LAYOUT.watermark_key(TP)}, f"a restart wrote {changed}"

    def _restart_all(self) -> None:
        for broker in self.cluster.replicas:
            self.kill(broker, late=False)
            self.sidecars[broker].work(12)
            self._check()

    def _tell(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            self.sidecars[broker].hear_of_leadership()


def examples(ordinarily: int) -> settings:
    """So many, and the same ones, unless the environment says how many."""
    return settings(
        max_examples=int(os.environ.get("PROTOCOL_EXAMPLES", ordinarily)),
        stateful_step_count=50,
        deadline=None,
        derandomize="PROTOCOL_EXAMPLES" not in os.environ,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


Protocol.TestCase.settings = examples(150)
TestProtocol = Protocol.TestCase
