"""Which pins may stay: pure decisions over their number, bytes, and the free disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sidetier.segments.offsets import BaseOffset, TopicPartition


class Urgency(NamedTuple):
    """Sorts what the broker deletes first to the front: staged segments, then by the end of their
    retention, in seconds since 1970, infinity for never.
    """

    live: bool
    expires_at: float


class PinPriority(NamedTuple):
    """Sorts pins: those of led partitions first, and in both groups by urgency."""

    followed: bool
    urgency: Urgency


@dataclass(frozen=True, slots=True)
class HeldPin:
    """A pin that alone keeps `size` bytes on the disk."""

    topic_partition: TopicPartition
    base_offset: BaseOffset
    size: int
    pin_priority: PinPriority


def pins_to_release(held: Sequence[HeldPin], excess: int) -> tuple[HeldPin, ...]:
    """The pins to let go, so that at least `excess` bytes are freed.

    A follower's go first: the leader's sidecar most likely stores their records. Then the newest
    do: what is uploaded next is then still there, and the gap that this leaves behind the
    watermark is as late as it can be.
    """
    released = []
    for pin in sorted(held, key=lambda pin: (pin.pin_priority, pin.base_offset), reverse=True):
        if excess <= 0:
            break
        released.append(pin)
        excess -= pin.size
    return tuple(released)
