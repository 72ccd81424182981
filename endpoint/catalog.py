"""The topics and partitions of an archive, as clients see them: names, ids, offsets.

A snapshot of a partition is read when a client needs it, and kept for some seconds. While clients
wait at a partition's end, a new snapshot is taken every second, and they are woken when the archive
has changed. The topics are listed every 30 s, and when a client names a topic that is not known.
Each store has its own threads for both, so that one that hangs delays no other.
"""

import binascii
import hashlib
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.tailed_archive import SharedTails, open_partition
from sidetier.archive.topics import cluster_prefixes, numbers_by_topic, stored_partitions
from sidetier.archive.view import ArchiveView
from sidetier.endpoint.blocks import SegmentBytes
from sidetier.endpoint.live.logs import LiveLogs
from sidetier.endpoint.live.reads import LiveState
from sidetier.endpoint.log_limits import FewPerSubject, Once
from sidetier.endpoint.transactions import ServedTransactions
from sidetier.segments.errors import SidetierError, StoreTimeoutError, StoreUnavailableError
from sidetier.segments.headers import batch_bytes
from sidetier.segments.names import partition_count
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.settings import StorageEndpoint
from sidetier.telemetry.logs import logger

log = logger()

_AT_ONCE: Final = 16
"""Most requests to one store at the same time, besides those that answer clients."""
_WALK_BYTES: Final = 1 << 20
_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """How often the store is asked, in seconds.

    Attributes:
        poll_interval: Between snapshots of a partition at whose end clients wait.
        max_age: Maximum age of a snapshot that answers a request.
        discovery_interval: Between listings of all topics.
        shortest_discovery: Least time between listings because of unknown topics.
        listing_timeout: Maximum wait for the listing of a store. The listing goes on after it.
        with_tail: Whether clients read on in tail packs behind the archive end offset. With a live
            cluster: while the leader is away.
        tail_interval: Minimum time between two readings of the packs of a store.
    """

    poll_interval: float = 1.0
    max_age: float = 5.0
    discovery_interval: float = 30.0
    shortest_discovery: float = 1.0
    listing_timeout: float = 10.0
    with_tail: bool = False
    tail_interval: float = 5.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the archive.

    Attributes:
        name: Its name.
        topic_id: Its id.
        partitions: Clients are shown the partitions 0 to `partitions` - 1.
        stored: Those of them that have objects, ascending. The others are empty.
    """

    name: str
    topic_id: UUID
    partitions: int
    stored: tuple[int, ...]


class Partition:
    """One partition in the archive. Thread-safe."""

    def __init__(
        self, archive: PartitionArchive, segment_bytes: SegmentBytes, settings: CatalogSettings
    ) -> None:
        self.archive = archive
        self._settings = settings
        self._bytes = segment_bytes
        self.transactions = ServedTransactions(archive, self._batches)
        self._reported_changes = 0
        self.other_id: UUID | None = None
        """Id in its archive that is not the topic's, as the latest listing showed."""

    @property
    def tp(self) -> TopicPartition:
        """Topic and number."""
        return self.archive.tp

    def view(self, max_age: float | None = None) -> ArchiveView | None:
        """Return the archive, at most `max_age` seconds old; None if nothing is stored.

        Raises:
            ConfigurationError, ArchiveError, StorageError: As `PartitionArchive.snapshot`.
        """
        # `bounds` also lists all objects now and then: the store may have deleted the oldest ones.
        self.archive.bounds(self._settings.max_age if max_age is None else max_age)
        latest = self.archive.latest
        if latest is None:
            return None
        for change in latest.changes[self._reported_changes :]:
            if change.message is not None:
                log.warning(
                    "endpoint.archive_replaced",
                    topic=self.tp.topic,
                    partition=self.tp.partition,
                    first_offset=change.first,
                    detail=change.message,
                )
        self._reported_changes = len(latest.changes)
        return latest.view

    def require_known_end(self) -> None:
        """Check that the end of the latest view is that of the tail.

        Raises:
            StoreUnavailableError: A pack cannot be read, or contradicts another one.
        """
        problem = self.archive.problem
        if problem is not None:
            # Clients that stop at the end would take it for the last record.
            raise StoreUnavailableError(f"it is not known what follows the archive: {problem}")

    def renew(self) -> None:
        """List all objects again: one of them is not as it was listed. Raises as `view`."""
        self.archive.snapshot(thorough=True)
        self.view()

    def _batches(self, stored: StoredLog, position: int) -> memoryview:
        topic = self.tp.topic
        data = self._bytes.read(topic, stored, position, _WALK_BYTES)
        size = batch_bytes(data)
        if len(data) < size <= stored.size - position:
            data = self._bytes.read(topic, stored, position, size)
        return memoryview(data)


ArchiveState = tuple[str, Offset] | None
"""Etag of `offset.wm` and archive end offset; None if there is no archive."""
State = tuple[ArchiveState, LiveState]
"""What shows whether a partition has changed: in the archive, and at its leader."""
NO_STATE: Final[State] = (None, None)


def state_of(view: ArchiveView | None) -> ArchiveState:
    """Return what differs between two snapshots of an archive that has changed."""
    return None if view is None else (view.etag, view.end)


@dataclass(slots=True)
class _Listing:
    """The topics of one store.

    Attributes:
        topics: As the store was listed last; None if no listing has succeeded.
        error: Why the latest listing has failed.
        began_at: Monotonic second at which the latest listing began.
        ended_at: When it ended.
        listed_at: When the latest one that has succeeded began.
        is_running: Whether it has not ended.
        is_reported: Whether it was logged that it takes too long.
    """

    topics: Mapping[str, Topic] | None = None
    error: Exception | None = None
    began_at: float = float("-inf")
    ended_at: float = float("-inf")
    listed_at: float = float("-inf")
    is_running: bool = False
    is_reported: bool = False


class Catalog:
    """All topics of a cluster's archive. Thread-safe. `start` starts its threads.

    Args:
        archive: The cluster's archive.
        segment_bytes: Reads segments.
        settings: How often the store is asked.
        clock: Returns monotonic seconds.
        live: The live cluster, whose topics are shown too; None for the archive alone.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        segment_bytes: SegmentBytes,
        settings: CatalogSettings | None = None,
        clock: Clock = monotonic,
        live: LiveLogs | None = None,
    ) -> None:
        self._archive = archive
        self.live: Final = live
        self._shown_live: object = None
        """The ids and partitions of live topics that `topics` has."""
        self._bytes = segment_bytes
        self._settings = settings or CatalogSettings()
        self._clock = clock
        self._settings_check = SettingsCheck(archive)
        self._listed = threading.Condition()
        """Guards `_listings`; notified when a listing ends."""
        self._listings: dict[StorageEndpoint, _Listing] = {}
        self._guard = threading.Lock()
        self._warned = Once()
        self._events = FewPerSubject(clock)
        self._closed = threading.Event()
        self._topics: Mapping[str, Topic] = {}
        self._by_id: Mapping[UUID, Topic] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._tailed: dict[TopicPartition, Partition] = {}
        """With a live cluster: the partitions with their tails."""
        self._tails = (
            SharedTails(archive, clock, self._settings.tail_interval)
            if self._settings.with_tail
            else None
        )
        self._watchers: dict[TopicPartition, set[Callable[[], None]]] = {}
        self._refreshing: set[TopicPartition] = set()
        """Watched archives that are being read, or wait for a thread of their store."""
        self._announced: dict[TopicPartition, State] = {}
        self._helpers: dict[StorageEndpoint, ThreadPoolExecutor] = {}
        self.threads = (
            threading.Thread(target=self._run_refresh, name="endpoint-refresh", daemon=True),
        )

    def start(self) -> None:
        """List the topics, and start to refresh them.

        A store that cannot be listed, or not in time, is logged, and tried again. At least one
        store must be listed, unless a live cluster shows topics.

        Raises:
            ConfigurationError, ArchiveError, StorageError: No store can be read.
        """
        provider = self._archive.provider
        self._list(provider.endpoints, 0.0)
        if self.live is None:
            with self._listed:
                # Without any store, the answer would be that no topic exists.
                self._listed.wait_for(lambda: not self._running() or self._is_any_listed())
                failure = self._listings[provider.default].error
                if failure is not None and not self._is_any_listed():
                    raise failure
        if self.live is not None:
            self.live.listen(self._live_changed)
            with self._listed:
                self._show_topics()
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads, and wake all that wait."""
        self._closed.set()
        with self._guard:
            watched = tuple(self._watchers)
        self._notify(watched)
        with self._listed:
            self._listed.notify_all()
        for thread in self.threads:
            if thread.is_alive():
                thread.join()
        with self._guard:
            helpers = list(self._helpers.values())
        for executor in helpers:
            executor.shutdown(wait=False, cancel_futures=True)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called: nobody waits any more."""
        return self._closed.is_set()

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._archive.layout.cluster

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that clients are shown: the live cluster's, or else the name."""
        watch = None if self.live is None else self.live.watch
        # The archive may know the id before a broker answers: other endpoints show it, too.
        live_id = None if watch is None else watch.latest.cluster_id or watch.wanted_cluster_id
        return live_id or self.cluster

    @property
    def archive(self) -> ArchiveAccess:
        """The archive."""
        return self._archive

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name; another object after each change."""
        return self._topics

    def status(self) -> list[dict[str, object]]:
        """Return the stores, how old their lists of topics are, and what fails, as JSON."""
        with self._listed:
            return [
                {
                    "url": endpoint.url,
                    "topics": None if listing.topics is None else len(listing.topics),
                    "age_seconds": (
                        None
                        if listing.topics is None
                        else round(self._clock() - listing.listed_at, 1)
                    ),
                    "problem": None if listing.error is None else str(listing.error),
                }
                for endpoint, listing in self._listings.items()
            ]

    def topic(self, name: str) -> Topic | None:
        """Return a topic; None if it is not in the archive."""
        if name not in self._topics:
            self._list_for_unknown(name)
        return self._topics.get(name)

    def topic_of_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic that has this id now; None if there is none."""
        if topic_id not in self._by_id:
            self._list_for_unknown(None, lambda: topic_id in self._by_id)
        return self._by_id.get(topic_id)

    def has_topic_id(self, partition: Partition, view: ArchiveView, topic_id: UUID) -> bool:
        """Return whether a topic still has the id by which a client asks for a partition.

        A topic that was deleted and created again has another id: a client that read the deleted
        one must not continue in the new one at the same offset. The partitions of a topic may have
        different ids for some time; the topic then has the id of the first one.

        Raises:
            ConfigurationError, ArchiveError, StorageError: The topic's store cannot be listed.
        """
        own = parse_topic_id(view.watermark.topic_id)
        if own is not None and own not in {topic_id, partition.other_id}:
            endpoint = self._archive.provider.endpoint(partition.tp.topic)
            if failures := self._list((endpoint,), 0.0):
                raise failures[0]
            partition.other_id = own
        return topic_id in self._by_id

    def archived_topic_id(self, name: str) -> str | None:
        """Return the id that the archived cluster gave a topic, as Kafka writes ids.

        It is at most `max_age` old, so it can be newer than `Topic.topic_id`. While the archive
        cannot be read, it is the last known one: committed offsets that are stored without an id
        would stay valid after the topic is created again.

        Returns:
            The id. None if the topic is not in the archive, if its archive has no id (Kafka before
            2.8), or was never read.
        """
        topic = self.topic(name)
        can_read = True
        for number in () if topic is None else topic.stored:
            partition = self._partition(TopicPartition(name, number))
            try:
                if can_read:
                    partition.view()
            except SidetierError as error:
                can_read = False  # one wait for the store, not one for each partition
                self._report_failure(partition.tp, error)
            latest = partition.archive.latest
            view = None if latest is None else latest.view
            if view is not None:
                topic_id = parse_topic_id(view.watermark.topic_id)
                return None if topic_id is None else format_topic_id(topic_id)
        return None

    def partition(self, name: str, number: int) -> Partition | None:
        """Return a partition; None if it is not in the archive."""
        topic = self.topic(name)
        if topic is not None and self.live is not None and number >= topic.partitions:
            # Another endpoint behind the same address may have shown the client a new partition.
            self.live.look_for_topics()
            topic = self._topics.get(name)
        if topic is None or not 0 <= number < topic.partitions:
            return None
        return self._partition(TopicPartition(name, number))

    def wait_for_change(self, seen: Mapping[TopicPartition, State], deadline: float) -> bool:
        """Wait until one of these archives is in another state, or until the deadline.

        Returns:
            Whether an archive has changed.
        """
        # One lock for each waiting thread: one condition for all of them would wake every client
        # for each partition that changes, and would search all of them at the end of each wait.
        is_unchanged = threading.Lock()

        def report_change() -> None:
            if is_unchanged.locked():
                is_unchanged.release()

        is_unchanged.acquire()
        self.watch(seen, report_change)
        try:
            while not self._closed.is_set():
                if self.is_changed(seen):
                    return True
                left = deadline - self._clock()
                if left <= 0 or not is_unchanged.acquire(timeout=left):
                    break
        finally:
            self.unwatch(seen, report_change)
        return False

    def watch(self, tps: Iterable[TopicPartition], notify: Callable[[], None]) -> None:
        """Read these archives every `poll_interval` s, and call `notify` after changes.

        Another thread calls it, once for each archive that has changed. It is also called without a
        change: when an archive is watched for the first time, and when the catalog is closed. Ask
        `is_changed` for the reason.
        """
        with self._guard:
            for tp in tps:
                self._watchers.setdefault(tp, set()).add(notify)

    def unwatch(self, tps: Iterable[TopicPartition], notify: Callable[[], None]) -> None:
        """Undo `watch`."""
        with self._guard:
            for tp in tps:
                self._watchers[tp].discard(notify)
                if not self._watchers[tp]:
                    del self._watchers[tp]

    def is_changed(self, seen: Mapping[TopicPartition, State]) -> bool:
        """Return whether one of these archives is known to be in another state."""
        return any(self._state(tp) != state for tp, state in seen.items())

    def _notify(self, tps: Iterable[TopicPartition]) -> None:
        with self._guard:
            for tp in tps:
                for notify in self._watchers.get(tp, ()):
                    notify()

    def _live_changed(self, tps: Collection[TopicPartition]) -> None:
        self._notify(tps)
        if self.live is not None and self.live.topics.shape is not self._shown_live:
            with self._listed:
                self._show_topics()

    def _state(self, tp: TopicPartition) -> State:
        latest = self._partition(tp).archive.latest
        live = None if self.live is None else self.live.reads.state(tp)
        return None if latest is None else state_of(latest.view), live

    @property
    def tail_patience(self) -> float:
        """Seconds after which every endpoint has read the packs again."""
        return 2 * self._settings.tail_interval

    def tailed(self, tp: TopicPartition) -> Partition | None:
        """Return a partition with its tail, also if the live cluster has it; None if tails are not
        read.
        """
        if self._tails is None:
            return None
        if self.live is None:
            return self._partition(tp)
        return self._known_partition(self._tailed, tp, self._tails)

    def _partition(self, tp: TopicPartition) -> Partition:
        # With a live cluster, the leader has what follows the archive.
        tails = self._tails if self.live is None else None
        return self._known_partition(self._partitions, tp, tails)

    def _known_partition(
        self, known: dict[TopicPartition, Partition], tp: TopicPartition, tails: SharedTails | None
    ) -> Partition:
        partition = known.get(tp)
        if partition is None:
            archive = open_partition(tp, self._archive, self._settings_check, self._clock, tails)
            made = Partition(archive, self._bytes, self._settings)
            partition = known.setdefault(tp, made)  # atomic: another thread may be first
        return partition

    def _run_refresh(self) -> None:
        while not self._closed.wait(self._settings.poll_interval):
            try:
                self._refresh()
            except Exception:
                # Without this thread, no client would see the archive grow.
                log.exception("endpoint.refresh_failed")
            try:
                provider = self._archive.provider
                self._begin_listings(provider.endpoints, self._settings.discovery_interval)
            except SidetierError as error:
                log.warning("endpoint.discovery_failed", error=str(error))
            except Exception:
                log.exception("endpoint.discovery_failed")

    def _refresh(self) -> None:
        """Begin to read all watched archives, but those that are still being read."""
        with self._guard:
            due = self._watchers.keys() - self._refreshing
            if self.live is not None:
                # Their leaders show the new records before the archive has them.
                followers = self.live.reads.followers
                due = {tp for tp in due if not followers.is_followed(tp)}
            self._announced = {
                tp: state for tp, state in self._announced.items() if tp in self._watchers
            }
        for tp in due:
            self._begin_refresh(tp)

    def read_soon(self, tp: TopicPartition) -> None:
        """Read an archive in another thread, unless it was read some seconds ago."""
        latest = self._partition(tp).archive.latest
        if latest is None or self._clock() - latest.taken_at >= self._settings.max_age:
            with suppress(RuntimeError):  # the system allows no more threads now
                self._begin_refresh(tp)

    def _begin_refresh(self, tp: TopicPartition) -> None:
        """Read an archive in another thread, unless it is being read."""
        try:
            helpers = self._helpers_of(tp.topic)
        except SidetierError as error:
            self._report_failure(tp, error)
            return
        with self._guard:
            if tp in self._refreshing or self._closed.is_set():
                return
            self._refreshing.add(tp)
        try:
            helpers.submit(self._refresh_one, tp)
        except RuntimeError:  # the system allows no more threads, or the catalog is closed
            with self._guard:
                self._refreshing.discard(tp)
            if not self._closed.is_set():
                raise

    def _report_failure(self, tp: TopicPartition, error: SidetierError) -> None:
        if failures := self._events.count(tp.topic):
            log.warning(
                "endpoint.refresh_failed",
                topic=tp.topic,
                partition=tp.partition,
                error=str(error),
                failures=failures,
            )

    def _refresh_one(self, tp: TopicPartition) -> None:
        """Read an archive, and notify its watchers if it has changed."""
        try:
            self._partition(tp).view(self._settings.poll_interval / 2)
        except SidetierError as error:
            self._report_failure(tp, error)
        except Exception:
            if self._events.count(tp.topic):
                log.exception("endpoint.refresh_failed", topic=tp.topic, partition=tp.partition)
        with self._guard:
            self._refreshing.discard(tp)
            # Compared with the state that was announced last, not with that before this read: a
            # request of another client may have read the new state meanwhile.
            state = self._state(tp)
            is_new = tp not in self._announced or self._announced[tp] != state
            self._announced[tp] = state
        if is_new:
            self._notify((tp,))

    def _helpers_of(self, topic: str) -> ThreadPoolExecutor:
        """Return the threads for the store of a topic."""
        return self._helpers_at(self._archive.provider.endpoint(topic))

    def _helpers_at(self, endpoint: StorageEndpoint) -> ThreadPoolExecutor:
        with self._guard:
            if endpoint not in self._helpers:
                self._helpers[endpoint] = ThreadPoolExecutor(_AT_ONCE, "endpoint-catalog")
            return self._helpers[endpoint]

    def _list_for_unknown(
        self, name: str | None, is_known: Callable[[], bool] = lambda: False
    ) -> None:
        """Ask for the live topics; list the store of a topic, or all stores until it is known."""
        if self.live is not None:
            self.live.look_for_topics()
            if is_known() or name in self._topics:
                return
        provider = self._archive.provider
        try:
            endpoints = provider.endpoints if name is None else (provider.endpoint(name),)
            self._list(endpoints, self._settings.shortest_discovery, is_known)
        except SidetierError as error:
            log.warning("endpoint.discovery_failed", error=str(error))

    def _list(
        self,
        endpoints: Sequence[StorageEndpoint],
        max_age: float,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> list[Exception]:
        """List stores side by side, and wait for each of them for up to `listing_timeout` seconds.

        The topics of each store are shown as soon as it is listed. Those of a store that cannot be
        listed stay as they were. A listing that takes longer goes on; nobody waits for it again.

        Args:
            endpoints: The stores.
            max_age: Seconds for which an earlier listing will do.
            is_enough: Whether to wait no longer.

        Returns:
            Why stores are not listed.
        """
        self._begin_listings(endpoints, max_age)
        timeout = self._settings.listing_timeout
        with self._listed:
            while not self._closed.is_set() and not is_enough():
                running = self._running().intersection(endpoints)
                began_at = max((self._listings[each].began_at for each in running), default=None)
                left = 0.0 if began_at is None else began_at + timeout - self._clock()
                if left <= 0 or not self._listed.wait(left):
                    break
            running = self._running()
            failures = [
                _late(endpoint, timeout) if endpoint in running else self._listings[endpoint].error
                for endpoint in endpoints
            ]
        return [failure for failure in failures if failure is not None]

    def _begin_listings(self, endpoints: Sequence[StorageEndpoint], max_age: float) -> None:
        """Begin to list stores, but those that are being listed, or were `max_age` seconds ago."""
        for endpoint in endpoints:
            with self._listed:
                listing = self._listings.setdefault(endpoint, _Listing())
                now, timeout = self._clock(), self._settings.listing_timeout
                if listing.is_running:
                    if now - listing.began_at >= timeout and not listing.is_reported:
                        listing.is_reported = True
                        error = _late(endpoint, timeout)
                        log.warning(
                            "endpoint.discovery_failed", store=endpoint.url, error=str(error)
                        )
                    continue
                if now - listing.ended_at < max_age or self._closed.is_set():
                    continue
                listing.is_running, listing.is_reported, listing.began_at = True, False, now
            try:
                self._helpers_at(endpoint).submit(self._list_store, endpoint, listing)
            except RuntimeError:  # the system allows no more threads, or the catalog is closed
                with self._listed:
                    listing.is_running = False
                raise

    def _list_store(self, endpoint: StorageEndpoint, listing: _Listing) -> None:
        """List the topics of a store, and show them."""
        topics: Mapping[str, Topic] | None = None
        error: Exception | None = None
        try:
            topics = self._stored_topics(endpoint)
        except SidetierError as failure:
            # The requests of clients report errors of their partitions; this one is of none.
            if listings := self._events.count(endpoint):
                log.warning(
                    "endpoint.discovery_failed",
                    store=endpoint.url,
                    error=str(failure),
                    listings=listings,
                )
            error = failure
        except Exception as failure:
            if not self._closed.is_set():  # `close` cancels the requests that have not begun
                log.exception("endpoint.discovery_failed", store=endpoint.url)
            error = failure
        with self._listed:
            if topics is not None:
                listing.topics, listing.listed_at = topics, listing.began_at
            listing.error, listing.ended_at, listing.is_running = error, self._clock(), False
            self._show_topics()
            self._listed.notify_all()

    def _show_topics(self) -> None:
        topics = {
            name: topic
            for listing in self._listings.values()
            for name, topic in (listing.topics or {}).items()
        }
        if self.live is not None:
            live = self.live.topics
            self._shown_live = live.shape
            for name, shown in live.topics.items():
                known = topics.get(name)
                topics[name] = Topic(
                    name,
                    shown.topic_id or (self._derived_id(name) if known is None else known.topic_id),
                    max(shown.partitions, default=-1) + 1,
                    () if known is None else known.stored,
                )
        # Replaced only if it has changed: cached answers to Metadata compare it by identity.
        if topics != self._topics:
            self._topics = dict(sorted(topics.items()))
            self._by_id = {topic.topic_id: topic for topic in topics.values()}
            partitions = sum(topic.partitions for topic in topics.values())
            log.info("endpoint.topics", topics=len(topics), partitions=partitions)

    def _running(self) -> set[StorageEndpoint]:
        return {endpoint for endpoint, listing in self._listings.items() if listing.is_running}

    def _is_any_listed(self) -> bool:
        return any(listing.topics is not None for listing in self._listings.values())

    def _stored_topics(self, endpoint: StorageEndpoint) -> Mapping[str, Topic]:
        provider, layout = self._archive.provider, self._archive.layout
        store, helpers = self._archive.stores.at(endpoint), self._helpers_at(endpoint)
        listings = helpers.map(
            lambda prefix: list(stored_partitions(store, layout, prefix)),
            cluster_prefixes(store, layout),
        )
        # A topic that moved to another store may have left objects in this one.
        stored_tps = {
            tp for tps in listings for tp in tps if provider.endpoint(tp.topic) == endpoint
        }
        if self._tails is not None:
            stored_tps |= set(self._tails.partitions(endpoint, self._settings.discovery_interval))
        numbers = numbers_by_topic(sorted(stored_tps))
        counts: dict[str, int] = {}
        stored: dict[str, tuple[int, ...]] = {}
        for name, of_topic in numbers.items():
            count, too_high = partition_count(of_topic)
            if too_high and self._warned.is_new((name, too_high[0])):
                log.warning(
                    "endpoint.partition_left_out",
                    topic=name,
                    partition=too_high[0],
                    help="hardly any partition below it has objects, so clients do not see it; if "
                    "its objects are of no partition, delete them",
                )
            if count:
                counts[name] = count
                stored[name] = tuple(sorted(number for number in of_topic if number < count))
        ids = helpers.map(lambda name: self._topic_id(name, stored[name]), counts)
        return {
            name: Topic(name, topic_id, counts[name], stored[name])
            for name, topic_id in zip(counts, ids, strict=True)
        }

    def _topic_id(self, name: str, numbers: Iterable[int]) -> UUID:
        """Return the cluster's own id of a topic, or else one that follows from its name."""
        for number in numbers:
            try:
                view = self._partition(TopicPartition(name, number)).view(
                    self._settings.discovery_interval / 2
                )
            except SidetierError as error:
                self._report_failure(TopicPartition(name, number), error)
                # A topic keeps its id while its archive cannot be read.
                known = self._topics.get(name)
                if known is not None:
                    return known.topic_id
                continue
            if view is not None:
                return parse_topic_id(view.watermark.topic_id) or self._derived_id(name)
        return self._derived_id(name)

    def _derived_id(self, name: str) -> UUID:
        digest = hashlib.sha256(f"{self.cluster}/{name}".encode()).digest()
        return UUID(bytes=digest[:16], version=4)


def _late(endpoint: StorageEndpoint, timeout: float) -> StoreTimeoutError:
    return StoreTimeoutError(f"{endpoint.url}: not listed within {timeout:.0f} s")


def parse_topic_id(text: str | None) -> UUID | None:
    """Parse the text of Kafka's `Uuid.toString`; None if it is not an id, or is the zero id."""
    try:
        raw = urlsafe_b64decode(f"{text or ''}==")
    except (binascii.Error, ValueError):
        return None
    return UUID(bytes=raw) if len(raw) == _ID_BYTES and any(raw) else None


def format_topic_id(topic_id: UUID) -> str:
    """Return an id as Kafka's `Uuid.toString` writes it."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
