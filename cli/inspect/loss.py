"""Decide which offsets exist on one broker alone, or on the store alone. Pure functions.

An offset is safe if the archive has it, or another in-sync replica that is up. Records above the
high watermark are not acknowledged with acks=all, and are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sidetier.cli.inspect.facts import BrokerFacts, PartitionFacts
from sidetier.segments.offsets import Offset, OffsetRange


@dataclass(frozen=True, slots=True)
class Risk:
    """Offsets that no other place has: `start` inclusive, `end` exclusive; None if not known.

    `size_bytes` is the size of the segments that hold them; None if this host cannot see them.
    """

    start: Offset | None
    end: Offset | None
    why: str
    size_bytes: int | None = None

    @property
    def records(self) -> int | None:
        """Number of offsets; there are at most as many records."""
        return None if self.start is None or self.end is None else self.end - self.start


def risks_of(partition: PartitionFacts, broker: BrokerFacts) -> tuple[Risk, ...]:
    """Return which offsets of this partition would be lost with the broker."""
    risks = [*_only_pinned(partition)]
    if not _has_other_in_sync(partition, broker):
        risks += _only_in_log(partition, broker)
    return tuple(risks)


def only_on_store(partition: PartitionFacts) -> OffsetRange | None:
    """Return the archived offsets below the log start offset: no broker has them.

    Returns:
        None if there are none, or if start or end of either is not known.
    """
    log_start = partition.log_offsets.start
    first, archived = partition.archived_from, partition.archived_up_to
    if log_start is None or first is None or archived is None:
        return None
    end = min(archived, log_start)
    return OffsetRange(first, end) if first < end else None


def _has_other_in_sync(partition: PartitionFacts, broker: BrokerFacts) -> bool:
    """Return whether another broker that is up has an in-sync replica."""
    in_sync = () if partition.replicas is None else partition.replicas.in_sync
    return any(replica != broker.broker_id and replica in broker.up for replica in in_sync)


def _only_in_log(partition: PartitionFacts, broker: BrokerFacts) -> Iterator[Risk]:
    """Yield the committed offsets of the broker's log that are not archived."""
    start, end = partition.log_offsets.start, partition.log_offsets.high_watermark
    archived = partition.archived_up_to
    # An archive that ends above the log may be of another history (an unclean election): its
    # offsets need not be the records of this log, so nothing of the log counts as archived.
    diverged = end is not None and archived is not None and archived > end
    if not diverged and archived is not None:
        yield from _below_archive(partition, broker)
        start = archived if start is None else max(start, archived)
    if start is not None and end is not None and start >= end:
        return
    why = f"{_why_not_archived(partition, diverged=diverged)}; {_why_no_replica(partition, broker)}"
    if end is None:
        problem = partition.log_offsets.problem
        why += "; the high watermark is not known" + ("" if problem is None else f" ({problem})")
    yield Risk(start, end, why, _size(partition, start, end))


def _below_archive(partition: PartitionFacts, broker: BrokerFacts) -> Iterator[Risk]:
    """Yield the offsets of the broker's log below the first archived one."""
    start, first = partition.log_offsets.start, partition.archived_from
    if start is None or first is None or start >= first:
        return
    why = (
        f"the archive begins at {first}: never archived, or deleted by `sidetier gc`; "
        f"{_why_no_replica(partition, broker)}"
    )
    yield Risk(start, first, why, _size(partition, start, first))


def _why_not_archived(partition: PartitionFacts, *, diverged: bool) -> str:
    if partition.exclusion is not None:
        return f"never archived: {partition.exclusion.reason}"
    if partition.archive_problem is not None:
        return "perhaps not archived: the archive cannot be read"
    if partition.archive_moving_to is not None:
        return (
            f"its archive is being moved to {partition.archive_moving_to}, and does not count "
            "until then"
        )
    if diverged:
        return (
            f"archived up to {partition.archived_up_to}, above the high watermark: the archive may "
            "be of another history, ask again"
        )
    return "nothing is archived" if partition.archived_up_to is None else "not archived yet"


def _why_no_replica(partition: PartitionFacts, broker: BrokerFacts) -> str:
    replicas = () if partition.replicas is None else partition.replicas.replicas
    others = [replica for replica in replicas if replica != broker.broker_id]
    if not others:
        return "there is no other replica"
    states = (
        f"broker {replica} is {'not in sync' if replica in broker.up else 'down'}"
        for replica in others
    )
    return ", ".join(states)


def _size(partition: PartitionFacts, start: Offset | None, end: Offset | None) -> int | None:
    if partition.local is None:
        return None
    return partition.local.bytes_between(start or 0, 2**63 if end is None else end)


def _only_pinned(partition: PartitionFacts) -> Iterator[Risk]:
    """Yield offsets that only pins hold: below the log start offset, above the archive end."""
    start, archived = partition.log_offsets.start, partition.archived_up_to
    if partition.exclusion is not None or start is None:
        return
    if partition.sidecar is None:
        if archived is not None and archived < start:
            why = (
                "deleted by the brokers before they were archived; the broker's sidecar may hold "
                "them open, but was not asked (--sidecar)"
            )
            yield Risk(archived, start, why)
        return
    for pin in partition.sidecar.pins:
        first = pin.start_offset if archived is None else max(pin.start_offset, archived)
        last = start if pin.end_offset is None else min(pin.end_offset, start)
        if first < last:
            why = (
                "deleted by the brokers before they were archived; only the broker's sidecar holds "
                "them open"
            )
            yield Risk(first, last, why, pin.size_bytes)
