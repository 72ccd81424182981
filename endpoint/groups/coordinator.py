"""The coordinator of `--groups local`: groups in memory, requests that wait, offsets in the store.

Members and assignments are in memory (`classic_group`), committed offsets in the store
(`stored_offsets`). After a restart of the endpoint, members get UNKNOWN_MEMBER_ID and join again;
they continue from the committed offsets.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sidetier.endpoint.groups.stored_offsets import GroupObjects, Offsets, OwnedGroup
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.segments.errors import ArchiveConflictError, InvalidRequestError, SidetierError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger

log = logger()
_T = TypeVar("_T")
_SWEEP_PAUSE: Final = 10.0


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Bounds on the groups of one endpoint. Times are in seconds.

    Attributes:
        groups: Most groups in memory. Groups without members make room for others.
        group: Bounds of each group.
        store_wait: How long a request waits for the store (`offsets.commit.timeout.ms`). The write
            continues, and the client asks again.
        retry_pause: Time after a failure in which a group is not loaded again.
        least_session: Least session timeout (`group.min.session.timeout.ms`).
        most_session: Most session timeout (`group.max.session.timeout.ms`).
    """

    groups: int = 10_000
    group: GroupLimits = field(default_factory=GroupLimits)
    store_wait: float = 5.0
    retry_pause: float = 1.0
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
        self.retry_at = 0.0
        """Before this time it is not loaded again."""

    @property
    def is_idle(self) -> bool:
        """Whether the group can be removed from memory."""
        is_loading = self.loading is not None and not self.loading.done()
        is_writing = self.owned is not None and self.owned.is_writing
        is_empty = self.machine.state is GroupState.EMPTY
        return is_empty and not (self.users or is_loading or is_writing)


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
        self._closing = False
        self._sweep_at = 0.0
        """Before this time the sessions of all groups are not checked again."""
        metrics.watch(lambda: len(self._groups), self._count_members)

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
            self._own(group)
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
            RefusedError: The endpoint stops.
        """
        group = self._known(name)
        if group is None:
            return SyncAnswer(ErrorCode.unknown_member_id)
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
        with self._at_once(group) as machine:
            return machine.heartbeat(member, self._clock())

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members by member id and instance id, and return an error for each."""
        group = self._known(name)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        with self._at_once(group) as machine:
            return [machine.leave(*member, self._clock()) for member in leaving]

    # Offsets

    def commit(self, name: str, member: MemberId, offsets: Offsets) -> ErrorCode:
        """Store offsets, if the member may commit now.

        Raises:
            RefusedError: The group cannot be taken here or now.
        """
        with self._using(name) as group:
            owned = self._own(group)
            with self._at_once(group) as machine:
                error = machine.commit(member, self._clock())
                if error is not ErrorCode.none or not offsets:
                    return error
                # Before another event: a member that gets these partitions commits after this one.
                stored = owned.commit(offsets)
            return self._wait_for_store(group, stored)

    def offsets(self, name: str) -> Offsets | None:
        """Return committed offsets; None if there is no such group.

        Reading them takes no group from its owner.

        Raises:
            RefusedError: The store does not answer, or another endpoint has the group.
        """
        group = self._known(name)
        if group is not None:
            if group.machine.state is GroupState.DEAD:
                raise RefusedError(ErrorCode.not_coordinator)
            if group.owned is not None:
                return group.owned.offsets
        if not self._is_name(name):
            raise RefusedError(ErrorCode.invalid_group_id)
        stored = self._from_store(lambda: self._objects.read(name))
        return None if stored is None else stored.offsets

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
                if machine.state is not GroupState.EMPTY:
                    states[group.name] = machine.state, machine.protocol_type or ""
        return states

    # Groups in memory

    @contextmanager
    def _using(self, name: str) -> Iterator[_Group]:
        """Yield the group of this name, which stays in memory meanwhile; create it if needed."""
        if not self._is_name(name):
            raise RefusedError(ErrorCode.invalid_group_id)
        if self._known(name) is None:
            self._end_sessions_if_full()
        with self._guard:
            group = self._groups.get(name)
            if group is None:
                self._make_room()
                group = self._groups[name] = _Group(name, self._settings.group)
            group.users += 1
        try:
            yield group
        finally:
            with self._guard:
                group.users -= 1

    def _is_name(self, name: str) -> bool:
        return bool(name) and self._objects.layout.group_key(name) is not None

    def _end_sessions_if_full(self) -> None:
        """End the sessions of members that have gone without a word, if no other group fits.

        Nothing else does so in a group that gets no requests. Not each time: with 10,000 groups it
        takes about a second.
        """
        now = self._clock()
        if len(self._groups) >= self._settings.groups and now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_PAUSE
            for group in self._all():
                with self._at_once(group):
                    pass

    def _make_room(self) -> None:
        if len(self._groups) < self._settings.groups:
            return
        for name, group in self._groups.items():
            if group.is_idle:
                del self._groups[name]
                return
        log.warning("endpoint.groups_full", most=self._settings.groups)
        raise RefusedError(ErrorCode.coordinator_not_available)

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

    def _own(self, group: _Group) -> OwnedGroup:
        """Return the group's offsets; take the group if this process does not own it yet."""
        with group.changed:
            if group.machine.state is GroupState.DEAD:
                raise RefusedError(ErrorCode.not_coordinator)
            if group.owned is not None:
                return group.owned
            if group.loading is None:
                if self._clock() < group.retry_at:
                    raise RefusedError(ErrorCode.coordinator_not_available)
                group.loading = self._submit(lambda: self._objects.take(group.name))
            loading = group.loading
        try:
            owned = loading.result(self._settings.store_wait)
        except TimeoutError:
            raise RefusedError(ErrorCode.coordinator_load_in_progress) from None
        except SidetierError as error:
            self._note_loaded(group, loading, error)
            raise RefusedError(ErrorCode.coordinator_not_available) from None
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
            if isinstance(result, SidetierError):
                group.retry_at = self._clock() + self._settings.retry_pause
                log.error("endpoint.group_not_loaded", group=group.name, error=str(result))
                return
            group.owned = result
            log.info(
                "endpoint.group_loaded",
                group=group.name,
                offsets=len(result.offsets),
                previous_owner=result.previous_owner,
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
            log.warning("endpoint.groups_not_read", error=str(error) or "timed out")
            raise RefusedError(ErrorCode.coordinator_load_in_progress) from None

    def _wait_for_store(self, group: _Group, stored: Future[None]) -> ErrorCode:
        """Wait until a commit is stored, and return the error for the client."""
        self._metrics.commits.inc()
        try:
            stored.result(self._settings.store_wait)
        except ArchiveConflictError as error:
            self._lose(group, str(error))
            return ErrorCode.not_coordinator
        except (TimeoutError, SidetierError) as error:
            reason = str(error) or "timed out"
            log.warning("endpoint.commit_not_stored", group=group.name, error=reason)
            is_too_large = isinstance(error, InvalidRequestError)
            return (
                ErrorCode.invalid_commit_offset_size
                if is_too_large
                else ErrorCode.coordinator_not_available
            )
        return ErrorCode.none

    def _lose(self, group: _Group, reason: str) -> None:
        with group.changed:
            if group.machine.state is GroupState.DEAD:
                return
            group.machine.kill()
            group.changed.notify_all()
        self._metrics.lost.inc()
        log.error(
            "endpoint.group_lost",
            group=group.name,
            reason=reason,
            help="run one endpoint with --groups local for each archive; restart this endpoint "
            "to serve the group here again",
        )
