"""Membership in a group by the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Members are static (KIP-345): a process that starts with the instance id of another one takes its
place. Brokers before 2.5 do not know all of it. Errors are those of `Cluster.request`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.wire.cluster import DEFAULT_TIMEOUT, Cluster, GroupCoordinator
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import NO_MEMBER, Membership


@dataclass(frozen=True, slots=True)
class GroupKind:
    """What all members of a group agree on: the coordinator refuses a member with another kind.

    Attributes:
        protocol_type: What the group is for, such as `consumer` or `connect`.
        protocol: How its members share the work.
    """

    protocol_type: str
    protocol: str


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """The end of a rebalance's first phase.

    `members` has the member ids by instance id where this member has to assign the work, and is
    empty for all others.
    """

    membership: Membership
    members: Mapping[str, str]


def join_group(  # noqa: PLR0913 - the fields of Kafka's request
    cluster: Cluster,
    group: str,
    kind: GroupKind,
    instance_id: str,
    *,
    member_id: str = NO_MEMBER.member_id,
    session_timeout: float,
    rebalance_timeout: float,
) -> JoinedGroup:
    """Become a member, or join the rebalance that is under way; waits for the other members.

    Args:
        cluster: Its settings' request timeout must exceed `rebalance_timeout`.
        group: The group.
        kind: Of the group.
        instance_id: The static member. Another process that has it is fenced.
        member_id: What an earlier join has returned; empty for a process that starts.
        session_timeout: Seconds without a heartbeat after which the member is removed.
        rebalance_timeout: Seconds that the coordinator waits for this member to join again.
    """
    response = cluster.request(
        GroupCoordinator(group),
        ApiKey.JOIN_GROUP,
        timeout=rebalance_timeout + DEFAULT_TIMEOUT,
        group_id=group,
        session_timeout=round(session_timeout * 1000),
        rebalance_timeout=round(rebalance_timeout * 1000),
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=kind.protocol_type,
        protocols=[{"name": kind.protocol, "metadata": b""}],
        reason=None,
    )
    # A leader that was restarted gets its former assignment (KIP-814).
    assigns = response.leader == response.member_id and not getattr(
        response, "skip_assignment", False
    )
    return JoinedGroup(
        Membership(response.generation_id, response.member_id, instance_id),
        {member.group_instance_id or "": member.member_id for member in response.members}
        if assigns
        else {},
    )


def sync_group(
    cluster: Cluster,
    group: str,
    kind: GroupKind,
    membership: Membership,
    assignments: Mapping[str, bytes],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> bytes:
    """Hand out the assignments, by member id, as the leader does; returns the member's own one."""
    response = cluster.request(
        GroupCoordinator(group),
        ApiKey.SYNC_GROUP,
        timeout=timeout,
        group_id=group,
        generation_id=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        protocol_type=kind.protocol_type,
        protocol_name=kind.protocol,
        assignments=[
            {"member_id": member_id, "assignment": assignment}
            for member_id, assignment in assignments.items()
        ],
    )
    return bytes(response.assignment)


def heartbeat(
    cluster: Cluster, group: str, membership: Membership, *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Say that the member is alive.

    Raises:
        KafkaApiError: REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID: join again.
            FENCED_INSTANCE_ID: another process has the instance id.
        BrokerError: the broker could not be asked.
    """
    cluster.request(
        GroupCoordinator(group),
        ApiKey.HEARTBEAT,
        timeout=timeout,
        group_id=group,
        generation_id=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
    )


def leave_group(
    cluster: Cluster, group: str, membership: Membership, *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Give the member's work to the others at once, instead of after the session timeout."""
    cluster.request(
        GroupCoordinator(group),
        ApiKey.LEAVE_GROUP,
        timeout=timeout,
        group_id=group,
        members=[
            {
                "member_id": membership.member_id,
                "group_instance_id": membership.instance_id,
                "reason": None,
            }
        ],
    )
