"""Group membership with the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Members are static (KIP-345): a process that starts with the instance id of another one replaces it.
Brokers before 2.5 do not support all of it. Errors as `Cluster.request`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sidetier.wire.cluster import DEFAULT_TIMEOUT, Cluster, GroupCoordinator
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import NO_MEMBER, Membership


@dataclass(frozen=True, slots=True)
class GroupKind:
    """Properties that all members of a group share; the coordinator rejects other members.

    Attributes:
        protocol_type: Purpose of the group, such as `consumer` or `connect`.
        protocol: Protocol by which its members distribute the work.
    """

    protocol_type: str
    protocol: str


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """Result of the first phase of a rebalance.

    Attributes:
        membership: Identity of this member in the new generation.
        members: Member ids by instance id if this member has to assign the work; empty otherwise.
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
    """Join the group or its current rebalance, and wait for the other members.

    Args:
        cluster: The cluster; its settings' request timeout must exceed `rebalance_timeout`.
        group: Name of the group.
        kind: Protocol of the group.
        instance_id: Instance id of this static member. Another process that uses it is fenced.
        member_id: Member id of an earlier join; empty for a process that starts.
        session_timeout: Seconds without a heartbeat after which the coordinator removes the member.
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
    # The coordinator keeps the assignment when a static leader restarts (KIP-814).
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
    """Return this member's assignment; the leader passes all assignments by member id."""
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
    """Send a heartbeat for the member.

    Raises:
        KafkaApiError: REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID: join again.
            FENCED_INSTANCE_ID: another process has the instance id.
        BrokerError: The request could not be sent, or got no response.
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
    """Leave, so that other members get the work at once and not after the session timeout."""
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
