"""Executes the schedule with one thread per track, and repairs each damage before the next action.

It waits for conditions that a schedule cannot know: all replicas are in sync before a broker is
damaged, and the archive is nearly caught up before any action, so that no outage exceeds the
promised duration.
"""

import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import singledispatchmethod
from time import monotonic
from typing import Any, Self

from confluent_kafka import KafkaException

from tests.end_to_end.chaos.disasters import (
    RECREATION,
    DidNotHappenError,
    Stage,
    elect_uncleanly,
    fail_controller,
    fail_log_dir,
    fill_disk,
    pause,
    recreate_topic,
    restart_everything,
    restart_on_spool,
    shorten,
    sidecar_of,
    stop_metadata,
    store_of,
)
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.scene import PARTITIONS
from tests.end_to_end.chaos.schedule import (
    BROKERS,
    Action,
    DeleteRecords,
    ElectLeaders,
    ElectUncleanly,
    FailController,
    FailLogDir,
    FillDisk,
    ForkLeader,
    KillBroker,
    KillSidecar,
    PauseBroker,
    PauseSidecar,
    Reassign,
    RecreateTopic,
    RestartEverything,
    RestartOnSpool,
    RestartSidecar,
    Schedule,
    Step,
    StopBroker,
    StopMetadata,
    Trouble,
    TroubleStore,
)
from tests.end_to_end.chaos.troubles import mend, trouble
from tests.harness.sidecar import Sidecar
from tests.harness.topics import elect_preferred_leader, leader_of, move_leader, reassign

LAG_SECONDS = 15.0
"""No new fault is injected while an archive lags by more than this."""

_CALM_SECONDS = 60.0


class Nemesis:
    """Runs while its context is entered; `wait` returns when the schedule is over and repaired."""

    def __init__(
        self,
        stage: Stage,
        schedule: Schedule,
        lag: Callable[[], float],
        burst: Callable[[], None],
    ) -> None:
        """Create a nemesis. `lag` gives the seconds for which the oldest unstored record has
        waited; `burst` sends records that fill segments and need no follower.
        """
        self.errors: list[BaseException] = []
        self.counts: dict[str, int] = {}
        self._stage = stage
        self._scene = stage.scene
        self._schedule = schedule
        self._lag = lag
        self._burst = burst
        self._tell = stage.tell
        self._dice = random.Random(f"{schedule.seed}/requests")
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(steps,), name=name, daemon=True)
            for name, steps in schedule.tracks.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, events: int) -> None:
        """Wait until the schedule's time is over and everything is repaired.

        If a slow machine had fewer than `events` actions, the run continues for the same time once
        more.
        """
        self._over.wait(self._schedule.seconds)
        deadline = monotonic() + self._schedule.seconds
        while sum(self.counts.values()) < events and monotonic() < deadline:
            if self._over.wait(1.0):
                break
        self.__exit__()
        for proxy in self._scene.proxies.values():
            proxy.heal()

    def _follow(self, steps: Iterable[Step]) -> None:
        try:
            for step in steps:
                if self._over.wait(step.quiet) or not self._begin(step.action):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            self.errors.append(error)
            self._tell(f"the nemesis failed: {error!r}")
            self._over.set()

    def _begin(self, action: Action) -> bool:
        """Carry out an action once the archive has caught up; return False if the run ended before.

        The archive may fall behind while the action waits for its guards. To kill all sidecars then
        would lose what the brokers delete by retention before they are back.
        """
        while self._is_calm(action):
            with self._stage.guards.held(*guards_of(action)):
                if self._over.is_set():
                    return False
                if self._lag() <= LAG_SECONDS:
                    self._carry_out(action)
                    return True
        return False

    def _is_calm(self, action: Action) -> bool:
        """Wait until the archive has caught up; return False if the run ended before."""
        deadline = monotonic() + _CALM_SECONDS
        while self._lag() > LAG_SECONDS:
            if monotonic() > deadline:
                self._tell(f"the archive lags {self._lag():.0f} s behind before {action}")
                self._expect_no_crash()
                deadline = monotonic() + _CALM_SECONDS
            if self._over.wait(0.2):
                return False
        return not self._over.is_set()

    def _carry_out(self, action: Action) -> None:
        self._tell(f"{action}, lag {self._lag():.1f} s")
        name = type(action).__name__
        try:
            self._do(action)
        except DidNotHappenError as reason:
            self._tell(f"{name} did not happen: {reason}")
        else:
            self.counts[name] = self.counts.get(name, 0) + 1

    @singledispatchmethod
    def _do(self, action: Action) -> None:
        _DISASTERS[type(action)](self._stage, action)

    @_do.register
    def _(self, action: KillBroker) -> None:
        self._scene.wait_until_healed()
        self._stage.expect_running(action.broker)
        self._scene.cluster.kill_broker(action.broker)
        self._stage.bring_back(action.broker, action.down)

    @_do.register
    def _(self, action: StopBroker) -> None:
        self._scene.wait_until_healed()
        self._stage.expect_running(action.broker)
        self._scene.cluster.stop_broker(action.broker)
        self._stage.bring_back(action.broker, action.down)

    @_do.register
    def _(self, action: PauseBroker) -> None:
        self._scene.wait_until_healed()
        self._stage.expect_running(action.broker)
        self._scene.cluster.pause_broker(action.broker)
        pause(action.down)
        self._scene.cluster.resume_broker(action.broker)
        self._scene.wait_until_healed()

    @_do.register
    def _(self, action: ForkLeader) -> None:
        self._scene.wait_until_healed()
        self._stage.elect_preferred()
        followers = [broker for broker in BROKERS if broker != action.broker]
        for broker in BROKERS:
            self._stage.expect_running(broker)
        for broker in followers:
            self._scene.cluster.pause_broker(broker)
        self._burst()
        pause(action.held)
        self._scene.cluster.kill_broker(action.broker)
        for broker in followers:
            self._scene.cluster.resume_broker(broker)
        self._stage.bring_back(action.broker, action.down)

    @_do.register
    def _(self, _: ElectLeaders) -> None:
        self._stage.elect_preferred()

    @_do.register
    def _(self, action: Reassign) -> None:
        tp = PARTITIONS[action.number]
        self._stage.try_to(reassign, *tp, action.replicas)
        self._stage.try_to(elect_preferred_leader, *tp)

    @_do.register
    def _(self, action: KillSidecar) -> None:
        sidecar = self._living(action.broker)
        sidecar.kill()
        pause(action.down)
        self._scene.start_sidecar(action.broker, self._tell)

    @_do.register
    def _(self, action: RestartSidecar) -> None:
        sidecar = self._living(action.broker)
        code = sidecar.stop()
        assert code == 0, f"the sidecar of {action.broker} ended with {code}"
        self._scene.start_sidecar(action.broker, self._tell)

    @_do.register
    def _(self, action: PauseSidecar) -> None:
        sidecar = self._living(action.broker)
        sidecar.pause()
        mover = threading.Thread(target=self._move_leaders, args=(action,), daemon=True)
        mover.start()
        pause(action.down)
        sidecar.resume()
        mover.join()

    def _move_leaders(self, action: PauseSidecar) -> None:
        until = monotonic() + action.down
        for tp in PARTITIONS:
            if monotonic() < until and self._leads(action.broker, tp):
                self._stage.try_to(move_leader, *tp, action.heir)

    def _leads(self, broker: int, tp: Partition) -> bool:
        with suppress(KafkaException):
            return leader_of(self._scene.cluster.bootstrap_servers, *tp) == broker
        return False

    def _expect_no_crash(self) -> None:
        """Fail if a sidecar has ended by a signal that nobody has sent. The archive would never
        catch up.
        """
        for broker, sidecar in self._scene.sidecars.items():
            code = sidecar.process.returncode
            if code is not None and code < 0 and code != -signal.SIGKILL:
                self._living(broker)

    def _living(self, broker: int) -> Sidecar:
        sidecar = self._scene.sidecars[broker]
        process = sidecar.process
        assert process.running, (
            f"the sidecar of broker {broker} has ended by itself with {process.returncode}\n"
            f"{process.log_tail()}"
        )
        return sidecar

    @_do.register
    def _(self, action: TroubleStore) -> None:
        with self._troubled(action.trouble, action.brokers):
            pause(action.lasts)
        self._tell(f"the store is well again towards {action.brokers}")

    @_do.register
    def _(self, action: RestartOnSpool) -> None:
        for broker in BROKERS:
            self._living(broker)
        try:
            with self._troubled("away", BROKERS):
                restart_on_spool(self._stage, action)
        finally:
            for broker in BROKERS:
                if not self._scene.sidecars[broker].process.running:
                    self._scene.start_sidecar(broker, self._tell)

    @contextmanager
    def _troubled(self, kind: Trouble, brokers: Iterable[int]) -> Iterator[None]:
        proxies = [self._scene.proxies[broker] for broker in brokers]
        for proxy in proxies:
            trouble(proxy, kind, self._dice)
        try:
            yield
        finally:
            for proxy in proxies:
                mend(proxy, self._scene.store.port)


_DISASTERS: Mapping[type, Callable[[Stage, Any], None]] = {
    ElectUncleanly: elect_uncleanly,
    FillDisk: fill_disk,
    FailLogDir: fail_log_dir,
    FailController: fail_controller,
    StopMetadata: stop_metadata,
    RestartEverything: restart_everything,
    RecreateTopic: recreate_topic,
    DeleteRecords: shorten,
}


def guards_of(action: Action) -> Iterable[str]:
    """Names of the locks that an action needs."""
    if isinstance(action, TroubleStore):
        return map(store_of, action.brokers)
    if isinstance(action, KillSidecar | RestartSidecar | PauseSidecar):
        return (sidecar_of(action.broker),)
    if isinstance(action, RestartOnSpool):
        return ("brokers", *map(sidecar_of, BROKERS), *map(store_of, BROKERS))
    if isinstance(action, RecreateTopic | DeleteRecords):
        return (RECREATION,) if isinstance(action, RecreateTopic) else ()
    if isinstance(action, FailLogDir | FillDisk):
        # With ZooKeeper, a broker refuses to start if it finds two directories of a topic, one of
        # them on a disk that was away while the topic was recreated.
        return ("brokers", RECREATION)
    return ("brokers",)
