"""The coordinator of `--groups local`: groups in memory, requests that wait, offsets in the store.

Members and assignments are in memory (`classic_group`), committed offsets in the store
(`stored_offsets`). After a restart of the endpoint, members get UNKNOWN_MEMBER_ID and join again;
they continue from the committed offsets.

While clients use a group, the endpoint asks the store at an interval whether it still owns the
group, unless its own commits have shown that. A group that another endpoint has taken over is lost:
its members get NOT_COORDINATOR, and OffsetFetch is answered from the store. It is taken back at a
JoinGroup or OffsetCommit once its object has not changed for some time, which is much longer than
that interval: then the other endpoint is gone, or no member commits there.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

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
from sidetier.endpoint.groups.stored_offsets import (
    GroupObjects,
    GroupTakenError,
    Offsets,
    OwnedGroup,
    memory_of,
)
from sidetier.endpoint.log_limits import AtMostEvery, FewPerSubject
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.segments.errors import InvalidRequestError, SidetierError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger

log = logger()
_T = TypeVar("_T")
_SWEEP_PAUSE: Final = 10.0
_LOG_PAUSE: Final = 60.0
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Bounds on the groups of one endpoint. Times are in seconds.

    Attributes:
        groups: Most groups in memory. Groups without members make room for others.
        members: Most members of all groups.
        members_per_owner: Most of them that one user may have; without logins, one host.
        new_groups: Most groups that get an object in a day.
        new_groups_per_owner: Most of them that one user may create; without logins, one host.
        memory: Most bytes that members, their subscriptions and assignments, and committed offsets
            take in memory, roughly.
        group: Bounds of each group.
        store_wait: How long a request waits for the store (`offsets.commit.timeout.ms`). The write
            continues, and the client asks again.
        retry_pause: Time after a failure in which a group is not loaded again.
        confirm_interval: How long this process trusts that it owns a group without a request to
            the store. Shorter than `lost_pause`.
        lost_pause: Time for which the object of a group that another endpoint has taken over must
            not change before this endpoint takes the group back.
        least_session: Least session timeout (`group.min.session.timeout.ms`).
        most_session: Most session timeout (`group.max.session.timeout.ms`).
    """

    groups: int = 10_000
    members: int = 20_000
    members_per_owner: int = 16_000
    new_groups: int = 10_000
    new_groups_per_owner: int = 1000
    memory: int = 128 << 20
    group: GroupLimits = field(default_factory=GroupLimits)
    store_wait: float = 5.0
    retry_pause: float = 1.0
    confirm_interval: float = 5.0
    lost_pause: float = 30.0
    least_session: float = 6.0
    most_session: float = 1800.0


class RefusedError(Exception):
    """The coordinator cannot handle a request for a group; the client gets `error`."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


class _Group:
    """A group in memory. `changed` guards all of it but `users`."""

    def __init__(self, name: str, limits: GroupLimits) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.machine = ClassicGroup(limits)
        self.users = 0
        """Requests that use this object now."""
        self.loading: Future[OwnedGroup] | None = None
        self.owned: OwnedGroup | None = None
        self.retry_at = float("-inf")
        """Before this time it is not loaded again."""
        self.lost: GroupTakenError | None = None
        """How this process has lost the group; None if it has not, or has taken it back."""
        self.checking: Future[None] | None = None
        """The latest request that asks for the owner."""
        self.check_at = float("-inf")
        """Before this time the store is not asked for the owner again."""
        self.owners: Counter[str] = Counter()
        self.memory = 0
        """Members by owner, and bytes, as the coordinator has counted them."""

    @property
    def is_idle(self) -> bool:
        """Whether the group can be removed from memory."""
        return self.is_quiet and not self.users

    @property
    def is_quiet(self) -> bool:
        """Whether the group has no members, and is not being loaded or written."""
        is_loading = self.loading is not None and not self.loading.done()
        is_writing = self.owned is not None and self.owned.is_writing
        has_members = self.machine.state not in {GroupState.EMPTY, GroupState.DEAD}
        return not (has_members or is_loading or is_writing)

    def is_unused(self, now: float) -> bool:
        """Whether nothing would differ if the group were not in memory."""
        is_known = self.owned is not None or self.lost is not None or now < self.retry_at
        return self.is_idle and not self.machine.size and not is_known


def _only(offsets: Offsets, wanted: Collection[TopicPartition] | None) -> Offsets:
    return offsets if wanted is None else {tp: offsets[tp] for tp in wanted if tp in offsets}


class GroupCoordinator:
    """All groups of an endpoint. Thread-safe.

    Args:
        objects: The groups in the store.
        metrics: Counts.
        settings: Bounds.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        objects: GroupObjects,
        metrics: GroupMetrics,
        settings: CoordinatorSettings | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._objects = objects
        self._metrics = metrics
        self._settings = settings or CoordinatorSettings()
        self._clock = clock
        self._guard = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._size = self._memory = 0
        """Members of all groups, and the bytes that they take."""
        self._owners: Counter[str] = Counter()
        """Members by owner; together they are `_size`."""
        self._created: Counter[str] = Counter()
        """Groups that got an object since `_created_since`, by owner."""
        self._created_since = clock()
        self._closing = False
        self._sweep_at = float("-inf")
        """Before this time the sessions of all groups are not checked again."""
        self._log_full = AtMostEvery(_LOG_PAUSE, clock)
        # By event: clients choose the names of groups.
        self._events = FewPerSubject(clock)
        metrics.watch(lambda: len(self._groups), self._count_members, lambda: self._memory)

    def close(self) -> None:
        """End all waits. Writes that are in progress are finished by their threads."""
        self._closing = True
        for group in self._all():
            with group.changed:
                group.changed.notify_all()
        self._objects.executor.shutdown(wait=False)

    # Members

    def join(self, name: str, join: Join) -> JoinAnswer:
        """Join a group, and wait for the other members.

        Raises:
            RefusedError: The group cannot be joined here or now.
        """
        if not self._settings.least_session <= join.session_timeout <= self._settings.most_session:
            raise RefusedError(ErrorCode.invalid_session_timeout)
        with self._using(name) as group:
            with self._at_once(group) as machine:
                # A request that is refused, or gets a member id only, leaves no object.
                must_own = machine.state is GroupState.DEAD or machine.adds(join)
                growth = machine.growth(join)
            self._make_room(*growth, owner=join.owner)
            if must_own:
                self._own(group, join.owner)
                self._check_owner(group)
            with group.changed:
                answer = self._wait(group, lambda: group.machine.join(join, self._clock()))
                return cast("JoinAnswer", answer)

    def sync(
        self,
        name: str,
        member: MemberId,
        assignments: Mapping[str, bytes],
        protocol_type: str | None,
        protocol: str | None,
    ) -> SyncAnswer:
        """Wait for the member's assignment; see `ClassicGroup.sync`.

        Raises:
            RefusedError: The endpoint stops, or the assignments do not fit into its memory.
        """
        group = self._known(name)
        if group is None:
            return SyncAnswer(ErrorCode.unknown_member_id)
        self._check_owner(group)
        if assignments:
            self._make_room(memory=sum(map(len, assignments.values())))
        with group.changed:
            answer = self._wait(
                group,
                lambda: group.machine.sync(
                    member, assignments, self._clock(), protocol_type, protocol
                ),
            )
            return cast("SyncAnswer", answer)

    def heartbeat(self, name: str, member: MemberId) -> ErrorCode:
        """Keep a member's session."""
        group = self._known(name)
        if group is None:
            return ErrorCode.unknown_member_id
        self._check_owner(group)
        with self._at_once(group) as machine:
            return machine.heartbeat(member, self._clock())

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members by member id and instance id, and return an error for each."""
        group = self._known(name)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        with self._at_once(group) as machine:
            errors = [machine.leave(*member, self._clock()) for member in leaving]
            self._count(group)
            return errors

    # Offsets

    def commit(self, name: str, member: MemberId, offsets: Offsets, owner: str = "") -> ErrorCode:
        """Store offsets, if the member may commit now. `owner` is as in `Join`.

        Raises:
            RefusedError: The group cannot be taken here or now.
        """
        with self._using(name) as group:
            with self._at_once(group) as machine:
                error = machine.commit(member, self._clock())
                is_lost = machine.state is GroupState.DEAD
            # A request that is refused leaves no object.
            if not is_lost and (error is not ErrorCode.none or not offsets):
                return error
            before = group.owned
            self._make_room(memory=memory_of(offsets) if before is None else before.growth(offsets))
            owned = self._own(group, owner)
            self._check_owner(group)
            with self._at_once(group) as machine:
                error = machine.commit(member, self._clock())
                if error is not ErrorCode.none or not offsets:
                    return error
                # Before another event: a member that gets these partitions commits after this one.
                stored = owned.commit(offsets)
                self._count(group)
            return self._wait_for_store(group, owned, stored)

    def offsets(
        self, name: str, wanted: Collection[TopicPartition] | None = None
    ) -> Offsets | None:
        """Return committed offsets; None if the group does not exist.

        Reading them takes no group from its owner.

        Args:
            name: The group.
            wanted: The partitions whose offsets are needed; None for all.

        Raises:
            RefusedError: The store does not answer.
        """
        group = self._known(name)
        if group is not None:
            self._confirm_owner(group)
            owned = group.owned
            if owned is not None:
                return _only(owned.offsets, wanted)
        if not self._is_name(name):
            raise RefusedError(ErrorCode.invalid_group_id)

        def read() -> Offsets | None:
            # In the threads of the store, which are few: a large group takes 150 MB.
            stored = self._objects.read(name)
            return None if stored is None else _only(stored.offsets, wanted)

        return self._from_store(read)

    # Administration

    @contextmanager
    def group(self, name: str) -> Iterator[ClassicGroup | None]:
        """Yield the state machine of a group, to be read only; None if it is not in memory."""
        group = self._known(name)
        if group is None or group.machine.state is GroupState.DEAD:
            yield None
            return
        with self._at_once(group) as machine:
            yield machine

    def states(self) -> dict[str, tuple[GroupState, str]]:
        """Return state and protocol type of all groups by name, also of those in the store only.

        Raises:
            RefusedError: The store does not answer.
        """
        names = self._from_store(lambda: list(self._objects.names()))
        states = dict.fromkeys(names, (GroupState.EMPTY, "consumer"))
        for group in self._all():
            with self._at_once(group) as machine:
                if machine.state not in {GroupState.EMPTY, GroupState.DEAD}:
                    states[group.name] = machine.state, machine.protocol_type or ""
        return states

    # Expiry

    def renew(self) -> Iterator[str]:
        """Write the old objects of groups with members again, so that no endpoint deletes them.

        Yields:
            For each group that could not be written, the reason.
        """
        for group in self._all():
            with self._at_once(group) as machine:
                owned = group.owned if machine.size else None
            if owned is None or not owned.is_old:
                continue
            try:
                owned.renew().result(self._settings.store_wait)
            except GroupTakenError as error:
                self._lose(group, owned, error)
            except (TimeoutError, SidetierError) as error:
                yield str(error) or f"group {group.name!r}: timed out"

    def expire(self, name: str, etag: str) -> bool:
        """Delete a group that nothing uses here, unless its object has another etag.

        Meanwhile, members and commits get a retriable error: not every store decides about the
        condition of a delete atomically.

        Returns:
            Whether the group was deleted.

        Raises:
            SidetierError: See `GroupObjects.delete`.
        """
        try:
            with self._using(name) as group:
                with self._at_once(group) as machine:
                    if machine.size or group.users > 1 or not group.is_quiet:
                        return False
                    group.owned, group.loading, group.retry_at = None, None, math.inf
                    self._count(group)
                # After an error the store may still carry the delete out.
                retry_at = math.inf
                try:
                    is_deleted = self._objects.delete(name, etag)
                    retry_at = -math.inf
                finally:
                    with group.changed:
                        group.retry_at = min(retry_at, self._clock() + self._settings.lost_pause)
                return is_deleted
        except RefusedError:  # too many groups are in memory, all of them in use
            return False

    # Groups in memory

    @contextmanager
    def _using(self, name: str) -> Iterator[_Group]:
        """Yield the group of this name, which stays in memory meanwhile; create it if needed."""
        if not self._is_name(name):
            raise RefusedError(ErrorCode.invalid_group_id)
        while (group := self._used(name)) is None:
            self._make_room(groups=1)
        try:
            yield group
        finally:
            with group.changed, self._guard:
                group.users -= 1
                if group.is_unused(self._clock()):
                    self._remove(group)

    def _used(self, name: str) -> _Group | None:
        """Return the group, and count a user of it; None if there is no room for a new one."""
        with self._guard:
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= self._settings.groups:
                    return None
                group = self._groups[name] = _Group(name, self._settings.group)
            group.users += 1
            return group

    def _remove(self, group: _Group) -> None:
        """Remove a group from memory; the caller holds the guard."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
            self._recount(group, Counter(), 0)

    def _is_name(self, name: str) -> bool:
        return bool(name) and self._objects.layout.group_key(name) is not None

    def _count(self, group: _Group) -> None:
        """Count the members and bytes of a group again; the caller holds `changed`."""
        owners, memory = group.machine.owners, group.machine.memory
        memory += 0 if group.owned is None else group.owned.memory
        with self._guard:
            if self._groups.get(group.name) is group:
                self._recount(group, owners, memory)

    def _recount(self, group: _Group, owners: Counter[str], memory: int) -> None:
        """Replace what is counted for a group; the caller holds the guard."""
        # Not compared by value: that takes half a millisecond for 1,000 owners after each commit.
        if owners is not group.owners:
            self._size += owners.total() - group.owners.total()
            for owner in owners.keys() | group.owners.keys():
                self._owners[owner] += owners[owner] - group.owners[owner]
                if not self._owners[owner]:
                    del self._owners[owner]
        self._memory += memory - group.memory
        group.owners, group.memory = owners, memory

    def _make_room(
        self, members: int = 0, memory: int = 0, *, groups: int = 0, owner: str = ""
    ) -> None:
        """Make sure that this many more members of an owner, bytes and groups fit.

        First the sessions of members that have gone without a word are ended, because nothing else
        does so in a group that gets no requests. Then groups without members are removed from
        memory.

        Raises:
            RefusedError: They do not fit.
        """
        if not (self._exceeded(members, memory, groups) or self._exceeded_by(owner, members)):
            return
        now = self._clock()
        if now >= self._sweep_at:  # not each time: with 10,000 groups it takes about a second
            self._sweep_at = now + _SWEEP_PAUSE
            self._count_members()
        with self._guard:
            bound = self._exceeded_by(owner, members)
            # An owner that has too many members must not make the groups of others go.
            idle = [] if bound else [group for group in self._groups.values() if group.is_idle]
            while idle and self._exceeded(members, memory, groups):
                self._remove(idle.pop(0))
            bound = bound or self._exceeded(members, memory, groups)
        if bound:
            self._note_full(bound)
            raise RefusedError(ErrorCode.coordinator_not_available)

    def _note_full(self, bound: str) -> None:
        requests = self._log_full.count()
        if requests:
            log.warning(
                "endpoint.groups_full",
                bound=bound,
                requests=requests,
                groups=len(self._groups),
                members=self._size,
                bytes=self._memory,
            )

    def _exceeded_by(self, owner: str, members: int) -> str:
        """Return the bound that more members of an owner would exceed; empty if there is none."""
        most = self._settings.members_per_owner
        is_exceeded = members and self._owners[owner] + members > most
        return f"{most} members of {owner}" if is_exceeded else ""

    def _exceeded(self, members: int, memory: int, groups: int) -> str:
        """Return the bound that more of these would exceed; empty if there is none."""
        most = self._settings
        if groups and len(self._groups) + groups > most.groups:
            return f"{most.groups} groups"
        if members and self._size + members > most.members:
            return f"{most.members} members"
        if memory > 0 and self._memory + memory > most.memory:
            return f"{most.memory} bytes"
        return ""

    def _known(self, name: str) -> _Group | None:
        with self._guard:
            return self._groups.get(name)

    def _all(self) -> list[_Group]:
        with self._guard:
            return list(self._groups.values())

    def _count_members(self) -> int:
        total = 0
        for group in self._all():
            with self._at_once(group) as machine:
                total += len(machine.members)
                self._count(group)
        return total

    @contextmanager
    def _at_once(self, group: _Group) -> Iterator[ClassicGroup]:
        """Yield the group's state machine, with all deadlines up to now processed."""
        with group.changed, self._waking(group):
            group.machine.advance(self._clock())
            yield group.machine

    def _wait(self, group: _Group, ask: Callable[[], int]) -> JoinAnswer | SyncAnswer:
        """Hand a request to the group, and wait for the answer of its ticket.

        Args:
            group: The group; the caller holds `changed`.
            ask: Hands the request over, and returns its ticket.
        """
        machine = group.machine
        with self._waking(group):
            ticket = ask()
        self._count(group)
        while (answer := machine.take(ticket)) is None:
            if self._closing:
                raise RefusedError(ErrorCode.coordinator_not_available)
            left = machine.next_deadline() - self._clock()
            group.changed.wait(max(min(left, threading.TIMEOUT_MAX), 0.0))
            with self._waking(group):
                machine.advance(self._clock())
        return answer

    @contextmanager
    def _waking(self, group: _Group) -> Iterator[None]:
        """Wake the requests that wait if the block gives one an answer, or an earlier deadline.

        Not after each event: the requests that wait would wake each other all the time.
        """
        machine = group.machine
        untaken, deadline = machine.untaken, machine.next_deadline()
        yield
        if machine.untaken > untaken or machine.next_deadline() < deadline:
            group.changed.notify_all()

    # The store

    def _may_create(self, owner: str) -> bool:
        """Count a new group; return False if there are too many today."""
        most = self._settings
        with self._guard:
            now = self._clock()
            if now - self._created_since >= _DAY:
                self._created.clear()
                self._created_since = now
            is_full = self._created.total() >= most.new_groups
            if is_full or self._created[owner] >= most.new_groups_per_owner:
                return False
            self._created[owner] += 1
            return True

    def _own(self, group: _Group, owner: str) -> OwnedGroup:
        """Return the group's offsets; take the group if this process does not own it.

        Raises:
            RefusedError: It cannot be taken here or now.
        """
        if group.owned is None:
            self._make_room(memory=1)  # its offsets need memory, but their size is not known yet
        with group.changed:
            if group.owned is not None:
                return group.owned
            lost = group.lost
            away = (
                ErrorCode.coordinator_not_available if lost is None else ErrorCode.not_coordinator
            )
            if group.loading is None:
                if self._clock() < group.retry_at:
                    raise RefusedError(away)
                group.loading = self._submit(
                    lambda: self._objects.take(group.name, lost, lambda: self._may_create(owner))
                )
            loading = group.loading
        try:
            owned = loading.result(self._settings.store_wait)
        except TimeoutError:
            raise RefusedError(ErrorCode.coordinator_load_in_progress) from None
        except SidetierError as error:
            self._note_loaded(group, loading, error)
            raise RefusedError(away) from None
        self._note_loaded(group, loading, owned)
        return owned

    def _note_loaded(
        self, group: _Group, loading: Future[OwnedGroup], result: OwnedGroup | SidetierError
    ) -> None:
        """Keep the result of loading a group, unless another request has done so."""
        with group.changed:
            if group.loading is not loading:
                return
            group.loading = None
            if isinstance(result, GroupTakenError):
                group.lost = result
                group.retry_at = self._clock() + self._settings.lost_pause
                log.warning("endpoint.group_not_taken_back", group=group.name, reason=str(result))
                return
            if isinstance(result, SidetierError):
                group.retry_at = self._clock() + self._settings.retry_pause
                if groups := self._events.count("group_not_loaded"):
                    log.error(
                        "endpoint.group_not_loaded",
                        group=group.name,
                        error=str(result),
                        groups=groups,
                    )
                return
            group.owned = result
            if group.lost is not None:
                group.lost, group.machine = None, ClassicGroup(self._settings.group)
            self._count(group)
            if groups := self._events.count("group_loaded"):
                log.info(
                    "endpoint.group_loaded",
                    group=group.name,
                    offsets=len(result.offsets),
                    previous_owner=result.previous_owner,
                    groups=groups,
                )

    def _submit(self, work: Callable[[], _T]) -> Future[_T]:
        try:
            return self._objects.executor.submit(work)
        except RuntimeError:  # the executor is shut down
            raise RefusedError(ErrorCode.coordinator_not_available) from None

    def _from_store(self, work: Callable[[], _T]) -> _T:
        """Return the result of a request to the store that takes no group."""
        result = self._submit(work)
        try:
            return result.result(self._settings.store_wait)
        except (TimeoutError, SidetierError) as error:
            result.cancel()  # the client asks again: requests must not queue up meanwhile
            self._report_not_read(error)
            raise RefusedError(ErrorCode.coordinator_load_in_progress) from None

    def _report_not_read(self, error: Exception) -> None:
        if requests := self._events.count("groups_not_read"):
            reason = str(error) or "timed out"
            log.warning("endpoint.groups_not_read", error=reason, requests=requests)

    def _wait_for_store(self, group: _Group, owned: OwnedGroup, stored: Future[None]) -> ErrorCode:
        """Wait until a commit is stored, and return the error for the client."""
        self._metrics.commits.inc()
        try:
            stored.result(self._settings.store_wait)
        except GroupTakenError as error:
            self._lose(group, owned, error)
            return ErrorCode.not_coordinator
        except (TimeoutError, SidetierError) as error:
            reason = str(error) or "timed out"
            if commits := self._events.count("commit_not_stored"):
                log.warning(
                    "endpoint.commit_not_stored", group=group.name, error=reason, commits=commits
                )
            is_too_large = isinstance(error, InvalidRequestError)
            return (
                ErrorCode.invalid_commit_offset_size
                if is_too_large
                else ErrorCode.coordinator_not_available
            )
        return ErrorCode.none

    # The owner

    def _check_owner(self, group: _Group) -> Future[None] | None:
        """Start to ask the store for the owner, unless this process has known it recently.

        Returns:
            The result of the request; None if none is needed, or if it is too early for another.
        """
        with group.changed:
            owned, now = group.owned, self._clock()
            if owned is None or self._is_confirmed(owned):
                return None
            if group.checking is not None and not group.checking.done():
                return group.checking
            if now < group.check_at:
                return None
            group.check_at = now + self._settings.confirm_interval
            group.checking = checking = owned.confirm()
        checking.add_done_callback(lambda done: self._note_checked(group, owned, done))
        return checking

    def _is_confirmed(self, owned: OwnedGroup) -> bool:
        return self._clock() - owned.confirmed_at < self._settings.confirm_interval

    def _note_checked(self, group: _Group, owned: OwnedGroup, done: Future[None]) -> None:
        error = done.exception()
        if isinstance(error, GroupTakenError):
            self._lose(group, owned, error)

    def _confirm_owner(self, group: _Group) -> None:
        """Wait until it is known whether this process still owns a group in memory.

        Raises:
            RefusedError: The store does not answer.
        """
        checking, owned = self._check_owner(group), group.owned
        if owned is None or self._is_confirmed(owned):
            return
        try:
            if checking is None:
                raise RefusedError(ErrorCode.coordinator_load_in_progress)
            checking.result(self._settings.store_wait)
        except GroupTakenError as error:
            self._lose(group, owned, error)
        except (TimeoutError, SidetierError) as error:
            self._report_not_read(error)
            raise RefusedError(ErrorCode.coordinator_load_in_progress) from None

    def _lose(self, group: _Group, owned: OwnedGroup, error: GroupTakenError) -> None:
        with group.changed:
            if group.owned is not owned:
                return
            group.machine.kill()
            group.owned, group.lost = None, error
            group.retry_at = self._clock() + self._settings.lost_pause
            self._count(group)
            group.changed.notify_all()
        self._metrics.lost.inc()
        log.error(
            "endpoint.group_lost",
            group=group.name,
            reason=str(error),
            help="run one endpoint with --groups local for each archive; this endpoint takes the "
            f"group back once its object has not changed for {self._settings.lost_pause:.0f} s",
        )
