"""What goes wrong when: a pure function of the seed.

Three tracks run side by side, each one step after the other: what happens to the brokers, to the
sidecars, and to the store. A step is over when its damage is mended, so no track hurts two of its
own at once. Durations are seconds.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, TypeAlias

BROKERS = (1, 2, 3)

Trouble = Literal["away", "denied", "error", "slow-down", "cut", "late", "unanswered", "mixed"]
"""What the store does: `late` lets requests wait, and some arrive after their sender gave up;
`unanswered` does what is asked and cuts the connection; `mixed` draws for each request.
"""

_TROUBLES: Sequence[Trouble] = (
    "away", "denied", "error", "slow-down", "cut", "late", "late", "unanswered", "mixed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KillBroker:
    """SIGKILL, and a new start after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class StopBroker:
    """A controlled shutdown, and a new start after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class PauseBroker:
    """SIGSTOP for so long: a leader that does not know yet that it leads no more."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class ForkLeader:
    """Both followers are paused for `held`, while the leader is sent what needs no follower's word;
    then it is killed, the followers go on without that, and it starts again after `down`.

    Its closed segments hold what the cluster throws away.
    """

    broker: int
    held: float
    down: float


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """A preferred election over all partitions."""


@dataclass(frozen=True, slots=True)
class Reassign:
    """Other replicas, the preferred leader first, for the partition of this number; then elect."""

    number: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillSidecar:
    """SIGKILL, and a new start after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class RestartSidecar:
    """SIGTERM, a good end, and a new start."""

    broker: int


@dataclass(frozen=True, slots=True)
class PauseSidecar:
    """SIGSTOP for so long; meanwhile what its broker leads is led by the broker `heir`.

    When it goes on it believes that it leads, while the other's sidecar does.
    """

    broker: int
    heir: int
    down: float


@dataclass(frozen=True, slots=True)
class TroubleStore:
    """The store misbehaves for so long, towards these brokers' sidecars."""

    trouble: Trouble
    brokers: tuple[int, ...]
    lasts: float


BrokerAction: TypeAlias = (
    KillBroker | StopBroker | PauseBroker | ForkLeader | ElectLeaders | Reassign
)
SidecarAction: TypeAlias = KillSidecar | RestartSidecar | PauseSidecar
Action: TypeAlias = BrokerAction | SidecarAction | TroubleStore


@dataclass(frozen=True, slots=True)
class Step:
    """After so much quiet, this."""

    quiet: float
    action: Action


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of each track, enough of them for `seconds`."""

    seed: int
    seconds: float
    brokers: tuple[Step, ...]
    sidecars: tuple[Step, ...]
    store: tuple[Step, ...]


def draw(seed: int, seconds: float, partitions: int) -> Schedule:
    """The schedule of a seed, over partitions with the numbers 0 to `partitions` - 1."""

    def track(name: str, decide: Callable[[random.Random], Iterator[Action]]) -> tuple[Step, ...]:
        dice = random.Random(f"{seed}/{name}")
        return tuple(_until(seconds, dice, decide(dice)))

    return Schedule(
        seed,
        seconds,
        brokers=track("brokers", lambda dice: _broker_actions(dice, partitions)),
        sidecars=track("sidecars", _sidecar_actions),
        store=track("store", _store_actions),
    )


def lasts(action: Action) -> float:
    """For how long an action's damage is wanted at the least."""
    if isinstance(action, TroubleStore):
        return action.lasts
    return getattr(action, "down", 0.0)


def _until(seconds: float, dice: random.Random, actions: Iterator[Action]) -> Iterator[Step]:
    """So many steps that they cannot be over before the time is."""
    spent = 0.0
    for action in actions:
        step = Step(_seconds(dice, 1, 6), action)
        spent += step.quiet + lasts(action)
        yield step
        if spent >= seconds:
            return


def _broker_actions(dice: random.Random, partitions: int) -> Iterator[Action]:
    every = [order for size in (2, 3, 3) for order in permutations(BROKERS, size)]
    kinds: Sequence[Callable[[], Action]] = (
        lambda: KillBroker(dice.choice(BROKERS), _seconds(dice, 0.5, 8)),
        lambda: StopBroker(dice.choice(BROKERS), _seconds(dice, 0.5, 4)),
        lambda: PauseBroker(dice.choice(BROKERS), _seconds(dice, 2, 9)),
        lambda: ForkLeader(dice.choice(BROKERS), _seconds(dice, 3, 4.5), _seconds(dice, 0.5, 3)),
        ElectLeaders,
        lambda: Reassign(dice.randrange(partitions), dice.choice(every)),
        lambda: Reassign(dice.randrange(partitions), dice.choice(every)),
    )
    return _rounds(dice, kinds)


def _sidecar_actions(dice: random.Random) -> Iterator[Action]:
    def pause() -> Action:
        broker, heir = dice.sample(BROKERS, 2)
        return PauseSidecar(broker, heir, _seconds(dice, 6, 12))

    kinds: Sequence[Callable[[], Action]] = (
        pause,
        lambda: KillSidecar(dice.choice(BROKERS), _seconds(dice, 0, 8)),
        lambda: KillSidecar(dice.choice(BROKERS), _seconds(dice, 0, 2)),
        lambda: RestartSidecar(dice.choice(BROKERS)),
    )
    return _rounds(dice, kinds)


def _store_actions(dice: random.Random) -> Iterator[Action]:
    kinds = [
        lambda trouble=trouble: TroubleStore(trouble, _some(dice), _seconds(dice, 3, 10))
        for trouble in _TROUBLES
    ]
    return _rounds(dice, kinds)


def _rounds(dice: random.Random, kinds: Sequence[Callable[[], Action]]) -> Iterator[Action]:
    """Every kind once in each round, in an order of its own: short runs see all of them."""
    while True:
        for kind in dice.sample(kinds, len(kinds)):
            yield kind()


def _some(dice: random.Random) -> tuple[int, ...]:
    """All brokers as often as a single one."""
    return BROKERS if dice.random() < 0.5 else (dice.choice(BROKERS),)


def _seconds(dice: random.Random, least: float, most: float) -> float:
    return round(dice.uniform(least, most), 2)
