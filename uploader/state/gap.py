"""The gap behind the end of an archive: how long it waits, and the halt of a partition there."""

from dataclasses import dataclass, replace
from typing import Final

from sidetier.segments.offsets import OffsetRange

GAP_CONFIRM_SECONDS: Final = 2.0
"""Seconds between the two listings that must show a gap: a listing that is made while the broker
renames files may miss some of them.
"""
_GROWING_WAITS: Final = 2.0
"""A gap that keeps growing is recorded after this many times its patience."""


@dataclass(frozen=True, slots=True)
class GapWatch:
    """A gap that must last before it is recorded. Times are monotonic seconds.

    Attributes:
        gap: The missing offsets; None if there is no gap.
        began: When a gap with this start was seen first.
        seen: When the wait for `patience` began.
        patience: How long the gap must last.
        vouched: Whether a broker has confirmed this one as the leader after the wait.
    """

    gap: OffsetRange | None = None
    began: float = 0.0
    seen: float = 0.0
    patience: float = GAP_CONFIRM_SECONDS
    vouched: bool = False

    @property
    def due(self) -> float:
        """When the second listing may confirm the gap."""
        return self.seen + self.patience

    @property
    def waits_for_others(self) -> bool:
        """Whether the gap waits for the sidecars of other brokers to store the records."""
        return self.patience > GAP_CONFIRM_SECONDS

    def is_confirmed(self, listed_at: float | None) -> bool:
        """Whether the last listing, which shows the gap, was made after the wait."""
        if self.gap is None or listed_at is None:
            return False
        return listed_at - self.seen >= self.patience

    def may_be_recorded(self, listed_at: float | None) -> bool:
        """Whether the gap has lasted, and this broker has led until then."""
        return self.vouched and self.is_confirmed(listed_at)

    def watch(self, gap: OffsetRange | None, now: float, patience: float) -> "GapWatch":
        """Begin to wait if the gap is new or has changed.

        Args:
            gap: The gap now.
            now: When it was seen.
            patience: How long a new gap must last.
        """
        if gap == self.gap:
            return self
        goes_on = gap is not None and self.gap is not None and gap.start == self.gap.start
        began, seen = self.began if goes_on else now, now
        if now - began >= _GROWING_WAITS * self.patience:
            # The log start moves faster than the patience ends, and each move would begin a new
            # wait. The first part of the gap has waited long enough.
            seen = now - self.patience + GAP_CONFIRM_SECONDS
        return GapWatch(gap, began, seen, self.patience if gap is None else patience)

    def wait_anew(self, now: float) -> "GapWatch":
        """Begin the wait again because the store does not answer: other sidecars could not store
        the missing records either.
        """
        return replace(self, began=now, seen=now, vouched=False)

    def without_gap(self) -> "GapWatch":
        """Return a watch without a gap: it is recorded, or the archive must be read again."""
        return replace(self, gap=None)


NO_GAP: Final = GapWatch()


@dataclass(frozen=True, slots=True)
class Halt:
    """Nothing is archived until an operator acts.

    Attributes:
        reason: What has halted the partition.
        gap: The gap at which `uploader.on_gap: halt` has halted it, else None. The archive is read
            again from time to time: the sidecar of another replica may have stored the records.
    """

    reason: str
    gap: OffsetRange | None = None

    @classmethod
    def at(cls, gap: OffsetRange) -> "Halt":
        """Return the halt at a gap."""
        return cls(
            f"offsets {gap} are gone from this broker before they were stored, and uploader.on_gap "
            "is halt",
            gap,
        )
