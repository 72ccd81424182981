"""The periodic tasks of the daemon, which do not depend on hints."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from sidetier.config.uploader import UploaderConfig
from sidetier.uploader.gates.high_watermark import HighWatermarkAsker
from sidetier.uploader.gates.topic_rules import TopicRules
from sidetier.uploader.led_partitions import LedPartitions
from sidetier.uploader.running.loop import Timers
from sidetier.uploader.scheduler import PartitionScheduler
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.watching.log_dirs import LogDirs
from sidetier.uploader.watching.watch import Watcher

if TYPE_CHECKING:
    from sidetier.segments.offsets import TopicPartition


_AT_ONCE: Final = 50
_SLOWLY_SECONDS: Final = 0.25


class PartitionSweep:
    """Calls `look` for partitions in turn: 50 per step of the daemon, or 200 a second if slowed."""

    def __init__(self, look: Callable[[Partition], None], now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._left: dict[TopicPartition, Partition] = {}
        self._not_before = float("-inf")

    @property
    def next_at(self) -> float:
        """When to continue, in monotonic seconds; infinity if no partition is left."""
        return self._not_before if self._left else float("inf")

    def begin(self, partitions: Iterable[Partition]) -> None:
        """Add partitions. Those left from an earlier round keep their turn."""
        for partition in partitions:
            self._left[partition.topic_partition] = partition

    def go_on(self, *, slowly: bool) -> None:
        """Call `look` for the next partitions if that is due."""
        now = self._now()
        if not self._left or now < self._not_before:
            return
        for tp in list(islice(self._left, _AT_ONCE)):
            self._look(self._left.pop(tp))
        self._not_before = now + (_SLOWLY_SECONDS if slowly else 0.0)


_HOUSEKEEPING_SECONDS: Final = 5.0
_NOW: Final = float("-inf")


class PeriodicTasks:
    """Runs tasks at their times: listings, requests for high watermarks, housekeeping.

    Args:
        config: Intervals.
        now: Monotonic seconds.
        partitions: Those that are led or followed.
        scheduler: Lists the directory of a partition.
        timers: When to list which partition again.
        asker: Partitions that wait for a high watermark.
        rules: Asks for the configuration of topics.
        watcher: Reports whether file system events work, or directories are polled.
        log_dirs: The log dirs, listed at each rescan.
        housekeeping: Called every 5 s.
        touch: Called with each partition that was listed.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is another part of the daemon
        self,
        config: UploaderConfig,
        now: Callable[[], float],
        partitions: LedPartitions,
        scheduler: PartitionScheduler,
        timers: Timers,
        asker: HighWatermarkAsker,
        rules: TopicRules,
        watcher: Watcher,
        log_dirs: LogDirs,
        housekeeping: Callable[[], None],
        touch: Callable[[Partition], None],
    ) -> None:
        self._config = config
        self._now = now
        self._partitions = partitions
        self._scheduler = scheduler
        self._timers = timers
        self._asker = asker
        self._rules = rules
        self._watcher = watcher
        self._log_dirs = log_dirs
        self._housekeeping = housekeeping
        self._touch = touch
        self._followed = PartitionSweep(self._look_at_followed, now)
        self._next_rescan = self._next_housekeeping = self._next_ask = _NOW

    def wait_seconds(self) -> float:
        """Return the seconds until the next task is due."""
        moments = [self._next_rescan, self._next_housekeeping, self._followed.next_at]
        if self._asker.waiting:
            moments.append(self._next_ask)
        return min(self._timers.next_in(), *(moment - self._now() for moment in moments))

    def run_due(self, *, slowly: bool) -> None:
        """Run the tasks that are due; `slowly` while requests to the store wait for a thread."""
        for tp in self._timers.due():
            partition = self._partitions.get(tp)
            if partition is not None:
                self._scheduler.look(partition)
                self._touch(partition)
        now = self._now()
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING_SECONDS
            if self._watcher.keep_alive():
                self.rescan_soon()
            self._housekeeping()
        if now >= self._next_rescan:
            self._rescan()
        if self._asker.waiting and now >= self._next_ask:
            self._ask_high_watermarks()
        self._followed.go_on(slowly=slowly)

    def rescan_soon(self) -> None:
        """List everything at the next step, because events were lost."""
        self._next_rescan = _NOW

    def look_at_all_followed(self) -> None:
        """Begin a round over all followed partitions, after an update of which these are."""
        self._partitions.find_followed()
        self._followed.begin(self._partitions.followed())
        self._rules.ask_for(self._partitions.all())

    def _look_at_followed(self, partition: Partition) -> None:
        if partition.follows and not partition.lost:
            self._look_if_changed(partition)

    def _look_if_changed(self, partition: Partition) -> None:
        self._scheduler.look_if_changed(partition)
        self._touch(partition)

    def _rescan(self) -> None:
        """List all log dirs and partitions, because events may be missing."""
        polling = self._watcher.polling
        interval = self._config.poll_interval if polling else self._config.rescan_interval
        self._log_dirs.rescan()
        for partition in self._partitions:
            self._look_if_changed(partition)
        self.look_at_all_followed()
        self._next_rescan = self._now() + interval

    def _ask_high_watermarks(self) -> None:
        """A checkpoint may have been written since; for those that still wait, ask the brokers."""
        self._next_ask = self._now() + self._config.high_watermark.poll_interval
        for partition in list(self._asker.waiting.values()):
            self._scheduler.advance(partition)
            self._touch(partition)
        self._asker.ask()
