"""The periodic tasks of the daemon, which do not depend on hints."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from sidetier.config.uploader import UploaderConfig
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.components import DaemonComponents
from sidetier.uploader.pinning.bounds import enforce_bounds
from sidetier.uploader.running.clock import Clock
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.watching.log_dirs import LogDirs

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


_ENFORCE_SECONDS: Final = 5.0
_NOW: Final = float("-inf")


class PeriodicTasks:
    """Lists directories again, enforces the limits of pins, and asks brokers.

    Args:
        config: The configuration of the uploader.
        parts: The parts of the daemon.
        log_dirs: The log dirs.
        clock: The clocks.
        metrics: Gets the numbers of pins.
        touch: Called with each partition that was examined.
    """

    def __init__(
        self,
        config: UploaderConfig,
        parts: DaemonComponents,
        log_dirs: LogDirs,
        clock: Clock,
        metrics: Metrics,
        touch: Callable[[Partition], None],
    ) -> None:
        self._config = config
        self._parts = parts
        self._log_dirs = log_dirs
        self._clock = clock
        self._metrics = metrics
        self._now = now = clock.monotonic
        self._touch = touch
        self._followed = PartitionSweep(self._look_at_followed, now)
        self._next_rescan = self._next_enforce = self._next_ask = _NOW
        self.followed_pins = 0
        """Number of pins for followed partitions at the last count, every 5 s."""

    def wait_seconds(self) -> float:
        """Return the seconds until the next task is due."""
        moments = [self._next_rescan, self._next_enforce, self._followed.next_at]
        if self._parts.scheduler.waiting:
            moments.append(self._next_ask)
        return min(self._parts.timers.next_in(), *(moment - self._now() for moment in moments))

    def keep(self) -> None:
        """Run the tasks that are due."""
        parts = self._parts
        for tp in parts.timers.due():
            partition = parts.leads.get(tp)
            if partition is not None:
                parts.scheduler.look(partition)
                self._touch(partition)
        now = self._now()
        if now >= self._next_enforce:
            self._look_after_pins()
        if now >= self._next_rescan:
            self._rescan()
        if parts.scheduler.waiting and now >= self._next_ask:
            self._ask_high_watermarks()
        self._followed.go_on(slowly=bool(parts.requests.waiting))

    def rescan_soon(self) -> None:
        """List everything at the next step, because events were lost."""
        self._next_rescan = _NOW

    def look_at_all_followed(self) -> None:
        """Begin a round over all followed partitions, after an update of which these are."""
        self._parts.leads.find_followed()
        self._followed.begin(self._parts.leads.followed())
        self._ask_topic_configs()

    def _look_at_followed(self, partition: Partition) -> None:
        if partition.follows and not partition.lost:
            self._look_if_changed(partition)

    def _look_if_changed(self, partition: Partition) -> None:
        self._parts.scheduler.look_if_changed(partition)
        self._touch(partition)

    def _rescan(self) -> None:
        """List all log dirs and partitions, because events may be missing."""
        polling = self._parts.watcher.polling
        interval = self._config.poll_interval if polling else self._config.rescan_interval
        self._log_dirs.rescan()
        for partition in self._parts.leads:
            self._look_if_changed(partition)
        self.look_at_all_followed()
        self._next_rescan = self._now() + interval

    def enforce_bounds(self) -> None:
        """Release pins and files in the spool that exceed the limits."""
        leads, spool = self._parts.leads, self._parts.scheduler.spool
        untaken = [] if spool is None else spool.untaken.values()
        enforce_bounds(
            self._parts.pins,
            self._config.pins,
            self._log_dirs.paths,
            [*leads.with_parked(), *untaken],
            self._clock,
            self._metrics,
        )

    def _look_after_pins(self) -> None:
        """Run the tasks of every 5 s, such as keeping the watch alive and limiting the pins."""
        leads = self._parts.leads
        self._next_enforce = self._now() + _ENFORCE_SECONDS
        if self._parts.watcher.keep_alive():
            self.rescan_soon()
        leads.release_parked()
        self._parts.unresolved.read_if_due(led.topic_partition.topic for led in leads)
        self._parts.cluster_snapshots.take_if_due()
        self._parts.chapters.write_if_due()
        self._ask_topic_configs()
        self.followed_pins = sum(partition.pins() for partition in leads.followed())
        self.enforce_bounds()

    def _ask_topic_configs(self) -> None:
        leads, rules = self._parts.leads, self._parts.rules
        topics: dict[str, str | None] = {}
        for partition in leads.all():
            topic = partition.topic_partition.topic
            if topic not in topics or not partition.unsure:
                topics[topic] = partition.topic_id or topics.get(topic)
        rules.ask(topics)

    def _ask_high_watermarks(self) -> None:
        """Compare waiting partitions with a newer checkpoint, and ask the brokers for the rest."""
        scheduler = self._parts.scheduler
        self._next_ask = self._now() + self._config.high_watermark.poll_interval
        for partition in list(scheduler.waiting.values()):
            scheduler.advance(partition)
            self._touch(partition)
        self._parts.asker.ask(list(scheduler.waiting))
