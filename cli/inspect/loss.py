"""Decide which offsets exist on one broker alone. Pure.

An offset is safe if the archive has it, or another in-sync replica that is up. Records above the
high watermark are not acknowledged with acks=all, and are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sidetier.cli.inspect.cluster import LogOffsets, ReplicaSet
from sidetier.cli.inspect.local import LocalLog
from sidetier.segments.offsets import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Pin:
    """Offsets that the broker's own sidecar holds open; `end` is None if it is not reported."""

    start: Offset
    end: Offset | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """Facts about one partition on the broker.

    Attributes:
        next_offset: Archive end offset; None if nothing is stored, or it is not known because of
            `archive_problem`.
        moving: Where the archive, or its end, is being moved to; `next_offset` is then the end of
            what stays.
        not_archived: Why the partition is never stored.
        pins: None if no sidecar was asked.
        local: The log on disk, if the broker is on this host.
    """

    topic_partition: TopicPartition
    replicas: ReplicaSet
    bounds: LogOffsets = field(default_factory=LogOffsets)
    next_offset: Offset | None = None
    archive_problem: str | None = None
    moving: str | None = None
    not_archived: str | None = None
    pins: tuple[Pin, ...] | None = None
    local: LocalLog | None = None


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


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker in question, and the brokers that are up."""

    broker_id: int
    up: frozenset[int]


def risks_of(held: Held, broker: Broker) -> tuple[Risk, ...]:
    """Return which offsets of this partition would be lost with the broker."""
    risks = [*_only_pinned(held)]
    if not _others_in_sync(held, broker):
        risks += _only_logged(held, broker)
    return tuple(risks)


def _others_in_sync(held: Held, broker: Broker) -> tuple[int, ...]:
    in_sync = held.replicas.in_sync
    return tuple(
        replica for replica in in_sync if replica != broker.broker_id and replica in broker.up
    )


def _only_logged(held: Held, broker: Broker) -> Iterator[Risk]:
    start, end = held.bounds.start, held.bounds.high_watermark
    forked = end is not None and held.next_offset is not None and held.next_offset > end
    if not forked and held.next_offset is not None:
        start = held.next_offset if start is None else max(start, held.next_offset)
    if start is not None and end is not None and start >= end:
        return
    why = f"{_why_not_stored(held, forked=forked)}; {_why_nobody_else(held, broker)}"
    if end is None:
        why += "; the end of the log is not known" + _reason(held.bounds.problem)
    yield Risk(start, end, why, _size(held, start, end))


def _why_not_stored(held: Held, *, forked: bool) -> str:
    if held.not_archived is not None:
        return f"never stored: {held.not_archived}"
    if held.archive_problem is not None:
        return "perhaps not stored: the archive cannot be read"
    if held.moving is not None:
        return f"its archive is being moved to {held.moving}: it counts again when that is done"
    if forked:
        return (
            f"the archive reaches {held.next_offset}, above the high watermark: perhaps another "
            "history, look again"
        )
    return "nothing of it is stored" if held.next_offset is None else "not stored yet"


def _why_nobody_else(held: Held, broker: Broker) -> str:
    others = [replica for replica in held.replicas.replicas if replica != broker.broker_id]
    if not others:
        return "there is no other replica"
    states = (
        f"broker {replica} is {'not in sync' if replica in broker.up else 'down'}"
        for replica in others
    )
    return ", ".join(states)


def _reason(problem: str | None) -> str:
    return "" if problem is None else f" ({problem})"


def _size(held: Held, start: Offset | None, end: Offset | None) -> int | None:
    if held.local is None:
        return None
    return held.local.bytes_between(start or 0, 2**63 if end is None else end)


def _only_pinned(held: Held) -> Iterator[Risk]:
    """Yield offsets that only pins hold: below the log start offset, above the archive end."""
    start = held.bounds.start
    if held.not_archived is not None or start is None:
        return
    done = held.next_offset
    if held.pins is None:
        if done is not None and done < start:
            why = (
                "deleted by the brokers before they were stored: only a sidecar may hold them "
                "open, and the broker's was not asked (--sidecar)"
            )
            yield Risk(done, start, why)
        return
    for pin in held.pins:
        first = pin.start if done is None else max(pin.start, done)
        last = start if pin.end is None else min(pin.end, start)
        if first < last:
            why = "deleted by the brokers before they were stored: its sidecar alone holds them"
            yield Risk(first, last, why, pin.size_bytes)
