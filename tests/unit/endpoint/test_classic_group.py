"""The state machine of a classic group: which request gets which answer, and when."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.classic_group import (
    ClassicGroup,
    GroupLimits,
    GroupState,
    Join,
    JoinAnswer,
    MemberId,
    SyncAnswer,
)

NONE = ErrorCode.none
DELAY = 1.0
SESSION = 10.0
REBALANCE = 60.0
RANGE = (("range", b"topics"),)


class Script:
    """One group, its time, and the clients that wait for an answer.

    Clients are named by a letter. Their member ids are `<letter>-<number>`.
    """

    def __init__(self, **limits: float) -> None:
        numbers = count(1)
        bounds = GroupLimits(**{"initial_delay": DELAY, **limits})  # type: ignore[arg-type]
        self.group = ClassicGroup(bounds, lambda: str(next(numbers)))
        self.now = 100.0

    def after(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.group.advance(self.now)

    def join(  # noqa: PLR0913 - the fields of JoinGroup
        self,
        client: str,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        old_client: bool = True,
        can_skip: bool = True,
        session: float = SESSION,
    ) -> int:
        """Send JoinGroup, by default in a version without MEMBER_ID_REQUIRED."""
        join = Join(
            member_id, instance, client, "host", session, REBALANCE, protocol_type, protocols,
            needs_member_id=not old_client, can_skip_assignment=can_skip,
        )  # fmt: skip
        return self.group.join(join, self.now)

    def sync(self, member_id: str, generation: int, **assignments: bytes) -> int:
        """Send SyncGroup; assignments are by member id with _ in place of -."""
        by_id = {name.replace("_", "-"): data for name, data in assignments.items()}
        return self.group.sync(MemberId(member_id, None, generation), by_id, self.now)

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        """Send Heartbeat."""
        return self.group.heartbeat(MemberId(member_id, instance, generation), self.now)

    def commit(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        """Ask whether a commit is accepted."""
        return self.group.commit(MemberId(member_id, instance, generation), self.now)

    def joined(self, ticket: int) -> JoinAnswer:
        """Return the answer to JoinGroup, which must be there."""
        answer = self.group.take(ticket)
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: int) -> SyncAnswer:
        """Return the answer to SyncGroup, which must be there."""
        answer = self.group.take(ticket)
        assert isinstance(answer, SyncAnswer)
        return answer

    def waits(self, ticket: int) -> bool:
        """Return whether there is no answer yet."""
        return self.group.take(ticket) is None


def stable(*clients: str, **limits: float) -> Script:
    """Return a stable group of dynamic members a-1, b-2, ... in generation 1."""
    script = Script(**limits)
    tickets = [script.join(client) for client in clients]
    script.after(2 * DELAY)
    ids = [script.joined(ticket).member_id for ticket in tickets]
    waiting = [script.sync(member_id, 1) for member_id in ids[1:]]
    leader = script.sync(ids[0], 1, **{each.replace("-", "_"): each.encode() for each in ids})
    assert [script.synced(ticket).error for ticket in [leader, *waiting]] == [NONE] * len(ids)
    assert script.group.state is GroupState.STABLE
    return script


# Joining


def test_a_member_id_of_a_dynamic_member_is_not_accepted_from_a_static_one() -> None:
    script = Script()
    static = script.join("s", instance="i")
    asked = script.join("a", old_client=False)
    member_id = script.joined(asked).member_id
    mixed = script.join("a", member_id, instance="i")
    assert script.joined(mixed).error is ErrorCode.fenced_instance_id
    script.after(2 * DELAY)
    joined = script.joined(static)
    assert [member.member_id for member in joined.members] == [joined.member_id]


def test_first_join_of_a_group() -> None:
    script = Script()
    first = script.join("a")
    assert script.waits(first)
    script.after(DELAY / 2)
    second = script.join("b")  # restarts the delay, for further members
    script.after(DELAY / 2)
    assert script.waits(first)
    script.after(DELAY)
    leader, follower = script.joined(first), script.joined(second)
    assert (leader.error, leader.generation, leader.protocol) == (NONE, 1, "range")
    assert leader.leader == follower.leader == "a-1"
    assert [(row.member_id, row.metadata) for row in leader.members] == [
        ("a-1", b"topics"), ("b-2", b"topics")
    ]  # fmt: skip
    assert (follower.member_id, follower.members) == ("b-2", ())
    assert script.group.state is GroupState.COMPLETING_REBALANCE


def test_the_initial_delay_ends_at_the_rebalance_timeout() -> None:
    script = Script()
    tickets = []
    while script.group.state is not GroupState.COMPLETING_REBALANCE:
        tickets.append(script.join("a"))
        script.after(DELAY)
        assert script.now < 100 + REBALANCE + DELAY
    assert script.joined(tickets[0]).generation == 1


def test_a_new_member_gets_its_member_id_first() -> None:
    script = Script()
    refused = script.joined(script.join("a", old_client=False))
    assert (refused.error, refused.member_id) == (ErrorCode.member_id_required, "a-1")
    ticket = script.join("a", "a-1", old_client=False)
    script.after(DELAY)
    assert script.joined(ticket).member_id == "a-1"


def test_a_rebalance_waits_for_a_member_that_has_its_id_but_not_beyond_its_session() -> None:
    script = stable("a")
    script.join("b", old_client=False)  # MEMBER_ID_REQUIRED: b does not come back
    again = script.join("a", "a-1")
    assert script.waits(again)
    script.after(SESSION)
    assert script.joined(again).generation == 2


def test_a_member_id_that_is_not_used_soon_expires_whatever_the_session_timeout() -> None:
    """A member that never comes back would otherwise hold its place for 30 minutes."""
    script = Script(members=1)
    given = script.joined(script.join("a", old_client=False, session=1800.0))
    refused = script.joined(script.join("b", old_client=False))
    assert refused.error is ErrorCode.group_max_size_reached
    script.after(10.0)
    assert script.group.size == 0
    again = script.join("a", given.member_id, old_client=False, session=1800.0)
    assert script.joined(again).error is ErrorCode.unknown_member_id  # it asks for another one


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ({"member_id": "a-9"}, ErrorCode.unknown_member_id),
        ({"protocols": (("other", b""),)}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (("range", b"x" * 200),)}, ErrorCode.group_max_size_reached),
        ({"member_id": "a-1", "instance": "i"}, ErrorCode.unknown_member_id),
    ],
)
def test_joins_that_are_refused(case: dict[str, object], error: ErrorCode) -> None:
    script = stable("a", "b", metadata_bytes=200)
    assert script.joined(script.join("x", **case)).error is error  # type: ignore[arg-type]
    assert script.group.state is GroupState.STABLE


def test_the_most_members() -> None:
    script = stable("a", "b", members=2)
    assert script.joined(script.join("c")).error is ErrorCode.group_max_size_reached
    ticket = script.join("a", "a-1")  # the leader joins again
    assert script.waits(ticket)


def test_the_protocol_that_all_support_and_most_prefer() -> None:
    script = Script()
    for preferred in ("sticky range", "range sticky extra", "sticky range"):
        script.join("a", protocols=tuple((name, name.encode()) for name in preferred.split()))
    script.after(2 * DELAY)
    assert script.group.protocol == "sticky"


# Rebalances


def test_a_second_member_makes_the_first_join_again() -> None:
    script = stable("a")
    second = script.join("b")
    assert script.beat("a-1", 1) is ErrorCode.rebalance_in_progress
    assert script.commit("a-1", 1) is NONE  # commits its position before it joins again
    first = script.join("a", "a-1")
    assert script.joined(first).generation == script.joined(second).generation == 2
    assert script.commit("a-1", 1) is ErrorCode.illegal_generation
    assert script.commit("a-1", 2) is ErrorCode.rebalance_in_progress
    follower = script.sync("b-2", 2)
    assert script.waits(follower)
    leader = script.sync("a-1", 2, a_1=b"0", b_2=b"1")
    assert [script.synced(each).assignment for each in (leader, follower)] == [b"0", b"1"]
    assert script.beat("b-2", 2) is script.commit("b-2", 2) is NONE


def test_a_member_that_does_not_join_again_is_removed_after_the_rebalance_timeout() -> None:
    script = stable("a", "b")
    first = script.join("a", "a-1")
    for _ in range(int(REBALANCE // SESSION) * 2):
        assert script.waits(first)
        assert script.beat("b-2", 1) is ErrorCode.rebalance_in_progress
        script.after(SESSION / 2)
    answer = script.joined(first)
    assert (answer.generation, [row.member_id for row in answer.members]) == (2, ["a-1"])
    assert script.beat("b-2", 1) is ErrorCode.unknown_member_id


def test_a_follower_that_has_missed_its_answer_joins_again_without_a_rebalance() -> None:
    script = stable("a", "b")
    again = script.joined(script.join("b", "b-2"))
    assert (again.error, again.generation, again.members) == (NONE, 1, ())
    assert script.synced(script.sync("b-2", 1)).assignment == b"b-2"
    assert script.waits(script.join("b", "b-2", protocols=(("range", b"other topics"),)))
    assert script.group.state is GroupState.PREPARING_REBALANCE


def test_the_leader_joins_again_for_a_new_assignment() -> None:
    script = stable("a", "b")
    assert script.waits(script.join("a", "a-1"))
    assert script.beat("b-2", 1) is ErrorCode.rebalance_in_progress


def test_a_request_that_the_client_has_repeated_is_answered_too() -> None:
    script = stable("a", "b")
    first = script.join("a", "a-1")
    second = script.join("a", "a-1")
    assert script.joined(first).error is ErrorCode.rebalance_in_progress
    assert script.waits(second)


@pytest.mark.parametrize(
    ("member_id", "generation", "error"),
    [
        ("b-2", 2, ErrorCode.rebalance_in_progress),
        ("b-2", 1, ErrorCode.illegal_generation),
        ("x-9", 2, ErrorCode.unknown_member_id),
    ],
)
def test_sync_before_the_join_completes(member_id: str, generation: int, error: ErrorCode) -> None:
    script = stable("a", "b")
    script.join("c")
    script.join("a", "a-1")
    script.join("b", "b-2")  # completes generation 2
    script.join("d")  # and the next rebalance begins
    assert script.group.state is GroupState.PREPARING_REBALANCE
    assert script.synced(script.sync(member_id, generation)).error is error


def test_members_that_wait_for_assignments_join_again_when_another_member_comes() -> None:
    script = stable("a", "b")
    script.join("a", "a-1")
    script.join("b", "b-2")
    waiting = script.sync("b-2", 2)
    script.join("c")
    assert script.synced(waiting).error is ErrorCode.rebalance_in_progress


def test_members_that_never_sync_are_removed() -> None:
    script = stable("a", "b")
    first = script.join("a", "a-1")
    script.join("b", "b-2")
    assert script.joined(first).generation == 2
    waiting = script.sync("b-2", 2)
    for _ in range(int(REBALANCE // SESSION) * 2):  # a sends heartbeats, but no assignments
        script.after(SESSION / 2)
        script.beat("a-1", 2)
    assert script.synced(waiting).error is ErrorCode.rebalance_in_progress
    assert script.beat("a-1", 2) is ErrorCode.unknown_member_id
    again = script.joined(script.join("b", "b-2"))
    assert (again.generation, again.leader) == (3, "b-2")


def test_a_sync_with_another_protocol() -> None:
    script = stable("a")
    ticket = script.group.sync(MemberId("a-1", None, 1), {}, script.now, "consumer", "sticky")
    assert script.synced(ticket).error is ErrorCode.inconsistent_group_protocol


# Members that leave


def test_a_session_ends_without_heartbeats() -> None:
    script = stable("a", "b")
    script.after(SESSION * 0.9)
    assert script.beat("b-2", 1) is NONE
    script.after(SESSION * 0.2)
    assert script.beat("b-2", 1) is ErrorCode.rebalance_in_progress
    assert script.beat("a-1", 1) is ErrorCode.unknown_member_id
    assert script.joined(script.join("b", "b-2")).leader == "b-2"


def test_late_and_timely_events_lead_to_the_same_state() -> None:
    """The sessions of both members end, then the rebalance of the first end; one call is late."""
    timely, late = stable("a", "b"), stable("a", "b")
    for script, steps in ((timely, 100), (late, 1)):
        for _ in range(steps):
            script.after(2 * REBALANCE / steps)
        assert (script.group.state, script.group.members) == (GroupState.EMPTY, {})
    assert timely.group.generation == late.group.generation


def test_leave() -> None:
    script = stable("a", "b")
    assert script.group.leave("x-9", None, script.now) is ErrorCode.unknown_member_id
    assert script.group.leave("a-1", None, script.now) is NONE
    assert script.beat("b-2", 1) is ErrorCode.rebalance_in_progress
    assert script.joined(script.join("b", "b-2")).leader == "b-2"
    assert script.group.leave("b-2", None, script.now) is NONE
    assert script.group.state is GroupState.EMPTY
    assert script.group.next_deadline() == float("inf")


def test_leave_of_a_member_that_has_only_its_id() -> None:
    script = stable("a")
    script.join("b", old_client=False)
    again = script.join("a", "a-1")
    assert script.waits(again)
    assert script.group.leave("b-2", None, script.now) is NONE
    assert script.joined(again).generation == 2


def test_a_new_member_that_has_given_up_is_removed() -> None:
    script = stable("a", new_member_timeout=20.0)
    waiting = script.join("b")
    for _ in range(5):
        script.after(5)
        script.beat("a-1", 1)
    assert script.joined(waiting).error is ErrorCode.unknown_member_id
    assert list(script.group.members) == ["a-1"]


# Static members


def with_static_member(*, can_skip: bool = True) -> tuple[Script, JoinAnswer]:
    """Return a group of the static members i (leader) and j, after a restart of i."""
    script = Script()
    first = script.join("a", instance="i")
    second = script.join("b", instance="j")
    script.after(2 * DELAY)
    assert script.joined(first).member_id == "i-1"
    assert script.joined(second).member_id == "j-2"
    script.sync("j-2", 1)
    script.sync("i-1", 1, i_1=b"0", j_2=b"1")
    answer = script.joined(script.join("a", instance="i", can_skip=can_skip))
    return script, answer


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    script, again = with_static_member()
    assert (again.member_id, again.generation, again.skip_assignment) == ("i-3", 1, True)
    assert script.group.state is GroupState.STABLE
    ticket = script.group.sync(MemberId("i-3", "i", 1), {}, script.now)
    assert script.synced(ticket).assignment == b"0"
    assert script.beat("i-1", 1, "i") is ErrorCode.fenced_instance_id
    assert script.commit("i-1", 1, "i") is ErrorCode.fenced_instance_id
    fenced = script.joined(script.join("a", "i-1", instance="i"))
    assert fenced.error is ErrorCode.fenced_instance_id
    assert script.commit("i-3", 1, "i") is NONE


def test_an_old_client_that_replaces_a_static_leader_does_not_assign() -> None:
    _, again = with_static_member(can_skip=False)
    assert (again.leader, again.members, again.skip_assignment) == ("i-1", (), False)


def test_a_static_member_that_returns_with_other_protocols_starts_a_rebalance() -> None:
    script = Script()
    ticket = script.join("a", instance="i")
    script.after(2 * DELAY)
    script.sync(script.joined(ticket).member_id, 1)
    again = script.joined(script.join("a", instance="i", protocols=(("sticky", b""),)))
    assert again.error is ErrorCode.inconsistent_group_protocol  # the old one counts as member
    both = (("sticky", b""), ("range", b""))
    again = script.joined(script.join("a", instance="i", protocols=both))
    assert (again.generation, again.protocol) == (2, "sticky")


def test_a_static_member_survives_a_rebalance_in_which_it_does_not_join() -> None:
    script, _ = with_static_member()
    script.group.sync(MemberId("i-3", "i", 1), {}, script.now)
    new = script.join("c")
    for _ in range(int(REBALANCE // SESSION) * 2):
        script.after(SESSION / 2)
        for member_id, instance in (("i-3", "i"), ("j-2", "j")):
            script.beat(member_id, 1, instance)
    answer = script.joined(new)
    assert answer.leader == answer.member_id  # a leader that has joined
    assert {row.instance_id for row in answer.members} == {"i", "j", None}


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    script, _ = with_static_member()
    assert script.group.leave("", "x", script.now) is ErrorCode.unknown_member_id
    assert script.group.leave("", "i", script.now) is NONE
    assert list(script.group.members) == ["j-2"]


# Commits


@pytest.mark.parametrize(
    ("member_id", "generation", "instance", "error"),
    [
        ("a-1", 1, None, NONE),
        ("a-1", 0, None, ErrorCode.illegal_generation),
        ("a-1", 2, None, ErrorCode.illegal_generation),
        ("x-9", 1, None, ErrorCode.unknown_member_id),
        ("", -1, None, ErrorCode.unknown_member_id),
        ("a-1", 1, "i", ErrorCode.unknown_member_id),
    ],
)
def test_commits_to_a_stable_group(
    member_id: str, generation: int, instance: str | None, error: ErrorCode
) -> None:
    assert stable("a").commit(member_id, generation, instance) is error


def test_commits_to_an_empty_group_and_after_a_restart_of_the_coordinator() -> None:
    script = Script()
    assert script.commit("", -1) is NONE
    assert script.commit("a-1", 7) is ErrorCode.unknown_member_id
    assert script.beat("a-1", 7) is ErrorCode.unknown_member_id
    assert script.synced(script.sync("a-1", 7)).error is ErrorCode.unknown_member_id
    assert script.joined(script.join("a", "a-1")).error is ErrorCode.unknown_member_id


def test_commits_keep_a_session() -> None:
    script = stable("a")
    for _ in range(4):
        script.after(SESSION * 0.9)
        assert script.commit("a-1", 1) is NONE


# The end


def test_a_group_that_another_coordinator_has() -> None:
    script = stable("a", "b")
    joining = script.join("c")
    script.group.kill()
    gone = ErrorCode.not_coordinator
    assert script.joined(joining).error is gone
    assert script.joined(script.join("d")).error is gone
    assert script.synced(script.sync("a-1", 1)).error is gone
    assert script.beat("a-1", 1) is script.commit("a-1", 1) is script.commit("", -1) is gone
    assert script.group.leave("a-1", None, script.now) is gone
    assert script.group.next_deadline() == float("inf")


class Clients:
    """Four clients, the last one static, that send what they like with the ids that they got."""

    def __init__(self) -> None:
        self.script = Script()
        self.ids = [""] * 4
        self.tickets: dict[int, int] = {}

    def send(self, kind: str, client: int) -> None:
        """Send one request, or let time pass."""
        script, group, name = self.script, self.script.group, "abcd"[client]
        instance = "i" if client == 3 else None
        member = MemberId(self.ids[client], instance, group.generation)
        if kind == "join":
            ticket = script.join(
                name, self.ids[client], instance=instance, old_client=client % 2 == 0
            )
            self.tickets[ticket] = client
        elif kind == "sync":
            ticket = group.sync(member, {self.ids[client]: b"x"}, script.now)
            self.tickets[ticket] = client
        elif kind == "leave":
            group.leave(self.ids[client], instance, script.now)
        elif kind == "wait":
            script.after(4.0)
        else:
            group.heartbeat(member, script.now)
            group.commit(member, script.now)

    def receive(self) -> None:
        """Take all answers."""
        for ticket, owner in list(self.tickets.items()):
            answer = self.script.group.take(ticket)
            if answer is not None:
                del self.tickets[ticket]
            if isinstance(answer, JoinAnswer):
                is_known = answer.error in {NONE, ErrorCode.member_id_required}
                self.ids[owner] = answer.member_id if is_known else ""


KINDS = ["join", "join", "sync", "sync", "beat", "leave", "wait"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), max_size=60))
def test_any_order_of_events_ends_with_every_request_answered(
    events: list[tuple[str, int]],
) -> None:
    clients = Clients()
    group = clients.script.group
    for kind, client in events:
        clients.send(kind, client)
        clients.receive()
        assert not (group.state is GroupState.EMPTY and group.members)
        assert not group.members or group.leader in group.members
        assert group.owners.total() == group.size
    clients.script.after(1000)
    clients.receive()
    assert clients.tickets == {}
    assert group.state is GroupState.EMPTY
