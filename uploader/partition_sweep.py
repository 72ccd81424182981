"""A look at many partitions, a few at a time, so that what is urgent does not wait for it."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from sidetier.uploader.partition import Partition

if TYPE_CHECKING:
    from sidetier.segments.offsets import TopicPartition

_AT_ONCE: Final = 50
_SLOWLY_SECONDS: Final = 0.25


class PartitionSweep:
    """Looks at partitions in turn: 50 per step of the daemon, or 200 a second where it is busy."""

    def __init__(self, look: Callable[[Partition], None], now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._left: dict[TopicPartition, Partition] = {}
        self._not_before = float("-inf")

    @property
    def next_at(self) -> float:
        """When to go on, in monotonic seconds; infinity when all have been looked at."""
        return self._not_before if self._left else float("inf")

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Look at these; those of an earlier round that are left keep their turn."""
        for partition in partitions:
            self._left[partition.topic_partition] = partition

    def go_on(self, *, slowly: bool) -> None:
        """The next few, if it is time."""
        now = self._now()
        if not self._left or now < self._not_before:
            return
        for tp in list(islice(self._left, _AT_ONCE)):
            self._look(self._left.pop(tp))
        self._not_before = now + (_SLOWLY_SECONDS if slowly else 0.0)
