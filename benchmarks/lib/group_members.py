"""Members of many consumer groups, in a separate process.

    python group_members.py '{"servers": "127.0.0.1:9092", "groups": 100, "members": 3,
                              "topic": "t", "seconds": 600}'

Each member has a connection and a thread of its own. It joins, sends a heartbeat every 3 s, Kafka's
default, commits every 5 s, and joins again when its group rebalances. Prints the result as JSON
after all members are in their groups and the seconds have passed.
"""

import json
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Barrier, Event, Lock, Thread
from typing import Final

from lib.clock import monotonic
from sidetier.segments.errors import BrokerError, KafkaApiError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.groups import GroupKind, heartbeat, join_group, leave_group, sync_group
from sidetier.wire.requests import NO_MEMBER, CommittedOffset, Membership, commit_offsets
from sidetier.wire.settings import ClientSettings

_KIND: Final = GroupKind("bench", "bench")
_HEARTBEAT: Final = 3.0
_COMMIT: Final = 5.0
_SESSION: Final = 45.0
_REBALANCE: Final = 60.0


@dataclass(slots=True)
class GroupsResult:
    """What the members have seen.

    Attributes:
        join_seconds: Time until all members were in complete groups.
        rebalances: Rebalances after that.
        heartbeats: Answered heartbeats after that.
        commits: Answered commits after that.
        slowest: Longest time of a heartbeat or a commit, in seconds.
        errors: Errors by name.
    """

    join_seconds: float = 0.0
    rebalances: int = 0
    heartbeats: int = 0
    commits: int = 0
    slowest: float = 0.0
    errors: dict[str, int] | None = None


class Members:
    """All members of all groups."""

    def __init__(self, servers: str, groups: int, members: int, topic: str) -> None:
        self._settings = ClientSettings.from_properties({"bootstrap.servers": servers})
        self._groups, self._members, self._topic = groups, members, topic
        self._complete = Barrier(groups * members + 1)
        self._stop = Event()
        self._guard = Lock()
        self._result = GroupsResult()
        self._errors: Counter[str] = Counter()

    def run(self, seconds: float) -> GroupsResult:
        """Join all groups, stay for some seconds, and leave."""
        threads = [
            Thread(target=self._live, args=(f"bench-{group}", f"member-{member}"), daemon=True)
            for group in range(self._groups)
            for member in range(self._members)
        ]
        began = monotonic()
        for thread in threads:
            thread.start()
        self._complete.wait(300)
        self._result.join_seconds = monotonic() - began
        print("joined", flush=True)
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join(60)
        self._result.errors = dict(self._errors)
        return self._result

    def _live(self, group: str, instance: str) -> None:
        waits, committed_at, rounds = True, monotonic(), 0
        membership = NO_MEMBER
        with Cluster(self._settings) as cluster:
            while not self._stop.is_set():
                try:
                    membership, count = self._join(cluster, group, instance, membership.member_id)
                    if waits and count == self._members:
                        waits = False
                        self._complete.wait(300)
                    elif not waits:
                        with self._guard:
                            self._result.rebalances += 1
                    while not self._stop.wait(_HEARTBEAT):
                        began = monotonic()
                        heartbeat(cluster, group, membership)
                        self._count(began, commits=False)
                        if monotonic() - committed_at >= _COMMIT and not waits:
                            committed_at, rounds = monotonic(), rounds + 1
                            self._commit(cluster, group, membership, rounds)
                except KafkaApiError as error:
                    self._note(error.name, is_expected=waits)
                except BrokerError as error:
                    self._note(type(error).__name__, is_expected=False)
            with suppress(BrokerError):
                leave_group(cluster, group, membership)

    def _join(
        self, cluster: Cluster, group: str, instance: str, member_id: str
    ) -> tuple[Membership, int]:
        """Return the membership, and how many members the leader has seen."""
        joined = join_group(
            cluster,
            group,
            _KIND,
            instance,
            member_id=member_id,
            session_timeout=_SESSION,
            rebalance_timeout=_REBALANCE,
        )
        count = str(len(joined.members)).encode()
        plans = dict.fromkeys(joined.members.values(), count)
        mine = sync_group(cluster, group, _KIND, joined.membership, plans, timeout=_REBALANCE)
        return joined.membership, int(mine or b"0")

    def _commit(self, cluster: Cluster, group: str, membership: Membership, rounds: int) -> None:
        began = monotonic()
        number = int(membership.instance_id.rpartition("-")[2] if membership.instance_id else 0)
        tp = TopicPartition(self._topic, number)
        commit_offsets(cluster, group, {tp: CommittedOffset(Offset(rounds))}, membership=membership)
        self._count(began, commits=True)

    def _count(self, began: float, *, commits: bool) -> None:
        with self._guard:
            self._result.slowest = max(self._result.slowest, monotonic() - began)
            if commits:
                self._result.commits += 1
            else:
                self._result.heartbeats += 1

    def _note(self, name: str, *, is_expected: bool) -> None:
        if not is_expected:
            with self._guard:
                self._errors[name] += 1


def main() -> None:
    """Run the members that the argument describes."""
    asked = json.loads(sys.argv[1])
    seconds = asked.pop("seconds")
    print(json.dumps(asdict(Members(**asked).run(seconds))))


if __name__ == "__main__":
    main()
