"""What goes wrong when: a pure function of the seed.

Four tracks run side by side, each one step after the other: what happens to the brokers, to the
sidecars, to the store, and to topics. A step is over when its damage is mended, so no track hurts
two of its own at once. Durations are seconds.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import Literal, TypeAlias, get_args

from tests.harness.disks import Failure

BROKERS = (1, 2, 3)
FEW_PARTITIONS = 2
"""Of each topic that only certain actions are for."""

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
class RestartOnSpool:
    """With the store away, segments close in the partition of this number of the topic for it. All
    sidecars are killed, the broker deletes the segments, and the sidecars start again after `down`:
    only the spool holds the records.
    """

    number: int
    down: float


@dataclass(frozen=True, slots=True)
class ElectUncleanly:
    """In the partition of this number of the topic for it, the leader alone acknowledges records
    while its follower is stopped. Then it is killed, the follower is elected without these records,
    and the old leader starts again after `down`.
    """

    number: int
    down: float


@dataclass(frozen=True, slots=True)
class FillDisk:
    """The disk of a broker's second log dir has no room until the broker takes the log dir offline,
    and for `down` after that; then there is room, and the broker starts again.
    """

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class FailLogDir:
    """As `FillDisk`, with a disk that fails."""

    broker: int
    failure: Failure
    down: float


@dataclass(frozen=True, slots=True)
class FailController:
    """SIGKILL for the active controller, and a new start after `down`."""

    down: float


@dataclass(frozen=True, slots=True)
class StopMetadata:
    """SIGTERM for ZooKeeper, or for all controllers of the quorum; a new start after `down`."""

    down: float


@dataclass(frozen=True, slots=True)
class RestartEverything:
    """A rolling restart: each broker with its sidecar, then ZooKeeper or each controller."""


@dataclass(frozen=True, slots=True)
class RecreateTopic:
    """The topic for it is deleted, and created again under its name after `down`."""

    down: float


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """The log start offset of the partition of this number of the topic for it is raised over this
    share of what the brokers hold.
    """

    number: int
    share: float


@dataclass(frozen=True, slots=True)
class TroubleStore:
    """The store misbehaves for so long, towards these brokers' sidecars."""

    trouble: Trouble
    brokers: tuple[int, ...]
    lasts: float


Disaster: TypeAlias = (
    ElectUncleanly | FillDisk | FailLogDir | FailController | StopMetadata | RestartEverything
)
BrokerAction: TypeAlias = (
    KillBroker | StopBroker | PauseBroker | ForkLeader | ElectLeaders | Reassign | Disaster
)
SidecarAction: TypeAlias = KillSidecar | RestartSidecar | PauseSidecar | RestartOnSpool
TopicAction: TypeAlias = RecreateTopic | DeleteRecords
Action: TypeAlias = BrokerAction | SidecarAction | TroubleStore | TopicAction

_STEPS_PER_DISASTER = 3
"""Of the steps of brokers, so many hold one disaster: they take longer than the others."""


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
    topics: tuple[Step, ...]

    @property
    def tracks(self) -> Mapping[str, tuple[Step, ...]]:
        """The steps of each track by its name."""
        names = ("brokers", "sidecars", "store", "topics")
        return {name: getattr(self, name) for name in names}

    @property
    def kinds(self) -> frozenset[str]:
        """The names of all actions in it."""
        steps = chain.from_iterable(self.tracks.values())
        return frozenset(type(step.action).__name__ for step in steps)


def draw(seed: int, seconds: float, partitions: int) -> Schedule:
    """The schedule of a seed, over partitions with the numbers 0 to `partitions` - 1."""

    def track(
        name: str,
        decide: Callable[[random.Random], Iterator[Action]],
        quiet: tuple[float, float] = (1, 6),
    ) -> tuple[Step, ...]:
        dice = random.Random(f"{seed}/{name}")
        return tuple(_until(seconds, dice, decide(dice), quiet))

    return Schedule(
        seed,
        seconds,
        brokers=track("brokers", lambda dice: _broker_actions(dice, partitions)),
        sidecars=track("sidecars", _sidecar_actions),
        store=track("store", _store_actions),
        topics=track("topics", _topic_actions, (6, 18)),
    )


def lasts(action: Action) -> float:
    """For how long an action's damage is wanted at the least."""
    if isinstance(action, TroubleStore):
        return action.lasts
    return getattr(action, "down", 0.0)


def _until(
    seconds: float, dice: random.Random, actions: Iterator[Action], quiet: tuple[float, float]
) -> Iterator[Step]:
    """So many steps that they cannot be over before the time is."""
    spent = 0.0
    for action in actions:
        step = Step(_seconds(dice, *quiet), action)
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
    quick, disasters = _rounds(dice, kinds), _rounds(dice, _disasters(dice))
    while True:
        at = dice.randrange(_STEPS_PER_DISASTER)
        for number in range(_STEPS_PER_DISASTER):
            yield next(disasters if number == at else quick)


def _disasters(dice: random.Random) -> Sequence[Callable[[], Action]]:
    def fail() -> Action:
        failure = dice.choice(get_args(Failure))
        return FailLogDir(dice.choice(BROKERS), failure, _seconds(dice, 1, 8))

    return (
        lambda: ElectUncleanly(dice.randrange(FEW_PARTITIONS), _seconds(dice, 0.5, 6)),
        lambda: FillDisk(dice.choice(BROKERS), _seconds(dice, 1, 8)),
        fail,
        lambda: FailController(_seconds(dice, 0.5, 6)),
        lambda: StopMetadata(_seconds(dice, 0.5, 4)),
        RestartEverything,
    )


def _sidecar_actions(dice: random.Random) -> Iterator[Action]:
    def pause() -> Action:
        broker, heir = dice.sample(BROKERS, 2)
        return PauseSidecar(broker, heir, _seconds(dice, 6, 12))

    kinds: Sequence[Callable[[], Action]] = (
        pause,
        lambda: KillSidecar(dice.choice(BROKERS), _seconds(dice, 0, 8)),
        lambda: KillSidecar(dice.choice(BROKERS), _seconds(dice, 0, 2)),
        lambda: RestartSidecar(dice.choice(BROKERS)),
        lambda: RestartOnSpool(dice.randrange(FEW_PARTITIONS), _seconds(dice, 0, 3)),
    )
    return _rounds(dice, kinds)


def _topic_actions(dice: random.Random) -> Iterator[Action]:
    def delete() -> Action:
        return DeleteRecords(dice.randrange(FEW_PARTITIONS), round(dice.uniform(0.1, 1), 2))

    return _rounds(dice, (delete, delete, lambda: RecreateTopic(_seconds(dice, 0, 3))))


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
