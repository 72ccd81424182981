"""Does what the schedule says, one thread per track, and mends each damage before the next.

What a schedule cannot know is waited for here: all replicas in sync before a broker is hurt, and an
archive that is not far behind before anything is, so that no outage outlasts what is promised.
"""

import random
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import singledispatchmethod
from time import monotonic
from typing import Self

from confluent_kafka import KafkaException

from sidetier.sandbox.errors import ServerDiedError
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.scene import PARTITIONS, Scene
from tests.end_to_end.chaos.schedule import (
    BROKERS,
    Action,
    ElectLeaders,
    ForkLeader,
    KillBroker,
    KillSidecar,
    PauseBroker,
    PauseSidecar,
    Reassign,
    RestartSidecar,
    Schedule,
    Step,
    StopBroker,
    TroubleStore,
)
from tests.end_to_end.chaos.troubles import DENIED, mend, trouble
from tests.harness.sidecar import Sidecar
from tests.harness.topics import elect_preferred_leader, leader_of, move_leader, reassign

LAG_SECONDS = 15.0
"""Nothing new is broken while an archive is further behind than this."""

_CALM_SECONDS = 60.0


class Nemesis:
    """Runs from entering the context; `wait` returns when the schedule is over and mended."""

    def __init__(
        self,
        scene: Scene,
        schedule: Schedule,
        lag: Callable[[], float],
        burst: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        """`lag` is for how many seconds the oldest record waits to be stored; `burst` sends what
        fills segments, and needs no follower.
        """
        self.errors: list[BaseException] = []
        self.counts: dict[str, int] = {}
        self._scene = scene
        self._schedule = schedule
        self._lag = lag
        self._burst = burst
        self._tell = tell
        self._dice = random.Random(f"{schedule.seed}/requests")
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(steps,), name=name, daemon=True)
            for name, steps in (
                ("brokers", schedule.brokers),
                ("sidecars", schedule.sidecars),
                ("store", schedule.store),
            )
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
        """Until the schedule's time is over, and everything that it broke is mended.

        Where a slow machine had so few `events` in that time, it goes on for as long once more.
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
                if self._over.wait(step.quiet) or not self._is_calm(step.action):
                    return
                self._count(step.action)
                self._do(step.action)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            self.errors.append(error)
            self._tell(f"the nemesis failed: {error!r}")
            self._over.set()

    def _is_calm(self, action: Action) -> bool:
        """Wait until the archive has caught up; False when the end came before."""
        deadline = monotonic() + _CALM_SECONDS
        while self._lag() > LAG_SECONDS:
            if monotonic() > deadline:
                self._tell(f"the archive lags {self._lag():.0f} s behind before {action}")
                deadline = monotonic() + _CALM_SECONDS
            if self._over.wait(0.2):
                return False
        return not self._over.is_set()

    def _count(self, action: Action) -> None:
        name = type(action).__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        self._tell(f"{action}, lag {self._lag():.1f} s")

    def _pass(self, seconds: float) -> None:
        """Let so much time pass, also when the end has come: damage lasts as long as drawn."""
        threading.Event().wait(seconds)

    @singledispatchmethod
    def _do(self, action: Action) -> None:
        raise NotImplementedError(action)

    @_do.register
    def _(self, action: KillBroker) -> None:
        self._scene.wait_until_healed()
        self._expect_running(action.broker)
        self._scene.cluster.kill_broker(action.broker)
        self._bring_back(action.broker, action.down)

    @_do.register
    def _(self, action: StopBroker) -> None:
        self._scene.wait_until_healed()
        self._expect_running(action.broker)
        self._scene.cluster.stop_broker(action.broker)
        self._bring_back(action.broker, action.down)

    def _bring_back(self, broker: int, down: float) -> None:
        self._pass(down)
        self._scene.cluster.start_broker(broker)
        self._scene.wait_until_healed()
        self._tell(f"broker {broker} is in sync again")

    def _expect_running(self, broker: int) -> None:
        process = self._scene.cluster.process_of(broker)
        assert process.running, f"broker {broker} has ended by itself\n{process.log_tail()}"

    @_do.register
    def _(self, action: PauseBroker) -> None:
        self._scene.wait_until_healed()
        self._expect_running(action.broker)
        self._scene.cluster.pause_broker(action.broker)
        self._pass(action.down)
        self._scene.cluster.resume_broker(action.broker)
        self._scene.wait_until_healed()

    @_do.register
    def _(self, action: ForkLeader) -> None:
        self._scene.wait_until_healed()
        self._elect()
        followers = [broker for broker in BROKERS if broker != action.broker]
        for broker in BROKERS:
            self._expect_running(broker)
        for broker in followers:
            self._scene.cluster.pause_broker(broker)
        self._burst()
        self._pass(action.held)
        self._scene.cluster.kill_broker(action.broker)
        for broker in followers:
            self._scene.cluster.resume_broker(broker)
        self._bring_back(action.broker, action.down)

    @_do.register
    def _(self, _: ElectLeaders) -> None:
        self._elect()

    def _elect(self) -> None:
        for tp in PARTITIONS:
            self._try(elect_preferred_leader, *tp)

    @_do.register
    def _(self, action: Reassign) -> None:
        tp = PARTITIONS[action.number]
        self._try(reassign, *tp, action.replicas)
        self._try(elect_preferred_leader, *tp)

    def _try(self, ask: Callable[..., None], *arguments: object) -> None:
        """What the cluster refuses while it is in other trouble is left undone."""
        try:
            ask(self._scene.cluster.bootstrap_servers, *arguments)
        except (KafkaException, AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            self._tell(f"{ask.__name__} {arguments} was refused: {error!r}")

    @_do.register
    def _(self, action: KillSidecar) -> None:
        sidecar = self._living(action.broker)
        sidecar.kill()
        self._pass(action.down)
        self._start(sidecar)

    @_do.register
    def _(self, action: RestartSidecar) -> None:
        sidecar = self._living(action.broker)
        code = sidecar.stop()
        assert code == 0, f"the sidecar of {action.broker} ended with {code}"
        self._start(sidecar)

    def _start(self, sidecar: Sidecar) -> None:
        """As a supervisor does. A store that denies access at the start is taken for a mistake in
        the configuration: the sidecar refuses, and is started again.
        """
        while True:
            try:
                sidecar.start()
            except ServerDiedError as error:
                if DENIED not in str(error).splitlines()[-1]:
                    raise
                self._tell("a sidecar refuses to start while the store denies access")
                self._pass(1.0)
            else:
                return

    @_do.register
    def _(self, action: PauseSidecar) -> None:
        sidecar = self._living(action.broker)
        sidecar.pause()
        mover = threading.Thread(target=self._move_leaders, args=(action,), daemon=True)
        mover.start()
        self._pass(action.down)
        sidecar.resume()
        mover.join()

    def _move_leaders(self, action: PauseSidecar) -> None:
        until = monotonic() + action.down
        for tp in PARTITIONS:
            if monotonic() < until and self._leads(action.broker, tp):
                self._try(move_leader, *tp, action.heir)

    def _leads(self, broker: int, tp: Partition) -> bool:
        with suppress(KafkaException):
            return leader_of(self._scene.cluster.bootstrap_servers, *tp) == broker
        return False

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
        proxies = [self._scene.proxies[broker] for broker in action.brokers]
        for proxy in proxies:
            trouble(proxy, action.trouble, self._dice)
        self._pass(action.lasts)
        for proxy in proxies:
            mend(proxy, self._scene.bucket.server.port)
        self._tell(f"the store is well again towards {action.brokers}")
