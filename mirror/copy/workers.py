"""The workers of a mirror, as members of the progress group on the target.

The members agree on numbers only: worker `index` of `count`. Each worker then takes the partitions
that map to its index, so that an added topic needs no rebalance. A partition belongs to one worker
in each generation, and the group coordinator refuses progress from members of former generations
(`Membership`): a worker that was removed from the group can no longer commit a transaction.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import structlog
from kio.schema.errors import ErrorCode

from sidetier.segments.errors import (
    ConfigurationError,
    KafkaApiError,
    MalformedResponseError,
    MirrorError,
    SidetierError,
)
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.groups import GroupKind, heartbeat, join_group, leave_group, sync_group
from sidetier.wire.requests import NO_MEMBER, Membership
from sidetier.wire.settings import ClientSettings

SESSION_TIMEOUT: Final = 30.0
REBALANCE_TIMEOUT: Final = 60.0
"""Seconds. Longer than a commit takes while a broker of the target is down."""
_HEARTBEATS_PER_SESSION: Final = 10
_LEAVE_SECONDS: Final = 5.0
_PROTOCOL_TYPE: Final = "sidetier-mirror"
"""Not `consumer`: brokers then keep the offsets of all partitions while the group has members."""
_JOIN_AGAIN: Final = frozenset(
    {
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.unknown_member_id,
    }
)

log = structlog.get_logger("sidetier.mirror")


@dataclass(frozen=True, slots=True)
class Share:
    """The share of worker `index` (from 0) of `count` workers."""

    index: int
    count: int

    def owns(self, tp: TopicPartition) -> bool:
        """Whether this worker owns the partition. Workers get a topic's partitions in turn."""
        # Topics begin at different workers. Otherwise
        # worker 0 would get partition 0 of every topic.
        return (crc32(tp.topic.encode()) + tp.partition) % self.count == self.index

    def encoded(self) -> bytes:
        """Encode the share as JSON, as the leader sends it to the member."""
        return json.dumps({"version": 1, "worker": self.index, "workers": self.count}).encode()


def decode_share(data: bytes) -> Share:
    """Decode what `Share.encoded` has made.

    Raises:
        MalformedResponseError: The bytes are not a share, or have an unknown version.
    """
    try:
        value = parse_json(data)
        if value["version"] != 1:
            raise MalformedResponseError(f"version {value['version']} of a share is not known")
        return Share(int(value["worker"]), int(value["workers"]))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedResponseError(f"{data[:200]!r} is not a worker's share: {error}") from None


def group_kind(options: object) -> GroupKind:
    """Return the kind of a group whose workers all have these options, compared by `repr`."""
    # The coordinator refuses a member that shares no protocol name with the others.
    digest = hashlib.sha256(repr(options).encode()).hexdigest()[:16]
    return GroupKind(_PROTOCOL_TYPE, f"v1-{digest}")


class KafkaWorkerGroup:
    """The membership of one worker. One thread calls `join`; heartbeats have a thread of their own.

    Args:
        settings: Client settings for the target's brokers.
        group: The progress group.
        worker: This worker's name. A new process with the same name replaces the former one.
        kind: The kind of the group, see `group_kind`.
        session_timeout: Seconds without a heartbeat after which other workers take over.
        rebalance_timeout: Seconds that a rebalance waits for this worker's commit.
    """

    def __init__(  # noqa: PLR0913 -- three have a default
        self,
        settings: ClientSettings,
        group: str,
        worker: str,
        kind: GroupKind,
        *,
        session_timeout: float = SESSION_TIMEOUT,
        rebalance_timeout: float = REBALANCE_TIMEOUT,
        make_cluster: Callable[[ClientSettings], Cluster] = Cluster,
    ) -> None:
        # The coordinator answers JoinGroup only once the rebalance has ended.
        joining = replace(
            settings, request_timeout=max(settings.request_timeout, rebalance_timeout + 10)
        )
        self._cluster = make_cluster(joining)
        self._settings = settings
        self._make_cluster = make_cluster
        self._group = group
        self._worker = worker
        self._kind = kind
        self._session_timeout = session_timeout
        self._rebalance_timeout = rebalance_timeout
        self._share: Share | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._membership = NO_MEMBER
        self._is_outdated = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def membership(self) -> Membership:
        """Return the membership of the last `join`; NO_MEMBER before it and after `close`."""
        with self._lock:
            return self._membership

    def join(self) -> None:
        """Join again until the group is stable; the first call starts the heartbeat thread."""
        while True:
            try:
                self._join_once()
            except KafkaApiError as error:
                self._check_can_rejoin(error)
            else:
                break
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="mirror-heartbeat", daemon=True)
            self._thread.start()

    def must_join_again(self) -> bool:
        """Answer from the last heartbeat; raises the error that ended the heartbeats."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return self._is_outdated

    def owns(self, source: TopicPartition) -> bool:
        """Answer from the share of the last `join`, without a request."""
        return self._own_share().owns(source)

    @property
    def count(self) -> int:
        """Number of workers, including this one, as of the last `join`."""
        return self._own_share().count

    def close(self) -> None:
        """Leave the group, so that the other workers take over at once. May be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        membership = self.membership()
        if membership != NO_MEMBER:
            try:
                leave_group(self._cluster, self._group, membership, timeout=_LEAVE_SECONDS)
            except SidetierError as error:
                log.info("mirror.leave_failed", reason=str(error))
            with self._lock:
                self._membership = NO_MEMBER
        self._cluster.close()

    def _own_share(self) -> Share:
        if self._share is None:
            raise RuntimeError("join() comes first")
        return self._share

    def _join_once(self) -> None:
        former = self.membership()
        with self._lock:
            # Without a membership, the heartbeat thread pauses, so that it does not report the
            # rebalance that is joined here.
            self._membership = NO_MEMBER
        try:
            joined = join_group(
                self._cluster,
                self._group,
                self._kind,
                self._worker,
                member_id=former.member_id,
                session_timeout=self._session_timeout,
                rebalance_timeout=self._rebalance_timeout,
            )
            # Also if SyncGroup fails: the next JoinGroup names this member id.
            former = joined.membership
            shares = {
                joined.members[worker]: Share(index, len(joined.members)).encoded()
                for index, worker in enumerate(sorted(joined.members))
            }
            assigned = sync_group(self._cluster, self._group, self._kind, joined.membership, shares)
            self._share = decode_share(assigned)
        finally:
            with self._lock:
                self._membership = former
                self._is_outdated = False
        log.info(
            "mirror.joined",
            worker=self._worker,
            index=self._share.index,
            workers=self._share.count,
            generation=joined.membership.generation,
        )

    def _check_can_rejoin(self, error: KafkaApiError) -> None:
        """Raise the error unless it helps to join again."""
        if error.code == ErrorCode.fenced_instance_id:
            raise MirrorError(
                f"another process of worker {self._worker} has started: this one ends, and its "
                "last transaction is complete or aborted. Give each process its own --worker"
            ) from error
        if error.code == ErrorCode.inconsistent_group_protocol:
            # A worker that was removed from the group and joins again may have copied records: in
            # that case this is not a refused start, which ConfigurationError would report.
            refusal = ConfigurationError if self._share is None else MirrorError
            raise refusal(
                f"workers of group {self._group} run with other --topic, --exclude or --rename, or "
                f"with another release, or did so up to {self._session_timeout:.0f} s ago: stop "
                "all of them, and start each with the same options"
            ) from error
        if error.code not in _JOIN_AGAIN:
            raise error
        # The coordinator has removed the member: the next join asks for a new member id.
        if error.code == ErrorCode.unknown_member_id:
            with self._lock:
                self._membership = NO_MEMBER

    def _beat(self) -> None:
        """Send heartbeats until `close`."""
        try:
            with self._make_cluster(self._settings) as cluster:
                while not self._closed.wait(self._session_timeout / _HEARTBEATS_PER_SESSION):
                    membership = self.membership()
                    if membership != NO_MEMBER:
                        self._beat_once(cluster, membership)
        except BaseException as error:  # noqa: BLE001 -- `must_join_again` raises it in the engine's thread
            with self._lock:
                self._failure = error

    def _beat_once(self, cluster: Cluster, membership: Membership) -> None:
        try:
            heartbeat(cluster, self._group, membership, timeout=self._session_timeout / 2)
        except KafkaApiError as error:
            if error.code not in _JOIN_AGAIN | {ErrorCode.fenced_instance_id}:
                log.warning("mirror.heartbeat_failed", reason=str(error))
                return
            with self._lock:
                # If `join` has got another membership meanwhile, the answer is out of date.
                if self._membership == membership:
                    self._is_outdated = True
        except SidetierError as error:
            log.warning("mirror.heartbeat_failed", reason=str(error))
