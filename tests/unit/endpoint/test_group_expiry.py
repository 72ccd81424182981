"""Groups of `--groups local` that nobody uses are deleted; groups in use are written again."""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic, time_ns

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.endpoint.groups import expiry as expiry_module
from sidetier.endpoint.groups.classic_group import GroupLimits, Join, JoinAnswer, MemberId
from sidetier.endpoint.groups.coordinator import (
    CoordinatorSettings,
    GroupCoordinator,
    RefusedError,
)
from sidetier.endpoint.groups.expiry import DEFAULT_RETENTION, GroupExpiry, is_expired
from sidetier.endpoint.groups.stored_offsets import GroupObjects, StoredOffset, parse_group
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.segments.errors import AccessDeniedError, StoreTimeoutError
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import LAYOUT, MadeArchive, access_to
from tests.harness.waiting import wait_until

TP = TopicPartition("orders", 0)
NONE = ErrorCode.none
HOUR, DAY = 3600.0, 86_400.0
SETTINGS = CoordinatorSettings(
    group=GroupLimits(initial_delay=0.01), least_session=0.1, most_session=math.inf, store_wait=5.0
)


@dataclass
class Process:
    """The groups of one endpoint."""

    coordinator: GroupCoordinator
    expiry: GroupExpiry

    def commit(self, offset: int, group: str = "g", member: MemberId | None = None) -> ErrorCode:
        by = member or MemberId("", None, -1)
        committed = StoredOffset(Offset(offset), LeaderEpoch(3))
        return self.coordinator.commit(group, by, {TP: committed})

    def join(self, group: str = "g", session: float = 100 * DAY) -> MemberId:
        answer: JoinAnswer = self.coordinator.join(
            group,
            Join(
                "",
                None,
                "client",
                "/host",
                session,
                60.0,
                "consumer",
                (("range", b""),),
                needs_member_id=False,
            ),
        )
        assert answer.error is NONE
        member = MemberId(answer.member_id, None, answer.generation)
        self.coordinator.sync(group, member, {answer.member_id: b""}, None, None)
        return member

    def committed(self, group: str = "g") -> int | None:
        offsets = self.coordinator.offsets(group)
        return None if offsets is None else offsets[TP].offset


@dataclass
class World:
    """A store, and endpoints whose clocks tests put forward together."""

    ahead: float = 1.7e9
    host_ahead: float = 0.0
    """Seconds by which the clocks of the hosts are ahead of the store's."""
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = FakeStorage(now_ms=lambda: int(self.now() * 1000))

    def now(self) -> float:
        return monotonic() + self.ahead

    def start(
        self,
        owner: str = "one",
        store: RemoteStorage | None = None,
        retention: float = DEFAULT_RETENTION,
        settings: CoordinatorSettings = SETTINGS,
    ) -> Process:
        objects = GroupObjects(
            store or self.store, LAYOUT, owner, owner, ThreadPoolExecutor(4), clock=self.now
        )
        metrics = GroupMetrics(CollectorRegistry())
        coordinator = GroupCoordinator(objects, metrics, settings, self.now)

        def now_ms() -> int:
            return int((self.now() + self.host_ahead) * 1000)

        process = Process(coordinator, GroupExpiry(objects, coordinator, retention, now_ms))
        self.processes.append(process)
        return process

    def groups(self) -> list[str]:
        prefix = LAYOUT.groups_prefix()
        return [key[len(prefix) : -5] for key in self.store.contents() if key.endswith(".json")]

    def writes(self, group: str = "g") -> int:
        key = f"{LAYOUT.groups_prefix()}{group}.json"
        return parse_group(self.store.contents()[key], key).writes


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for process in made.processes:
        process.expiry.close()
        process.coordinator.close()


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (0, False),
        (-(10**12), False),
        (7 * 86_400_000 + 21_600_000, False),
        (7 * 86_400_000 + 21_600_001, True),
    ],
)
def test_age_of_an_expired_group(age: int, expected: bool) -> None:  # noqa: FBT001
    now_ms = 1_700_000_000_000
    assert is_expired(now_ms - age, now_ms, 7 * DAY) is expected


def test_an_unused_group_is_deleted_after_the_retention(world: World) -> None:
    one = world.start()
    one.commit(5)
    one.commit(6, "émile/x")
    world.ahead += 7 * DAY + 5 * HOUR
    one.commit(7, "later")
    with capture_logs() as logs:
        one.expiry.run_once()
        assert len(world.groups()) == 3
        world.ahead += 2 * HOUR
        one.expiry.run_once()
    assert world.groups() == ["later"]
    (row,) = logs
    assert (row["event"], row["groups"]) == ("endpoint.groups_expired", 2)
    # Like a group that has never committed; and it can be used again at once.
    assert one.committed() is None
    assert one.commit(9) is NONE
    assert one.committed() == 9


def test_groups_are_kept_for_ever(world: World) -> None:
    one = world.start(retention=math.inf)
    one.commit(5)
    world.ahead += 1000 * DAY
    one.expiry.run_once()
    assert world.groups() == ["g"]


@pytest.mark.parametrize("retention", [DAY, math.inf])
def test_a_group_with_members_is_written_again_and_kept_by_every_endpoint(
    world: World, retention: float
) -> None:
    """Its members commit nothing, and the other endpoint knows nothing of them."""
    one, two = world.start(retention=retention), world.start("two", retention=DAY)
    member = one.join()
    assert one.commit(5, member=member) is NONE
    writes = world.writes()
    one.expiry.run_once()
    assert world.writes() == writes  # it is young
    for _ in range(60):
        world.ahead += HOUR
        one.expiry.run_once()
        two.expiry.run_once()
    assert world.groups() == ["g"]
    assert writes + 15 <= world.writes() <= writes + 25  # each three hours, not each hour
    assert (one.committed(), one.coordinator.heartbeat("g", member)) == (5, NONE)
    # Its members have gone without a word, and no request notices it.
    one.expiry.close()
    one.coordinator.close()
    world.ahead += DAY + 7 * HOUR
    two.expiry.run_once()
    assert world.groups() == []


def test_a_group_with_members_is_kept_while_it_cannot_be_written(world: World) -> None:
    one = world.start(retention=DAY)
    one.join()
    world.ahead += 10 * DAY
    world.store.fail("put", AccessDeniedError("403"), key=f"{LAYOUT.groups_prefix()}g.json")
    with capture_logs() as logs:
        one.expiry.run_once()
    assert world.groups() == ["g"]
    assert [(row["event"], row["error"]) for row in logs] == [
        ("endpoint.group_expiry_failed", "403")
    ]


def test_sessions_end_without_requests(world: World) -> None:
    one = world.start()
    one.join(session=10.0)
    world.ahead += 8 * DAY
    one.expiry.run_once()
    assert world.groups() == []


def test_equal_commits_without_members_keep_a_group(world: World) -> None:
    """Such as those of `assign()` at the end of a topic that gets no records."""
    one = world.start(retention=DAY)
    for _ in range(48):
        assert one.commit(5) is NONE
        one.expiry.run_once()
        assert world.groups() == ["g"]
        world.ahead += HOUR
    assert 16 <= world.writes() <= 20  # each three hours, not each hour


@pytest.mark.parametrize("operation", ["get", "delete"])
def test_a_group_that_another_endpoint_uses_meanwhile_is_kept(world: World, operation: str) -> None:
    """The other endpoint commits right before the object is read, or deleted."""
    key = f"{LAYOUT.groups_prefix()}g.json"
    two = world.start("two")
    two.commit(5)
    world.ahead += 8 * DAY
    world.store.race(operation, lambda: two.commit(6), key=key)
    one = world.start()
    with capture_logs() as logs:
        one.expiry.run_once()
    assert not logs
    assert world.groups() == ["g"]
    assert one.committed() == 6
    assert one.commit(7) is NONE


def test_a_group_is_closed_while_it_is_deleted(world: World) -> None:
    """Not every store decides about the condition of a delete atomically."""
    key = f"{LAYOUT.groups_prefix()}g.json"
    refused: list[ErrorCode] = []

    def use() -> None:
        for request in (lambda: one.commit(6), one.join):
            with pytest.raises(RefusedError) as error:
                request()
            refused.append(error.value.error)

    one = world.start()
    one.commit(5)
    world.store.race("delete", use, key=key)
    world.ahead += 8 * DAY
    one.expiry.run_once()
    assert refused == [ErrorCode.coordinator_not_available] * 2
    assert world.groups() == []
    assert one.commit(7) is NONE


def test_a_delete_without_an_answer_closes_the_group_for_some_time(world: World) -> None:
    one = world.start()
    one.commit(5)
    world.ahead += 8 * DAY
    world.store.fail("delete", StoreTimeoutError("no answer"))
    with capture_logs() as logs:
        one.expiry.run_once()
    assert [row["event"] for row in logs] == ["endpoint.group_expiry_failed"]
    with pytest.raises(RefusedError):
        one.commit(6)
    world.ahead += 31
    assert one.commit(6) is NONE
    assert one.committed() == 6


@pytest.mark.parametrize("ahead", [-2 * HOUR, 2 * HOUR, -30 * DAY, 30 * DAY])
def test_nothing_is_deleted_while_the_clocks_differ(world: World, ahead: float) -> None:
    one = world.start()
    one.commit(5)
    world.ahead += 8 * DAY
    world.host_ahead = ahead
    with capture_logs() as logs:
        one.expiry.run_once()
    assert "this host's clock" in logs[0]["error"]
    assert world.groups() == ["g"]
    world.host_ahead = 0
    one.expiry.run_once()
    assert world.groups() == []


@pytest.mark.parametrize("operation", ["put", "head"])
def test_nothing_is_deleted_without_the_time_of_the_store(world: World, operation: str) -> None:
    clock = LAYOUT.groups_clock_key()
    one = world.start()
    one.commit(5)
    world.ahead += 8 * DAY
    world.store.fail(operation, AccessDeniedError("403"), key=clock)
    one.expiry.run_once()
    assert world.groups() == ["g"]
    # Another process replaces the object right before it is read.
    world.store.race("head", lambda: world.store.put_object(clock, BytesBody(b"x")), key=clock)
    world.start("two").expiry.run_once()
    assert world.groups() == ["g"]


def test_what_is_not_a_group_is_kept_and_named(world: World) -> None:
    one = world.start()
    one.commit(5)
    prefix = LAYOUT.groups_prefix()
    group = world.store.contents()[f"{prefix}g.json"]
    for name in ("bad", "other", "%67"):
        world.store.put_object(f"{prefix}{name}.json", BytesBody(b"{" if name == "bad" else group))
    world.ahead += 8 * DAY
    with capture_logs() as logs:
        one.expiry.run_once()
    assert world.groups() == ["%67", "bad", "other"]
    assert world.store.count("get", f"{prefix}g.json") == 2  # when it was taken, and deleted
    (failed,) = (row for row in logs if row["event"] == "endpoint.group_expiry_failed")
    assert failed["failures"] == 2
    assert f"{prefix}bad.json" in failed["error"]


def test_many_groups_take_several_passes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.start(settings=CoordinatorSettings(groups=2))
    for number in range(10):
        one.commit(5, f"g{number}")
    monkeypatch.setattr(expiry_module, "_MAX_LISTED", 4)
    monkeypatch.setattr(expiry_module, "_MAX_DELETED", 3)
    world.ahead += 8 * DAY
    left = []
    for _ in range(4):
        one.expiry.run_once()
        left.append(len(world.groups()))
    assert left == [7, 4, 1, 0]
    one.commit(5, "a")
    world.ahead += 8 * DAY
    one.expiry.run_once()
    assert world.groups() == []


def test_a_pass_ends_after_some_failures(world: World) -> None:
    one = world.start()
    for number in range(20):
        one.commit(5, f"g{number:02}")
    world.ahead += 8 * DAY
    world.store.fail("delete", AccessDeniedError("403"), times=None)
    with capture_logs() as logs:
        one.expiry.run_once()
    assert world.store.count("delete") == 10
    assert [(row["event"], row["failures"]) for row in logs] == [
        ("endpoint.group_expiry_failed", 10)
    ]


def test_unexpected_errors_do_not_end_the_thread(world: World) -> None:
    one = world.start()
    world.store.fail("list", KeyError("unexpected"))
    with capture_logs() as logs:
        one.expiry.run_once()
    assert logs[0]["event"] == "endpoint.group_expiry_failed"


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_leaves_whole_groups(world: World, after: bool) -> None:  # noqa: FBT001
    """A kill at each request of a pass; the next process ends its work."""
    kills = 0
    while True:
        two = world.start("two")
        for name in ("a", "b"):
            assert two.commit(5, name) is NONE
        world.ahead += 8 * DAY
        mortal = MortalStore(world.store, after=after)
        one = world.start(store=mortal)
        assert one.commit(5, "used", one.join("used")) is NONE
        world.ahead += 4 * HOUR
        mortal.made, mortal._lives = 0, kills
        try:
            one.expiry.run_once()
        except KilledError:
            kills += 1
        else:
            break
        for name in world.groups():
            assert world.start("three").committed(name) == 5
        world.start("three").expiry.run_once()
        assert world.groups() == ["used"]
    # The renewal, put and head of the clock, the listing, and two requests for each group.
    assert kills == 8
    assert world.groups() == ["used"]


def test_close_ends_a_pass(world: World) -> None:
    one = world.start()
    one.commit(5)
    world.ahead += 8 * DAY
    one.expiry.close()
    one.expiry.run_once()
    assert world.groups() == ["g"]


def test_the_thread_waits_before_its_first_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of an endpoint that was stopped for long join before their group can be deleted."""
    waits: list[float | None] = []
    one = world.start()
    one.commit(5)
    world.ahead += 8 * DAY

    def wait(seconds: float | None = None) -> bool:
        waits.append(seconds)
        assert world.groups() == (["g"] if len(waits) == 1 else [])
        return len(waits) == 2

    stop: Callable[[float | None], bool] = wait
    monkeypatch.setattr(one.expiry._stopped, "wait", stop)
    one.expiry._run()
    assert waits == [HOUR, HOUR]


def test_an_endpoint_runs_the_thread_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_module, "_PAUSE", 0.01)
    world = World(ahead=time_ns() / 1e9 - monotonic() - 2 * DAY)
    MadeArchive(world.store).segments(0, 20)
    before = world.start()
    before.commit(5)
    before.coordinator.close()
    world.ahead += 2 * DAY
    name = "endpoint-group-expiry"

    def is_running() -> bool:
        return name in {thread.name for thread in threading.enumerate()}

    address = ("127.0.0.1", 0)
    settings = EndpointSettings(address, groups="local", group_retention=DAY)
    with serving(access_to(world.store), settings):
        assert is_running()
        wait_until(lambda: not world.groups(), 10, "the delete of the group")
    wait_until(lambda: not is_running(), 10, "the end of the thread")
