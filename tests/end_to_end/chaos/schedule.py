"""The schedule of faults: a pure function of the seed.

Four tracks run in parallel, each one step after the other: faults of brokers, of sidecars, of the
store, and of topics. A step is over when its damage is repaired, so no track causes two faults at
once. Durations are in seconds.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import Literal, TypeAlias, get_args

from tests.harness.disks import Failure

BROKERS = (1, 2, 3)
FEW_PARTITIONS = 2
"""Number of partitions of each topic that only certain actions use."""

Trouble = Literal["away", "denied", "error", "slow-down", "cut", "late", "unanswered", "mixed"]
"""Faults of the store. `late` delays requests, and some arrive after their sender has timed out;
`unanswered` processes the request and closes the connection; `mixed` chooses a fault for each
request.
"""

_TROUBLES: Sequence[Trouble] = (
    "away", "denied", "error", "slow-down", "cut", "late", "late", "unanswered", "mixed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KillBroker:
    """SIGKILL, and a restart after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class StopBroker:
    """A controlled shutdown, and a restart after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class PauseBroker:
    """SIGSTOP for a time: the leader does not know yet that it has lost the lead."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class ForkLeader:
    """Both followers are paused for `held`, while the leader receives records with acks=1; then it
    is killed, the followers continue without these records, and it restarts after `down`.

    Its closed segments contain records that the cluster loses.
    """

    broker: int
    held: float
    down: float


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """A preferred election over all partitions."""


@dataclass(frozen=True, slots=True)
class Reassign:
    """Assign other replicas, the preferred leader first, to the partition of this number; then
    elect.
    """

    number: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillSidecar:
    """SIGKILL, and a restart after `down`."""

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class RestartSidecar:
    """SIGTERM, a regular end, and a restart."""

    broker: int


@dataclass(frozen=True, slots=True)
class PauseSidecar:
    """SIGSTOP for a time; meanwhile the broker `heir` leads its broker's partitions.

    Resumed, the sidecar believes that it leads, while the heir's sidecar does.
    """

    broker: int
    heir: int
    down: float


@dataclass(frozen=True, slots=True)
class RestartOnSpool:
    """While the store is away, segments close in the partition of this number of the dedicated
    topic. All sidecars are killed, the broker deletes the segments, and the sidecars restart after
    `down`: only the spool has the records.
    """

    number: int
    down: float


@dataclass(frozen=True, slots=True)
class ElectUncleanly:
    """In the partition of this number of the dedicated topic, the leader alone acknowledges records
    while its follower is stopped. Then it is killed, the follower is elected without these records,
    and the old leader restarts after `down`.
    """

    number: int
    down: float


@dataclass(frozen=True, slots=True)
class FillDisk:
    """The disk of a broker's second log dir is full until the broker takes the log dir offline, and
    for `down` after that; then space is freed, and the broker restarts.
    """

    broker: int
    down: float


@dataclass(frozen=True, slots=True)
class FailLogDir:
    """Like `FillDisk`, with a failing disk."""

    broker: int
    failure: Failure
    down: float


@dataclass(frozen=True, slots=True)
class FailController:
    """SIGKILL for the active controller, and a restart after `down`."""

    down: float


@dataclass(frozen=True, slots=True)
class StopMetadata:
    """SIGTERM for ZooKeeper, or for all controllers of the quorum; a restart after `down`."""

    down: float


@dataclass(frozen=True, slots=True)
class RestartEverything:
    """A rolling restart: each broker with its sidecar, then ZooKeeper or each controller."""


@dataclass(frozen=True, slots=True)
class RecreateTopic:
    """The dedicated topic is deleted, and recreated under its name after `down`. With `ahead`, it
    gets more records at once than the deleted one had: Kafka then does not refuse the offset at
    which a reader leaves the old archive, or at which a group has committed.
    """

    down: float
    ahead: bool


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """The log start offset of the partition of this number of the dedicated topic is raised over
    this share of the broker's records.
    """

    number: int
    share: float


@dataclass(frozen=True, slots=True)
class TroubleStore:
    """The store misbehaves for a time towards the sidecars of these brokers."""

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
"""One in this number of broker steps contains a disaster: disasters take longer than other steps.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """An action after a quiet time."""

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
        """The names of all contained actions."""
        steps = chain.from_iterable(self.tracks.values())
        return frozenset(type(step.action).__name__ for step in steps)


@dataclass(frozen=True, slots=True)
class Early:
    """Topics whose active segments are archived early, and the limits in bytes and seconds."""

    topics: tuple[str, ...] = ()
    bytes: int = 1
    age: float = 1.0

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of `uploader.early`."""
        return {"topics": list(self.topics), "bytes": self.bytes, "age": f"{self.age:g}s"}


NOT_EARLY = Early()


def draw_early(seed: int, topics: Sequence[str]) -> Early:
    """The early archiving of a seed: one or two of the topics in three of four runs.

    Of more topics, the sidecars of a slow machine store so many parts that the archive always lags,
    and no fault can begin.
    """
    dice = random.Random(f"{seed}/early")
    chosen = dice.sample(topics, dice.randint(1, 2)) if dice.random() < 0.75 else []
    return Early(tuple(sorted(chosen)), dice.choice(_PART_BYTES), dice.choice(_PART_AGES))


def draw_tail(seed: int) -> float | None:
    """The interval of the tail packs of a seed, in seconds; None in one of four runs."""
    return random.Random(f"{seed}/tail").choice((None, 1.0, 2.0, 5.0))


_PART_BYTES: Sequence[int] = (2_000, 8_000, 1_000_000)
_PART_AGES: Sequence[float] = (1.0, 3.0, 15.0)


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
    """Minimum duration of an action's damage."""
    if isinstance(action, TroubleStore):
        return action.lasts
    return getattr(action, "down", 0.0)


def _until(
    seconds: float, dice: random.Random, actions: Iterator[Action], quiet: tuple[float, float]
) -> Iterator[Step]:
    """Enough steps to last beyond the time."""
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

    def recreate() -> Action:
        return RecreateTopic(_seconds(dice, 0, 6), ahead=dice.random() < 0.5)

    return _rounds(dice, (delete, delete, recreate))


def _store_actions(dice: random.Random) -> Iterator[Action]:
    kinds = [
        lambda trouble=trouble: TroubleStore(trouble, _some(dice), _seconds(dice, 3, 10))
        for trouble in _TROUBLES
    ]
    return _rounds(dice, kinds)


def _rounds(dice: random.Random, kinds: Sequence[Callable[[], Action]]) -> Iterator[Action]:
    """Every kind once per round in random order, so that short runs see all of them."""
    while True:
        for kind in dice.sample(kinds, len(kinds)):
            yield kind()


def _some(dice: random.Random) -> tuple[int, ...]:
    """All brokers as often as a single one."""
    return BROKERS if dice.random() < 0.5 else (dice.choice(BROKERS),)


def _seconds(dice: random.Random, least: float, most: float) -> float:
    return round(dice.uniform(least, most), 2)
