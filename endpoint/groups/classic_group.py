"""State machine of one consumer group with the classic protocol. It does no I/O and reads no clock.

Each method takes the time of its event, in seconds of any monotonic clock. JoinGroup and SyncGroup
are answered later, when all members have joined or the leader has sent the assignments: `join` and
`sync` return a ticket, and `take` returns its answer once there is one. Deadlines (sessions,
rebalances) are processed in the order of their times by the next event or by `advance`, so a late
call leads to the same state as one in time.

Source: Kafka's `GroupCoordinator` and `ClassicGroup`; KIP-62 (rebalance timeout), KIP-134 (initial
rebalance delay), KIP-345 (static members), KIP-394 (a member id before the join), KIP-814 (a static
leader that restarts).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import inf
from typing import Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]
"""Names and metadata of a member's protocols, the preferred one first."""

NO_GENERATION: Final = -1
_MIN_TIMEOUT: Final = 1.0
"""Rebalance timeout in seconds if all members ask for 0, so that time passes between two ends."""
_MEMBER_OVERHEAD: Final = 1024
"""Bytes of the Python objects of one member, besides its texts."""


class GroupState(StrEnum):
    """States of a group, as Kafka names them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Bounds and times of one group. Times are in seconds.

    Attributes:
        members: Most members, including those that have got their member id and not yet joined.
        metadata_bytes: Most bytes of the metadata of all members, and of their assignments.
        initial_delay: Time for which an empty group waits for further members after the first one,
            as `group.initial.rebalance.delay.ms`.
        pending_timeout: A member id that was given to a new member (KIP-394) expires after this
            time, or after the session timeout if that is shorter. Clients join with their member id
            at once; Kafka's coordinator waits for the session timeout, which can be 30 minutes.
        new_member_timeout: A new member that waits for the others for this long is removed: its
            client has given up the request, and joins again if it still exists.
    """

    members: int = 1000
    metadata_bytes: int = 4 << 20
    initial_delay: float = 0.3
    pending_timeout: float = 10.0
    new_member_timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request.

    Attributes:
        member_id: Member id of an earlier join; empty for a new member.
        instance_id: `group.instance.id` of a static member; None for a dynamic one.
        client_id: `client.id`.
        client_host: Address of the client.
        session_timeout: Seconds without a request after which the member is removed.
        rebalance_timeout: Seconds in which the member joins again during a rebalance.
        protocol_type: Such as `consumer` or `connect`.
        protocols: The member's protocols.
        needs_member_id: Whether a new dynamic member must ask again with its member id (KIP-394).
        can_skip_assignment: Whether the client understands `skip_assignment` (KIP-814).
        owner: The user or the host to which the member is counted.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    needs_member_id: bool = True
    can_skip_assignment: bool = True
    owner: str = ""

    @property
    def memory(self) -> int:
        """Bytes that the member will take in memory, roughly and without its assignment."""
        texts = 2 * len(self.client_id) + len(self.member_id) + 2 * len(self.instance_id or "")
        return _MEMBER_OVERHEAD + texts + _size(self.protocols)


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader gets it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a JoinGroup request. Only the leader gets `members`."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberId:
    """How a request names the member that sends it."""

    member_id: str
    instance_id: str | None = None
    generation: int = NO_GENERATION


@dataclass(slots=True)
class Member:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: Protocols
    owner: str
    expires: float
    is_new: bool = True
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None

    @property
    def deadline(self) -> float:
        """When the member is removed; never while it waits for the other members."""
        waits_to_join = self.join_ticket is not None and not self.is_new
        return inf if waits_to_join or self.sync_ticket is not None else self.expires

    @property
    def memory(self) -> int:
        """Bytes that the member takes in memory, roughly."""
        texts = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return _MEMBER_OVERHEAD + texts + _size(self.protocols) + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support it."""
        return dict(self.protocols).get(protocol or "", b"")


@dataclass(frozen=True, slots=True)
class _PendingMember:
    """A new member that has got its member id and not yet joined with it (KIP-394)."""

    owner: str
    expires: float


@dataclass(slots=True)
class _Rebalance:
    """The phase in which members join: its end, and how far its start can still be delayed."""

    deadline: float
    is_initial: bool = False
    delay_left: float = 0.0
    has_new_member: bool = False


class ClassicGroup:
    """The members of one group. Not thread-safe.

    Args:
        limits: Bounds and times.
        new_id: Returns a unique text for a member id.

    Attributes:
        state: State of the group.
        generation: Number of the last completed rebalance.
        protocol_type: Protocol type of the members.
        protocol: Protocol that all members support and most prefer; None without members.
        leader: Member id of the leader.
        members: Members by member id, in the order in which they joined.
    """

    def __init__(
        self,
        limits: GroupLimits | None = None,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self._limits = limits or GroupLimits()
        self._new_id = new_id
        self._static: dict[str, str] = {}
        """Member ids by instance id."""
        self._pending: dict[str, _PendingMember] = {}
        """By member id."""
        self._unsynced: set[str] = set()
        """Members that have not sent SyncGroup in this generation."""
        self._sync_deadline = inf
        self._rebalance = _Rebalance(inf)
        self._tickets = count()
        self._answers: dict[int, JoinAnswer | SyncAnswer] = {}
        self._owners: Counter[str] | None = None
        """What `owners` has counted; None after an event that may add or remove members."""

    # Events

    def join(self, join: Join, now: float) -> int:
        """Handle JoinGroup, and return the ticket of its answer."""
        self.advance(now)
        self._owners = None
        ticket = next(self._tickets)
        error = self._refusal(join)
        if error is not ErrorCode.none:
            self._answers[ticket] = JoinAnswer(error, join.member_id)
        elif join.member_id == "":
            self._join_new(join, ticket, now)
        elif join.member_id in self._pending and join.instance_id is None:
            del self._pending[join.member_id]
            self._add(join, join.member_id, ticket, now)
        else:
            self._join_again(join, ticket, now)
        self._complete_join_if_ready(now)
        return ticket

    def sync(
        self,
        member: MemberId,
        assignments: Mapping[str, bytes],
        now: float,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        """Handle SyncGroup, and return the ticket of its answer.

        Args:
            member: The member that sends it.
            assignments: Assignments by member id; empty if the member is not the leader.
            now: Time of the event.
            protocol_type: Protocol type that the member expects; None for any.
            protocol: Protocol that the member expects; None for any.
        """
        self.advance(now)
        ticket = next(self._tickets)
        error = self._error_for(member)
        is_other = (protocol_type or self.protocol_type, protocol or self.protocol) != (
            self.protocol_type,
            self.protocol,
        )
        if error is ErrorCode.none and is_other:
            error = ErrorCode.inconsistent_group_protocol
        if error is ErrorCode.none and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
        if sum(map(len, assignments.values())) > self._limits.metadata_bytes:
            error = error or ErrorCode.group_max_size_reached
        if error is not ErrorCode.none:
            self._answers[ticket] = SyncAnswer(error)
            return ticket
        joined = self.members[member.member_id]
        self._mark_synced(joined)
        if self.state is GroupState.STABLE:
            self._answer_sync(joined, ticket, now)
            return ticket
        if joined.sync_ticket is not None:  # the client has given up an earlier request
            self._answers[joined.sync_ticket] = SyncAnswer(ErrorCode.rebalance_in_progress)
        joined.sync_ticket = ticket
        if joined.member_id == self.leader:
            self._assign(assignments, now)
        return ticket

    def heartbeat(self, member: MemberId, now: float) -> ErrorCode:
        """Handle Heartbeat."""
        self.advance(now)
        error = self._error_for(member)
        if error is not ErrorCode.none:
            return error
        self._renew(self.members[member.member_id], now)
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if preparing else ErrorCode.none

    def leave(self, member_id: str, instance_id: str | None, now: float) -> ErrorCode:
        """Handle LeaveGroup of one member.

        An administrator removes a static member by its instance id alone, without a member id.
        """
        self.advance(now)
        self._owners = None
        if member_id == "" and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        if member_id in self._pending:
            del self._pending[member_id]
            self._complete_join_if_ready(now)
            return ErrorCode.none
        error = self._identity_error(member_id, instance_id)
        if error is ErrorCode.none:
            self._remove(member_id)
            self._rebalance_after_removal(now)
        return error

    def commit(self, member: MemberId, now: float) -> ErrorCode:
        """Return whether the member may commit offsets now; this counts as a heartbeat.

        Without a member id and a generation it is a client that assigns its partitions itself, or
        an administrator: it may commit while the group has no members.
        """
        self.advance(now)
        if self.state is GroupState.EMPTY and member.generation < 0:
            return ErrorCode.none
        error = self._error_for(member)
        if error is not ErrorCode.none:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        self._renew(self.members[member.member_id], now)
        return ErrorCode.none

    def advance(self, now: float) -> None:
        """Process all deadlines up to `now`, each at its own time."""
        while (due := self.next_deadline()) <= now:
            self._expire(due)

    def kill(self) -> None:
        """End the group: another coordinator has it. All answers are NOT_COORDINATOR."""
        for member in self.members.values():
            self._answer_waiting(member, ErrorCode.not_coordinator)
        self.members.clear()
        self._static.clear()
        self._pending.clear()
        self._owners = None
        self._unsynced.clear()
        self._sync_deadline = self._rebalance.deadline = inf
        self.state = GroupState.DEAD

    # Results

    def take(self, ticket: int) -> JoinAnswer | SyncAnswer | None:
        """Return the answer of a ticket, once; None while there is none."""
        return self._answers.pop(ticket, None)

    @property
    def untaken(self) -> int:
        """Number of answers that were not taken."""
        return len(self._answers)

    def next_deadline(self) -> float:
        """Return the time of the next deadline; infinity if there is none."""
        return min(
            self._sync_deadline,
            self._rebalance.deadline,
            *(pending.expires for pending in self._pending.values()),
            *(member.deadline for member in self.members.values()),
        )

    @property
    def size(self) -> int:
        """Number of members, including those that have got their member id and not yet joined."""
        return len(self.members) + len(self._pending)

    @property
    def owners(self) -> Counter[str]:
        """The number of members by owner; together they are `size`.

        The same object until members change; the caller must not change it.
        """
        if self._owners is None:
            self._owners = Counter(member.owner for member in self.members.values())
            self._owners.update(pending.owner for pending in self._pending.values())
        return self._owners

    @property
    def memory(self) -> int:
        """Bytes that all members take in memory, roughly."""
        pending = sum(_MEMBER_OVERHEAD + len(member_id) for member_id in self._pending)
        return pending + sum(member.memory for member in self.members.values())

    # Joining

    def adds(self, join: Join) -> bool:
        """Return whether a JoinGroup request joins, or gets an error or a member id only."""
        is_first_of_two = join.member_id == "" and join.instance_id is None and join.needs_member_id
        return self._refusal(join) is ErrorCode.none and not is_first_of_two

    def growth(self, join: Join) -> tuple[int, int]:
        """Return by how much `size` and `memory` can grow with a JoinGroup request."""
        if self.state is not GroupState.DEAD and self._refusal(join) is not ErrorCode.none:
            return 0, 0
        member_id = join.member_id or self._static.get(join.instance_id or "", "")
        known = self.members.get(member_id)
        if known is not None:
            return 0, join.memory - known.memory
        return 0 if member_id in self._pending else 1, join.memory

    def _refusal(self, join: Join) -> ErrorCode:
        """Return why the group does not accept a member at all."""
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        is_known = join.member_id in self.members or join.member_id in self._pending
        if join.member_id and not is_known and not self._is_fenced(join):
            return ErrorCode.unknown_member_id
        if not self._supports(join):
            return ErrorCode.inconsistent_group_protocol
        replaced = join.member_id or self._static.get(join.instance_id or "")
        if replaced is None and self.size >= self._limits.members:
            return ErrorCode.group_max_size_reached
        others = (other for other in self.members.values() if other.member_id != replaced)
        held = sum(_size(other.protocols) for other in others)
        if held + _size(join.protocols) > self._limits.metadata_bytes:
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _is_fenced(self, join: Join) -> bool:
        return self._static.get(join.instance_id or "", join.member_id) != join.member_id

    def _supports(self, join: Join) -> bool:
        if not join.protocol_type or not join.protocols:
            return False
        if not self.members:
            return True
        return join.protocol_type == self.protocol_type and any(
            name in self._common_protocols() for name, _ in join.protocols
        )

    def _join_new(self, join: Join, ticket: int, now: float) -> None:
        if join.instance_id is not None:
            member_id = f"{join.instance_id}-{self._new_id()}"
            if join.instance_id in self._static:
                self._replace_static(join, member_id, ticket, now)
            else:
                self._add(join, member_id, ticket, now)
            return
        member_id = f"{join.client_id}-{self._new_id()}"
        if join.needs_member_id:
            timeout = min(join.session_timeout, self._limits.pending_timeout)
            self._pending[member_id] = _PendingMember(join.owner, now + timeout)
            self._answers[ticket] = JoinAnswer(ErrorCode.member_id_required, member_id)
            return
        self._add(join, member_id, ticket, now)

    def _join_again(self, join: Join, ticket: int, now: float) -> None:
        error = self._identity_error(join.member_id, join.instance_id)
        if error is not ErrorCode.none:
            self._answers[ticket] = JoinAnswer(error, join.member_id)
            return
        member = self.members[join.member_id]
        is_unchanged = member.protocols == join.protocols
        match self.state:
            case GroupState.COMPLETING_REBALANCE if is_unchanged:
                # The member may have missed the answer to its first JoinGroup.
                self._answer_join(member, ticket)
            case GroupState.STABLE if is_unchanged and member.member_id != self.leader:
                self._answer_join(member, ticket)
            case _:
                # A leader asks for a new assignment by joining again, for instance because a topic
                # has more partitions.
                self._update(member, join, ticket)
                self._prepare_rebalance(now)

    def _add(self, join: Join, member_id: str, ticket: int, now: float) -> None:
        if not self.members:
            self.protocol_type = join.protocol_type
        self.members[member_id] = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout,
            join.rebalance_timeout,
            join.protocols,
            join.owner,
            expires=now + self._limits.new_member_timeout,
            join_ticket=ticket,
        )
        if join.instance_id is not None:
            self._static[join.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self._rebalance.has_new_member = True
        self._prepare_rebalance(now)

    def _update(self, member: Member, join: Join, ticket: int) -> None:
        if member.join_ticket is not None:  # the client has given up an earlier request
            self._answers[member.join_ticket] = JoinAnswer(
                ErrorCode.rebalance_in_progress, member.member_id
            )
        member.join_ticket = ticket
        member.protocols = join.protocols
        member.owner = join.owner
        member.session_timeout = join.session_timeout
        member.rebalance_timeout = join.rebalance_timeout

    def _replace_static(self, join: Join, member_id: str, ticket: int, now: float) -> None:
        """Give a static member that has started again a new member id, and fence the old one."""
        assert join.instance_id is not None  # noqa: S101 - the caller checks it
        old_id = self._static[join.instance_id]
        old_leader = self.leader
        member = self.members[old_id]
        self._answer_waiting(member, ErrorCode.fenced_instance_id)
        member.member_id = member_id
        self.members = {each.member_id: each for each in self.members.values()}
        self._static[join.instance_id] = member_id
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member_id)
        if old_leader == old_id:
            self.leader = member_id
        self._update(member, join, ticket)
        self._renew(member, now)
        if self.state is not GroupState.STABLE or self._selected_protocol() != self.protocol:
            # While the leader computes assignments it would assign to the old member id.
            self._prepare_rebalance(now)
            return
        member.join_ticket = None
        if join.can_skip_assignment:
            self._answer_join(member, ticket, skip_assignment=member.member_id == self.leader)
        else:
            # An older client must not take itself for the leader: it would assign again.
            leader = old_leader if member.member_id == self.leader else self.leader
            self._answers[ticket] = self._joined(member, leader or "", ())

    # Rebalances

    def _prepare_rebalance(self, now: float) -> None:
        """Ask all members to join again, unless they are already asked to."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                member.assignment = b""
                if member.sync_ticket is not None:
                    self._answers[member.sync_ticket] = SyncAnswer(ErrorCode.rebalance_in_progress)
                    member.sync_ticket = None
                    self._renew(member, now)
        self._unsynced.clear()
        self._sync_deadline = inf
        timeout = self._rebalance_timeout()
        if self.state is GroupState.EMPTY:
            delay = self._limits.initial_delay
            self._rebalance = _Rebalance(now + delay, True, max(timeout - delay, 0.0))  # noqa: FBT003
        else:
            self._rebalance = _Rebalance(now + timeout)
        self.state = GroupState.PREPARING_REBALANCE

    def _complete_join_if_ready(self, now: float) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self._rebalance.is_initial:
            return
        all_joined = all(member.join_ticket is not None for member in self.members.values())
        if all_joined and not self._pending:
            self._complete_join(now)

    def _end_join(self, now: float) -> None:
        """Handle the deadline of the phase in which members join."""
        rebalance = self._rebalance
        if rebalance.is_initial and rebalance.has_new_member and rebalance.delay_left > 0:
            delay = min(self._limits.initial_delay, rebalance.delay_left)
            self._rebalance = _Rebalance(now + delay, True, rebalance.delay_left - delay)  # noqa: FBT003
            return
        self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        absent = [member for member in self.members.values() if member.join_ticket is None]
        for member in absent:
            if member.instance_id is None:
                self._remove(member.member_id)
        waiting = [member for member in self.members.values() if member.join_ticket is not None]
        if self.members and not waiting:
            # Only static members, none of which has joined again: wait for their sessions.
            self._rebalance = _Rebalance(now + self._rebalance_timeout())
            return
        self._rebalance = _Rebalance(inf)
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
            return
        if self.leader not in {member.member_id for member in waiting}:
            self.leader = waiting[0].member_id
        self.state, self.protocol = GroupState.COMPLETING_REBALANCE, self._selected_protocol()
        for member in self.members.values():
            ticket, member.join_ticket = member.join_ticket, None
            if ticket is not None:
                self._answer_join(member, ticket)
            self._renew(member, now)
            member.is_new = False
            self._unsynced.add(member.member_id)
        self._sync_deadline = now + self._rebalance_timeout()

    def _assign(self, assignments: Mapping[str, bytes], now: float) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is not None:
                self._answer_sync(member, ticket, now)

    def _rebalance_after_removal(self, now: float) -> None:
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self._prepare_rebalance(now)
        self._complete_join_if_ready(now)

    def _rebalance_timeout(self) -> float:
        timeouts = (member.rebalance_timeout for member in self.members.values())
        return max(timeouts, default=0.0) or _MIN_TIMEOUT

    def _common_protocols(self) -> set[str]:
        """Return the protocols that all members support."""
        supported = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*supported) if supported else set()

    def _selected_protocol(self) -> str:
        """Return the common protocol that most members prefer."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    # Deadlines

    def _expire(self, due: float) -> None:
        """Handle one of the deadlines at `due`."""
        self._owners = None
        if self._rebalance.deadline == due:
            self._end_join(due)
            return
        if self._sync_deadline == due:
            self._sync_deadline = inf
            for member_id in sorted(self._unsynced & self.members.keys()):
                self._remove(member_id)
            self._rebalance_after_removal(due)
            return
        for member_id, pending in self._pending.items():
            if pending.expires == due:
                del self._pending[member_id]
                self._complete_join_if_ready(due)
                return
        for member in self.members.values():
            if member.deadline == due:
                self._remove(member.member_id)
                self._rebalance_after_removal(due)
                return

    # Members

    def _error_for(self, member: MemberId) -> ErrorCode:
        """Return why a request of a member is refused: its identity, then its generation."""
        error = self._identity_error(member.member_id, member.instance_id)
        if error is ErrorCode.none and member.generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        if instance_id is not None:
            known_id = self._static.get(instance_id)
            if known_id is not None and known_id != member_id:
                return ErrorCode.fenced_instance_id
            if known_id is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._answer_waiting(member, ErrorCode.unknown_member_id)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._mark_synced(member)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def _mark_synced(self, member: Member) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_deadline = inf

    def _renew(self, member: Member, now: float) -> None:
        member.expires = now + member.session_timeout

    # Answers

    def _answer_waiting(self, member: Member, error: ErrorCode) -> None:
        """Answer the requests with which the member waits, if there are any, with an error."""
        if member.join_ticket is not None:
            answered_id = "" if error is ErrorCode.unknown_member_id else member.member_id
            self._answers[member.join_ticket] = JoinAnswer(error, answered_id)
        if member.sync_ticket is not None:
            self._answers[member.sync_ticket] = SyncAnswer(error)
        member.join_ticket = member.sync_ticket = None

    def _answer_join(self, member: Member, ticket: int, *, skip_assignment: bool = False) -> None:
        """Answer with the current generation; the leader gets all members."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
                for each in self.members.values()
            )
        self._answers[ticket] = self._joined(member, self.leader or "", members, skip_assignment)

    def _joined(
        self,
        member: Member,
        leader: str,
        members: tuple[JoinedMember, ...],
        skip_assignment: bool = False,  # noqa: FBT001, FBT002 - as in Kafka's response
    ) -> JoinAnswer:
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            leader,
            members,
            skip_assignment,
        )

    def _answer_sync(self, member: Member, ticket: int, now: float) -> None:
        self._answers[ticket] = SyncAnswer(
            ErrorCode.none, self.protocol_type, self.protocol, member.assignment
        )
        self._renew(member, now)


def _size(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)
