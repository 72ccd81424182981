"""Which pins may stay: pure decisions over their number, bytes, and the free disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidetier.segments.offsets import BaseOffset, TopicPartition


class Urgency(NamedTuple):
    """Sorts what the broker deletes first to the front: staged segments, then by the end of their
    retention, in ns since 1970.
    """

    live: bool
    expires_ns: int


@dataclass(frozen=True, slots=True)
class HeldPin:
    """A pin that alone keeps `size` bytes on the disk."""

    topic_partition: TopicPartition
    base_offset: BaseOffset
    size: int
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """Bounds on what pins keep from being freed: all bytes, and the disk's free bytes."""

    max_deleted_bytes: int
    min_free_bytes: int


def pins_to_release(
    held: Sequence[HeldPin], limits: HoldLimits, free_bytes: int
) -> tuple[HeldPin, ...]:
    """The pins to let go, so that what is held fits the bound and the floor of free disk.

    The newest go first: what is uploaded next is then still there, and the hole that this leaves
    behind the watermark is as late as it can be.
    """
    total = sum(pin.size for pin in held)
    excess = max(total - limits.max_deleted_bytes, limits.min_free_bytes - free_bytes)
    released = []
    for pin in sorted(held, key=lambda pin: (pin.urgency, pin.base_offset), reverse=True):
        if excess <= 0:
            break
        released.append(pin)
        excess -= pin.size
    return tuple(released)
